"""From one row of logits to one token: the same pipeline for plain decoding, verifying and drafting.

Stages, in vLLM's order: those that change logits id by id (`outrider.decoding.sampling.logits`); temperature;
min_p; top_k; top_p; draw. Temperature 0 takes the likeliest token (lowest id on ties) and needs none of
the stages after it.

The draw is the Gumbel-max trick (Maddison, Tarlow and Minka, "A* sampling", 2014): the token that
maximises logit / temperature + noise has exactly the softmax distribution. With the noise a pure
function of (seed, position, id) the token is a pure function of (logits, context, seed), so it cannot
matter whether the row came from plain decoding or from a draft's verification.

Work is saved only where the result provably stays the same: the greatest noise in a group of tokens
is known beforehand, and tokens that could not win even with that much are never looked at.
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

# Tokens below e^-MASS_REACH times the best add less than half a rounding step to the total mass, and
# cannot win either: noise lies between -3.14 and 28.5.
MASS_REACH = 50.0
NEAR = 16.0
RIVALS = 8.0


class RowSampler(Protocol):
    """A faster way to the same results, from an adjusted row and for a temperature above 0. The code here is
    the specification. `best` is the row's greatest value, NaN if any is; where it is not finite the other
    result means nothing."""

    def token(self, row: Row, params: SamplingParams, seed: int, position: int) -> tuple[int, float]:
        """(token, best), see `Sampler.draw`."""

    def distribution(self, row: Row, params: SamplingParams) -> tuple[Distribution, float]:
        """(distribution, best), see `Sampler.distribution`."""

    def probability(self, row: Row, params: SamplingParams, token: int) -> tuple[float, float]:
        """(probability, best): the number that `distribution` has for the token."""

    def noise(self, seed: int, position: int, ids: Ids) -> Floats:
        """See `Sampler.noise`."""


class LazyDistribution:
    """The distribution after one row, worked out no further than it is asked for.

    whole: makes it.
    of:    one token's probability, where that is had sooner; the same number.
    """

    def __init__(self, whole: Callable[[], Distribution], of: Callable[[int], float] | None = None) -> None:
        self._make, self._of = whole, of
        self._made: Distribution | None = None
        self._known: dict[int, float] = {}

    def whole(self) -> Distribution:
        """All of it."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def of(self, token: int) -> float:
        """The probability of one token."""
        if self._made is not None or self._of is None:
            return self.whole().of(token)
        if token not in self._known:
            self._known[token] = self._of(token)
        return self._known[token]


class Sampler:
    """Chooses one request's tokens: `adjusted` changes logits id by id, `draw` filters and draws.

    eos_ids:    ids that end a text of this model.
    bad_words:  sequences of token ids that `params.bad_words` stands for.
    constraint: what structured output permits, or None.
    rows:       filters, draws and weighs in place of the code here.
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
        for name in ("logit_bias", "allowed_token_ids"):
            for token in getattr(params, name) or ():
                if token >= vocab_size:
                    raise ConfigError(f"{name} has the id {token}; the vocabulary ends at {vocab_size - 1}")
        self.params = params
        self.seed = seed
        self._rows = rows
        self._adjuster = LogitsPipeline(params, vocab_size, eos_ids, bad_words, constraint)

    @property
    def vocab_size(self) -> int:
        """How many leading ids of the vocabulary can be drawn."""
        return self._adjuster.vocab_size

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends the text."""
        return self._adjuster.stop_ids

    @property
    def constraint(self) -> Constraint | None:
        """What structured output permits."""
        return self._adjuster.constraint

    def forced(self, context: TokenContext, most: int) -> list[int]:
        """The next tokens as far as structured output leaves no choice, up to `most` of them."""
        return [] if self.constraint is None else self.constraint.forced(context, most)

    def ended(self, context: TokenContext) -> bool:
        """Whether structured output is complete, so that nothing may follow."""
        return self.constraint is not None and self.constraint.ended(context)

    def restricted(self, vocab_size: int) -> Sampler:
        """The same request's sampler, with the same noise, over the first `vocab_size` ids only."""
        twin = Sampler.__new__(type(self))
        twin.params, twin.seed, twin._rows = self.params, self.seed, self._rows
        twin._adjuster = self._adjuster.restricted(vocab_size)
        return twin

    def token(self, logits: Row, context: TokenContext) -> int:
        """The token at `context.position`, from the logits that follow the context: float32, one
        for each id of the vocabulary, and any more are left out of account.

        Raises ModelError when the logits hold NaN or +inf or are all -inf, ConfigError when the
        parameters leave no token to choose.
        """
        logits = logits[: self.vocab_size]
        return self.draw(self.adjusted(logits, context), logits, context.position)

    def adjusted(self, logits: Row, context: TokenContext) -> Row:
        """The row after every stage that changes logits one by one, see `sampling.logits`; the model's
        own row (float32[vocab_size]) if none does."""
        return self._adjuster.row(logits, context)

    def draw(self, row: Row, logits: Row, position: int) -> int:
        """The token at `position` from an adjusted row: temperature, filters, noise. `logits` is the
        model's own row, for a message when the adjusted one leaves nothing."""
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
            if len(ids) > 1024:  # fewer are sooner drawn for than ruled out
                row = _only(row, ids)
                ids = self._contenders(
                    row, np.maximum.reduceat(row, np.arange(0, len(row), GROUP)), best, position
                )
        else:
            ids = self._contenders(row, tops, best, position)
        return int(ids[(self._scores(row[ids], best) + gumbel(self.seed, position, ids)).argmax()])

    def noise(self, position: int, ids: Ids) -> Floats:
        """What `draw` adds to the scores of these ascending ids, float64[len(ids)]; at temperature 0 it would
        add nothing."""
        if self._rows is not None:
            return self._rows.noise(self.seed, position, ids)
        return gumbel(self.seed, position, ids)

    def distribution(self, logits: Row, context: TokenContext) -> Distribution:
        """The distribution that `token` draws from: what is left after every stage, likelier than e^-50
        times the likeliest, normalised in float64. At temperature 0 the one likeliest token.

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

    def outlook(self, logits: Row, context: TokenContext) -> LazyDistribution:
        """The same distribution, for one who may need no more of it than a token's probability.

        Arguments and errors as for `token`; there are none once the outlook is had.
        """
        rows, params = self._rows, self.params
        if rows is None or params.temperature == 0.0:
            distribution = self.distribution(logits, context)
            return LazyDistribution(lambda: distribution)
        logits = logits[: self.vocab_size]
        row = self.adjusted(logits, context)
        self._check(float(row.max()), logits, context.position)
        if row is not logits:  # adjusted in memory that the next row is adjusted in
            row = row.copy()
        return LazyDistribution(
            lambda: rows.distribution(row, params)[0], lambda token: rows.probability(row, params, token)[0]
        )

    def _scores(self, values: Row, best: float) -> Floats:
        """float64: log-probabilities up to a constant, 0 for the best. Monotonic, rounding included."""
        scores = values.astype(np.float64)
        scores -= best
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf
            scores /= self.params.temperature
        return scores

    def _contenders(self, row: Row, tops: Row, best: float, position: int) -> Ids:
        """Ascending ids, the winner's among them, of the tokens that the greatest noise in their group
        could lift to the bar: the least that the best token reaches, or what a holder of such noise does.

        tops: the greatest value in each group.
        """
        heights, holders = peaks(self.seed, position, np.arange(len(tops)))
        real = holders < len(row)
        reached = self._scores(row[holders[real]], best) + heights[real]
        bar = float(reached.max(initial=LEAST_NOISE))
        groups = np.flatnonzero(self._scores(tops, best) + heights >= bar)
        ids = (groups[:, None] * GROUP + np.arange(GROUP)).ravel()
        ids = ids[: np.searchsorted(ids, len(row))]
        return ids[self._scores(row[ids], best) + np.repeat(heights[groups], GROUP)[: len(ids)] >= bar]

    def _kept(self, row: Row, tops: Row, best: float) -> Ids:
        """Ascending ids of the tokens that the filters leave."""
        top_p = self.params.top_p
        if top_p < 1.0:  # usually the likely tokens settle it, whatever the others add up to
            ids, scores, complete = self._within(row, tops, best, NEAR)
            most = GROUP * np.exp(np.minimum(self._scores(tops, best), -NEAR)).sum()
            kept, certain = _top_p(scores, top_p, 0.0 if complete else float(most))
            if certain:
                return ids[kept]
        ids, scores, _ = self._within(row, tops, best, MASS_REACH)
        return ids if top_p == 1.0 else ids[_top_p(scores, top_p, 0.0)[0]]

    def _within(self, row: Row, tops: Row, best: float, reach: float) -> tuple[Ids, Floats, bool]:
        """(ids ascending, scores, complete): the tokens that min_p and top_k leave, down to a score of
        -reach; complete when there is none further down."""
        top_k, min_p = self.params.top_k, self.params.min_p
        limit = -math.log(min_p) if min_p > 0.0 else math.inf
        complete = limit <= reach
        reach = min(limit, reach)
        least = -reach
        if 0 < top_k < len(tops):  # at least k tokens are as great as the k-th of the tops
            kth = np.partition(tops, -top_k)[-top_k]
            least = max(least, float(self._scores(np.array([kth]), best)[0]))
        # First in the row's own precision for speed, with a margin so that rounding drops nothing, nor a
        # lesser value of the same score.
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
        """Refuse a row whose greatest value is not a number to choose by."""
        if math.isfinite(best):
            return
        if best == -math.inf and np.isfinite(logits.max()):
            raise ConfigError(
                f"no token is left to choose at position {position}: allowed_token_ids, bad_words, "
                "min_tokens, logits_processors and structured output together rule out all of them"
            )
        raise ModelError(f"the model's logits at position {position} have {best} as their maximum")


def certainty(row: Row) -> float:
    """About the probability of the likeliest token at temperature 1, 0..1, for estimates: its share of those
    tokens that are no less than e^-RIVALS times as likely. 0 where there is none."""
    best = row.max()
    if not math.isfinite(best):
        return 0.0
    return 1.0 / float(np.exp(row[row > best - RIVALS] - best).sum())


def _only(row: Row, ids: Ids) -> Row:
    """The row with every other token ruled out."""
    kept = np.full_like(row, -np.inf)
    kept[ids] = row[ids]
    return kept


def _top_k(scores: Floats, k: int) -> Ids:
    """Ascending indices of the k highest scores, the earlier ones on ties. 0 < k <= len(scores)."""
    bar = np.partition(scores, len(scores) - k)[len(scores) - k]
    kept = scores > bar
    kept[np.flatnonzero(scores == bar)[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _top_p(scores: Floats, top_p: float, beyond: float) -> tuple[Ids, bool]:
    """(ascending indices of the smallest set of highest scores whose probability reaches top_p, certain):
    not certain when lower scores than these, of a mass up to `beyond`, could change the set."""
    mass = np.exp(scores)
    total = mass.sum()
    least, most = top_p * total, top_p * (total + beyond)
    some = np.arange(len(scores))
    for reach in (1.0, 2.0, 4.0, 8.0):  # sort no more than it takes
        likely = np.flatnonzero(scores >= -reach)
        if mass[likely].sum() > most:
            some = likely
            break
    order = some[np.argsort(-scores[some], kind="stable")]
    reached = np.cumsum(mass[order])
    last = int(np.searchsorted(reached, least))
    return np.sort(order[: last + 1]), last == int(np.searchsorted(reached, most))
