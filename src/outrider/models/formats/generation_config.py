"""Recommended sampling values of a model's files, unchecked: generation_config.json, or GGUF's keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.formats.hf_json import read_optional, read_section

LIMIT = 1 << 20  # bytes of the file

# The values that are read, under the names of SamplingParams.
NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "max_tokens"),
)
RENAMED = {"max_new_tokens": "max_tokens"}  # of transformers
_GGUF = {  # llama.cpp's keys below general.sampling
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_GGUF_OTHERS = ("xtc_probability", "mirostat")  # samplers that are not built; 0 turns them off

logger = logging.getLogger(__name__)


def read_generation_config(path: Path) -> dict[str, object]:
    """The values in a generation_config.json. Raises ModelNotFoundError and ModelFileError."""
    return _own_names(read_section(path, LIMIT).values)


def huggingface_sampling(folder: Path) -> dict[str, object]:
    """The values of a Hugging Face folder. Raises ModelFileError for a damaged file."""
    return _own_names(read_optional(folder / "generation_config.json", LIMIT).values)


def gguf_sampling(metadata: Metadata) -> dict[str, object]:
    """The values of a GGUF file."""
    found: dict[str, object] = {}
    for key, name in _GGUF.items():
        value = metadata.pairs.get(f"general.sampling.{key}")
        if value is not None:  # 7 digits are what a float32 holds: 0.7, not 0.699999988
            found[name] = float(f"{value:.7g}") if isinstance(value, float) else value
    for key in _GGUF_OTHERS:
        value = metadata.pairs.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and value > 0:
            logger.warning("%s recommends %s, which is not built; it is left out", metadata.path, key)
    return found


def _own_names(values: Mapping[str, object]) -> dict[str, object]:
    named = {RENAMED.get(key, key): value for key, value in values.items()}
    return {name: named[name] for name in NAMES if named.get(name) is not None}
