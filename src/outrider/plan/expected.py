"""The speed-up to expect of a pair whose drafts are on record (`acceptance_record`), with its interval.

Of drafts of a fixed length the record has how often each position's token is accepted, given those before it.
A chain of k tokens then emits 1 + r_1 + r_1 r_2 + … + r_1 … r_k tokens in a step, which takes T(k + 1) + k t.
Lengths beyond the recorded positions are not judged. Of `auto` it has the time that each text took, and what
plain decoding would have taken by the cost curve.

An interval is of 95%: the bootstrap over texts (Efron 1979) where there are enough of them, as the tokens of
one text are alike. Of fewer texts, every rate is taken at the ends of its Wilson interval (1927), which takes
tokens as independent and so is too narrow; of `auto` it is the range of the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.acceptance_record import Group, Groups, TextCounts
from outrider.plan.speed import PassCosts

Floats: TypeAlias = npt.NDArray[np.float64]
IntervalFrom: TypeAlias = Literal["bootstrap over texts", "Wilson on the rates", "range of the texts"]

RECORD = "record"  # the source of what this machine has seen
MIN_TRIALS = 10  # of a position: fewer say nothing about it
MIN_TEXTS = 8  # of a bootstrap
RESAMPLED = 1000
Z = 1.96  # standard deviations of a normal distribution's middle 95%


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of one group of texts.

    source:  where the counts are from: this machine's record, or a profile of the package by its name.
    rates:   by position, the probability that the token there is accepted if those before it are.
    length:  the best num_speculative_tokens, 0 where none pays; None where the method chooses by itself.
    speedup: plain seconds / speculative seconds; interval: of it.
    """

    source: str
    method: str
    rule: str
    temperature: str
    texts: int
    tokens: int
    acceptance: float | None
    rates: tuple[float, ...]
    length: int | None
    speedup: float
    interval: tuple[float, float]
    interval_from: IntervalFrom


def expected(
    target: PassCosts, draft_seconds: float, groups: Groups, source: str = RECORD
) -> list[dict[str, Any]]:
    """One row for each group of texts that says enough. draft_seconds: to draft one token."""
    found = []
    for group, texts in groups.items():
        if group.counts_only:
            found.append(_of_rates(target, draft_seconds, group, texts, source))
        else:
            found.append(_of_times(group, texts, source))
    return [asdict(row) for row in found if row is not None]


def rates_of(texts: Sequence[TextCounts]) -> tuple[float, ...]:
    """By position, how often its token was accepted where those before it were; as far as it was tried at
    least MIN_TRIALS times."""
    proposed, accepted = (counts.sum(0) for counts in _tables(texts))
    size = _tried(proposed)
    return tuple((accepted[:size] / proposed[:size]).tolist())


def _of_rates(
    target: PassCosts, draft_seconds: float, group: Group, texts: Sequence[TextCounts], source: str
) -> Expected | None:
    proposed, accepted = _tables(texts)
    size = _tried(proposed.sum(0))
    if not size:
        return None
    proposed, accepted = proposed[:, :size], accepted[:, :size]
    steps = np.array([target.at(k + 1) + k * draft_seconds for k in range(1, size + 1)])
    plain = target.at(1)

    def gains(tried: Floats, kept: Floats) -> Floats:
        """The speed-up by length, for each row of counts by position."""
        rates = kept / np.maximum(tried, 1.0)
        return np.asarray((1.0 + np.cumprod(rates, -1).cumsum(-1)) * plain / steps)

    totals = proposed.sum(0), accepted.sum(0)
    all_gains = gains(*totals)
    best = int(all_gains.argmax())
    pays = bool(all_gains[best] > 1.0)
    interval_from: IntervalFrom = "bootstrap over texts"
    if len(texts) >= MIN_TEXTS:
        drawn = _resampled(len(texts))
        found = gains(drawn @ proposed, drawn @ accepted)[:, best]
        low, high = np.quantile(found, (0.025, 0.975)).tolist()
    else:
        interval_from = "Wilson on the rates"
        ends = _wilson(totals[1], totals[0])
        low, high = (float(gains(totals[0], rate * totals[0])[best]) for rate in ends)
    return Expected(
        source,
        *group,
        texts=len(texts),
        tokens=sum(text.tokens for text in texts),
        acceptance=_share(texts),
        rates=rates_of(texts),
        length=best + 1 if pays else 0,
        speedup=float(all_gains[best]) if pays else 1.0,
        interval=(low, high) if pays else (1.0, 1.0),
        interval_from=interval_from,
    )


def _of_times(group: Group, texts: Sequence[TextCounts], source: str) -> Expected | None:
    timed = [text for text in texts if text.plain_s > 0.0 and text.seconds > 0.0]
    if not timed:
        return None
    plain, taken = np.array([text.plain_s for text in timed]), np.array([text.seconds for text in timed])
    interval_from: IntervalFrom = "bootstrap over texts"
    if len(timed) >= MIN_TEXTS:
        drawn = _resampled(len(timed))
        low, high = np.quantile((drawn @ plain) / (drawn @ taken), (0.025, 0.975)).tolist()
    else:
        interval_from = "range of the texts"
        low, high = float((plain / taken).min()), float((plain / taken).max())
    return Expected(
        source,
        *group,
        texts=len(timed),
        tokens=sum(text.tokens for text in timed),
        acceptance=_share(timed),
        rates=rates_of(timed),
        length=None,
        speedup=float(plain.sum() / taken.sum()),
        interval=(low, high),
        interval_from=interval_from,
    )


def _tables(texts: Sequence[TextCounts]) -> tuple[Floats, Floats]:
    """float64[texts, positions] of proposed and of accepted tokens."""
    size = max((len(text.proposed) for text in texts), default=0)
    proposed, accepted = np.zeros((len(texts), size)), np.zeros((len(texts), size))
    for row, text in enumerate(texts):
        proposed[row, : len(text.proposed)] = text.proposed
        accepted[row, : len(text.accepted)] = text.accepted
    return proposed, accepted


def _tried(proposed: Floats) -> int:
    """How many leading positions were tried often enough."""
    enough = proposed >= MIN_TRIALS
    return len(enough) if enough.all() else int(enough.argmin())


def _share(texts: Sequence[TextCounts]) -> float | None:
    """Accepted tokens / tokens that were tried: the rate of the geometric law that fits best."""
    proposed = sum(sum(text.proposed) for text in texts)
    return sum(sum(text.accepted) for text in texts) / proposed if proposed else None


def _resampled(count: int) -> Floats:
    """float64[RESAMPLED, count]: how often each text is drawn, `count` texts in each row."""
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1.0 / count), RESAMPLED)
    return np.asarray(draws, np.float64)


def _wilson(kept: Floats, tried: Floats) -> tuple[Floats, Floats]:
    """The ends of the interval of each rate."""
    rate, spread = kept / tried, Z * Z / tried
    centre = (rate + spread / 2.0) / (1.0 + spread)
    half = Z * np.sqrt(rate * (1.0 - rate) / tried + spread / (4.0 * tried)) / (1.0 + spread)
    return centre - half, centre + half
