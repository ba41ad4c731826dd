"""What the target's own confidence predicts of a draft model, before that has processed the text.

A draft model does well where there is little to choose. How likely the target's likeliest token is, averaged
over a text, and how many of the draft model's tokens are accepted in it go together closely: over the 36
built-in prompts, with a 0.5B draft of a 1.5B target, the correlation of the two log-odds is 0.96, and 0.82
after the first 16 tokens. The target computes these probabilities anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.policy.acceptance_rates import SHARED_DECAY
from outrider.policy.tuning import DEFAULT, Tuning


class TextConfidence:
    """What is known of one request's text."""

    __slots__ = ("known", "odds", "tokens", "total", "version")

    def __init__(self) -> None:
        self.known = False
        self.total = self.tokens = 0.0
        self.odds = 1.0  # as of `version` of the shared mean
        self.version = -1


class TargetConfidence:
    """The target's confidence in each text, compared with texts in which the draft model was verified."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        weight, start = tuning.target_confidence_start_weight, tuning.target_confidence_start
        # Decayed as the draft model's acceptance rates are: sum of log-odds, tokens.
        self._total, self._tokens = weight * self._log_odds(start), weight
        self._version = 0

    def rows_wanted(self, text: TextConfidence) -> int:
        """For how many more tokens of the text the confidence should be taken."""
        return self._tuning.target_confidence_rows - int(text.tokens)

    def observe(self, text: TextConfidence, shares: Sequence[float]) -> None:
        """The target gave these probabilities to its likeliest tokens, 0..1."""
        text.known = True
        text.total += sum(shares)
        text.tokens += len(shares)
        text.version = -1

    def observe_verified(self, text: TextConfidence) -> None:
        """A token of the draft model was verified in this text."""
        if text.known:
            self._total = SHARED_DECAY * self._total + self._mean_log_odds(text)
            self._tokens = SHARED_DECAY * self._tokens + 1.0
            self._version += 1

    def prior_odds(self, text: TextConfidence) -> float:
        """How many times as good the odds of a draft model's token are here as where it was verified."""
        if not text.known:
            return 1.0
        if text.version != self._version:
            excess = self._mean_log_odds(text) - self._total / self._tokens
            text.odds = math.exp(self._tuning.target_confidence_slope * excess)
            text.version = self._version
        return text.odds

    def _mean_log_odds(self, text: TextConfidence) -> float:
        """Of the text's mean confidence, shrunk towards that of all texts."""
        weight = self._tuning.target_confidence_prior_weight
        usual = 1.0 / (1.0 + math.exp(-self._total / self._tokens))
        return self._log_odds((text.total + weight * usual) / (text.tokens + weight))

    def _log_odds(self, share: float) -> float:
        most = self._tuning.target_confidence_max
        share = min(most, max(1.0 - most, share))
        return math.log(share / (1.0 - share))
