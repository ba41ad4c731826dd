"""From a `ModelSource` to packed matrices, with little more memory than these take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.engines.native import _core
from outrider.engines.native.store import Entry, PackedWeightsCache
from outrider.errors import UnsupportedModelError
from outrider.models.formats.mapped import release
from outrider.models.quantization import EMBEDDING, OUTPUT, loaded_type, type_bytes
from outrider.models.source import ModelSource, Tensor

Progress = Callable[[int, int], None]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix to be loaded: under `name`, from `tensor`, held in ggml type `type`."""

    name: str
    type: str
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.tensor.shape
        return rows, columns


def add_weights(
    core: _core.Model,
    source: ModelSource,
    store: PackedWeightsCache | None = None,
    progress: Progress | None = None,
) -> None:
    """Put all weights of `source` into `core`, quantized where the source asks for it.

    store:    packed weights on disk: read from there, or written there for the next time.
    progress: called with (bytes done, bytes in all), of the file, after each tensor.
    Besides the packed weights, at most one tensor's pages of the file are resident at a time, and the largest
    is the first. Raises UnsupportedModelError for weights that the engine cannot run.
    """
    plan = matrices(source)
    vectors = [t for t in source.tensors.values() if len(t.shape) == 1]
    total, done = source.weights_bytes, 0
    try:
        found = store.read(source, entries(source, plan)) if store else None
        if found is not None:
            _add_packed(core, source, plan, found)
            done = total - sum(v.stored_bytes for v in vectors)
        else:
            rows = _embedding_rows(core, source)
            core.set_embedding(loaded_type(source, source.tensors[EMBEDDING]), rows)
            for matrix in plan:
                tied = matrix.tensor.name == EMBEDDING
                data = rows if tied else encoded(core, matrix.tensor, matrix.type)
                core.add_matrix(matrix.name, matrix.type, *matrix.shape, data)
                _set_order(core, matrix)
                release(matrix.tensor.data)
                done += matrix.tensor.stored_bytes
                if progress:
                    progress(min(done, total), total)
            if store:
                packed = [core.packed(matrix.name) for matrix in plan]
                store.write(source, entries(source, plan), [*packed, rows] if source.quantization else packed)
        for tensor in vectors:
            core.add_vector(tensor.name, _vector(tensor))
        core.finish()
    except (ValueError, UnsupportedModelError) as error:
        raise UnsupportedModelError(f"{source.path}: {error}") from None
    if progress:
        progress(total, total)


def matrices(source: ModelSource) -> list[Matrix]:
    """What is packed, the largest first. A tied output is packed from the embedding's rows."""
    found = [
        Matrix(OUTPUT if tensor.name == EMBEDDING else tensor.name, loaded_type(source, tensor), tensor)
        for tensor in source.tensors.values()
        if len(tensor.shape) == 2 and (tensor.name != EMBEDDING or OUTPUT not in source.tensors)
    ]
    return sorted(found, key=lambda matrix: (-matrix.tensor.nbytes, matrix.name))


def entries(source: ModelSource, plan: Sequence[Matrix]) -> list[Entry]:
    """The same for a file of packed weights, which also has the embedding's rows when they are quantized."""
    found = [Entry(m.name, m.type, m.shape, _core.packed_bytes(m.type, *m.shape)) for m in plan]
    if source.quantization:
        embedding = source.tensors[EMBEDDING]
        kind = loaded_type(source, embedding)
        found.append(Entry(EMBEDDING, kind, embedding.shape, type_bytes(kind, embedding.shape)))
    return found


def encoded(core: _core.Model, tensor: Tensor, kind: str) -> Bytes:
    """The bytes of `tensor` as rows of ggml type `kind`: its own, or quantized from floats.

    Raises UnsupportedModelError for values that are not finite or too large for the type.
    """
    data = tensor.encoded()
    if kind == tensor.type:
        return data
    rows, columns = tensor.shape
    try:
        return core.quantize(tensor.type, kind, rows, columns, data)
    except ValueError as error:
        raise UnsupportedModelError(f"tensor {tensor.name}: {error}") from None


def _embedding_rows(core: _core.Model, source: ModelSource) -> Bytes:
    embedding = source.tensors[EMBEDDING]
    rows = encoded(core, embedding, loaded_type(source, embedding))
    if rows is not embedding.data:
        release(embedding.data)
    return rows


def _add_packed(
    core: _core.Model, source: ModelSource, plan: Sequence[Matrix], found: Sequence[Bytes]
) -> None:
    """Bytes of the packed weights cache as `core`'s weights."""
    for matrix, packed in zip(plan, found, strict=False):
        core.add_packed(matrix.name, matrix.type, *matrix.shape, packed)
        _set_order(core, matrix)
    embedding = source.tensors[EMBEDDING]
    rows = found[-1] if source.quantization else embedding.encoded()
    core.set_embedding(loaded_type(source, embedding), rows)


def _set_order(core: _core.Model, matrix: Matrix) -> None:
    if matrix.tensor.column_order is not None:
        core.set_column_order(matrix.name, matrix.tensor.column_order)


def _vector(tensor: Tensor) -> npt.NDArray[np.float32]:
    if tensor.type == "F32":
        return np.frombuffer(tensor.data, "<f4").astype(np.float32)
    if tensor.type == "F16":
        return np.frombuffer(tensor.data, "<f2").astype(np.float32)
    if tensor.type == "BF16":
        return (np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16).view(np.float32)
    raise UnsupportedModelError(f"tensor {tensor.name}: a vector of type {tensor.type} is not supported")
