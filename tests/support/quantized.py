"""Writes tiny quantized Hugging Face folders, from the layouts' descriptions alone and one integer at a time.

`quantized_hf` gives, beside the folder, what each quantized matrix holds, as float64 computed from the
integers before they were packed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.models import Dims, encode, hf_name, tiny_hf, tiny_weights

Ints: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[np.float64]
# name: (dtype, shape, bytes), as a safetensors file has it
Stored: TypeAlias = tuple[str, tuple[int, ...], bytes]

WIDE = Dims(hidden=128, heads=2, kv_heads=1, head_dim=64, ffn=256)
NARROW = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight rows is in each nibble of a word


@dataclass(frozen=True)
class Kind:
    """How matrices are quantized.

    method:      awq, gptq or fp8, or the format of compressed-tensors.
    group:       columns that share a scale, -1 for all of a row; with a strategy other than "group" not used.
    scale_dtype: of the scales in the file.
    act_order:   "each": the columns of each matrix are scattered among groups in a way of their own; "same":
                 all matrices of so many columns have the same; "": they are in order.
    block:       rows and columns of blocks of 8-bit floats.
    version:     of GPTQ's layout.
    output:      whether the output matrix is quantized.
    """

    method: str
    bits: int = 4
    group: int = 32
    symmetric: bool = False
    scale_dtype: str = "F16"
    act_order: str = ""
    block: tuple[int, int] | None = None
    version: str = "gptq"
    strategy: str = "group"
    output: bool = False


# A folder of each of the engine's own types of weights.
OF_TYPE = {
    "W4_32": (Kind("gptq", group=32), NARROW),
    "W4_128": (Kind("awq", group=128), WIDE),
    "W8_32": (Kind("gptq", bits=8, group=32), NARROW),
    "W8_128": (Kind("pack-quantized", bits=8, group=128, scale_dtype="BF16"), WIDE),
    "F8_32": (Kind("float-quantized", bits=8, strategy="channel", scale_dtype="BF16"), NARROW),
    "F8_128": (Kind("fp8", bits=8, block=(128, 128), scale_dtype="F32"), WIDE),
}


def quantized_hf(
    path: Path, kind: Kind, *, arch: str = "llama", dims: Dims = WIDE, seed: int = 0
) -> tuple[Path, dict[str, Array]]:
    """The folder, and the values of its quantized matrices under Hugging Face's names."""
    settings = {"quantization_config": _settings(kind)}
    tiny_hf(path, arch=arch, dims=dims, tied=False, seed=seed, config=settings)
    rng = np.random.default_rng(seed + 2)
    stored: dict[str, Stored] = {}
    values: dict[str, Array] = {}
    for ours, weight in tiny_weights(arch, dims, tied=False, seed=seed).items():
        name = hf_name(ours, arch)
        if weight.ndim == 1 or ours in ("token_embd.weight", "" if kind.output else "output.weight"):
            stored[name] = ("F32", weight.shape, encode(weight, "F32"))
        else:
            parts, values[name] = quantize(weight.astype(np.float64), kind, rng)
            module = name.removesuffix(".weight")
            stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    write_stored(path / "model.safetensors", stored)
    return path, values


def write_stored(path: Path, tensors: Mapping[str, Stored]) -> None:
    """A safetensors file of tensors of any types."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(raw for _, _, raw in tensors.values()))


def _settings(kind: Kind) -> dict[str, Any]:
    if kind.method == "awq":
        names = {"version": "gemm", "zero_point": True, "modules_to_not_convert": None}
        return {"quant_method": "awq", "bits": kind.bits, "group_size": kind.group, **names}
    if kind.method == "gptq":
        names = {"sym": kind.symmetric, "desc_act": bool(kind.act_order), "checkpoint_format": kind.version}
        return {"quant_method": "gptq", "bits": kind.bits, "group_size": kind.group, **names}
    if kind.method == "fp8":
        block = None if kind.block is None else list(kind.block)
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    is_float = kind.method == "float-quantized"
    weights = {
        "num_bits": kind.bits,
        "type": "float" if is_float else "int",
        "symmetric": kind.symmetric or is_float,
        "strategy": kind.strategy,
        "group_size": kind.group if kind.strategy == "group" else None,
        "block_structure": list(kind.block) if kind.block else None,
        "dynamic": False,
    }
    inputs = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"} if is_float else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": kind.method,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def quantize(weight: Array, kind: Kind, rng: np.random.Generator) -> tuple[dict[str, Stored], Array]:
    """The tensors of a matrix, and float64[rows, columns] of what they stand for."""
    if kind.method in ("fp8", "float-quantized"):
        return _floats(weight, kind)
    rows, columns = weight.shape
    group = columns if kind.group == -1 or kind.strategy != "group" else kind.group
    index = np.arange(columns) // group
    if kind.act_order:
        index = (np.random.default_rng(9) if kind.act_order == "same" else rng).permutation(index)
    scales = np.zeros((rows, -(-columns // group)))
    zeros = np.zeros(scales.shape, np.int64)
    most = 2**kind.bits - 1
    for g in range(scales.shape[1]):
        part = weight[:, index == g]
        low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
        if kind.symmetric:
            high = np.maximum(high, -low)
            low = -high
        scales[:, g] = np.maximum((high - low) / most, 1e-3)
        scales[:, g] = decode(encode(scales[:, g].astype(np.float32), kind.scale_dtype), kind.scale_dtype)
        middle = (most + 1) // 2
        zeros[:, g] = middle if kind.symmetric else np.clip(np.round(-low / scales[:, g]), 0, most)
    q = np.clip(np.round(weight / scales[:, index]) + zeros[:, index], 0, most).astype(np.int64)
    values = scales[:, index] * (q - zeros[:, index])
    return _PACK[kind.method](kind, q, zeros, scales, index), values


def _awq(kind: Kind, q: Ints, zeros: Ints, scales: Array, index: Ints) -> dict[str, Stored]:
    def packed(each: Ints) -> Stored:  # [columns or groups, rows]
        words = [[row[8 * i : 8 * i + 8] for i in range(len(row) // 8)] for row in each.tolist()]
        return integers([[word([eight[r] for r in AWQ_ORDER], 4) for eight in row] for row in words])

    return {"qweight": packed(q.T), "qzeros": packed(zeros.T), "scales": numbers(scales.T, kind.scale_dtype)}


def _gptq(kind: Kind, q: Ints, zeros: Ints, scales: Array, index: Ints) -> dict[str, Stored]:
    # GPTQModel subtracts from whole words: below a zero point of 0, the next one lends.
    less = 0 if kind.version == "gptq_v2" else word([1] * (32 // kind.bits), kind.bits)
    qzeros = [[(each - less) % 2**32 for each in row] for row in words(zeros.T, kind.bits)]
    return {
        "qweight": integers(np.array(words(q, kind.bits)).T.tolist()),
        "qzeros": integers(qzeros),
        "scales": numbers(scales.T, kind.scale_dtype),
        "g_idx": ("I32", index.shape, index.astype("<i4").tobytes()),
    }


def _packed(kind: Kind, q: Ints, zeros: Ints, scales: Array, index: Ints) -> dict[str, Stored]:
    found = {
        "weight_packed": integers(words(q, kind.bits)),
        "weight_scale": numbers(scales if kind.strategy != "tensor" else scales[:1, :1], kind.scale_dtype),
        "weight_shape": ("I64", (2,), np.array(q.shape, "<i8").tobytes()),
    }
    if not kind.symmetric:
        found["weight_zero_point"] = integers(np.array(words(zeros.T, kind.bits)).T.tolist())
    if kind.act_order:
        found["weight_g_idx"] = ("I32", index.shape, index.astype("<i4").tobytes())
    return found


_PACK = {"awq": _awq, "gptq": _gptq, "pack-quantized": _packed}


def _floats(weight: Array, kind: Kind) -> tuple[dict[str, Stored], Array]:
    rows, columns = weight.shape
    down, along = kind.block or ((rows, columns) if kind.strategy == "tensor" else (1, columns))
    scales = np.zeros((-(-rows // down), -(-columns // along)))
    for i, j in np.ndindex(*scales.shape):
        most = np.abs(weight[i * down : (i + 1) * down, j * along : (j + 1) * along]).max() / 448
        scales[i, j] = decode(encode(np.array([most], np.float32), kind.scale_dtype), kind.scale_dtype)[0]
    spread = scales[np.arange(rows)[:, None] // down, np.arange(columns)[None, :] // along]
    table = np.array([e4m3(byte) for byte in range(256)])
    order = np.argsort(table[:127])
    near = np.searchsorted(table[:127][order], np.abs(weight / spread)).clip(0, 126)
    q = order[near] + 128 * (weight < 0)
    name = "weight_scale_inv" if kind.method == "fp8" else "weight_scale"
    stored = numbers(scales, kind.scale_dtype)
    if scales.size == 1:
        stored = (stored[0], () if kind.method == "fp8" else (1,), stored[2])
    values = spread * table[q]
    return {"weight": ("F8_E4M3", weight.shape, q.astype(np.uint8).tobytes()), name: stored}, values


def e4m3(byte: int) -> float:
    """What a byte stands for, by the OCP specification; its NaNs as 480."""
    sign, exponent, mantissa = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def word(values: Sequence[int], bits: int) -> int:
    """A word with the first value in its lowest bits."""
    return sum((value & (2**bits - 1)) << (bits * i) for i, value in enumerate(values))


def words(each: Ints, bits: int) -> list[list[int]]:
    """Rows of integers, packed along each row."""
    n = 32 // bits
    return [[word(row[i : i + n], bits) for i in range(0, len(row), n)] for row in each.tolist()]


def integers(each: list[list[int]]) -> Stored:
    found = np.array(each, "<u4")
    return "I32", found.shape, found.tobytes()


def numbers(each: Array, dtype: str) -> Stored:
    return dtype, each.shape, encode(np.ascontiguousarray(each, np.float32), dtype)


def decode(raw: bytes, dtype: str) -> Array:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float64)
