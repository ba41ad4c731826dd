"""What the target's own certainty tells of a draft model, before that has read the text.

A draft model does well where there is little to choose. How likely the target's likeliest token is, on the
average over a text, and how many of the draft model's tokens are right in it go together closely: over the
36 built-in prompts, with the 0.5B beside the 1.5B, the correlation of the two log-odds is 0.96, and 0.82 when
only the first 16 tokens are looked at. What it takes to know is there anyway, as the target decodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.policy.acceptance_rates import count_in

ROWS = 24  # of a text's first tokens that are looked at
TYPICAL = 0.85  # what is expected before anything is known
TYPICAL_WEIGHT = 8.0  # tokens that this counts for
SHY = 4.0  # tokens that "as in other texts" counts for in a new one
SLOPE = 0.6  # log-odds of a draft's token being right, for one of the target's certainty
MOST = 0.99  # a share above this is taken for it: odds grow without end


class TargetConfidence:
    """How certain the target is in each text, and how certain it was where the draft model has been tried."""

    def __init__(self) -> None:
        self._texts: dict[str, list[float]] = {}  # sum of the shares, tokens
        self._odds: dict[str, float] = {}  # worked out already
        # Decayed as the draft model's own chances are: sum of log-odds, tokens.
        self._usual = [TYPICAL_WEIGHT * _log_odds(TYPICAL), TYPICAL_WEIGHT]

    def wanted(self, request_id: str) -> int:
        """How many more tokens of the text should be looked at."""
        return ROWS - int(self._texts.get(request_id, (0.0, 0.0))[1])

    def learn(self, request_id: str, shares: Sequence[float]) -> None:
        """The target gave these shares to its likeliest tokens, 0..1."""
        text = self._texts.setdefault(request_id, [0.0, 0.0])
        text[0] += sum(shares)
        text[1] += len(shares)
        self._odds.pop(request_id, None)

    def tried(self, request_id: str) -> None:
        """A token of the draft model was verified in this text."""
        if request_id in self._texts:
            count_in(self._usual, self._of(request_id))
            self._odds.clear()

    def odds(self, request_id: str) -> float:
        """How many times better the odds of a draft model's token are here than where it has been tried."""
        if request_id not in self._texts:
            return 1.0
        odds = self._odds.get(request_id)
        if odds is None:
            odds = math.exp(SLOPE * (self._of(request_id) - self._usual[0] / self._usual[1]))
            self._odds[request_id] = odds
        return odds

    def forget(self, request_id: str) -> None:
        """The text has ended."""
        self._texts.pop(request_id, None)
        self._odds.pop(request_id, None)

    def _of(self, request_id: str) -> float:
        """The log-odds of the text's mean share."""
        total, tokens = self._texts[request_id]
        usual = 1.0 / (1.0 + math.exp(-self._usual[0] / self._usual[1]))
        return _log_odds((total + SHY * usual) / (tokens + SHY))


def _log_odds(share: float) -> float:
    share = min(MOST, max(1.0 - MOST, share))
    return math.log(share / (1.0 - share))
