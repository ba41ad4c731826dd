"""Rotary scalings of tiny models, as tests/scripts/record_family_reference.py recorded what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outrider.models.formats.rope import base_frequencies, scale_llama3
from tests.support.models import Floats, family_dims, tiny_gguf, tiny_hf


@dataclass(frozen=True)
class Scaling:
    """A scaling of a family.

    config:    values for config.json.
    keys:      values for a GGUF file, after the family's name; None for a scaling that GGUF does not have.
    tensors:   of the GGUF file.
    positions: what the context is.
    context:   positions that are asked for; None: what is usual.
    """

    arch: str
    config: Mapping[str, Any]
    keys: Mapping[str, Any] | None
    tensors: Mapping[str, Floats] = field(default_factory=dict)
    positions: int = 256
    context: int | None = None

    def folder(self, path: Path) -> Path:
        dims = family_dims(self.arch)
        return tiny_hf(path, arch=self.arch, dims=dims, tied=False, config=self.config)

    def gguf(self, path: Path) -> Path:
        assert self.keys is not None
        keys = {f"{self.arch}.{key}": value for key, value in self.keys.items()}
        dims = family_dims(self.arch)
        return tiny_gguf(path, arch=self.arch, dims=dims, tied=False, keys=keys, tensors=self.tensors)


def _llama3() -> Scaling:
    config = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    base = base_frequencies(64, family_dims("llama").theta)
    factors = (base / scale_llama3(base, 8.0, 1.0, 4.0, 64)).astype(np.float32)
    return Scaling("llama", {"rope_scaling": config}, {}, {"rope_freqs.weight": factors})


def _yarn(arch: str, keys: Mapping[str, Any] | None, **more: Any) -> Scaling:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **more}
    return Scaling(arch, {"rope_scaling": yarn}, keys)


def _longrope(arch: str, count: int, original: int = 256) -> Scaling:
    short, long = (np.linspace(1, most, count, dtype=np.float32) for most in (2, 8))
    config = {"rope_type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist()}
    outside = {}
    if arch == "phi3":
        outside["original_max_position_embeddings"] = original
    else:
        config["original_max_position_embeddings"] = original
    keys = {
        "context_length": 1024,
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(1024 / original) / np.log(original))),
    }
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    values = {"max_position_embeddings": 1024, "rope_scaling": config, **outside}
    beyond = original < 48  # which is how long the recorded text is
    sizes = {"positions": 1024, "context": 256} if beyond else {"positions": original}
    return Scaling(arch, values, keys, tensors, **sizes)


SCALINGS: Mapping[str, Scaling] = {
    "linear": Scaling(
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "dynamic": Scaling("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, None),
    "llama3": _llama3(),
    "yarn": _yarn(
        "qwen2",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "yarn, all of it": _yarn(
        "qwen3", None, attention_factor=1.25, beta_fast=8.0, beta_slow=0.5, truncate=False
    ),
    "yarn, mscale": _yarn("qwen3", None, mscale=0.7, mscale_all_dim=0.3),
    "longrope": _longrope("llama", 32),
    "longrope of phi3": _longrope("phi3", 12),  # of 24 columns of each head
    "longrope, beyond": _longrope("llama", 32, original=32),
    "longrope of phi3, beyond": _longrope("phi3", 12, original=32),
}
