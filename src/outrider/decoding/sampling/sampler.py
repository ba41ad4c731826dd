"""From one row of logits to one token: the same pipeline for plain decoding, verification and drafting.

Stages, in vLLM's order: those that change logits token by token (`outrider.decoding.sampling.logits`);
temperature; min_p; top_k; top_p; draw. Temperature 0 takes the likeliest token (lowest id on ties) and skips
the stages after it.

The draw is the Gumbel-max trick (Maddison, Tarlow and Minka, "A* sampling", 2014): the token that
maximises logit / temperature + noise has exactly the softmax distribution. The noise is a pure function of
(seed, position, id), so the token is a pure function of (logits, context, seed): it is the same whether the
row was computed in plain decoding or in a draft's verification.

Work is skipped only where the result provably stays the same: the greatest noise in each group of tokens is
known from the generator, and tokens that could not win even with that noise are not scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.constraint import Constraint
from outrider.decoding.sampling.logits import LogitsPipeline, Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import GROUP, LEAST_NOISE, Floats, Ids, gumbel, peaks
from outrider.decoding.types import Distribution
from outrider.errors import ConfigError, ModelError

# All in log-probability below the likeliest token. Tokens below MASS_REACH add less than half a rounding step
# to the total mass, and cannot be drawn either: noise lies between -3.14 and 28.5.
MASS_REACH = 50.0
TOP_P_REACH = 16.0  # how far top_p sums at first: usually that decides it
TOP_PROBABILITY_REACH = 8.0  # how far `top_probability` sums


class RowSampler(Protocol):
    """A faster implementation of the sampler's work on one adjusted row, for temperatures above 0. The code
    here is the specification. `best` is the row's greatest value, NaN if any value is; when it is not finite,
    the other result is undefined."""

    def token(self, row: Row, params: SamplingParams, seed: int, position: int) -> tuple[int, float]:
        """(token, best), see `Sampler.draw`."""

    def distribution(self, row: Row, params: SamplingParams) -> tuple[Distribution, float]:
        """(distribution, best), see `Sampler.distribution`."""

    def probability(self, row: Row, params: SamplingParams, token: int) -> tuple[float, float]:
        """(probability, best): the token's probability, bit for bit as in `distribution`."""

    def noise(self, seed: int, position: int, ids: Ids) -> Floats:
        """See `Sampler.noise`."""


class LazyDistribution:
    """The distribution that one row of logits gives, computed only as far as it is used.

    whole: computes the distribution.
    of:    computes one token's probability without the others, bit for bit the same; None if nothing can.
    """

    def __init__(self, whole: Callable[[], Distribution], of: Callable[[int], float] | None = None) -> None:
        self._compute, self._compute_one = whole, of
        self._whole: Distribution | None = None
        self._single: dict[int, float] = {}

    def whole(self) -> Distribution:
        """The whole distribution."""
        if self._whole is None:
            self._whole = self._compute()
        return self._whole

    def of(self, token: int) -> float:
        """The probability of one token."""
        if self._whole is not None or self._compute_one is None:
            return self.whole().of(token)
        if token not in self._single:
            self._single[token] = self._compute_one(token)
        return self._single[token]


class Sampler:
    """Samples one request's tokens: `adjusted` changes logits token by token, `draw` filters and draws.

    eos_ids:    the model's end-of-sequence ids.
    seed:       of the noise, 64-bit.
    bad_words:  `params.bad_words` as sequences of token ids.
    constraint: of structured output, or None.
    rows:       a faster implementation of filters and draws; None for the code here.
    Raises ConfigError when the parameters name ids outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        eos_ids: Iterable[int] = (),
        seed: int = 0,
        *,
        bad_words: Sequence[Sequence[int]] = (),
        constraint: Constraint | None = None,
        rows: RowSampler | None = None,
    ) -> None:
        for name in ("logit_bias", "allowed_token_ids", "logprob_token_ids"):
            for token in getattr(params, name) or ():
                if token >= vocab_size:
                    raise ConfigError(f"{name} has the id {token}; the vocabulary ends at {vocab_size - 1}")
        self.params = params
        self.seed = seed
        self._rows = rows
        self._pipeline = LogitsPipeline(params, vocab_size, eos_ids, bad_words, constraint)

    @property
    def vocab_size(self) -> int:
        """The ids below this one can be drawn."""
        return self._pipeline.vocab_size

    @property
    def rows(self) -> RowSampler | None:
        """The faster implementation of filters and draws, or None."""
        return self._rows

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends the output."""
        return self._pipeline.stop_ids

    @property
    def constraint(self) -> Constraint | None:
        """The constraint of structured output, or None."""
        return self._pipeline.constraint

    def forced(self, context: TokenContext, max_tokens: int) -> list[int]:
        """The next tokens as long as structured output permits exactly one, up to `max_tokens` of them."""
        return [] if self.constraint is None else self.constraint.forced(context, max_tokens)

    def ended(self, context: TokenContext) -> bool:
        """Whether structured output is complete, so that no token may follow."""
        return self.constraint is not None and self.constraint.ended(context)

    def restricted(self, vocab_size: int) -> Sampler:
        """The same request's sampler, with the same noise, over the first `vocab_size` ids only."""
        smaller = Sampler.__new__(type(self))
        smaller.params, smaller.seed, smaller._rows = self.params, self.seed, self._rows
        smaller._pipeline = self._pipeline.restricted(vocab_size)
        return smaller

    def token(self, logits: Row, context: TokenContext) -> int:
        """The token at `context.position`, from the logits after the context: float32, one for each id of the
        vocabulary; values beyond `vocab_size` (padding) are ignored.

        Raises ModelError when the logits have NaN or +inf or are all -inf, ConfigError when the parameters
        mask all tokens.
        """
        logits = logits[: self.vocab_size]
        return self.draw(self.adjusted(logits, context), logits, context.position)

    def adjusts(self, context: TokenContext) -> bool:
        """Whether `adjusted` may change rows of this context or of a later one."""
        return self._pipeline.changes(context)

    def adjusted(self, logits: Row, context: TokenContext) -> Row:
        """The row after the stages that change logits token by token, see `sampling.logits`; `logits` itself
        (float32[vocab_size]) if none does."""
        return self._pipeline.row(logits, context)

    def draw(self, row: Row, logits: Row, position: int) -> int:
        """The token at `position` from an adjusted row: temperature, filters, noise. `logits` is the model's
        own row, which decides what error is raised when no token can be drawn."""
        params = self.params
        if params.temperature == 0.0:
            token = int(row.argmax())
            self._check(float(row[token]), logits, position)
            return token
        if self._rows is not None:
            token, best = self._rows.token(row, params, self.seed, position)
            self._check(best, logits, position)
            return token
        tops = np.maximum.reduceat(row, np.arange(0, len(row), GROUP))  # NaN goes through
        best = float(tops.max())
        self._check(best, logits, position)
        if params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
            ids = self._kept(row, tops, best)
            if len(ids) > 1024:  # for fewer, noise for all costs less than finding the candidates
                row = _masked_but(row, ids)
                ids = self._candidates(
                    row, np.maximum.reduceat(row, np.arange(0, len(row), GROUP)), best, position
                )
        else:
            ids = self._candidates(row, tops, best, position)
        return int(ids[(self._scores(row[ids], best) + gumbel(self.seed, position, ids)).argmax()])

    def noise(self, position: int, ids: Ids) -> Floats:
        """The noise that `draw` adds to the scores of these ascending ids at a temperature above 0,
        float64[len(ids)]."""
        if self._rows is not None:
            return self._rows.noise(self.seed, position, ids)
        return gumbel(self.seed, position, ids)

    def distribution(self, logits: Row, context: TokenContext) -> Distribution:
        """The distribution that `token` draws from, after every stage, normalised in float64. Tokens less
        likely than e^-50 times the likeliest are left out. At temperature 0 it is the one likeliest token.

        Arguments and errors as for `token`.
        """
        logits = logits[: self.vocab_size]
        if self.params.temperature == 0.0:
            return Distribution.point(self.token(logits, context))
        row = self.adjusted(logits, context)
        if self._rows is not None:
            distribution, best = self._rows.distribution(row, self.params)
            self._check(best, logits, context.position)
            return distribution
        tops = np.maximum.reduceat(row, np.arange(0, len(row), GROUP))
        best = float(tops.max())
        self._check(best, logits, context.position)
        ids = self._kept(row, tops, best)
        mass = np.exp(self._scores(row[ids], best))
        return Distribution(ids, mass / mass.sum())

    def lazy_distribution(self, logits: Row, context: TokenContext) -> LazyDistribution:
        """The same distribution, for callers that may need single probabilities only.

        Arguments and errors as for `token`; the methods of the result raise none.
        """
        rows, params = self._rows, self.params
        if rows is None or params.temperature == 0.0:
            distribution = self.distribution(logits, context)
            return LazyDistribution(lambda: distribution)
        logits = logits[: self.vocab_size]
        row = self.adjusted(logits, context)
        self._check(float(row.max()), logits, context.position)
        if row is not logits:  # the pipeline reuses the buffer for the next row
            row = row.copy()
        return LazyDistribution(
            lambda: rows.distribution(row, params)[0], lambda token: rows.probability(row, params, token)[0]
        )

    def _scores(self, values: Row, best: float) -> Floats:
        """Log-probabilities up to a constant, float64, 0 for the best; monotonic, rounding included."""
        scores = values.astype(np.float64)
        scores -= best
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf
            scores /= self.params.temperature
        return scores

    def _candidates(self, row: Row, tops: Row, best: float, position: int) -> Ids:
        """Ascending ids of the tokens that may have the highest score with noise; the winner is among them.

        A token is a candidate when its score plus the greatest noise in its group reaches the bar: the
        highest noisy score among the tokens with their group's greatest noise, or the least that the
        likeliest token can have.

        tops: the greatest value in each group.
        """
        heights, holders = peaks(self.seed, position, np.arange(len(tops)))
        inside = holders < len(row)
        reached = self._scores(row[holders[inside]], best) + heights[inside]
        bar = float(reached.max(initial=LEAST_NOISE))
        groups = np.flatnonzero(self._scores(tops, best) + heights >= bar)
        ids = (groups[:, None] * GROUP + np.arange(GROUP)).ravel()
        ids = ids[: np.searchsorted(ids, len(row))]
        return ids[self._scores(row[ids], best) + np.repeat(heights[groups], GROUP)[: len(ids)] >= bar]

    def _kept(self, row: Row, tops: Row, best: float) -> Ids:
        """Ascending ids of the tokens that min_p, top_k and top_p keep."""
        top_p = self.params.top_p
        if top_p < 1.0:  # usually the likely tokens decide it, whatever the mass of the others
            ids, scores, complete = self._within(row, tops, best, TOP_P_REACH)
            most = GROUP * np.exp(np.minimum(self._scores(tops, best), -TOP_P_REACH)).sum()
            kept, certain = _top_p(scores, top_p, 0.0 if complete else float(most))
            if certain:
                return ids[kept]
        ids, scores, _ = self._within(row, tops, best, MASS_REACH)
        return ids if top_p == 1.0 else ids[_top_p(scores, top_p, 0.0)[0]]

    def _within(self, row: Row, tops: Row, best: float, reach: float) -> tuple[Ids, Floats, bool]:
        """(ids ascending, scores, complete): the tokens that min_p and top_k keep, down to a score of -reach;
        complete when they keep none below that."""
        top_k, min_p = self.params.top_k, self.params.min_p
        limit = -math.log(min_p) if min_p > 0.0 else math.inf
        complete = limit <= reach
        reach = min(limit, reach)
        least = -reach
        if 0 < top_k < len(tops):  # at least k tokens are as great as the k-th greatest of `tops`
            kth = np.partition(tops, -top_k)[-top_k]
            least = max(least, float(self._scores(np.array([kth]), best)[0]))
        # First in the row's own precision, for speed, with a margin so that rounding drops no token, nor one
        # with a smaller value but the same score.
        with np.errstate(over="ignore"):
            floor = row.dtype.type(best + (least - 1e-3) * self.params.temperature)
            floor = np.nextafter(floor, row.dtype.type(-np.inf))
        ids = np.flatnonzero(row >= floor)
        scores = self._scores(row[ids], best)
        inside = np.flatnonzero(scores >= -reach)
        ids, scores = ids[inside], scores[inside]
        if 0 < top_k <= len(ids):
            kept = _top_k(scores, top_k)
            return ids[kept], scores[kept], True
        return ids, scores, complete

    def _check(self, best: float, logits: Row, position: int) -> None:
        """Raise unless the row's greatest value is finite."""
        if math.isfinite(best):
            return
        if best == -math.inf and np.isfinite(logits.max()):
            raise ConfigError(
                f"no token is left to choose at position {position}: allowed_token_ids, bad_words, "
                "min_tokens, logits_processors and structured output together rule out all of them"
            )
        raise ModelError(f"the model's logits at position {position} have {best} as their maximum")


def top_probability(row: Row) -> float:
    """The approximate probability of the likeliest token at temperature 1, 0..1, for estimates: its share
    among the tokens at least e^-TOP_PROBABILITY_REACH times as likely. 0 when no value is finite."""
    best = row.max()
    if not math.isfinite(best):
        return 0.0
    return 1.0 / float(np.exp(row[row > best - TOP_PROBABILITY_REACH] - best).sum())


def _masked_but(row: Row, ids: Ids) -> Row:
    """The row with all other tokens masked."""
    kept = np.full_like(row, -np.inf)
    kept[ids] = row[ids]
    return kept


def _top_k(scores: Floats, k: int) -> Ids:
    """Ascending indices of the k highest scores, the earlier ones on ties. 0 < k <= len(scores)."""
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    kept = scores > threshold
    kept[np.flatnonzero(scores == threshold)[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _top_p(scores: Floats, top_p: float, beyond: float) -> tuple[Ids, bool]:
    """(ascending indices of the smallest set of highest scores whose probability reaches top_p, certain):
    not certain when tokens with lower scores than these, of a total mass up to `beyond`, could change it."""
    mass = np.exp(scores)
    total = mass.sum()
    least, most = top_p * total, top_p * (total + beyond)
    candidates = np.arange(len(scores))
    for reach in (1.0, 2.0, 4.0, 8.0):  # sort no more tokens than needed
        likely = np.flatnonzero(scores >= -reach)
        if mass[likely].sum() > most:
            candidates = likely
            break
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    reached = np.cumsum(mass[order])
    last = int(np.searchsorted(reached, least))
    return np.sort(order[: last + 1]), last == int(np.searchsorted(reached, most))
