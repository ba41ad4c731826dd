"""Tiny models on the torch engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.engines.torch.model import TorchModel
from outrider.engines.torch.weights import load_weights
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.training.base_run import Order
from outrider.training.run import run as run_order
from tests.support.models import family_dims, tiny_gguf, tiny_hf
from tests.support.passes import item, run, same_bits

__all__ = ["CPU", "item", "load", "relative_error", "run", "same_bits", "source", "trained_by"]

CPU = torch.device("cpu")
torch.set_num_threads(1)  # of models this small a second thread is only waited for


def trained_by(updates: int | None, **order: Any) -> tuple[bool, list[str]]:
    """(whether it is done, what it said) of a training run. updates: of the weights, until it is interrupted;
    None: to its end. order: fields of `Order`."""
    said: list[str] = []
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += any("trained on" in line for line in said)
        return updates is not None and asked > updates

    usual = {"hours": None, "device": "cpu", "threads": 1, "license": "mit"}
    return run_order(Order(**usual | order, stop=stop, say=said.append, shown=lambda _: None)), said


def source(folder: Path, family: str, form: str = "folder", kind: str = "F32") -> ModelSource:
    dims = family_dims(family)
    if form == "folder":
        return open_model(tiny_hf(folder / "model", arch=family, dims=dims, tied=False))
    return open_model(tiny_gguf(folder / "model.gguf", arch=family, dims=dims, types=kind, tied=False))


def load(opened: ModelSource, dtype: torch.dtype = torch.float32, **more: Any) -> TorchModel:
    return TorchModel(opened.architecture, load_weights(opened, CPU, dtype), **more)


def relative_error(found: Any, wanted: Any) -> float:
    wanted = np.asarray(wanted, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
