"""How the memory of a GPU is divided between weights, caches and passes: arithmetic without a device.

The torch engine, its server and `outrider plan` count by these numbers.
"""

from __future__ import annotations

import math

from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import ModelSpec

UTILIZATION = 0.9  # the part of a device's memory that is used when no other is asked for
RESERVE = 1 << 30  # bytes of it for passes: activations, logits, graphs
NF4_BLOCK = 64  # weights of bitsandbytes' NF4 that share a scale
PATH = 144  # positions beyond a sequence's own: as many as any draft has, and an anchor
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def usable(free: int, total: int, utilization: float | None) -> int:
    """Bytes that weights and caches may take of a device with so many free ones; negative where passes alone
    need more."""
    return int(free - total * (1 - (utilization or UTILIZATION)) - RESERVE)


def weights_bytes(source: ModelSource, itemsize: int) -> int:
    """Bytes of the weights on a device: all of them that are its own, as floats of `itemsize` bytes or as
    `source.quantization` says."""
    own = [tensor for name, tensor in source.tensors.items() if name not in source.borrowed]
    return sum(tensor_bytes(tensor, itemsize, source.quantization) for tensor in own)


def is_packed(tensor: Tensor, quantization: str | None) -> bool:
    """Whether the torch engine holds this tensor in few bits, under one of TORCH_QUANTIZATIONS or None: a
    matrix of a layer, and for bitsandbytes one whose rows are whole blocks. (Its CPU code takes the scales of
    other blocks where they are not.)"""
    if quantization is None or len(tensor.shape) != 2 or not tensor.name.startswith("blk."):
        return False
    return quantization != "bitsandbytes" or tensor.shape[1] % NF4_BLOCK == 0


def tensor_bytes(tensor: Tensor, itemsize: int, quantization: str | None) -> int:
    """The same of one tensor; see engines/torch/packed.py."""
    count = math.prod(tensor.shape)
    if not is_packed(tensor, quantization):
        return count * itemsize
    if quantization == "bitsandbytes":
        return count // 2 + 4 * (count // NF4_BLOCK)
    return count + 5 * tensor.shape[0]  # of each row a scale, and a zero point in 8 bits


def slot_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Bytes of the keys and values of one position in all layers; those with a sliding window hold all."""
    return 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim * itemsize
