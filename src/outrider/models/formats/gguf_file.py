"""The GGUF container, versions 2 and 3: metadata, tensor directory, tensor bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A header (magic, version, counts),
key/value pairs, one entry for each tensor, padding to `general.alignment`, then the tensors' bytes.

Outrider does not use GGUFReader of the `gguf` package, because it builds several NumPy arrays for each string
(9 s for a vocabulary of 49k, 25 s for one of 152k) and does not check counts and offsets of the file. This
reader checks every count, length and offset against the file's size before it allocates anything, and reads a
large vocabulary in a fraction of a second. The package's tables (type numbers, sizes of quantization blocks)
are used, and the tests compare this reader with the package's writer and reader.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.families import shown
from outrider.models.foreign import HEAD_BYTES, cut_piece, describe_file
from outrider.models.formats.gguf_metadata import Metadata, Value
from outrider.models.formats.mapped import map_file
from outrider.models.formats.shared_strings import current
from outrider.models.source import Tensor
from outrider.models.weight_types import SUPPORTED_TYPES

Bytes: TypeAlias = npt.NDArray[np.uint8]

# The largest vocabularies in use (262k pieces, 515k merges) take 16 MiB. Python objects made from the
# header are a few times larger than it, so this also bounds memory.
HEADER_LIMIT = 64 << 20
DIM_LIMIT = 1 << 40
FIRST_KEYS = 16  # among which general.architecture is looked for

_SCALARS = {
    code: struct.Struct("<" + letter)
    for code, letter in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = 4, 10


class CutHeaderError(ModelFileError):
    """The file ends within its header."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """An entry of the tensor directory. `shape` is (rows, columns); the file stores columns first."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """A memory-mapped file with its parsed header.

    data:       uint8[file size], read-only.
    pair_bytes: of each key, where the pair begins and ends in the file.
    data_start: the position in bytes that tensor offsets are relative to.
    """

    path: Path
    metadata: Metadata
    entries: tuple[TensorEntry, ...]
    data: Bytes
    data_start: int
    alignment: int
    pair_bytes: Mapping[str, tuple[int, int]]

    def tensors(self, others: Collection[str] = ()) -> dict[str, Tensor]:
        """Views of all tensors, by name.

        others: names of ggml types that are no weights, and that are wanted all the same.
        Raises ModelFileError when a tensor lies outside the file, is misaligned or overlaps another, and
        UnsupportedModelError for a type that is not supported.
        """
        found: dict[str, Tensor] = {}
        spans: list[tuple[int, int, str]] = []
        for entry in self.entries:
            where = f"{self.path}: the tensor {shown(entry.name)}"
            kind = self._kind(entry, where, others)
            block, size = GGML_QUANT_SIZES[kind]
            if entry.shape[-1] % block:
                raise ModelFileError(f"{where} has {entry.shape[-1]} columns, not a multiple of {block}")
            nbytes = math.prod(entry.shape) // block * size
            if entry.offset % self.alignment:
                raise ModelFileError(f"{where} starts at {entry.offset}, not a multiple of {self.alignment}")
            start = self.data_start + entry.offset
            if start + nbytes > len(self.data):
                raise ModelFileError(
                    f"{self.path}: truncated: the tensor {shown(entry.name)} ends at byte {start + nbytes}, "
                    f"the file has {len(self.data)}{_incomplete(self.path)}"
                )
            found[entry.name] = Tensor(entry.name, kind.name, entry.shape, self.data[start : start + nbytes])
            spans.append((start, start + nbytes, entry.name))
        spans.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(spans):
            if start < end:
                raise ModelFileError(f"{self.path}: the tensors {shown(first)} and {shown(second)} overlap")
        return found

    def _kind(self, entry: TensorEntry, where: str, others: Collection[str]) -> GGMLQuantizationType:
        try:
            kind = GGMLQuantizationType(entry.type)
        except ValueError:
            kind = None
        if kind is None or kind.name not in (*SUPPORTED_TYPES, *others):
            name = kind.name if kind is not None else f"number {entry.type}"
            raise UnsupportedModelError(f"{where} has type {name}; supported: {', '.join(SUPPORTED_TYPES)}")
        return kind


def _not_gguf(path: Path, data: mmap.mmap | bytes) -> ModelFileError:
    if not len(data):
        return ModelFileError(f"{path}: is empty; download it again")
    what = describe_file(data[:HEAD_BYTES], len(data), path.name)
    but = f", but {what}" if what else cut_piece(path.name)
    return ModelFileError(f"{path}: not a GGUF file (starts with {data[:4]!r}){but}")


def read_gguf(path: Path) -> GGUFFile:
    """Map `path` and parse its header. Raises ModelNotFoundError, ModelFileError, UnsupportedModelError."""
    data = map_file(path)
    head = data[:4]
    if head != b"GGUF":
        raise _not_gguf(path, data)
    cursor = _Cursor(path, data)
    version = cursor.u32()
    if version not in (2, 3):
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3):
            raise UnsupportedModelError(
                f"{path}: is a big-endian GGUF file; only little-endian ones are read"
            )
        raise UnsupportedModelError(
            f"{path}: is GGUF version {version}; versions 2 and 3 are read (convert it again)"
        )
    n_tensors, n_pairs = cursor.u64(), cursor.u64()
    # A pair takes at least 14 bytes (key, type, value), a tensor's entry 33.
    if n_pairs * 14 + n_tensors * 33 > len(data) - cursor.at:
        raise ModelFileError(
            f"{path}: truncated: {n_pairs} keys and {n_tensors} tensors do not fit into {len(data)} bytes"
            f"{_incomplete(path)}"
        )
    pairs: dict[str, Value] = {}
    pair_bytes = {}
    for _ in range(n_pairs):
        start = cursor.at
        key = cursor.name("key")
        if key in pairs:
            raise ModelFileError(f"{path}: the key {shown(key)} appears twice")
        pairs[key] = cursor.value(key)
        pair_bytes[key] = (start, cursor.at)
    metadata = Metadata(path, pairs)
    entries: dict[str, TensorEntry] = {}
    for _ in range(n_tensors):
        entry = cursor.entry()
        if entry.name in entries:
            raise ModelFileError(f"{path}: the tensor {shown(entry.name)} appears twice")
        entries[entry.name] = entry
    alignment = metadata.integer("general.alignment", 1, 1 << 20, default=32)
    if alignment & (alignment - 1):
        raise ModelFileError(f"{path}: general.alignment is {alignment}, not a power of two")
    data_start = -(-cursor.at // alignment) * alignment
    raw = np.frombuffer(data, np.uint8)
    return GGUFFile(path, metadata, tuple(entries.values()), raw, data_start, alignment, pair_bytes)


def peek_architecture(path: Path) -> str | None:
    """general.architecture of a GGUF file, without reading its vocabulary; None where it is not among the
    first keys, or where there is no such file. Raises nothing that `read_gguf` would not."""
    try:
        data = map_file(path)
    except ModelNotFoundError:
        return None
    if data[:4] != b"GGUF":
        return None
    cursor = _Cursor(path, data)
    cursor.u32()
    cursor.u64()
    for _ in range(min(cursor.u64(), FIRST_KEYS)):
        key, kind = cursor.name("key"), cursor.u32()
        if kind != _STRING and kind not in _SCALARS:
            return None
        value = cursor.string() if kind == _STRING else cursor.scalar(kind)
        if key == "general.architecture" and isinstance(value, bytes):
            return value.decode(errors="replace")
    return None


def _incomplete(path: Path) -> str:
    """What to do about a file that ends too soon."""
    return cut_piece(path.name) or "; download it again"


class _Cursor:
    """Reads the header's values one after the other, with a check before each read that it ends inside."""

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self.path = path
        self.data = data
        self.end = min(len(data), HEADER_LIMIT)
        self.at = 4

    def past_end(self) -> ModelFileError:
        """The error for a header that ends after the file, or after HEADER_LIMIT."""
        if self.end < len(self.data):
            return ModelFileError(f"{self.path}: the header is larger than {HEADER_LIMIT >> 20} MiB")
        return CutHeaderError(
            f"{self.path}: truncated: the header goes on after byte {self.end}{_incomplete(self.path)}"
        )

    def scalar(self, kind: int) -> int | float:
        coder = _SCALARS[kind]
        if coder.size > self.end - self.at:
            raise self.past_end()
        value: int | float = coder.unpack_from(self.data, self.at)[0]
        self.at += coder.size
        return value

    def u32(self) -> int:
        return int(self.scalar(_U32))

    def u64(self) -> int:
        return int(self.scalar(_U64))

    def string(self) -> bytes:
        length = self.u64()
        if length > self.end - self.at:
            raise self.past_end()
        self.at += length
        return self.data[self.at - length : self.at]

    def name(self, what: str) -> str:
        raw = self.string()
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: a {what} is not UTF-8: {raw[:40]!r}") from error
        if not 0 < len(raw) < 1 << 16:
            raise ModelFileError(f"{self.path}: a {what} has {len(raw)} bytes, not 1 to 65535")
        return text

    def value(self, key: str) -> Value:
        kind = self.u32()
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(key)
        if kind == _BOOL:
            byte = self.scalar(0)
            if byte not in (0, 1):
                raise ModelFileError(
                    f"{self.path}: the key {shown(key)} is a truth value of {byte}, not 0 or 1"
                )
            return bool(byte)
        if kind not in _SCALARS:
            raise ModelFileError(f"{self.path}: the key {shown(key)} has the unknown value type {kind}")
        return self.scalar(kind)

    def _array(self, key: str) -> Value:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            raise UnsupportedModelError(f"{self.path}: the key {shown(key)} is an array of arrays")
        if kind not in _SCALARS and kind != _BOOL:
            raise ModelFileError(f"{self.path}: the key {shown(key)} has the unknown element type {kind}")
        dtype = np.dtype("u1" if kind == _BOOL else "<" + _SCALARS[kind].format[1:])
        if count > (self.end - self.at) // dtype.itemsize:
            raise self.past_end()
        values = np.frombuffer(self.data, dtype, count, self.at)
        self.at += count * dtype.itemsize
        return values != 0 if kind == _BOOL else values

    def _strings(self, count: int) -> tuple[bytes, ...]:
        if count > (self.end - self.at) // 8:
            raise self.past_end()
        first, known = self.at, current()
        if known is not None and (found_before := known.find(count, self._peek)) is not None:
            self.at += found_before[0]
            return found_before[1]
        # Opening a model spends most of its time here: 300k iterations for a large vocabulary.
        data, at, end, length_at, found = self.data, self.at, self.end, _SCALARS[_U64].unpack_from, []
        for _ in range(count):
            start = at + 8
            if start > end:
                raise self.past_end()
            at = start + length_at(data, at)[0]
            if at > end:
                raise self.past_end()
            found.append(data[start:at])
        self.at = at
        strings = tuple(found)
        if known is not None:
            known.add(data[first:at], strings)
        return strings

    def _peek(self, size: int) -> bytes:
        return self.data[self.at : min(self.at + size, self.end)]

    def entry(self) -> TensorEntry:
        name = self.name("tensor name")
        n_dims = self.u32()
        if not 1 <= n_dims <= 4:
            raise ModelFileError(f"{self.path}: the tensor {shown(name)} has {n_dims} dimensions, not 1 to 4")
        dims = [self.u64() for _ in range(n_dims)]
        if not all(1 <= dim <= DIM_LIMIT for dim in dims):
            raise ModelFileError(f"{self.path}: the tensor {shown(name)} has impossible dimensions {dims}")
        return TensorEntry(name, self.u32(), tuple(reversed(dims)), self.u64())
