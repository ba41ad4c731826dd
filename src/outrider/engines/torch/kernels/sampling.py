"""The coupled sampler on a GPU: the token that the CPU's sampler draws from the same logits, for every row.

    settings = RowSettings.make([params, ...], [seed, ...], vocab_size, "cuda")
    tokens, status = sample(logits, settings, positions)          # no host sync; may be captured in a graph

A row's token is the arg max of score + noise among the tokens that min_p, top_k and top_p keep, where score =
(logit - best) / temperature in float64, and of the logits themselves at temperature 0; the lowest id on ties
(`decoding.sampling.sampler`). Scores and noise have the bits of csrc/sampler/ (see `noise`).

Nothing is sorted. What the filters keep is the beginning of the ranking by score, so it is enough to know for
the winner among all tokens how many rank above it, and their mass. If the winner is not kept, neither is what
ranks below it: the next round has the tokens above. A round with two passes over the logits usually suffices;
on average there are 1 + log(1 / kept mass) of them. The first ROUNDS are spread over the GPU, the others run
in one program for each row.

Masses are sums of exponentials, whose order and last bits are not the CPU's. Where a decision is closer than
CLOSE to its limit the row's status is UNSURE and the caller asks the CPU's sampler: the token is then never
wrong, instead of almost never.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl

import torch
from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.torch.kernels.noise import earliest, quad_noise

SAMPLED, UNSURE, NOT_FINITE = 0, 1, 2  # status of a row
ROUNDS = 3
CLOSE = 1e-9  # far more than the rounding of sums
TILE = 1024  # ids

_TILE = tl.constexpr(TILE)
_CLOSE = tl.constexpr(CLOSE)
_UNSURE = tl.constexpr(UNSURE)
_NO_ID = tl.constexpr(2**31 - 1)
_NEGLIGIBLE = tl.constexpr(-50.0)  # scores below it add nothing to a sum
_LEAST = tl.constexpr(-3.2)  # what the likeliest token has at least, with noise


@dataclass(frozen=True, slots=True, eq=False)
class RowSettings:
    """The sampling parameters of n rows, on the device.

    temperature, top_p, limit: float64[n]; no token with a score below -limit is kept (min_p).
    top_k:    int32[n], 0 for none.
    seed:     int64[n], the bits of the unsigned seed.
    filtered: whether any row has filters. Static, like `most`: a part of a CUDA graph's identity.
    most:     the greatest top_k, rounded up to a power of two, of the rows that have top_p too; else 0.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    limit: torch.Tensor
    seed: torch.Tensor
    filtered: bool
    most: int

    @staticmethod
    def make(
        params: Sequence[SamplingParams], seeds: Sequence[int], vocab_size: int, device: torch.device | str
    ) -> RowSettings:
        """The settings of rows with these parameters and 64-bit seeds. What changes logits before the
        temperature (penalties, masks, biases) is not among them."""
        top_k = [p.top_k if 0 < p.top_k < vocab_size and p.temperature > 0.0 else 0 for p in params]
        top_p = [p.top_p if p.temperature > 0.0 else 1.0 for p in params]
        limit = [-math.log(p.min_p) if p.min_p > 0.0 and p.temperature > 0.0 else math.inf for p in params]
        both = [k for k, p in zip(top_k, top_p, strict=True) if k and p < 1.0]
        doubles = torch.tensor(
            [[p.temperature for p in params], top_p, limit], dtype=torch.float64, device=device
        )
        return RowSettings(
            temperature=doubles[0],
            top_k=torch.tensor(top_k, dtype=torch.int32, device=device),
            top_p=doubles[1],
            limit=doubles[2],
            seed=torch.tensor([_signed(s) for s in seeds], dtype=torch.int64, device=device),
            filtered=any(top_k) or min(top_p) < 1.0 or min(limit) < math.inf,
            most=min(triton.next_power_of_2(max(both)), vocab_size) if both else 0,
        )

    def rows(self, index: torch.Tensor) -> RowSettings:
        """The settings of the rows `index` (int64[m], on the device), each as often as it is named."""
        return RowSettings(
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.limit[index],
            self.seed[index],
            self.filtered,
            self.most,
        )


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


@triton.jit
def _scores(logits_ptr, ids, vocab, best, temperature):
    values = tl.load(logits_ptr + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32).to(tl.float64)
    return (values - best) / temperature


@triton.jit
def _tile_winner(logits_ptr, first, vocab, best, temperature, seed, position, bound, bound_id):
    """(score + noise, id) of the winner among a tile's tokens that rank above (bound, bound_id); id _NO_ID if
    there is none, or none that could win."""
    quad = first // 4 + tl.arange(0, _TILE // 4)
    ids = first + tl.arange(0, _TILE)
    scores = _scores(logits_ptr, ids, vocab, best, temperature)
    above = (scores > bound) | ((scores == bound) & (ids < bound_id))
    scores = tl.where(above, scores, -float("inf"))
    soonest, holder = earliest(seed, position, quad)
    # Noise is at most the earliest arrival's; in float32, with a margin for its rounding.
    most = 0.01 - tl.log(tl.min(soonest, 0).to(tl.float32))
    top = tl.full((), -float("inf"), tl.float64)
    winner = tl.full((), _NO_ID, tl.int32)
    if tl.max(scores, 0) + most >= _LEAST:
        totals = scores + quad_noise(seed, position, quad, soonest, holder)
        top = tl.max(totals, 0)
        winner = tl.min(tl.where((totals == top) & above, ids, _NO_ID), 0)
    return top, winner


@triton.jit
def _tile_greedy(logits_ptr, first, vocab):
    ids = first + tl.arange(0, _TILE)
    values = tl.load(logits_ptr + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    top = tl.max(values, 0)
    return top.to(tl.float64), tl.min(tl.where((values == top) & (ids < vocab), ids, _NO_ID), 0)


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
def _winners(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    bound_ptr,
    bound_id_ptr,
    done_ptr,
    top_ptr,
    winner_ptr,
    vocab,
    row_stride,
):
    """Program (i, j): the winner of tile j of row i."""
    row = tl.program_id(0)
    if tl.load(done_ptr + row) == 0:
        logits_ptr += row.to(tl.int64) * row_stride
        first = tl.program_id(1) * _TILE
        temperature = tl.load(temperature_ptr + row)
        if temperature > 0.0:
            top, winner = _tile_winner(
                logits_ptr,
                first,
                vocab,
                tl.load(best_ptr + row),
                temperature,
                tl.load(seed_ptr + row),
                tl.load(position_ptr + row),
                tl.load(bound_ptr + row),
                tl.load(bound_id_ptr + row),
            )
        else:
            top, winner = _tile_greedy(logits_ptr, first, vocab)
        at = row * tl.num_programs(1) + tl.program_id(1)
        tl.store(top_ptr + at, top)
        tl.store(winner_ptr + at, winner)


@triton.jit
def _row_winner(top_ptr, winner_ptr, row, tiles, block: tl.constexpr):
    at = tl.arange(0, block)
    tops = tl.load(top_ptr + row * tiles + at, mask=at < tiles, other=-float("inf"))
    winners = tl.load(winner_ptr + row * tiles + at, mask=at < tiles, other=_NO_ID)
    return tl.min(tl.where(tops == tl.max(tops, 0), winners, _NO_ID), 0)


@triton.jit
def _one_score(logits_ptr, row, row_stride, winner, best, temperature):
    value = tl.load(logits_ptr + row.to(tl.int64) * row_stride + winner).to(tl.float32).to(tl.float64)
    return (value - best) / temperature


@triton.jit
def _ranks(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    limit_ptr,
    done_ptr,
    top_ptr,
    winner_ptr,
    number_ptr,
    above_ptr,
    total_ptr,
    vocab,
    row_stride,
    block: tl.constexpr,
):
    """Program (i, j): what of tile j ranks above the winner of row i."""
    row = tl.program_id(0)
    temperature = tl.load(temperature_ptr + row)
    if (tl.load(done_ptr + row) == 0) & (temperature > 0.0):
        tiles = tl.num_programs(1)
        best = tl.load(best_ptr + row)
        winner = _row_winner(top_ptr, winner_ptr, row, tiles, block)
        number, above, total = _tile_rank(
            logits_ptr + row.to(tl.int64) * row_stride,
            tl.program_id(1) * _TILE,
            vocab,
            best,
            temperature,
            tl.load(limit_ptr + row),
            _one_score(logits_ptr, row, row_stride, winner, best, temperature),
            winner,
        )
        at = row * tiles + tl.program_id(1)
        tl.store(number_ptr + at, number)
        tl.store(above_ptr + at, above)
        tl.store(total_ptr + at, total)


@triton.jit(do_not_specialize=["tiles"])
def _decide(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    limit_ptr,
    kept_total_ptr,
    bound_ptr,
    bound_id_ptr,
    done_ptr,
    status_ptr,
    token_ptr,
    top_ptr,
    winner_ptr,
    number_ptr,
    above_ptr,
    total_ptr,
    tiles,
    row_stride,
    filtered: tl.constexpr,
    has_total: tl.constexpr,
    block: tl.constexpr,
):
    """Program i: row i's winner is its token, or the next round's bound."""
    row = tl.program_id(0)
    if tl.load(done_ptr + row) == 0:
        winner = _row_winner(top_ptr, winner_ptr, row, tiles, block)
        temperature = tl.load(temperature_ptr + row)
        finished = 1
        if filtered:  # noqa: SIM102 (decided when it is compiled)
            if temperature > 0.0:
                best = tl.load(best_ptr + row)
                score = _one_score(logits_ptr, row, row_stride, winner, best, temperature)
                at = tl.arange(0, block)
                inside = at < tiles
                number = tl.sum(tl.load(number_ptr + row * tiles + at, mask=inside, other=0), 0)
                above = tl.sum(tl.load(above_ptr + row * tiles + at, mask=inside, other=0.0), 0)
                total = tl.sum(tl.load(total_ptr + row * tiles + at, mask=inside, other=0.0), 0)
                top_k = tl.load(top_k_ptr + row)
                if has_total:
                    total = tl.where(top_k > 0, tl.load(kept_total_ptr + row), total)
                kept, unsure = _judge(
                    score, number, above, total, top_k, tl.load(top_p_ptr + row), tl.load(limit_ptr + row)
                )
                finished = (kept | unsure).to(tl.int32)
                tl.store(status_ptr + row, unsure.to(tl.int32) * _UNSURE)
                tl.store(bound_ptr + row, score)
                tl.store(bound_id_ptr + row, winner)
        tl.store(token_ptr + row, winner)
        tl.store(done_ptr + row, finished)


@triton.jit
def _finish(
    logits_ptr,
    best_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    top_k_ptr,
    top_p_ptr,
    limit_ptr,
    kept_total_ptr,
    bound_ptr,
    bound_id_ptr,
    done_ptr,
    status_ptr,
    token_ptr,
    vocab,
    row_stride,
    has_total: tl.constexpr,
):
    """Program i: all rounds that row i still needs."""
    row = tl.program_id(0)
    waiting = tl.load(done_ptr + row) == 0
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    best, temperature = tl.load(best_ptr + row), tl.load(temperature_ptr + row)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    bound, bound_id = tl.load(bound_ptr + row), tl.load(bound_id_ptr + row)
    top_k, top_p, limit = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(limit_ptr + row)
    while waiting:
        top = tl.full((), -float("inf"), tl.float64)
        winner = tl.full((), _NO_ID, tl.int32)
        for first in range(0, vocab, _TILE):
            other, holder = _tile_winner(
                row_ptr, first, vocab, best, temperature, seed, position, bound, bound_id
            )
            better = other > top  # later tiles have higher ids, so ties stay with the first
            top = tl.where(better, other, top)
            winner = tl.where(better, holder, winner)
        score = _one_score(logits_ptr, row, row_stride, winner, best, temperature)
        number = tl.full((), 0, tl.int32)
        above = tl.full((), 0.0, tl.float64)
        total = tl.full((), 0.0, tl.float64)
        for first in range(0, vocab, _TILE):
            more, mass, whole = _tile_rank(row_ptr, first, vocab, best, temperature, limit, score, winner)
            number += more
            above += mass
            total += whole
        if has_total:
            total = tl.where(top_k > 0, tl.load(kept_total_ptr + row), total)
        kept, unsure = _judge(score, number, above, total, top_k, top_p, limit)
        tl.store(token_ptr + row, winner)
        tl.store(status_ptr + row, unsure.to(tl.int32) * _UNSURE)
        bound, bound_id = score, winner
        waiting = (kept | unsure) == 0


def sample(
    logits: torch.Tensor, settings: RowSettings, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, status), int32[n] each, of logits[n, vocab] (any floating type, at least as many columns as
    ids) at `positions`, int64[n]: the index in the sequence of the token to be chosen.

    status: SAMPLED; UNSURE where the CPU's sampler must choose, see above; NOT_FINITE where the row's maximum
    is not, which that sampler reports as an error. In the latter two the token means nothing.
    """
    n, vocab = logits.shape
    device = logits.device
    tiles = triton.cdiv(vocab, TILE)
    block = triton.next_power_of_2(tiles)
    best = logits.amax(1).double()
    status = torch.isfinite(best).logical_not_().int() * NOT_FINITE
    done = (status != 0).int()
    token = torch.zeros(n, dtype=torch.int32, device=device)
    bound = -(settings.limit + CLOSE)
    bound_id = torch.full((n,), 2**31 - 1, dtype=torch.int32, device=device)
    top, above, total = torch.empty((3, n, tiles), dtype=torch.float64, device=device)
    winner, number = torch.empty((2, n, tiles), dtype=torch.int32, device=device)
    kept_total = _kept_total(logits, best, settings) if settings.most else best
    options = {"num_warps": 4, "enable_fp_fusion": False}
    has_total, stride = settings.most > 0, logits.stride(0)
    limits = settings.temperature, settings.top_k, settings.top_p, settings.limit
    state = bound, bound_id, done
    for _ in range(ROUNDS if settings.filtered else 1):
        _winners[(n, tiles)](
            *(logits, best, settings.temperature, settings.seed, positions, *state),
            *(top, winner, vocab, stride),
            **options,
        )
        if settings.filtered:
            _ranks[(n, tiles)](
                *(logits, best, settings.temperature, settings.limit, done, top, winner),
                *(number, above, total, vocab, stride),
                block=block,
                **options,
            )
        _decide[(n,)](
            *(logits, best, *limits, kept_total, *state, status, token),
            *(top, winner, number, above, total, tiles, stride),
            filtered=settings.filtered,
            has_total=has_total,
            block=block,
            **options,
        )
    if settings.filtered:
        _finish[(n,)](
            *(logits, best, settings.temperature, settings.seed, positions, *limits[1:], kept_total),
            *(*state, status, token, vocab, stride),
            has_total=has_total,
            num_warps=8,
            enable_fp_fusion=False,
        )
    return token, status


def _kept_total(logits: torch.Tensor, best: torch.Tensor, settings: RowSettings) -> torch.Tensor:
    """The mass of the tokens that min_p and top_k keep, float64[n]; only for rows that have top_k."""
    likeliest = logits.topk(settings.most, dim=1).values.float().double()
    temperature = torch.where(settings.temperature > 0.0, settings.temperature, 1.0)
    scores = (likeliest - best[:, None]) / temperature[:, None]
    rank = torch.arange(settings.most, device=logits.device)
    kept = (rank < settings.top_k[:, None]) & (scores >= -settings.limit[:, None])
    return torch.where(kept, scores.exp(), 0.0).sum(1)
