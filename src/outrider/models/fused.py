"""Matrices that a file stores as one, and that engines want apart.

A block of a quantized matrix lies in one row, so that rows are split without changing a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError
from outrider.models.checks import layer_weights, with_shape
from outrider.models.families import FAMILIES
from outrider.models.source import Recode, Tensor
from outrider.models.spec import ModelSpec


def split_fused(
    path: Path,
    spec: ModelSpec,
    tensors: dict[str, Tensor],
    file_name: Callable[[str], str] = lambda name: name,
) -> None:
    """Replace the fused matrices of the family (`Family.fused`) by views of their parts.

    `file_name` turns a tensor's name into the one that its file uses. Raises ModelFileError for a fused
    matrix that is missing or has another shape, and for a part that the file has beside it.
    """
    for fused, parts in FAMILIES[spec.name].fused.items():
        for i, layer in enumerate(spec.layers):
            shapes = [layer_weights(spec, layer)[part] for part in parts]
            ends = np.cumsum([rows for rows, _ in shapes]).tolist()
            name = f"blk.{i}.{fused}.weight"
            wanted = (ends[-1], shapes[0][1])
            tensor = with_shape(path, file_name(name), tensors.pop(name, None), wanted)
            starts = [0, *ends[:-1]]
            pieces = np.split(tensor.data, [start * tensor.nbytes // ends[-1] for start in starts[1:]])
            for part, shape, data, start in zip(parts, shapes, pieces, starts, strict=True):
                own = f"blk.{i}.{part}.weight"
                if own in tensors:
                    raise ModelFileError(f"{path}: holds {file_name(own)} beside {file_name(name)}")
                recode = None if tensor.recode is None else _from(tensor.recode, start)
                beside = tensor.beside * shape[0] // ends[-1]
                tensors[own] = replace(tensor, name=own, shape=shape, data=data, recode=recode, beside=beside)


def _from(recode: Recode, start: int) -> Recode:
    """The same for rows that are counted from `start` on."""
    return lambda first, last: recode(start + first, start + last)
