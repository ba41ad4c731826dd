"""Models that llama.cpp split into several GGUF files, NAME-00001-of-00003.gguf and so on.

The first part has the model's metadata; each part has some of the tensors, and the keys split.count (how
many parts), split.no (which one, from 0) and split.tensors.count (of all parts). Parts of two models whose
tensors have the same names and shapes cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError, ModelNotFoundError
from outrider.models.families import shown
from outrider.models.formats.gguf_file import GGUFFile, read_gguf
from outrider.models.formats.gguf_metadata import Value
from outrider.models.gguf_names import PART_LIMIT, part_names
from outrider.models.source import Tensor

_TENSORS = "split.tensors.count"
_OF_EACH_PART = ("split.no", "general.alignment")


def read_parts(path: Path) -> tuple[GGUFFile, ...]:
    """The file `path`, or all parts of the split model that it is a part of, the first one first.

    Raises ModelNotFoundError, naming the part, when one is missing; ModelFileError for parts that do not
    belong together; and the errors of `read_gguf`.
    """
    file = read_gguf(path)
    count = file.metadata.integer("split.count", 0, PART_LIMIT, default=0)
    if count <= 1:
        return (file,)
    names = part_names(path.name)
    if len(names) != count:
        raise ModelFileError(
            f"{path}: is one of the {count} parts of a split model, but its name does not end in"
            f" -00001-of-{count:05}.gguf, so the others cannot be found: give all parts their original names"
        )
    files = [
        file if name == path.name else _read_part(path.with_name(name), number, count, path)
        for number, name in enumerate(names)
    ]
    total = sum(len(part.entries) for part in files)
    for number, part in enumerate(files):
        _check_part(part, number, count, path)
        _check_same_model(files[0], part)
    if files[0].metadata.integer(_TENSORS, 0, 1 << 32, default=total) != total:
        raise ModelFileError(
            f"{files[0].path}: the {count} parts have {total} tensors, not as many as {_TENSORS} says: at"
            " least one is of another model"
        )
    return tuple(files)


def _check_part(part: GGUFFile, number: int, count: int, given: Path) -> None:
    """Raise ModelFileError unless the file says that it is part `number`, counted from 0, of `count`."""
    if part.metadata.integer("split.count", 0, 1 << 32, default=0) != count:
        raise ModelFileError(f"{part.path}: is no part of the {count} that {given} belongs to")
    if part.metadata.integer("split.no", 0, 1 << 32, default=count) != number:
        raise ModelFileError(
            f"{part.path}: does not say that it is part {number} (split.no, counted from 0), as its name"
            " does: give all parts their original names"
        )


def _check_same_model(first: GGUFFile, part: GGUFFile) -> None:
    """Raise ModelFileError where both files have a key, but not the same value, as parts of two models."""
    for key, value in part.metadata.pairs.items():
        if key not in _OF_EACH_PART and not _equal(first.metadata.pairs.get(key, value), value):
            raise ModelFileError(
                f"{part.path}: has another {shown(key)} than {first.path.name}: they are parts of two models"
            )


def _equal(one: Value, other: Value) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and one == other


def _read_part(path: Path, number: int, count: int, given: Path) -> GGUFFile:
    try:
        return read_gguf(path)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{path}: no such file: part {number + 1} of {count} of the split model {given.name} is missing;"
            " put all parts into one folder"
        ) from error


def all_tensors(files: Sequence[GGUFFile], others: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors of all files; `others` as in `GGUFFile.tensors`. Raises ModelFileError for one that is in
    two of them, and the errors of `GGUFFile.tensors`."""
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = file.tensors(others)
        if twice := found.keys() & tensors.keys():
            raise ModelFileError(f"{file.path}: the tensor {shown(min(twice))} is in another part, too")
        found |= tensors
    return found
