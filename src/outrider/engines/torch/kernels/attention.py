"""Attention of a pass's tokens to the keys of their own sequences, in trees and chains, bit for bit the same.

Keys have numbers: key i of a token is its ancestor at position i, wherever it lies in the cache
(`Layout.path`). A token's keys are divided by number into chunks of 128, and a chunk into tiles of 64. Each
chunk is reduced by itself, tile by tile; the chunks are merged in their order. So which keys are summed in
which order is a function of the token's position alone: not of the pass that it is in, of how the text was
divided into passes, or of the tokens beside it. A tree's node has the bits that it has in a chain.

Two ways of dividing the work follow the same arithmetic. In passes of few tokens a chunk is a program's work,
so that a single token keeps the GPU busy; a second kernel merges the chunks. In wide passes one program goes
through all chunks of its tokens. For the two to be equal whatever the compiler does, nothing depends on the
layout of a tile: maxima do not depend on the order, and sums over keys are made by `tl.dot`, that of the
weights too (a product with ones). Maxima are rounded up to whole numbers in the base 2, so rescaling is by
powers of two, which is exact.

A tile has the rows of up to block_n / group tokens of one sequence: the heads of one key head. All tiles
have fewer than 64 rows, so the tensor core instruction is the same for all (`linear` says more). Keys that a
row does not see have weight 0, which adds nothing, and what lies in unseen slots is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from outrider.engines.torch.kernels.interpreted import INTERPRETED

if TYPE_CHECKING:
    from outrider.engines.torch.ops import Layout

CHUNK, TILE = 128, 64  # keys; they are part of the result's bits
SPREAD = 64  # tokens up to which chunks are spread over programs
PROGRAMS = 1024  # as many are wanted at least, then each takes several chunks
LOG2_E = 1.4426950408889634

_NOTHING = tl.constexpr(-1e30)  # a maximum before any key: finite, so that it can be subtracted
_CHUNK, _TILE, _LOG2_E = tl.constexpr(CHUNK), tl.constexpr(TILE), tl.constexpr(LOG2_E)


@triton.jit
def _attend(
    q, k_ptr, v_ptr, slots, seen, valid, highest, total, sums, slot_stride, scale, softcap, d: tl.constexpr,
    block_d: tl.constexpr, capped: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """One tile of keys: (highest, total, sums) after it.

    q: [rows, d]; slots, valid: [TILE], what is read; seen: bool[rows, TILE]; highest: [rows]; total:
    [rows, 16], all columns the same; sums: [rows, d]. scale includes the logarithm of e unless capped.
    """
    dims = tl.arange(0, block_d)
    at = slots.to(tl.int64) * slot_stride
    k = tl.load(k_ptr + at[None, :] + dims[:, None], mask=valid[None, :] & (dims[:, None] < d), other=0.0)
    if widen:
        k = k.to(tl.float32)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if capped:  # c tanh(x) = c - 2 c / (1 + e^2x)
        scores = softcap - 2.0 * softcap / (1.0 + tl.exp2(scores * (2.0 * _LOG2_E / softcap)))
        scores = scores * _LOG2_E
    scores = tl.where(seen, scores, -float("inf"))
    higher = tl.maximum(highest, tl.ceil(tl.max(scores, 1)))
    weights = tl.exp2(scores - higher[:, None])
    kept = tl.exp2(highest - higher)[:, None]
    v = tl.load(v_ptr + at[:, None] + dims[None, :], mask=valid[:, None] & (dims[None, :] < d), other=0.0)
    weights = weights.to(v.dtype)
    if widen:
        weights, v = weights.to(tl.float32), v.to(tl.float32)
    ones = tl.full((_TILE, 16), 1.0, weights.dtype)
    total = tl.dot(weights, ones, total * kept, input_precision="ieee")
    sums = tl.dot(weights, v, sums * kept, input_precision="ieee")
    return higher, total, sums


@triton.jit
def _sees(number, position, window, has_window: tl.constexpr):
    """bool[rows, TILE]: whether tokens at `position` [rows] see the keys `number` [TILE]."""
    seen = number[None, :] <= position[:, None]
    if has_window:
        seen = seen & (number[None, :] > position[:, None] - window)
    return seen


@triton.jit
def _of_tile(token, first_token, n, start, start_ptr, tokens: tl.constexpr):
    """Which tokens, from first_token on, are in its tile: those of its block and sequence."""
    inside = (token < n) & (token < first_token - first_token % tokens + tokens)
    return inside & (tl.load(start_ptr + token, mask=inside, other=-1) == start)


@triton.jit
def _attend_paths(
    q, k_ptr, v_ptr, highest, total, sums, begin, end, first_token, n, start, committed, position, start_ptr,
    position_ptr, path_ptr, path_stride, slot_stride, scale, softcap, window, d: tl.constexpr,
    block_d: tl.constexpr, tokens: tl.constexpr, group_size: tl.constexpr, has_window: tl.constexpr,
    capped: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """(highest, total, sums) after the keys begin .. end-1, which lie where each token's path says."""
    own = first_token + tl.arange(0, tokens)
    own_inside = _of_tile(own, first_token, n, start, start_ptr, tokens)
    own_position = tl.load(position_ptr + own, mask=own_inside, other=-1)
    turn_of_row = tl.arange(0, tokens * group_size) // group_size
    for first in range(begin, end, _TILE):
        number = first + tl.arange(0, _TILE)
        new = number[None, :] - committed
        has = number[None, :] <= own_position[:, None]
        path_at = own.to(tl.int64)[:, None] * path_stride + new
        slots = tl.load(path_ptr + path_at, mask=has & (new >= 0), other=0)
        slots = tl.where(new < 0, start + number[None, :], slots)
        # Where the tokens have the same keys, as in a chain, they are read once, else for each token.
        upper = tl.max(tl.where(has, slots, -1), 0)
        differ = tl.max(tl.max((has & (slots != upper[None, :])).to(tl.int32), 1), 0)
        for turn in range(0, 1 + differ * (tokens - 1)):
            this = (tl.arange(0, tokens) == turn)[:, None] | (differ == 0)
            mine = tl.max(tl.where(has & this, slots, -1), 0)
            seen = _sees(number, position, window, has_window)
            seen = seen & ((turn_of_row == turn)[:, None] | (differ == 0))
            highest, total, sums = _attend(
                q, k_ptr, v_ptr, mine, seen, mine >= 0, highest, total, sums, slot_stride, scale, softcap, d,
                block_d, capped, widen,
            )  # fmt: skip
    return highest, total, sums


@triton.jit(do_not_specialize=["n", "group", "chunks", "path_stride", "window"])
def _attention(
    # out_ptr: merged [n, heads, d], else the chunks' [n, heads, chunks, d] in float32; highest_ptr and
    # total_ptr: the chunks' [n, heads, chunks], unless merged. group: heads of one key head.
    q_ptr, k_ptr, v_ptr, out_ptr, highest_ptr, total_ptr, start_ptr, committed_ptr, position_ptr, path_ptr,
    n, group, chunks, q_stride, q_head_stride, slot_stride, head_stride, path_stride, scale, softcap, window,
    # tokens of a tile, and rows that each has in it, a power of two; head_tiles: tiles that a group takes.
    d: tl.constexpr, block_d: tl.constexpr, tokens: tl.constexpr, group_size: tl.constexpr,
    head_tiles: tl.constexpr, has_path: tl.constexpr, has_window: tl.constexpr, capped: tl.constexpr,
    merged: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Program (i, j, s) has the tokens from i on of i's block and sequence, the heads j of the key heads and
    their tiles, and the chunks s, s + S, s + 2 S, ..., all of them if merged."""
    first_token = tl.program_id(0)
    start = tl.load(start_ptr + first_token)
    leads = first_token % tokens == 0
    if not leads:
        leads = tl.load(start_ptr + first_token - 1) != start
    if leads:
        row = tl.arange(0, tokens * group_size)
        member = (tl.program_id(1) % head_tiles) * group_size + row % group_size
        token = first_token + row // group_size
        inside = _of_tile(token, first_token, n, start, start_ptr, tokens)
        real = inside & (member < group)
        head = tl.program_id(1) // head_tiles * group + member
        position = tl.load(position_ptr + token, mask=inside, other=-1)
        committed = tl.load(committed_ptr + first_token)
        dims = tl.arange(0, block_d)
        cells = real[:, None] & (dims[None, :] < d)
        q_at = token.to(tl.int64) * q_stride + head * q_head_stride
        q = tl.load(q_ptr + q_at[:, None] + dims[None, :], mask=cells, other=0.0)
        if widen:
            q = q.to(tl.float32)
        out_row = token.to(tl.int64) * (tl.num_programs(1) // head_tiles * group) + head
        keys = tl.max(position, 0) + 1  # number of them that the tile's tokens see
        oldest = 0
        if has_window:
            oldest = tl.maximum(0, tl.min(tl.where(inside, position, keys), 0) - window + 1)
        k_ptr += tl.program_id(1) // head_tiles * head_stride
        v_ptr += tl.program_id(1) // head_tiles * head_stride
        gathered = keys  # the keys from here on lie where the paths say
        if has_path:
            gathered = tl.minimum(keys, committed // _TILE * _TILE)
        all_highest = tl.full((tokens * group_size,), _NOTHING, tl.float32)
        all_total = tl.zeros((tokens * group_size, 16), tl.float32)
        all_sums = tl.zeros((tokens * group_size, block_d), tl.float32)
        for chunk in range(oldest // _CHUNK + tl.program_id(2), tl.cdiv(keys, _CHUNK), tl.num_programs(2)):
            begin, end = chunk * _CHUNK, tl.minimum(chunk * _CHUNK + _CHUNK, keys)
            highest = tl.full((tokens * group_size,), _NOTHING, tl.float32)
            total = tl.zeros((tokens * group_size, 16), tl.float32)
            sums = tl.zeros((tokens * group_size, block_d), tl.float32)
            for first in range(begin, tl.minimum(end, gathered), _TILE):
                number = first + tl.arange(0, _TILE)
                highest, total, sums = _attend(
                    q, k_ptr, v_ptr, start + number, _sees(number, position, window, has_window),
                    number < keys, highest, total, sums, slot_stride, scale, softcap, d, block_d, capped,
                    widen,
                )  # fmt: skip
            if has_path:
                highest, total, sums = _attend_paths(
                    q, k_ptr, v_ptr, highest, total, sums, tl.maximum(begin, gathered), end, first_token, n,
                    start, committed, position, start_ptr, position_ptr, path_ptr, path_stride, slot_stride,
                    scale, softcap, window, d, block_d, tokens, group_size, has_window, capped, widen,
                )  # fmt: skip
            if merged:
                higher = tl.maximum(all_highest, highest)
                kept, added = tl.exp2(all_highest - higher)[:, None], tl.exp2(highest - higher)[:, None]
                all_total = all_total * kept + total * added
                all_sums = all_sums * kept + sums * added
                all_highest = higher
            else:
                at = out_row * chunks + chunk
                needed = real & (begin <= position)
                tl.store(highest_ptr + at, highest, mask=needed)
                tl.store(total_ptr + at, tl.max(total, 1), mask=needed)
                tl.store(out_ptr + at[:, None] * d + dims[None, :], sums, mask=needed[:, None] & cells)
        if merged:
            out = all_sums / tl.where(real, tl.max(all_total, 1), 1.0)[:, None]
            out_at = out_row[:, None] * d + dims[None, :]
            tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=cells)


@triton.jit(do_not_specialize=["chunks", "window"])
def _merge(
    sums_ptr,
    highest_ptr,
    total_ptr,
    out_ptr,
    position_ptr,
    chunks,
    window,
    d: tl.constexpr,
    block_d: tl.constexpr,
    has_window: tl.constexpr,
    ahead: tl.constexpr,  # chunks that are read together
):
    """Merges the chunks of one token and head, in their order, as `_attention` does if merged."""
    token, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(position_ptr + token)
    base = (token.to(tl.int64) * tl.num_programs(1) + head) * chunks
    dims = tl.arange(0, block_d)
    first = 0
    if has_window:
        first = tl.maximum(0, position - window + 1) // _CHUNK
    last = position // _CHUNK
    all_highest = tl.full((1,), _NOTHING, tl.float32)
    all_total = tl.zeros((1,), tl.float32)
    all_sums = tl.zeros((block_d,), tl.float32)
    for block in range(first, last + 1, ahead):
        for i in tl.static_range(ahead):
            chunk = tl.full((1,), i, tl.int32) + block
            at = base + chunk
            real = chunk <= last
            highest = tl.load(highest_ptr + at, mask=real, other=_NOTHING)
            total = tl.load(total_ptr + at, mask=real, other=0.0)
            sums = tl.load(sums_ptr + at * d + dims, mask=real & (dims < d), other=0.0)
            higher = tl.maximum(all_highest, highest)
            kept = tl.exp2(all_highest - higher)
            added = tl.exp2(highest - higher)
            all_total = all_total * kept + total * added
            all_sums = all_sums * kept + sums * added
            all_highest = higher
    out_at = (token.to(tl.int64) * tl.num_programs(1) + head) * d
    out = all_sums / all_total
    tl.store(out_ptr + out_at + dims, out.to(out_ptr.dtype.element_ty), mask=dims < d)


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    layout: Layout,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    most: int,
) -> torch.Tensor:
    """See `Ops.attention`. The last dimension of q and the caches is contiguous, and the caches have the same
    strides. No token may have more than `most` keys: the chunks' results have that much room."""
    n, heads, d = q.shape
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    merged = n > SPREAD
    rows = 32 if merged and d <= 128 else 16
    group_size = min(16, triton.next_power_of_2(group))
    head_tiles = triton.cdiv(group, group_size)
    chunks = triton.cdiv(most, CHUNK)
    block_d = max(16, triton.next_power_of_2(d))
    splits = 1 if merged else min(chunks, triton.cdiv(PROGRAMS, n * kv_heads * head_tiles))
    out = torch.empty((n, heads, d), dtype=q.dtype, device=q.device)
    parts, highest, total = out, out, out
    if not merged:
        parts = torch.empty((n, heads, chunks, d), dtype=torch.float32, device=q.device)
        highest, total = (torch.empty((n, heads, chunks), device=q.device) for _ in range(2))
    path = layout.path
    # The compiler may fuse a product and a sum in one way of dividing the work and not in the other.
    _attention[(n, kv_heads * head_tiles, splits)](
        *(q, k_cache, v_cache, parts, highest, total),
        *(layout.start, layout.committed, layout.position, layout.start if path is None else path),
        *(n, group, chunks, q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(1)),
        *(0 if path is None else path.stride(0), scale if softcap is not None else scale * LOG2_E),
        *(1.0 if softcap is None else softcap, 0 if window is None else window),
        d=d,
        block_d=block_d,
        tokens=rows // group_size,
        group_size=group_size,
        head_tiles=head_tiles,
        has_path=path is not None,
        has_window=window is not None,
        capped=softcap is not None,
        merged=merged,
        widen=INTERPRETED and q.dtype == torch.bfloat16,
        num_warps=4,
        num_stages=3 if d <= 128 and q.element_size() == 2 else 2,  # as the shared memory allows
        enable_fp_fusion=False,
    )
    if not merged:
        _merge[(n, heads)](
            *(parts, highest, total, out, layout.position, chunks, 0 if window is None else window),
            d=d,
            block_d=block_d,
            has_window=window is not None,
            ahead=8,
            num_warps=1 if d <= 64 else 4,
            enable_fp_fusion=False,
        )
    return out
