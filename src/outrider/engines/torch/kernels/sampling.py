"""The coupled sampler on a GPU: the token that the CPU's sampler draws from the same logits, for every row.

    settings = RowSettings.make([params, ...], [seed, ...], vocab_size, "cuda")
    tokens, status, margin, _ = sample(logits, settings, positions)   # no host sync; graphs may capture it

A row's token is the arg max of score + noise among the tokens that min_p, top_k and top_p keep, where score =
(logit - best) / temperature in float64, and of the logits themselves at temperature 0; the lowest id on ties
(`decoding.sampling.sampler`). Scores and noise have the bits of csrc/sampler/ (see `noise`).

The row is not sorted. What the filters keep is the beginning of the ranking by score, so it is enough to know
for the winner among some tokens that begin it how many rank above it, and their mass. If the winner is not
kept, neither is what ranks below it: the next round has the tokens above. With top_k the first round has the
k likeliest, else what min_p keeps. A round has two passes over the logits; on average there are 1 + log(1 /
mass that top_p keeps) of them. The first ROUNDS are spread over the GPU, the others run in one program for
each row.

Masses are sums of exponentials, whose order and last bits are not the CPU's. Where a decision is closer than
CLOSE to its limit the row's status is UNSURE and the caller asks the CPU's sampler: the token is then never
wrong, instead of almost never.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from outrider.engines.torch.kernels.noise import earliest, quad_noise
from outrider.engines.torch.kernels.row_settings import RowSettings

SAMPLED, UNSURE, NOT_FINITE = 0, 1, 2  # status of a row
ROUNDS = 3
CLOSE = 1e-9  # far more than the rounding of sums
TILE = 1024  # ids

_TILE = tl.constexpr(TILE)
_CLOSE = tl.constexpr(CLOSE)
_UNSURE, _NOT_FINITE = tl.constexpr(UNSURE), tl.constexpr(NOT_FINITE)
_NO_ID = tl.constexpr(2**31 - 1)
_NEGLIGIBLE = tl.constexpr(-50.0)  # scores below it add nothing to a sum
_LEAST = tl.constexpr(-3.2)  # what the likeliest token has at least, with noise


@triton.jit
def _no_nan(values):
    return tl.where(values == values, values, -float("inf"))


@triton.jit
def _scores(logits_ptr, ids, vocab, best, temperature):
    values = tl.load(logits_ptr + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32).to(tl.float64)
    return (values - best) / temperature


@triton.jit
def _tile_winner(logits_ptr, first, vocab, best, temperature, seed, position, bound, bound_id):
    """(score + noise, id, score + noise of the second) of the winner among a tile's tokens that rank above
    (bound, bound_id); -inf and id _NO_ID if there is none, or none that could win."""
    quad = first // 4 + tl.arange(0, _TILE // 4)
    ids = first + tl.arange(0, _TILE)
    scores = _scores(logits_ptr, ids, vocab, best, temperature)
    above = (scores > bound) | ((scores == bound) & (ids < bound_id))
    scores = tl.where(above, scores, -float("inf"))
    soonest, holder = earliest(seed, position, quad)
    # Noise is at most the earliest arrival's; in float32, with a margin for its rounding.
    most = 0.01 - tl.log(tl.min(soonest, 0).to(tl.float32))
    top = tl.full((), -float("inf"), tl.float64)
    second = tl.full((), -float("inf"), tl.float64)
    winner = tl.full((), _NO_ID, tl.int32)
    if tl.max(scores, 0) + most >= _LEAST:
        totals = scores + quad_noise(seed, position, quad, soonest, holder)
        top = tl.max(totals, 0)
        winner = tl.min(tl.where((totals == top) & above, ids, _NO_ID), 0)
        second = tl.max(tl.where(ids == winner, -float("inf"), totals), 0)
    return top, winner, second


@triton.jit
def _tile_greedy(logits_ptr, first, vocab):
    ids = first + tl.arange(0, _TILE)
    values = _no_nan(tl.load(logits_ptr + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32))
    top = tl.max(values, 0)
    winner = tl.min(tl.where((values == top) & (ids < vocab), ids, _NO_ID), 0)
    second = tl.max(tl.where(ids == winner, -float("inf"), values), 0)
    return top.to(tl.float64), winner, second.to(tl.float64)


@triton.jit
def _tile_rank(logits_ptr, first, vocab, best, temperature, limit, score, winner):
    """(number, mass) of a tile's tokens that rank above (score, winner), and the mass of all that min_p
    keeps."""
    ids = first + tl.arange(0, _TILE)
    scores = _scores(logits_ptr, ids, vocab, best, temperature)
    mass = tl.where(scores >= tl.maximum(-limit, _NEGLIGIBLE), tl.exp(scores), 0.0)
    above = (scores > score) | ((scores == score) & (ids < winner))
    return tl.sum(above.to(tl.int32), 0), tl.sum(tl.where(above, mass, 0.0), 0), tl.sum(mass, 0)


@triton.jit
def _judge(score, number, above, total, top_k, top_p, limit):
    """(kept, unsure) of a token with this score that `number` tokens of mass `above` rank above."""
    in_k = (top_k <= 0) | (number < top_k)
    wanted = top_p * total
    open_p = (top_p < 1.0) & (number > 0)
    in_p = (open_p == 0) | (above < wanted)
    close = open_p & (tl.abs(above - wanted) <= _CLOSE * total)
    return in_k & in_p, in_k & (close | (score < _CLOSE - limit))


@triton.jit
def _tile_maxima(logits_ptr, maxima_ptr, vocab, row_stride):
    """Program (i, j): the greatest value of tile j of row i, NaN if there is one."""
    row = tl.program_id(0)
    ids = tl.program_id(1) * _TILE + tl.arange(0, _TILE)
    at = row.to(tl.int64) * row_stride + ids
    values = tl.load(logits_ptr + at, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    nan = tl.max((values != values).to(tl.int32), 0)
    top = tl.where(nan > 0, float("nan"), tl.max(_no_nan(values), 0))
    tl.store(maxima_ptr + row * tl.num_programs(1) + tl.program_id(1), top)


@triton.jit
def _row_best(maxima_ptr, row, tiles, block: tl.constexpr):
    """(greatest value of a row, or 0 unless it is finite, whether it is)."""
    at = tl.arange(0, block)
    values = tl.load(maxima_ptr + row * tiles + at, mask=at < tiles, other=-float("inf"))
    nan = tl.max((values != values).to(tl.int32), 0)
    best = tl.max(_no_nan(values), 0).to(tl.float64)
    finite = (nan == 0) & (tl.abs(best) < float("inf"))
    return tl.where(finite, best, 0.0), finite


@triton.jit(do_not_specialize=["vocab"])
def _tile_masses(logits_ptr, maxima_ptr, masses_ptr, vocab, row_stride, block: tl.constexpr):
    """Program (i, j): the sum of e^(logit - best) over tile j of row i."""
    row, tiles = tl.program_id(0), tl.num_programs(1)
    best, _ = _row_best(maxima_ptr, row, tiles, block)
    ids = tl.program_id(1) * _TILE + tl.arange(0, _TILE)
    at = row.to(tl.int64) * row_stride + ids
    values = tl.load(logits_ptr + at, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    mass = tl.sum(tl.exp(values - best.to(tl.float32)), 0)
    tl.store(masses_ptr + row * tiles + tl.program_id(1), mass)


@triton.jit(do_not_specialize=["tiles", "most"])
def _likeliest(
    top_ptr, maxima_ptr, temperature_ptr, top_k_ptr, limit_ptr, bound_ptr, total_ptr, tiles, most,
    block: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Program i: row i's k-th score, or -inf without top_k, and the mass of what min_p and top_k keep.
    top_ptr: the row's `most` greatest logits, descending."""
    row = tl.program_id(0)
    best, _ = _row_best(maxima_ptr, row, tiles, block)
    temperature = tl.load(temperature_ptr + row)
    rank = tl.arange(0, block_k)
    inside = rank < tl.minimum(tl.load(top_k_ptr + row), most)
    values = tl.load(top_ptr + row * most + rank, mask=inside, other=-float("inf")).to(tl.float32)
    scores = (values.to(tl.float64) - best) / tl.where(temperature > 0.0, temperature, 1.0)
    last = tl.min(tl.where(inside, scores, float("inf")), 0)
    tl.store(bound_ptr + row, tl.where(last == float("inf"), -float("inf"), last))
    kept = inside & (scores >= -tl.load(limit_ptr + row))
    tl.store(total_ptr + row, tl.sum(tl.where(kept, tl.exp(scores), 0.0), 0))


@triton.jit
def _begin(bound_ptr, limit_ptr, row, has_top: tl.constexpr):
    """Where the first round's tokens end: inclusive, with a margin for the rounding of min_p's limit."""
    bound = -(tl.load(limit_ptr + row) + _CLOSE)
    if has_top:
        bound = tl.maximum(bound, tl.load(bound_ptr + row))
    return bound


@triton.jit(do_not_specialize=["vocab"])
def _winners(
    logits_ptr, maxima_ptr, temperature_ptr, limit_ptr, seed_ptr, position_ptr, bound_ptr, bound_id_ptr,
    done_ptr, top_ptr, winner_ptr, second_ptr, vocab, row_stride, first_round: tl.constexpr,
    has_top: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Program (i, j): the winner of tile j of row i."""
    row, tiles = tl.program_id(0), tl.num_programs(1)
    waiting = True
    if not first_round:
        waiting = tl.load(done_ptr + row) == 0
    if waiting:
        row_ptr = logits_ptr + row.to(tl.int64) * row_stride
        first = tl.program_id(1) * _TILE
        temperature = tl.load(temperature_ptr + row)
        if temperature > 0.0:
            best, _ = _row_best(maxima_ptr, row, tiles, block)
            seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
            if first_round:
                bound, bound_id = _begin(bound_ptr, limit_ptr, row, has_top), _NO_ID
            else:
                bound, bound_id = tl.load(bound_ptr + row), tl.load(bound_id_ptr + row)
            top, winner, second = _tile_winner(
                row_ptr, first, vocab, best, temperature, seed, position, bound, bound_id
            )
        else:
            top, winner, second = _tile_greedy(row_ptr, first, vocab)
        tl.store(top_ptr + row * tiles + tl.program_id(1), top)
        tl.store(winner_ptr + row * tiles + tl.program_id(1), winner)
        tl.store(second_ptr + row * tiles + tl.program_id(1), second)


@triton.jit
def _row_winner(top_ptr, winner_ptr, row, tiles, block: tl.constexpr):
    at = tl.arange(0, block)
    tops = tl.load(top_ptr + row * tiles + at, mask=at < tiles, other=-float("inf"))
    winners = tl.load(winner_ptr + row * tiles + at, mask=at < tiles, other=_NO_ID)
    return tl.min(tl.where(tops == tl.max(tops, 0), winners, _NO_ID), 0)


@triton.jit
def _row_margin(top_ptr, winner_ptr, second_ptr, row, winner, tiles, block: tl.constexpr):
    """By how much the winner's score with noise exceeds the second's, float32."""
    at = tl.arange(0, block)
    tops = tl.load(top_ptr + row * tiles + at, mask=at < tiles, other=-float("inf"))
    seconds = tl.load(second_ptr + row * tiles + at, mask=at < tiles, other=-float("inf"))
    holds = tl.load(winner_ptr + row * tiles + at, mask=at < tiles, other=_NO_ID) == winner
    return (tl.max(tops, 0) - tl.max(tl.where(holds, seconds, tops), 0)).to(tl.float32)


@triton.jit
def _one_score(row_ptr, winner, best, temperature):
    return (tl.load(row_ptr + winner).to(tl.float32).to(tl.float64) - best) / temperature


@triton.jit(do_not_specialize=["vocab"])
def _ranks(
    logits_ptr, maxima_ptr, temperature_ptr, limit_ptr, done_ptr, top_ptr, winner_ptr, number_ptr, above_ptr,
    total_ptr, vocab, row_stride, first_round: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Program (i, j): what of tile j ranks above the winner of row i."""
    row, tiles = tl.program_id(0), tl.num_programs(1)
    temperature = tl.load(temperature_ptr + row)
    best, finite = _row_best(maxima_ptr, row, tiles, block)
    waiting = finite & (temperature > 0.0)
    if not first_round:
        waiting = waiting & (tl.load(done_ptr + row) == 0)
    if waiting:
        row_ptr = logits_ptr + row.to(tl.int64) * row_stride
        winner, limit = _row_winner(top_ptr, winner_ptr, row, tiles, block), tl.load(limit_ptr + row)
        score = _one_score(row_ptr, winner, best, temperature)
        number, above, total = _tile_rank(
            row_ptr, tl.program_id(1) * _TILE, vocab, best, temperature, limit, score, winner
        )
        at = row * tiles + tl.program_id(1)
        tl.store(number_ptr + at, number)
        tl.store(above_ptr + at, above)
        tl.store(total_ptr + at, total)


@triton.jit(do_not_specialize=["tiles"])
def _decide(
    logits_ptr, maxima_ptr, temperature_ptr, top_k_ptr, top_p_ptr, limit_ptr, kept_total_ptr, bound_ptr,
    bound_id_ptr, done_ptr, status_ptr, token_ptr, margin_ptr, top_ptr, winner_ptr, second_ptr, number_ptr,
    above_ptr, total_ptr, tiles, row_stride, first_round: tl.constexpr, filtered: tl.constexpr,
    has_top: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Program i: row i's winner is its token, or the next round's bound."""
    row = tl.program_id(0)
    waiting = True
    if not first_round:
        waiting = tl.load(done_ptr + row) == 0
    if waiting:
        best, finite = _row_best(maxima_ptr, row, tiles, block)
        status, finished = tl.where(finite, 0, _NOT_FINITE), 1
        winner = tl.where(finite, _row_winner(top_ptr, winner_ptr, row, tiles, block), 0)
        temperature = tl.load(temperature_ptr + row)
        if filtered:  # noqa: SIM102 (decided when it is compiled)
            if finite & (temperature > 0.0):
                score = _one_score(logits_ptr + row.to(tl.int64) * row_stride, winner, best, temperature)
                at = tl.arange(0, block)
                number = tl.sum(tl.load(number_ptr + row * tiles + at, mask=at < tiles, other=0), 0)
                above = tl.sum(tl.load(above_ptr + row * tiles + at, mask=at < tiles, other=0.0), 0)
                total = tl.sum(tl.load(total_ptr + row * tiles + at, mask=at < tiles, other=0.0), 0)
                top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
                if has_top:
                    total = tl.where(top_k > 0, tl.load(kept_total_ptr + row), total)
                kept, unsure = _judge(score, number, above, total, top_k, top_p, tl.load(limit_ptr + row))
                finished = (kept | unsure).to(tl.int32)
                status = unsure.to(tl.int32) * _UNSURE
                tl.store(bound_ptr + row, score)
                tl.store(bound_id_ptr + row, winner)
        tl.store(token_ptr + row, winner)
        if finite:
            margin = _row_margin(top_ptr, winner_ptr, second_ptr, row, winner, tiles, block)
            tl.store(margin_ptr + row, margin)
        tl.store(status_ptr + row, status)
        tl.store(done_ptr + row, finished)


@triton.jit(do_not_specialize=["vocab", "tiles"])
def _finish(
    logits_ptr, maxima_ptr, temperature_ptr, seed_ptr, position_ptr, top_k_ptr, top_p_ptr, limit_ptr,
    kept_total_ptr, bound_ptr, bound_id_ptr, done_ptr, status_ptr, token_ptr, margin_ptr, vocab, tiles,
    row_stride, has_top: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Program i: all rounds that row i still needs."""
    row = tl.program_id(0)
    waiting = tl.load(done_ptr + row) == 0
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    best, _ = _row_best(maxima_ptr, row, tiles, block)
    temperature = tl.load(temperature_ptr + row)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    bound, bound_id = tl.load(bound_ptr + row), tl.load(bound_id_ptr + row)
    top_k, top_p, limit = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(limit_ptr + row)
    while waiting:
        top = tl.full((), -float("inf"), tl.float64)
        second = tl.full((), -float("inf"), tl.float64)
        winner = tl.full((), _NO_ID, tl.int32)
        for first in range(0, vocab, _TILE):
            other, holder, beside = _tile_winner(
                row_ptr, first, vocab, best, temperature, seed, position, bound, bound_id
            )
            better = other > top  # later tiles have higher ids, so ties stay with the first
            second = tl.maximum(second, tl.where(better, tl.maximum(top, beside), other))
            top = tl.where(better, other, top)
            winner = tl.where(better, holder, winner)
        score = _one_score(row_ptr, winner, best, temperature)
        number = tl.full((), 0, tl.int32)
        above = tl.full((), 0.0, tl.float64)
        total = tl.full((), 0.0, tl.float64)
        for first in range(0, vocab, _TILE):
            more, mass, whole = _tile_rank(row_ptr, first, vocab, best, temperature, limit, score, winner)
            number += more
            above += mass
            total += whole
        if has_top:
            total = tl.where(top_k > 0, tl.load(kept_total_ptr + row), total)
        kept, unsure = _judge(score, number, above, total, top_k, top_p, limit)
        tl.store(token_ptr + row, winner)
        tl.store(margin_ptr + row, (top - second).to(tl.float32))
        tl.store(status_ptr + row, unsure.to(tl.int32) * _UNSURE)
        bound, bound_id = score, winner
        waiting = (kept | unsure) == 0


class Sampled(NamedTuple):
    """Of n rows, on the device.

    tokens: int32[n]; means nothing unless the row's status is SAMPLED.
    status: int32[n]: SAMPLED; UNSURE where the CPU's sampler must choose, see above; NOT_FINITE where the
            row's maximum is not, which that sampler reports as an error.
    margin: float32[n], by how much the token's score with noise (at temperature 0 its logit) exceeds that of
            the token that comes second; inf where no other comes near. Of filtered rows the second may be one
            that the filters leave out.
    likeliest: float32[n], the probability of the likeliest token at temperature 1; None if not asked for.
    """

    tokens: torch.Tensor
    status: torch.Tensor
    margin: torch.Tensor
    likeliest: torch.Tensor | None = None


def sample(
    logits: torch.Tensor, settings: RowSettings, positions: torch.Tensor, *, likeliest: bool = False
) -> Sampled:
    """The tokens of logits[n, vocab] (any floating type, as many columns as ids) at `positions`, int64[n]:
    the index in the sequence of the token to be chosen."""
    n, vocab = logits.shape
    tiles = triton.cdiv(vocab, TILE)
    block, stride, has_top = triton.next_power_of_2(tiles), logits.stride(0), settings.most > 0
    new = partial(torch.empty, device=logits.device)
    maxima = new((n, tiles), dtype=torch.float32)
    top, second, above, total = new((4, n, tiles), dtype=torch.float64)
    winner, number = new((2, n, tiles), dtype=torch.int32)
    bound, kept_total = new((2, n), dtype=torch.float64)
    bound_id, done, status, token = new((4, n), dtype=torch.int32)
    margin = new(n, dtype=torch.float32)
    temperature, limit = settings.temperature, settings.limit
    options = {"num_warps": 4, "enable_fp_fusion": False}
    _tile_maxima[(n, tiles)](logits, maxima, vocab, stride, **options)
    if has_top:
        values = logits.topk(settings.most, dim=1).values
        _likeliest[(n,)](
            *(values, maxima, temperature, settings.top_k, limit, bound, kept_total, tiles, settings.most),
            **{"block": block, "block_k": triton.next_power_of_2(settings.most)} | options,
        )
    limits = temperature, settings.top_k, settings.top_p, limit
    for turn in range(ROUNDS if settings.filtered else 1):
        options |= {"block": block, "first_round": turn == 0}
        _winners[(n, tiles)](
            *(logits, maxima, temperature, limit, settings.seed, positions, bound, bound_id, done),
            *(top, winner, second, vocab, stride),
            **{"has_top": has_top} | options,
        )
        if settings.filtered:
            _ranks[(n, tiles)](
                *(logits, maxima, temperature, limit, done, top, winner, number, above, total, vocab, stride),
                **options,
            )
        _decide[(n,)](
            *(logits, maxima, *limits, kept_total, bound, bound_id, done, status, token),
            *(margin, top, winner, second, number, above, total, tiles, stride),
            **{"filtered": settings.filtered, "has_top": has_top} | options,
        )
    if settings.filtered:
        _finish[(n,)](
            *(logits, maxima, temperature, settings.seed, positions, *limits[1:], kept_total),
            *(bound, bound_id, done, status, token, margin, vocab, tiles, stride),
            **{"has_top": has_top, "block": block, "num_warps": 8, "enable_fp_fusion": False},
        )
    shares = None
    if likeliest:
        masses = new((n, tiles), dtype=torch.float32)
        _tile_masses[(n, tiles)](logits, maxima, masses, vocab, stride, block=block, num_warps=4)
        shares = 1.0 / masses.sum(1)
    return Sampled(token, status, margin, shares)
