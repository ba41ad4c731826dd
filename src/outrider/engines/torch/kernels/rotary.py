"""Rotary positions: of heads by themselves, or of queries and keys on their way into the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["heads", "kv_heads"])
def _rotate(
    x_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    slot_ptr,
    k_ptr,
    v_ptr,
    heads,  # of which the results go to `out`; the next kv_heads go to the key cache, the rest to the values'
    kv_heads,
    x_stride,
    x_head_stride,
    angle_stride,
    slot_stride,
    head_stride,
    d: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
    interleaved: tl.constexpr,
):
    """Program (i, j): head j of token i. Column pairs below 2 * half are rotated, the others copied."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x_ptr += row * x_stride + head * x_head_stride
    if head < heads:
        out_ptr += (row * heads + head) * d
    else:
        at = tl.load(slot_ptr + row).to(tl.int64) * slot_stride
        if head < heads + kv_heads:
            out_ptr = k_ptr + at + (head - heads) * head_stride
        else:
            out_ptr = v_ptr + at + (head - heads - kv_heads) * head_stride
    column = tl.arange(0, block)
    inside = column < d
    x = tl.load(x_ptr + column, mask=inside, other=0.0)
    turned = column < tl.where(head < heads + kv_heads, 2 * half, 0)
    if interleaved:
        pair, sign = column // 2, column % 2
        other = column + 1 - 2 * sign
    else:
        pair, sign = column % half, (column // half) % 2
        other = tl.where(sign == 0, column + half, column - half)
    mate = tl.load(x_ptr + other, mask=inside & turned, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * angle_stride + pair, mask=turned, other=1.0)
    sin = tl.load(sin_ptr + row * angle_stride + pair, mask=turned, other=0.0)
    value = x.to(tl.float32)
    value = tl.where(sign == 0, value * cos - mate * sin, mate * sin + value * cos)
    tl.store(out_ptr + column, tl.where(turned, value.to(x.dtype), x), mask=inside)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The first 2 * r columns of each head of x[n, heads, d], rotated by cos and sin, float32[n, r]; the
    other columns are copied. Pairs are columns i and i + r, or if interleaved 2 i and 2 i + 1."""
    n, heads, d = x.shape
    out = torch.empty((n, heads, d), dtype=x.dtype, device=x.device)
    _rotate[(n, heads)](
        *(x, cos, sin, out, x, out, out, heads, 0, x.stride(0), x.stride(1), cos.stride(0), 0, 0),
        d=d,
        half=cos.shape[1],
        block=triton.next_power_of_2(d),
        interleaved=interleaved,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return out


def rotate_and_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    interleaved: bool,
) -> torch.Tensor:
    """The rotated queries of qkv[n, heads + 2 kv_heads, d]; the rotated keys and the values go to the slots,
    int32 or int64[n], of the caches [slots, kv_heads, d]. One launch in place of four, with the same bits."""
    n, heads, d = qkv.shape
    kv_heads = k_cache.shape[1]
    out = torch.empty((n, heads - 2 * kv_heads, d), dtype=qkv.dtype, device=qkv.device)
    _rotate[(n, heads)](
        *(qkv, cos, sin, out, slots, k_cache, v_cache, heads - 2 * kv_heads, kv_heads),
        *(qkv.stride(0), qkv.stride(1), cos.stride(0), k_cache.stride(0), k_cache.stride(1)),
        d=d,
        half=cos.shape[1],
        block=triton.next_power_of_2(d),
        interleaved=interleaved,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return out
