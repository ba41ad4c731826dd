"""The safetensors container, one file or shards with an index, as views into mapped files.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of header length, a JSON header
(name -> dtype, shape, data_offsets), the tensors' bytes without holes. The `safetensors` package is not
used: its NumPy side copies each tensor and has no bfloat16, and engines here want the file's own bytes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from outrider.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.families import shown
from outrider.models.formats.hf_json import parse_object, read_section
from outrider.models.formats.mapped import map_file
from outrider.models.source import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# 100 bytes are usual for a tensor's entry, so this is room for 160k tensors in one file.
HEADER_LIMIT = 16 << 20
INDEX_LIMIT = 16 << 20
SHARD_LIMIT = 1024
DIM_LIMIT = 1 << 40

_ITEM_SIZE = {"F32": 4, "F16": 2, "BF16": 2}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, by name.

    Raises ModelFileError unless the header is sound and the tensors fill the rest of the file exactly;
    UnsupportedModelError for a dtype other than F32, F16 and BF16.
    """
    data = map_file(path)
    size = len(data)
    if size < 8:
        raise ModelFileError(f"{path}: truncated: {size} bytes are too few for a safetensors file")
    length = int.from_bytes(data[:8], "little")
    if data[8:9] != b"{":
        raise ModelFileError(f"{path}: not a safetensors file (starts with {data[:9]!r})")
    if length > HEADER_LIMIT:
        raise ModelFileError(f"{path}: has a header of {length} bytes; at most {HEADER_LIMIT} are read")
    if length > size - 8:
        raise ModelFileError(f"{path}: truncated: the header has {length} bytes, the file {size}")
    try:
        text = data[8 : 8 + length].decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: the header is not UTF-8") from error
    header = parse_object(path, text)
    header.pop("__metadata__", None)
    body = np.frombuffer(data, np.uint8)[8 + length :]
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(path, name, entry)
        if end > len(body):
            raise ModelFileError(
                f"{path}: truncated: the tensor {shown(name)} ends at byte {8 + length + end}, "
                f"the file has {size}"
            )
        tensors[name] = Tensor(name, dtype, shape, body[begin:end])
        spans.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            what = "overlaps another" if begin < at else "leaves a hole before it"
            raise ModelFileError(f"{path}: the tensor {shown(name)} {what}")
        at = end
    if at != len(body):
        raise ModelFileError(f"{path}: has {len(body) - at} bytes that belong to no tensor")
    return tensors


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    where = f"{path}: the tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise ModelFileError(f"{where} has no description")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise ModelFileError(f"{where} has no dtype")
    if dtype not in _ITEM_SIZE:
        raise UnsupportedModelError(f"{where} has dtype {shown(dtype)}; supported: {', '.join(_ITEM_SIZE)}")
    if not _naturals(shape) or not 1 <= len(shape) <= 4 or not all(1 <= n <= DIM_LIMIT for n in shape):
        raise ModelFileError(f"{where} has an impossible shape")
    if not _naturals(offsets) or len(offsets) != 2:
        raise ModelFileError(f"{where} has impossible data_offsets")
    begin, end = offsets
    nbytes = math.prod(shape) * _ITEM_SIZE[dtype]
    if end - begin != nbytes:
        raise ModelFileError(f"{where} has data_offsets of {end - begin} bytes for a shape of {nbytes}")
    return dtype, tuple(shape), begin, end


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the model in `folder`: of model.safetensors, else of the shards that its index names.

    Raises ModelNotFoundError when there is neither (a pickle is refused), and what `read_safetensors` does.
    """
    if (folder / WEIGHTS).exists():
        return read_safetensors(folder / WEIGHTS)
    index = folder / INDEX
    if not index.exists():
        raise _no_weights(folder)
    weight_map = read_section(index, INDEX_LIMIT).section("weight_map")
    if weight_map is None or not weight_map.values:
        raise ModelFileError(f"{index}: weight_map is missing or empty")
    shards = {weight_map.text(name) for name in weight_map.values}
    if len(shards) > SHARD_LIMIT:
        raise ModelFileError(f"{index}: names {len(shards)} files; at most {SHARD_LIMIT} are read")
    opened: dict[str, dict[str, Tensor]] = {}
    for shard in sorted(shards):
        # A symlink may lead out, hub caches are made of them; a name may not.
        if not shard.endswith(".safetensors") or any(c in shard for c in "/\\:\0"):
            raise ModelFileError(f"{index}: {shown(shard)} is not the name of a .safetensors file beside it")
        opened[shard] = read_safetensors(folder / shard)
    tensors: dict[str, Tensor] = {}
    for name, shard in weight_map.values.items():
        if name not in opened[shard]:
            raise ModelFileError(f"{folder / shard}: the tensor {shown(name)} is missing")
        tensors[name] = opened[shard][name]
    return tensors


def _no_weights(folder: Path) -> ModelNotFoundError | UnsupportedModelError:
    names = sorted(p.name for p in folder.iterdir())
    pickles = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        return UnsupportedModelError(
            f"{folder}: has its weights in {pickles[0]}, a pickle, which can run code when it is read; take "
            f"the model's safetensors revision, or load and save it again with safe_serialization=True"
        )
    return ModelNotFoundError(f"{folder}: holds neither {WEIGHTS} nor {INDEX}")
