"""Reads the safetensors container, one file or shards with an index, as views into memory-mapped files.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of header length, a JSON header
(name -> dtype, shape, data_offsets), then the tensors' bytes without gaps. The `safetensors` package is not
used, because its NumPy interface copies each tensor and has no bfloat16; engines need the file's own bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from outrider.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.families import shown
from outrider.models.foreign import HEAD_BYTES, PICKLES, describe_file, describe_folder, names_in
from outrider.models.formats.hf_json import parse_object, read_section
from outrider.models.formats.mapped import map_file
from outrider.models.source import Tensor
from outrider.models.weight_types import FLOAT_TYPES

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# A tensor's entry usually takes 100 bytes, so this allows about 160k tensors in one file.
HEADER_LIMIT = 16 << 20
INDEX_LIMIT = 16 << 20
SHARD_LIMIT = 1024
DIM_LIMIT = 1 << 40
AGAIN = "; download it again"

_ITEM_SIZE = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1, "BOOL": 1}


def read_safetensors(path: Path, dtypes: Sequence[str] = FLOAT_TYPES) -> dict[str, Tensor]:
    """All tensors of one file, by name; their types are those of the file.

    Raises ModelFileError unless the header is valid and the tensors fill the rest of the file exactly;
    UnsupportedModelError for a dtype that is not one of `dtypes`.
    """
    data = map_file(path)
    size = len(data)
    if size < 8:
        raise ModelFileError(f"{path}: truncated: {size} bytes are too few for a safetensors file{AGAIN}")
    length = int.from_bytes(data[:8], "little")
    if data[8:9] != b"{":
        what = describe_file(data[:HEAD_BYTES], size, path.name)
        but = f", but {what}" if what else ""
        raise ModelFileError(f"{path}: not a safetensors file (starts with {data[:9]!r}){but}")
    if length > HEADER_LIMIT:
        raise ModelFileError(f"{path}: has a header of {length} bytes; at most {HEADER_LIMIT} are read")
    if length > size - 8:
        raise ModelFileError(f"{path}: truncated: the header has {length} bytes, the file {size}{AGAIN}")
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
        dtype, shape, begin, end = _entry(path, name, entry, dtypes)
        if end > len(body):
            raise ModelFileError(
                f"{path}: truncated: the tensor {shown(name)} ends at byte {8 + length + end}, "
                f"the file has {size}{AGAIN}"
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


def _entry(path: Path, name: str, entry: Any, dtypes: Sequence[str]) -> tuple[str, tuple[int, ...], int, int]:
    where = f"{path}: the tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise ModelFileError(f"{where} has no description")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise ModelFileError(f"{where} has no dtype")
    if dtype not in dtypes:
        raise UnsupportedModelError(
            f"{where} has dtype {shown(dtype)}{_quantized(name, dtype)}; supported: {', '.join(dtypes)}"
            " (use the model's GGUF file for quantized weights)"
        )
    least = 1 if tuple(dtypes) == FLOAT_TYPES else 0  # a scale of a whole matrix may be a single number
    if not _naturals(shape) or not least <= len(shape) <= 4 or not all(1 <= n <= DIM_LIMIT for n in shape):
        raise ModelFileError(f"{where} has an impossible shape")
    if not _naturals(offsets) or len(offsets) != 2:
        raise ModelFileError(f"{where} has impossible data_offsets")
    begin, end = offsets
    nbytes = math.prod(shape) * _ITEM_SIZE[dtype]
    if end - begin != nbytes:
        raise ModelFileError(f"{where} has data_offsets of {end - begin} bytes for a shape of {nbytes}")
    return dtype, tuple(shape), begin, end


def _quantized(name: str, dtype: str) -> str:
    """How a tensor of another type is quantized, as far as its name and type tell."""
    rules = (
        (dtype.startswith("F8_"), "FP8"),
        (name.endswith((".qweight", ".qzeros", ".g_idx")), "GPTQ or AWQ"),
        (name.endswith((".q_weight", ".q_invperm", ".q_perm", ".q_scale", ".q_groups")), "EXL2"),
        (name.endswith((".trellis", ".suh", ".svh")), "EXL3"),
        (dtype == "U32", "MLX"),
        (dtype == "U8" and name.endswith(("_blocks", "_scales")), "MXFP4"),
        (dtype == "U8", "bitsandbytes"),
    )
    found = next((words for fits, words in rules if fits), None)
    return f", as {found} has it" if found else ""


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def read_weights(folder: Path, dtypes: Sequence[str] = FLOAT_TYPES) -> dict[str, Tensor]:
    """All tensors of the model in `folder`, from model.safetensors or else from the shards that its index
    names.

    Raises ModelNotFoundError when there is neither, UnsupportedModelError when the weights are in a pickle,
    and the errors of `read_safetensors`.
    """
    if (folder / WEIGHTS).exists():
        return read_safetensors(folder / WEIGHTS, dtypes)
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
        # Files may be symlinks to other folders, as in hub caches, but names must not contain paths.
        if not shard.endswith(".safetensors") or any(c in shard for c in "/\\:\0"):
            raise ModelFileError(f"{index}: {shown(shard)} is not the name of a .safetensors file beside it")
        opened[shard] = _read_shard(folder / shard, len(shards), dtypes)
    tensors: dict[str, Tensor] = {}
    for name, shard in weight_map.values.items():
        if name not in opened[shard]:
            raise ModelFileError(f"{folder / shard}: the tensor {shown(name)} is missing")
        tensors[name] = opened[shard][name]
    return tensors


def _read_shard(path: Path, count: int, dtypes: Sequence[str]) -> dict[str, Tensor]:
    try:
        return read_safetensors(path, dtypes)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{path}: no such file, but {INDEX} names it as one of {count}; put all files of the model there"
        ) from error


def _no_weights(folder: Path) -> ModelNotFoundError | UnsupportedModelError:
    names = names_in(folder)
    what = describe_folder(names)
    pickles = sorted(name for name in names if name.endswith(PICKLES) and "/" not in name)
    if what is not None:
        return UnsupportedModelError(f"{folder}: holds {what}")
    if pickles:
        return UnsupportedModelError(
            f"{folder}: has its weights in {pickles[0]}, a pickle, which can run code when it is read; take "
            f"the model's safetensors revision, or load and save it again with safe_serialization=True"
        )
    return ModelNotFoundError(f"{folder}: holds neither {WEIGHTS} nor {INDEX}")
