"""EAGLE-3 heads as llama.cpp's converter writes them: GGUF files of the architecture `eagle3`.

Their d2t holds the target's ids themselves, and their rotation is of the pairs (2i, 2i + 1). The target's
embedding, and its output matrix, are left out where the head has none of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError
from outrider.models.checks import check_tensors
from outrider.models.eagle3.head import (
    NAME,
    NO_TOKENIZER,
    TRAINED_LENGTH,
    USUAL_TRAINED_LENGTH,
    Eagle3Head,
    check_layers,
    check_target_ids,
    head_spec,
    without_maps,
)
from outrider.models.families import LIMITS, Family, shown
from outrider.models.formats.gguf import display_name, read_dimensions, refuse_options
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.formats.gguf_rope import ROPE_TENSORS
from outrider.models.formats.gguf_split import all_tensors, read_parts
from outrider.models.formats.gguf_tokenizer import read_tokenizer
from outrider.models.source import ModelSource, Tensor, TokenizerData
from outrider.models.spec import HeadSpec

_KEYS = Family(NAME, (), gguf_interleaved=True)
_PIECES = "tokenizer.ggml.tokens"


def read_gguf_head(path: Path) -> Eagle3Head:
    """The head in the file `path`. Raises ModelError."""
    files = read_parts(path)
    path, *parts = (file.path for file in files)
    metadata = files[0].metadata
    refuse_options(metadata, _KEYS)
    stored = all_tensors(files, ("I64", "I32"))
    tensors = without_maps(stored)
    factors = {name: tensors.pop(name) for name in ROPE_TENSORS if name in tensors}
    layers = check_layers(path, _layers(metadata))
    tokenizer = _tokenizer(metadata)
    tokens = _token_count(metadata, tensors.get("token_embd.weight"), tokenizer)
    rows = _output_rows(path, stored, tokens)
    head = HeadSpec(
        len(layers),
        metadata.integer(f"{NAME}.target_hidden_size", 1, LIMITS["hidden_size"]),
        tokens,
        joint_norm=metadata.flag(f"{NAME}.norm_before_fc", False),
        norm_before_residual=metadata.flag(f"{NAME}.norm_before_residual", False),
    )
    spec = head_spec(path, "llama", read_dimensions(metadata, _KEYS, rows, factors), head)
    check_tensors(path, spec, tensors)
    ids = check_target_ids(path, _ids(path, stored.get("d2t")), spec)
    if ids is not None and "output.weight" not in tensors:
        raise ModelFileError(f"{path}: has d2t, but no output.weight that its entries are for")
    source = ModelSource(
        path=path,
        format="gguf",
        display_name=display_name(metadata),
        architecture=spec,
        tensors=tensors,
        tokenizer=NO_TOKENIZER,
        chat_template=None,
        parts=tuple(parts),
    )
    trained = metadata.integer(
        f"{NAME}.{TRAINED_LENGTH}", 1, LIMITS["max_positions"], default=USUAL_TRAINED_LENGTH
    )
    return Eagle3Head(source, layers, ids, _made_for(metadata), tokenizer, trained)


def _layers(metadata: Metadata) -> npt.NDArray[np.int64] | None:
    """The target's layers, under the key's present name or that of the first converters."""
    for key in ("target_layers", "extract_layers"):
        if (found := metadata.array(f"{NAME}.{key}", np.int64)) is not None:
            return found
    return None


def _tokenizer(metadata: Metadata) -> TokenizerData | None:
    """The target's, which converters copy into the head's file."""
    pieces = metadata.pairs.get(_PIECES)
    return read_tokenizer(metadata, len(pieces)) if isinstance(pieces, tuple) and pieces else None


def _token_count(metadata: Metadata, embedding: Tensor | None, tokenizer: TokenizerData | None) -> int:
    """Ids of the target, or 0 where the file does not say."""
    if embedding is not None:
        return embedding.shape[0]
    known = len(tokenizer.tokens) if tokenizer is not None else 0
    return metadata.integer(f"{NAME}.vocab_size", 1, LIMITS["vocab_size"], default=known)


def _output_rows(path: Path, stored: dict[str, Tensor], tokens: int) -> int:
    for name in ("output.weight", "d2t"):
        if name in stored:
            return stored[name].shape[0]
    if not tokens:
        raise ModelFileError(f"{path}: nothing says how many ids its output has: the tensor d2t is missing")
    return tokens


def _ids(path: Path, d2t: Tensor | None) -> npt.NDArray[np.int64] | None:
    if d2t is None:
        return None
    if d2t.type not in ("I64", "I32") or len(d2t.shape) != 1:
        raise ModelFileError(f"{path}: the tensor d2t is not a list of integers")
    return np.frombuffer(d2t.data.tobytes(), "<i8" if d2t.type == "I64" else "<i4").astype(np.int64)


def _made_for(metadata: Metadata) -> str:
    """The target's name, as converters note it."""
    raw = metadata.pairs.get("general.base_model.0.name")
    return shown(raw.decode(errors="replace"))[1:-1] if isinstance(raw, bytes) else ""
