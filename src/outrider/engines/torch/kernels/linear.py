"""x[n, k] times w[m, k] transposed: one kernel for every number of rows.

A row's result is a chain of tensor core instructions over k, `block_k` values at a time from the first to the
last, added to one float32 accumulator. The tile's shape decides which instruction that is, and all tiles here
have the same one: `mma` of 16 by 8 by 16, which the compiler takes for tiles of fewer than 64 rows or for
fewer than four warps. (From 64 rows and four warps on, a Hopper GPU has `wgmma`, whose sums need not have
the same bits.) So neither n, nor the row's place in its tile, nor the other rows change a bit. Nothing is
tuned at run time, and k is never split: the accumulator's order is that of k.

Few rows are a matter of memory bandwidth: each program streams `block_m` rows of weights once and holds all
of up to 16 rows of x against them. For many rows the programs that share weights run next to each other, so
that the weights come from the L2 cache for all of them but the first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from outrider.engines.torch.kernels.interpreted import INTERPRETED

BUSY = 128  # programs that keep the memory of a large GPU busy
# Tiles for more than 16 rows (rows of x, of w, warps): the first that makes ENOUGH programs, or the last.
TILES = ((64, 128, 2), (64, 64, 2), (32, 64, 4), (32, 32, 4))
ENOUGH = 200


@triton.jit(do_not_specialize=["n"])
def _linear(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    n,
    m,
    k,
    x_stride,
    w_stride,
    out_stride,
    has_bias: tl.constexpr,
    even: tl.constexpr,  # k is a multiple of block_k, and m one of block_m
    widen: tl.constexpr,
    block_n: tl.constexpr,
    block_m: tl.constexpr,
    block_k: tl.constexpr,
):
    """out[n, m] = x[n, k] w[m, k]^T + bias[m]. Program (i, j) has rows i of x and rows j of w."""
    rows = tl.program_id(0) * block_n + tl.arange(0, block_n)
    columns = tl.program_id(1) * block_m + tl.arange(0, block_m)
    inner = tl.arange(0, block_k)
    x_at = x_ptr + rows.to(tl.int64)[:, None] * x_stride + inner[None, :]
    w_at = w_ptr + columns.to(tl.int64)[None, :] * w_stride + inner[:, None]
    row_mask = rows[:, None] < n
    sums = tl.zeros((block_n, block_m), tl.float32)
    for first in range(0, k, block_k):
        if even:
            x = tl.load(x_at, mask=row_mask, other=0.0)
            w = tl.load(w_at)
        else:
            x = tl.load(x_at, mask=row_mask & (inner[None, :] < k - first), other=0.0)
            w = tl.load(w_at, mask=(columns[None, :] < m) & (inner[:, None] < k - first), other=0.0)
        if widen:
            x, w = x.to(tl.float32), w.to(tl.float32)
        sums = tl.dot(x, w, sums, input_precision="ieee")
        x_at += block_k
        w_at += block_k
    if has_bias:
        sums += tl.load(bias_ptr + columns, mask=columns < m, other=0.0).to(tl.float32)[None, :]
    out_at = out_ptr + rows.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), mask=row_mask & (columns[None, :] < m))


def tile(n: int, m: int, itemsize: int) -> dict[str, int]:
    """The tile for n rows of x and m of w. It changes speed only: see above why no bit depends on it.

    Weights are divided so that enough programs run at a time. float32 is computed without tensor cores, one
    product after the other, in small tiles.
    """
    if itemsize == 4:
        return {"block_n": 16, "block_m": 32, "block_k": 32, "num_warps": 4, "num_stages": 2}
    if n > 16:
        for block_n, block_m, warps in TILES:  # noqa: B007 (the last tile stays)
            if triton.cdiv(n, block_n) * triton.cdiv(m, block_m) >= ENOUGH:
                break
        block_k, stages = (64, 3) if block_n == 64 else (128, 5)
    else:
        # Few rows leave room in the L2 cache's bandwidth for reading x more often.
        block_n, block_k, busy = 16, 128, 2 * BUSY if n <= 4 else BUSY
        block_m = next((size for size in (64, 32) if m >= size * busy), 16)
        # All programs of the widest matrices but the output should run at once: 5 of them fit on each unit.
        warps, stages = (4 if block_m > 16 else 2), (3 if block_m == 64 else 6)
        if block_m == 16:  # the chain over k leaves little time for anything else: fewer, longer turns
            block_k, stages = 256, 5
    return {
        "block_n": block_n,
        "block_m": block_m,
        "block_k": block_k,
        "num_warps": warps,
        "num_stages": stages,
    }


def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x[n, k] w[m, k]^T + bias[m], in the type of x; the last dimension of x and w is contiguous."""
    return with_tile(x, w, bias, tile(x.shape[0], w.shape[0], x.element_size()))


def with_tile(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, shape: dict[str, int]
) -> torch.Tensor:
    """`linear` in tiles of another shape: what `tile` returns. Not all shapes have the same bits."""
    n, k = x.shape
    m = w.shape[0]
    out = torch.empty((n, m), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n, shape["block_n"]), triton.cdiv(m, shape["block_m"]))
    _linear[grid](
        *(x, w, x if bias is None else bias, out, n, m, k),
        *(x.stride(0), w.stride(0), out.stride(0)),
        has_bias=bias is not None,
        even=k % shape["block_k"] == 0 and m % shape["block_m"] == 0,
        widen=INTERPRETED and x.dtype == torch.bfloat16,
        enable_fp_fusion=False,
        **shape,
    )
    return out
