"""Norms, gates and rotations: right to float64, and the fused ones with the bits of the separate ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.kernel_support import DEVICE, Random, ints, same_bits, torch

from outrider.engines.torch.kernels.norms import add_rms_norm, gated, rms_norm  # isort: skip
from outrider.engines.torch.kernels.rotary import rotate, rotate_and_store  # isort: skip


def exact_norm(x: Any, weight: Any, eps: float) -> Any:
    x = x.double()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x if weight is None else x * weight.double()


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (2, 5, 48), (4, 1030)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(shape: tuple[int, ...], weighted: bool) -> None:
    random = Random(1)
    x = random.normal(*shape)
    weight = random.normal(shape[-1]) if weighted else None
    found = rms_norm(x, weight, 1e-5)
    assert found.shape == x.shape
    assert torch.allclose(found.double(), exact_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)
    rows = x.reshape(-1, shape[-1])
    alone = torch.cat([rms_norm(row[None], weight, 1e-5) for row in rows])
    assert same_bits(alone.reshape(x.shape), found)


def test_rms_norm_of_heads_with_strides() -> None:
    x = Random(2).normal(3, 7, 16)
    part = x[:, 2:5]
    assert same_bits(rms_norm(part, None, 1e-6), rms_norm(part.contiguous(), None, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_add_rms_norm_is_both(dtype: Any) -> None:
    random = Random(3)
    x, residual, weight = (random.normal(*s, dtype=dtype) for s in ((5, 70), (5, 70), (70,)))
    found, added = add_rms_norm(x, residual, weight, 1e-5)
    assert same_bits(added, x + residual)
    assert same_bits(found, rms_norm(x + residual, weight, 1e-5))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(activation: str) -> None:
    x = Random(4).normal(3, 2 * 1100)
    gate, up = x.double().chunk(2, -1)
    if activation == "silu":
        active = torch.nn.functional.silu(gate)
    else:
        active = torch.nn.functional.gelu(gate, approximate="tanh")
    assert torch.allclose(gated(x, activation).double(), active * up, rtol=1e-5, atol=1e-6)


def exact_rotation(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    half = cos.shape[1]
    one, two = slice(0, half), slice(half, 2 * half)
    if interleaved:
        one, two = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    cos, sin, out = cos.double()[:, None], sin.double()[:, None], x.double().clone()
    first, second = x[..., one].double(), x[..., two].double()
    out[..., one], out[..., two] = first * cos - second * sin, first * sin + second * cos
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("d", "half"), [(32, 16), (40, 12), (6, 3)])
def test_rotate(interleaved: bool, d: int, half: int) -> None:
    random = Random(5)
    qkv, cos, sin = random.normal(4, 9, d), random.normal(4, half), random.normal(4, half)
    exact = exact_rotation(qkv, cos, sin, interleaved)
    for part in (qkv, qkv[:, 2:5]):
        found = rotate(part, cos, sin, interleaved)
        expected = exact if part is qkv else exact[:, 2:5]
        assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-6)
    caches = [torch.zeros(12, 2, d, device=DEVICE) for _ in range(2)]
    slots = ints([7, 1, 11, 2]).long()
    q = rotate_and_store(qkv, cos, sin, slots, caches[0], caches[1], interleaved)
    rotated = rotate(qkv, cos, sin, interleaved)
    assert same_bits(q, rotated[:, :5])
    assert same_bits(caches[0][slots], rotated[:, 5:7])
    assert same_bits(caches[1][slots], qkv[:, 7:])
    others = [i for i in range(12) if i not in (7, 1, 11, 2)]
    assert all(not bool(cache[others].any()) for cache in caches)
