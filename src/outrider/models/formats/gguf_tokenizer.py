"""The `tokenizer.ggml.*` keys of a GGUF file into a `TokenizerData`; defaults are llama.cpp's."""

from __future__ import annotations

from typing import Literal

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.families import END_OF_TURN, LIMITS, shown
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.source import TokenizerData

_KEY = "tokenizer.ggml."
_KINDS: dict[str, Literal["bpe", "spm"]] = {"gpt2": "bpe", "llama": "spm"}
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_UNSET = (1 << 32) - 1  # some converters write -1, as a uint32, for an id that the model does not have

# Pre-tokenizers whose models start a text with bos unless add_bos_token says otherwise.
_BOS_BY_DEFAULT = frozenset(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"))


def read_tokenizer(metadata: Metadata, vocab_size: int) -> TokenizerData:
    """The tokenizer of a model with `vocab_size` embedding rows (padding may make them more than pieces).

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

    def special(key: str, default: int | None = None) -> int | None:
        value = metadata.integer(f"{_KEY}{key}_token_id", 0, _UNSET, default=default)
        if value is not None and n <= value < _UNSET:
            raise ModelFileError(f"{path}: {_KEY}{key}_token_id is {value}, but there are {n} pieces")
        return None if value == _UNSET else value

    spm = kind == "spm"
    pre = metadata.text(_KEY + "pre", "default") if not spm else ""
    ends = [special("eos", 2 if spm and n > 2 else None), special("eot"), special("eom")]
    named = np.flatnonzero((types == _CONTROL) | (types == _USER_DEFINED))
    ends += [int(i) for i in named if tokens[i] in END_OF_TURN]
    return TokenizerData(
        kind=kind,
        pre=pre,
        tokens=tokens,
        types=types.astype(np.int32),
        # llama.cpp ignores merges of a SentencePiece-style vocabulary; its scores say it all.
        merges=() if spm else metadata.pieces(_KEY + "merges"),
        scores=scores,
        bos_id=special("bos", 1 if spm and n > 1 else None),
        eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        unk_id=special("unknown", 0 if spm else None),
        pad_id=special("padding"),
        add_bos=metadata.flag(_KEY + "add_bos_token", spm or pre in _BOS_BY_DEFAULT),
        add_eos=metadata.flag(_KEY + "add_eos_token", False),
        add_space_prefix=metadata.flag(_KEY + "add_space_prefix", spm),
    )
