"""Reads the `tokenizer.ggml.*` keys of a GGUF file as a `TokenizerData`; defaults are llama.cpp's."""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.families import END_OF_TURN, LIMITS, shown
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.source import TokenizerData
from outrider.models.text.fim import END_NAMES, NAMES, fim_roles

_KEY = "tokenizer.ggml."
_KINDS: dict[str, Literal["bpe", "spm"]] = {"gpt2": "bpe", "llama": "spm"}
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
# Some converters write -1, as an unsigned number, for a token that the model does not have.
_UNSET = ((1 << 32) - 1, (1 << 64) - 1)

# Keys of the tokens for filling in, by role; the second ones are older.
_FIM_KEYS = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "pad": ("fim_pad",),
    "repository": ("fim_rep",),
    "file": ("fim_sep",),
}

logger = logging.getLogger("outrider")

# Pre-tokenizers of models whose prompts begin with bos unless add_bos_token is given.
_BOS_BY_DEFAULT = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)


def read_tokenizer(metadata: Metadata, vocab_size: int) -> TokenizerData:
    """The tokenizer of a model with `vocab_size` embedding rows, which may be padded to more than its pieces.

    Raises UnsupportedModelError for another kind of tokenizer, ModelFileError for keys that are missing
    or do not fit together.
    """
    path = metadata.path
    model = metadata.text(_KEY + "model")
    kind = _KINDS.get(model)
    if kind is None:
        raise UnsupportedModelError(
            f"{path}: has the tokenizer {shown(model)}; supported: {', '.join(_KINDS)}"
        )
    tokens = metadata.pieces(_KEY + "tokens")
    n = len(tokens)
    if not 1 <= n <= min(vocab_size, LIMITS["vocab_size"]):
        raise ModelFileError(f"{path}: has {n} token pieces for {vocab_size} embedding rows")
    types = metadata.array(_KEY + "token_type", np.int64)
    types = np.full(n, _NORMAL, np.int64) if types is None else types
    scores = metadata.array(_KEY + "scores", np.float32)
    if scores is None:
        if kind == "spm":
            raise ModelFileError(f"{path}: the key {_KEY}scores is missing")
        scores = np.empty(0, np.float32)
    for key, array in (("token_type", types), ("scores", scores)):
        if len(array) not in ((n,) if key == "token_type" or kind == "spm" else (n, 0)):
            raise ModelFileError(f"{path}: {_KEY}{key} has {len(array)} entries for {n} pieces")
    if ((types < 0) | (types > _BYTE)).any():
        raise ModelFileError(f"{path}: {_KEY}token_type has entries that are not between 0 and {_BYTE}")
    if kind == "spm" and not np.isfinite(scores).all():
        raise ModelFileError(f"{path}: {_KEY}scores has entries that are not finite")

    spm = kind == "spm"
    pre = metadata.text(_KEY + "pre", "default") if not spm else ""
    if not spm and _KEY + "pre" not in metadata:
        logger.warning(
            "%s: does not name its pre-tokenizer (%spre), so texts are split by llama.cpp's default, which"
            " may not be the model's: convert it again",
            path,
            _KEY,
        )
    bos, eos = (
        _special(metadata, n, "bos", 1 if spm and n > 1 else None),
        _special(metadata, n, "eos", 2 if spm and n > 2 else None),
    )
    unknown, padding = _special(metadata, n, "unknown", 0 if spm else None), _special(metadata, n, "padding")
    ends = [eos, _special(metadata, n, "eot"), _special(metadata, n, "eom")]
    fim = _fim(metadata, n)
    named = np.flatnonzero((types == _CONTROL) | (types == _USER_DEFINED))
    ends += [int(i) for i in named if tokens[i] in END_OF_TURN]
    roles = fim_roles(tokens, fim)
    ends += [roles[role] for role in END_NAMES if role in roles]
    return TokenizerData(
        kind=kind,
        pre=pre,
        tokens=tokens,
        types=types.astype(np.int32),
        # llama.cpp ignores the merges of a SentencePiece-style vocabulary: its scores order all merges.
        merges=() if spm else metadata.pieces(_KEY + "merges"),
        scores=scores,
        bos_id=bos,
        eos_id=eos,
        eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        unk_id=unknown,
        pad_id=padding,
        fim=fim,
        add_bos=metadata.flag(_KEY + "add_bos_token", spm or pre in _BOS_BY_DEFAULT),
        add_eos=metadata.flag(_KEY + "add_eos_token", False),
        add_space_prefix=metadata.flag(_KEY + "add_space_prefix", spm),
        named={
            # llama.cpp gives templates an empty text for a bos or eos that a model does not have.
            "bos_token": "" if bos is None else tokens[bos],
            "eos_token": "" if eos is None else tokens[eos],
            **({} if unknown is None else {"unk_token": tokens[unknown]}),
            **({} if padding is None else {"pad_token": tokens[padding]}),
        },
    )


def _fim(metadata: Metadata, n: int) -> dict[str, int]:
    """The ids of the tokens for filling in, by role, as far as the file gives possible ones."""
    found: dict[str, int] = {}
    for role, names in _FIM_KEYS.items():
        for name in names:
            if role not in found and (token := _special(metadata, n, name)) is not None:
                found[role] = token
    three = [found[role] for role in NAMES if role in found]
    if len(set(three)) < len(three):
        logger.warning(
            "%s: gives two of the tokens for filling in the same id (%s): they are left out",
            metadata.path, ", ".join(map(str, three)),
        )  # fmt: skip
        found = {role: token for role, token in found.items() if role not in NAMES}
    return found


def _special(metadata: Metadata, n: int, role: str, default: int | None = None) -> int | None:
    """The id of a special token among `n`; the default, as in llama.cpp, for an id that is no token's."""
    key = f"{_KEY}{role}_token_id"
    value = metadata.integer(key, -(1 << 63), 1 << 64, default=None)
    if value is None or 0 <= value < n:
        return default if value is None else value
    if value not in (-1, *_UNSET):
        instead = "it is left out" if default is None else f"{default} is used"
        logger.warning("%s: %s is %d, but there are %d tokens: %s", metadata.path, key, value, n, instead)
    return default
