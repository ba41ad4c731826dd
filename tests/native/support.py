"""Short ways to run the native engine in tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider.engines.native import NativeModel, _core
from outrider.models.source import ModelSource
from outrider.models.spec import FeedForwardSpec, LayerSpec, ModelSpec, RopeSpec
from tests.support.passes import item, run, same_bits

__all__ = ["core", "item", "load", "run", "same_bits", "usable_isas", "windowed"]


def core(threads: int = 1, isa: str = "portable") -> _core.Model:
    """The smallest core there is, without weights. Raises ValueError for kernels that cannot run here."""
    spec = ModelSpec(
        name="llama",
        hidden_size=16,
        n_heads=1,
        n_kv_heads=1,
        head_dim=16,
        vocab_size=1,
        max_positions=16,
        rms_eps=1e-5,
        ropes=(RopeSpec(2, np.ones(1, np.float32)),),
        layers=(LayerSpec(FeedForwardSpec(16), attention_scale=0.25),),
    )
    return _core.Model(spec=spec, cache_type="f16", threads=threads, isa=isa)


def usable_isas() -> list[str]:
    """The kernels that this processor can run."""
    found = []
    for isa in ("portable", "avx2", "avxvnni", "avx512", "amx", "neon"):
        try:
            core(isa=isa)
        except ValueError:
            continue
        found.append(isa)
    return found


def load(
    source: ModelSource, isa: str | None = None, threads: int = 1, kv_dtype: str | None = "f16"
) -> NativeModel:
    return NativeModel.load(source, isa=isa, threads=threads, kv_dtype=kv_dtype)


def windowed(source: ModelSource, windows: Sequence[int | None]) -> ModelSource:
    """The same weights with other sliding windows, one for each layer."""
    spec = source.architecture
    layers = tuple(replace(a, window=b) for a, b in zip(spec.layers, windows, strict=True))
    return replace(source, architecture=replace(spec, layers=layers))
