"""From one row of logits to one token: the same pipeline for plain decoding, verifying and drafting.

Stages, in vLLM's order: allowed_token_ids; min_tokens; logit_bias; repetition penalty over prompt and
output, then frequency and presence penalty over the output; temperature; min_p; top_k; top_p; draw.
Temperature 0 takes the likeliest token (lowest id on ties) and needs none of the stages after penalties.

The draw is the Gumbel-max trick (Maddison, Tarlow and Minka, "A* sampling", 2014): the token that
maximises logit / temperature + noise has exactly the softmax distribution. With the noise a pure
function of (seed, position, id) the token is a pure function of (logits, context, seed), so it cannot
matter whether the row came from plain decoding or from a draft's verification.

Work is saved only where the result provably stays the same: the greatest noise in a group of tokens
is known beforehand, and tokens that could not win even with that much are never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext
from outrider.decoding.params import SamplingParams
from outrider.decoding.rng import GROUP_BITS, LEAST_NOISE, Floats, Ids, gumbel, peaks
from outrider.errors import ConfigError, ModelError

Row: TypeAlias = npt.NDArray[np.floating[Any]]  # float32[vocab] from the model, float64 once changed

# Tokens below e^-MASS_REACH times the best add less than half a rounding step to the total mass.
MASS_REACH = 50.0


class Sampler:
    """Chooses one request's tokens.

    Raises ConfigError when the parameters name ids outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, vocab_size: int, eos_ids: Iterable[int] = (), seed: int = 0
    ) -> None:
        for name in ("logit_bias", "allowed_token_ids"):
            for token in getattr(params, name) or ():
                if token >= vocab_size:
                    raise ConfigError(f"{name} has the id {token}; the vocabulary ends at {vocab_size - 1}")
        self.params = params
        self.seed = seed
        self.stop_ids = params.stop_ids(eos_ids)
        self._prepare(vocab_size)

    def _prepare(self, vocab_size: int) -> None:
        """Turn the parameters that name tokens into arrays, without ids that cannot occur."""
        params = self.params
        self.vocab_size = vocab_size
        bias = {i: b for i, b in (params.logit_bias or {}).items() if i < vocab_size}
        self._bias = np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float64, len(bias))
        allowed = params.allowed_token_ids
        self._allowed = None if allowed is None else _sorted(allowed, vocab_size)
        self._stops = _sorted(self.stop_ids, vocab_size)
        self._penalised = (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )

    def restricted(self, vocab_size: int) -> Sampler:
        """The same request's sampler, with the same noise, over the first `vocab_size` ids only."""
        twin = Sampler.__new__(type(self))
        twin.params, twin.seed, twin.stop_ids = self.params, self.seed, self.stop_ids
        twin._prepare(vocab_size)
        return twin

    def token(self, logits: Row, context: TokenContext) -> int:
        """The token at `context.position`, from the logits that follow the context: float32, one
        for each id of the vocabulary, and any more are left out of account.

        Raises ModelError when the logits hold NaN or +inf or are all -inf, ConfigError when the
        parameters leave no token to choose.
        """
        logits = logits[: self.vocab_size]
        row = self._adjusted(logits, context)
        if self.params.temperature == 0.0:
            token = int(row.argmax())
            self._check(float(row[token]), logits, context.position)
            return token
        ids, scores = self._kept(logits, row, context.position)
        return self._draw(ids, scores, context.position)

    def _adjusted(self, logits: Row, context: TokenContext) -> Row:
        """The row after every stage that changes logits one by one; the model's own row if none does."""
        early = len(self._stops) and context.output_length < self.params.min_tokens
        bias_ids, biases = self._bias
        if not (early or len(bias_ids) or self._penalised or self._allowed is not None):
            return logits
        row = logits.astype(np.float64)
        if self._allowed is not None:
            row.fill(-np.inf)
            row[self._allowed] = logits[self._allowed]
        if early:
            row[self._stops] = -np.inf
        row[bias_ids] += biases
        if self._penalised:
            self._penalise(row, context)
        return row

    def _penalise(self, row: Row, context: TokenContext) -> None:
        params = self.params
        ids, counts = context.counts()
        inside = ids < self.vocab_size
        ids, counts = ids[inside], counts[inside]
        values = row[ids]
        values = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values -= params.frequency_penalty * counts
        values -= params.presence_penalty * (counts > 0)
        row[ids] = values

    def _kept(self, logits: Row, row: Row, position: int) -> tuple[Ids, Floats]:
        """The tokens that may be drawn: ids ascending, and log-probabilities relative to the best (0).

        Left out are the ones that a filter drops, and the ones that cannot win: with the least noise
        of all for the best and the greatest of all for them.
        """
        params = self.params
        best = float(row.max())
        self._check(best, logits, position)
        heights, _ = peaks(self.seed, position, np.arange((self.vocab_size >> GROUP_BITS) + 1))
        reach = float(heights.max()) - LEAST_NOISE
        min_p_reach = -math.log(params.min_p) if params.min_p > 0.0 else math.inf
        ids, scores = self._within(row, best, min(reach, min_p_reach))
        if params.top_p < 1.0 and reach < min_p_reach and not 0 < params.top_k <= len(ids):
            ids, scores = self._within(row, best, min(MASS_REACH, min_p_reach))  # top_p needs their mass
        if 0 < params.top_k < len(ids):
            kept = _top_k(scores, params.top_k)
            ids, scores = ids[kept], scores[kept]
        if params.top_p < 1.0:
            kept = _top_p(scores, params.top_p)
            ids, scores = ids[kept], scores[kept]
        return ids, scores

    def _within(self, row: Row, best: float, reach: float) -> tuple[Ids, Floats]:
        """The ids, ascending, and scores of the tokens not further than `reach` below the best."""
        # First in the row's own precision for speed, a step lower so that rounding drops nothing.
        floor = row.dtype.type(best - (reach + 1e-3) * self.params.temperature)
        ids = np.flatnonzero(row >= np.nextafter(floor, row.dtype.type(-np.inf)))
        scores = row[ids].astype(np.float64)
        scores -= best
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf
            scores /= self.params.temperature
        near = scores >= -reach
        return (ids, scores) if near.all() else (ids[near], scores[near])

    def _draw(self, ids: Ids, scores: Floats, position: int) -> int:
        """argmax of score + noise, the lowest id on ties."""
        if len(ids) > 1024:  # fewer are sooner drawn than ruled out
            live = self._contenders(ids, scores, position)
            ids, scores = ids[live], scores[live]
        return int(ids[(scores + gumbel(self.seed, position, ids)).argmax()])

    def _contenders(self, ids: Ids, scores: Floats, position: int) -> Ids:
        """Ascending indices of the tokens that the greatest noise in their group could lift to the bar:
        the highest sum of score and noise among the groups' holders of that noise and the best token."""
        edges = np.searchsorted(ids, np.arange((self.vocab_size >> GROUP_BITS) + 2) << GROUP_BITS)
        groups = np.flatnonzero(np.diff(edges))
        heights, holders = peaks(self.seed, position, groups)
        at = np.minimum(np.searchsorted(ids, holders), len(ids) - 1)
        sums = np.where(ids[at] == holders, scores[at] + heights, -np.inf)
        best = int(scores.argmax())
        bar = max(
            float(sums.max()), float(scores[best] + gumbel(self.seed, position, ids[best : best + 1])[0])
        )
        hopeful = np.maximum.reduceat(scores, edges[groups]) + heights >= bar
        return np.concatenate(
            [
                start + np.flatnonzero(scores[start:end] + height >= bar)
                for start, end, height in zip(
                    edges[groups[hopeful]], edges[groups[hopeful] + 1], heights[hopeful], strict=True
                )
            ]
        )

    def _check(self, best: float, logits: Row, position: int) -> None:
        """Refuse a row whose greatest value is not a number to choose by."""
        if math.isfinite(best):
            return
        if best == -math.inf and np.isfinite(logits.max()):
            raise ConfigError(
                f"no token is left to choose at position {position}: allowed_token_ids, logit_bias "
                "and min_tokens together rule out all of them"
            )
        raise ModelError(f"the model's logits at position {position} have {best} as their maximum")


def _sorted(ids: Iterable[int], vocab_size: int) -> Ids:
    return np.array(sorted({i for i in ids if i < vocab_size}), np.int64)


def _top_k(scores: Floats, k: int) -> Ids:
    """Ascending indices of the k highest scores, the earlier ones on ties. 0 < k < len(scores)."""
    bar = np.partition(scores, len(scores) - k)[len(scores) - k]
    kept = scores > bar
    kept[np.flatnonzero(scores == bar)[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _top_p(scores: Floats, top_p: float) -> Ids:
    """Ascending indices of the smallest set of highest scores whose probability reaches top_p."""
    mass = np.exp(scores)
    wanted = top_p * mass.sum()
    for reach in (2.0, 8.0, np.inf):  # sort only the likeliest, if they will do
        some = np.flatnonzero(scores >= -reach)
        order = some[np.argsort(-scores[some], kind="stable")]
        reached = np.cumsum(mass[order])
        if reached[-1] >= wanted:
            break
    return np.sort(order[: int(np.searchsorted(reached, wanted)) + 1])
