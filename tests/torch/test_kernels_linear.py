"""The matrix product: right to float64, and a row's bits the same at every width and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.torch.kernel_support import Random, same_bits, torch

from outrider.engines.torch.kernels.linear import linear, tile, with_tile  # isort: skip

BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("n", "m", "k"), [(1, 1, 1), (1, 33, 200), (17, 48, 64), (35, 70, 129)])
def test_is_right(dtype: Any, n: int, m: int, k: int) -> None:
    random = Random(n)
    x, w, bias = (random.normal(*shape, dtype=dtype) for shape in ((n, k), (m, k), (m,)))
    for given in (None, bias):
        exact = x.double() @ w.double().T + (0 if given is None else given.double())
        found = linear(x, w, given)
        assert found.dtype == dtype
        scale = x.double().abs() @ w.double().abs().T + 1
        assert float(((found.double() - exact).abs() / scale).max()) < BOUNDS[dtype]


def test_rows_of_a_wider_tensor() -> None:
    random = Random(5)
    wide, w = random.normal(3, 100), random.normal(20, 40)
    x = wide[:, 30:70]
    assert same_bits(linear(x, w, None), linear(x.contiguous(), w, None))


def differing(product: Callable[[Any, Any], Any], dtype: Any) -> int:
    """In how many passes a row has other bits than in a pass of 40 rows."""
    random = Random(1)
    x, w = random.normal(40, 150, dtype=dtype), random.normal(40, 150, dtype=dtype)
    whole = product(x, w)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2)).to(x.device)
    count = int(not same_bits(product(x[order], w), whole[order]))
    for n in (1, 2, 5, 16, 17, 33):
        for first in (0, 3, 40 - n):
            rows = slice(first, first + n)
            count += int(not same_bits(product(x[rows].contiguous(), w), whole[rows]))
    return count


@pytest.mark.parametrize("dtype", BOUNDS)
def test_bits_depend_on_the_row_alone(dtype: Any) -> None:
    assert differing(lambda x, w: linear(x, w, None), dtype) == 0


def split_by_width(x: Any, w: Any) -> Any:
    """A twin: k is split in as many parts as leave the device busy, so in fewer for more rows."""
    parts = max(1, 32 // len(x))
    pieces = torch.arange(x.shape[1], device=x.device).tensor_split(parts)
    sums = [linear(x[:, i].float(), w[:, i].float(), None) for i in pieces]
    return torch.stack(sums).sum(0).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_split_by_width_is_caught(dtype: Any) -> None:
    assert differing(split_by_width, dtype) > 0


def test_another_tile_of_the_same_instruction_has_the_same_bits() -> None:
    random = Random(3)
    x, w = random.normal(20, 300, dtype=torch.float16), random.normal(50, 300, dtype=torch.float16)
    expected = linear(x, w, None)
    for block_m, block_k in ((16, 32), (64, 64)):
        shape = tile(20, 50, 2) | {"block_m": block_m, "block_k": block_k, "num_stages": 2}
        assert same_bits(with_tile(x, w, None, shape), expected)


@pytest.mark.parametrize("n", [1, 16, 17, 64, 500])
@pytest.mark.parametrize("m", [16, 1024, 4096, 128256])
def test_tiles_take_one_instruction(n: int, m: int) -> None:
    shape = tile(n, m, 2)
    assert shape["block_n"] < 64 or shape["num_warps"] < 4  # see the module: else it is another one on Hopper
    assert shape["block_k"] % 16 == 0
