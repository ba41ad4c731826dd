"""Tiny models on the torch engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.decoding.types import FloatArray
from outrider.engines.base import Cache, ForwardItem, LanguageModel
from outrider.engines.torch.model import TorchModel
from outrider.engines.torch.weights import load_weights
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from tests.support.models import family_dims, tiny_gguf, tiny_hf

CPU = torch.device("cpu")
torch.set_num_threads(1)  # of models this small a second thread is only waited for


def source(folder: Path, family: str, form: str = "folder", kind: str = "F32") -> ModelSource:
    dims = family_dims(family)
    if form == "folder":
        return open_model(tiny_hf(folder / "model", arch=family, dims=dims, tied=False))
    return open_model(tiny_gguf(folder / "model.gguf", arch=family, dims=dims, types=kind, tied=False))


def load(opened: ModelSource, dtype: torch.dtype = torch.float32, **more: Any) -> TorchModel:
    return TorchModel(opened.architecture, load_weights(opened, CPU, dtype), **more)


def item(
    cache: Cache,
    tokens: Sequence[int],
    parents: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> ForwardItem:
    n = len(tokens)
    return ForwardItem(
        cache,
        np.array(tokens, np.int32),
        np.arange(-1, n - 1, dtype=np.int32) if parents is None else np.array(parents, np.int32),
        np.arange(n, dtype=np.int32) if rows is None else np.array(rows, np.int32),
    )


def run(
    model: LanguageModel, cache: Cache, tokens: Sequence[int], parents: Sequence[int] | None = None
) -> FloatArray:
    """The logits of all tokens of one sequence."""
    return model.forward([item(cache, tokens, parents)])[0]


def same_bits(one: FloatArray, other: FloatArray) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one.view(np.uint32), other.view(np.uint32)))


def relative_error(found: Any, wanted: Any) -> float:
    wanted = np.asarray(wanted, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
