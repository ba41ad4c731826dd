"""Models that llama.cpp split into several GGUF files, NAME-00001-of-00003.gguf and so on.

The first part has the model's metadata; each part has some of the tensors, and the keys split.count (how many
parts) and split.no (which one, from 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.errors import ModelFileError, ModelNotFoundError
from outrider.models.families import shown
from outrider.models.formats.gguf_file import GGUFFile, read_gguf
from outrider.models.gguf_names import PART_LIMIT, part_names
from outrider.models.source import Tensor

_TENSORS = "split.tensors.count"


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
    files = []
    for number, name in enumerate(names):
        part = file if name == path.name else _read_part(path.with_name(name), number, count, path)
        if part.metadata.integer("split.count", 0, 1 << 32, default=0) != count:
            raise ModelFileError(f"{part.path}: is no part of the {count} that {path} belongs to")
        if part.metadata.integer("split.no", 0, 1 << 32, default=number) != number:
            raise ModelFileError(
                f"{part.path}: says that it is another part (split.no), counted from 0, than {number}, which"
                " its name says: give all parts their original names"
            )
        files.append(part)
    total = sum(len(part.entries) for part in files)
    if files[0].metadata.integer(_TENSORS, 0, 1 << 32, default=total) != total:
        raise ModelFileError(
            f"{files[0].path}: its {count} parts have {total} tensors, not as many as {_TENSORS}"
        )
    return tuple(files)


def _read_part(path: Path, number: int, count: int, given: Path) -> GGUFFile:
    try:
        return read_gguf(path)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{path}: no such file: part {number + 1} of {count} of the split model {given.name} is missing;"
            " put all parts into one folder"
        ) from error


def all_tensors(files: Sequence[GGUFFile]) -> dict[str, Tensor]:
    """The tensors of all files. Raises ModelFileError for one that is in two of them, and the errors of
    `GGUFFile.tensors`."""
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = file.tensors()
        if twice := found.keys() & tensors.keys():
            raise ModelFileError(f"{file.path}: the tensor {shown(min(twice))} is in another part, too")
        found |= tensors
    return found
