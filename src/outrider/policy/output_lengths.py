"""How long outputs are, and whether an investment at this point of one is earned back before it ends.

Many answers are short, and what a draft model's prefill takes is lost in them; in long ones every step of
waiting loses a little. Of a text's length nothing is known at first, not even its scale, so that it is taken
for log-uniform; lengths of earlier outputs count as they come.

Labels, names and numbers end after a token or a few. A prefill would double their time, and a few tokens of
waiting are little of a longer output: so nothing is invested in the first tokens until earlier outputs have
shown that such short ones are rare.
"""

from __future__ import annotations

import bisect
import math
from itertools import pairwise

from outrider.policy.tuning import DEFAULT, Tuning

# The shortest output of each bucket: each length of a few tokens, then quarters of octaves, then halves.
QUARTERS = (8, 10, 12, 14, 16, 19, 23, 27, 32, 38, 45, 54)
FIRST = (*range(1, 8), *QUARTERS, 64, 91, 128, 181, 256, 362, 512, 724, 1024, 1448)
END = 2049  # what is longer counts to the last bucket
BUCKETS = tuple(pairwise((*FIRST, END)))
LENGTHS = tuple(math.sqrt(low * (high - 1)) for low, high in BUCKETS)  # what stands for each
LATER = (1, 2, 3, 4, 6, 8, 16, 32, 64)  # tokens from now at which the investment could be made instead


def bucket_of(length: int) -> int:
    return bisect.bisect_right(FIRST, max(1, length)) - 1


class OutputLengths:
    """Of one draft model's requests; evidence decays from output to output."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        scale = tuning.length_prior_weight / math.log(END)
        self._prior = tuple(scale * math.log(high / low) for low, high in BUCKETS)
        self._weights = list(self._prior)

    def observe(self, length: int) -> None:
        """An output has ended after so many tokens."""
        decay, prior = self._tuning.length_decay, self._prior
        self._weights = [p + decay * (w - p) for w, p in zip(self._weights, prior, strict=True)]
        self._weights[bucket_of(length)] += 1.0

    def risk(self, tokens: int, price: float) -> float:
        """Tokens that are expected to be lost if an output that has so many is one of the shortest."""
        likely = sum(self._weights[tokens : self._tuning.shortest_outputs])
        return price * likely / sum(self._weights[bucket_of(tokens + 1) :])

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
        if gain <= 0.0 or self.risk(tokens, price) > self._tuning.shortest_risk:
            return False
        rate, rest = 1.0 / (1.0 + gain), []
        for bucket in range(bucket_of(tokens + 1), len(BUCKETS)):
            length = min(max(LENGTHS[bucket], tokens + 1.0), float(tokens + left + 1))
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
