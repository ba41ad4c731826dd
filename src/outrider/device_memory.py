"""How the memory of a GPU is divided between weights, caches and passes: arithmetic without a device.

The torch engine, its server and `outrider plan` count by these numbers.
"""

from __future__ import annotations

from outrider.models.quantization import type_bytes
from outrider.models.source import ModelSource
from outrider.models.spec import ModelSpec

UTILIZATION = 0.9  # the part of a device's memory that is used when no other is asked for
RESERVE = 1 << 30  # bytes of it for passes: activations, logits, graphs
PATH = 144  # positions beyond a sequence's own: as many as any draft has, and an anchor
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def usable(free: int, total: int, utilization: float | None) -> int:
    """Bytes that weights and caches may take of a device with so many free ones; negative where passes alone
    need more."""
    return int(free - total * (1 - (utilization or UTILIZATION)) - RESERVE)


def weights_bytes(source: ModelSource, itemsize: int) -> int:
    """Bytes of the weights on a device: all of them that are its own, as floats of `itemsize` bytes."""
    own = [tensor for name, tensor in source.tensors.items() if name not in source.borrowed]
    return sum(type_bytes("F32", tensor.shape) for tensor in own) // 4 * itemsize


def slot_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Bytes of the keys and values of one position in all layers; those with a sliding window hold all."""
    return 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim * itemsize
