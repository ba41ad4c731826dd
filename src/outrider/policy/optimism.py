"""What a draft model may be worth in a text that it has not processed: optimism in the face of uncertainty.

Texts of one kind say little of another: a draft model that finds a third of a translation's tokens may find
nearly all of a tool call's. Judged by what it did before, it would stay off until the text has ended, and
nothing would be learned of it. So, before its prefill, its gain counts partly as it would be if the text
suited it better. How much so depends on whether earlier texts bore that out: one in which hardly a token
was accepted is a disappointment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from outrider.policy.tuning import DEFAULT, Tuning


class TextAcceptance:
    """Draft tokens of one request that were verified, and how many of them were accepted."""

    __slots__ = ("accepted", "verified")

    def __init__(self) -> None:
        self.verified = self.accepted = 0

    def add(self, accepted: bool) -> None:
        self.verified += 1
        self.accepted += accepted


class Optimism:
    """Of one draft model, over all requests."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._disappointments = 0.0  # decayed

    @property
    def share(self) -> float:
        """Weight of the optimistic gain, 0..1; the expected one has the rest."""
        weight = self._tuning.optimism_weight
        return weight / (weight + self._disappointments)

    def end_request(self, text: TextAcceptance) -> None:
        """A request has ended. The fewer tokens of it were verified, the less it says."""
        if text.verified:
            tuning = self._tuning
            missed = max(0.0, 1.0 - text.accepted / text.verified / tuning.optimism_usual_rate)
            weight = min(1.0, text.verified / tuning.optimism_full_tokens)
            self._disappointments = tuning.optimism_decay * self._disappointments + weight * missed

    def hoped(self, expected: Sequence[float]) -> list[float]:
        """Tokens expected to be accepted of 0, 1, 2, … drawn ones, with `share` as they would be if the text
        suits the draft model: each one's acceptance odds are multiplied, up to `optimism_max` where it is not
        above that anyway."""
        odds, most, share = self._tuning.optimism_odds, self._tuning.optimism_max, self.share
        path, above, total, found = 1.0, 1.0, 0.0, [0.0]
        for before, now in pairwise(expected):
            probability = (now - before) / above if above > 0.0 else 0.0
            above = now - before
            better = probability * odds / (1.0 - probability + probability * odds)
            path *= max(probability, min(better, most))
            total += path
            found.append((1.0 - share) * now + share * total)
        return found
