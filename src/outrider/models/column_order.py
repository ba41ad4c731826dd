"""Matrices whose columns are stored in another order than that of their input (`Tensor.column_order`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outrider.errors import UnsupportedModelError
from outrider.models.quantization import EMBEDDING
from outrider.models.source import Recode, Tensor
from outrider.models.spec import ModelSpec


def take_into_rows(path: Path, spec: ModelSpec, tensors: dict[str, Tensor]) -> None:
    """Take the order of ffn_down's columns into the rows of ffn_gate and ffn_up, whose product is its input.

    Each hidden column is computed as before, in another place, so that no value changes and nothing has to be
    reordered in a pass. Engines reorder the other matrices' inputs. Raises UnsupportedModelError for an
    embedding with an order.
    """
    if EMBEDDING in tensors and tensors[EMBEDDING].column_order is not None:
        raise UnsupportedModelError(f"{path}: the embedding has its columns in another order (act-order)")
    for i in range(spec.n_layers):
        down, gate, up = (f"blk.{i}.ffn_{part}.weight" for part in ("down", "gate", "up"))
        tensor = tensors.get(down)
        if tensor is None or tensor.column_order is None:
            continue
        for name in (gate, up):
            if name in tensors and tensors[name].shape[:1] == tensor.shape[1:]:
                tensors[name] = replace(tensors[name], recode=_in_order(tensors[name], tensor))
        tensors[down] = replace(tensor, column_order=None)


def _in_order(tensor: Tensor, down: Tensor) -> Recode:
    """The rows of `tensor` in the order of the columns of `down`."""
    rows, order = tensor.shape[0], down.column_order
    return lambda first, last: tensor.encoded().reshape(rows, -1)[order][first:last].reshape(-1)
