"""How long outputs are, and whether an investment at this point of one is earned back before it ends.

Many answers are short, and what a draft model's prefill takes is lost in them; in long ones every step of
waiting loses a little. Of a text's length nothing is known at first, not even its scale, so that it is taken
for log-uniform; lengths of earlier outputs count as they come.
"""

from __future__ import annotations

import math

from outrider.policy.tuning import DEFAULT, Tuning

BUCKETS = 22  # half octaves: 1 to 2048 tokens
LATER = (1, 2, 4, 8, 16, 32, 64)  # tokens from now at which the investment could be made instead


def bucket_of(length: int) -> int:
    return min(BUCKETS - 1, int(2.0 * math.log2(max(1, length))))


class OutputLengths:
    """Of one draft model's requests; evidence decays from output to output."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._weights = [tuning.length_prior_weight / BUCKETS] * BUCKETS
        self._prior = tuple(self._weights)

    def observe(self, length: int) -> None:
        """An output has ended after so many tokens."""
        decay, prior = self._tuning.length_decay, self._prior
        self._weights = [p + decay * (w - p) for w, p in zip(self._weights, prior, strict=True)]
        self._weights[bucket_of(length)] += 1.0

    def pays(self, tokens: int, left: int, price: float, gain: float) -> bool:
        """Whether to invest now rather than later or never.

        tokens: that the output has so far; `left` more it may have.
        price:  of the investment, in tokens that plain decoding would produce in the time.
        gain:   tokens that it gives with each step, beyond the one of plain decoding.

        Minimized is the mean of log(time / plain decoding's time) over the lengths that are possible, so that
        a short text at half the speed counts as much as a long one at twice.
        """
        if price <= 0.0:
            return True
        if gain <= 0.0:
            return False
        rate, rest = 1.0 / (1.0 + gain), []
        for bucket in range(bucket_of(tokens + 1), BUCKETS):
            length = min(max(2.0 ** (0.5 * bucket + 0.25), tokens + 1.0), float(tokens + left + 1))
            rest.append((self._weights[bucket], length))

        def loss(start: int) -> float:
            return sum(
                [
                    weight * math.log((start + price + (length - start) * rate) / length)
                    for weight, length in rest
                    if length > start
                ]
            )

        now = loss(tokens)
        return now <= 0.0 and all(now <= loss(tokens + later) for later in LATER)
