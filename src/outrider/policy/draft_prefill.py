"""When a draft model processes a sequence's unprocessed tokens: an investment that may not pay.

The prefill is worthless when the output ends soon, or when lookups find more in the text. So it is deferred
until drafting would have gained its price, as in the ski rental problem (Karlin et al. 1988): for less than
that where it is cheap, for more where it is dear; and until the output is likely to last long enough
(output_lengths.py). What it waits for, beyond the output's end, is whether lookups copy it, which shows only
when the copy has begun: the fewer of the texts with such prompts were copied, the shorter the wait.

Gains and prices are in tokens that plain decoding would have produced in the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from outrider.policy.output_lengths import OutputLengths
from outrider.policy.tuning import DEFAULT, Tuning


class PrefillState:
    """One request: the gain that drafting would have had before this step, the steps and tokens so far, how
    many of these lookups alone gave, and the price of its prefill; 0 where none was considered."""

    __slots__ = ("copied", "expected_gain", "price", "steps", "tokens")

    def __init__(self) -> None:
        self.expected_gain = self.price = 0.0
        self.steps = self.tokens = self.copied = 0


class CopiedTexts:
    """Which part of the texts with such a prompt were copies, which lookups find by themselves.

    Such a prompt is one whose prefill's price is at most twice or half as high: what is asked of a document
    is another kind of text than what is asked in a sentence.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._texts: deque[tuple[float, float]] = deque(maxlen=tuning.prefill_copied_texts)  # price, copied

    def share(self, price: float) -> float:
        """1 while nothing is known."""
        like = [copied for other, copied in self._texts if price <= 2.0 * other and other <= 2.0 * price]
        prior = self._tuning.length_prior_weight
        return (prior + sum(like)) / (prior + len(like)) if prior + len(like) else 1.0

    def observe(self, price: float, share: float) -> None:
        """Lookups alone gave this share of a text's tokens."""
        most = self._tuning.prefill_copied_share
        self._texts.append((price, min(1.0, share / most) if most else 1.0))


class DraftPrefillPolicy:
    """Decides for one draft model. Calls per step: begin_step, is_worth, end_step."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._gain = 0.0  # in this step
        self.lengths = OutputLengths(tuning)
        self.copied = CopiedTexts(tuning)

    def begin_step(self) -> None:
        self._gain = 0.0

    def is_worth(self, requests: Sequence[PrefillState], price: float, gain: float, left: int) -> bool:
        """Note the gain that drafting would have in this step, and say whether these requests have missed
        enough gain, this step's included, for `price` to be paid, and will last long enough. Each may have
        `left` more tokens."""
        self._gain = max(self._gain, gain)
        missed = sum([request.expected_gain for request in requests]) + gain
        share = 1.0 / len(requests)
        each = price * share
        for request in requests:
            request.price = max(request.price, each)
        # In most steps the prompt is processed already, and there is nothing to wait for.
        if price > 0.0 and missed < self._wait(price) * self.copied.share(each):
            return False
        steps = sum([request.steps for request in requests]) / len(requests) + 1.0
        tokens = min([request.tokens for request in requests])
        return self.lengths.pays(tokens, left, each, missed * share / steps)

    def _wait(self, price: float) -> float:
        """Tokens that must have been missed before so many are spent."""
        tuning = self._tuning
        return price * min(tuning.prefill_max_wait, price / tuning.prefill_full_wait_price)

    def end_step(self, requests: Sequence[PrefillState], batch: int) -> None:
        """The step's gain is shared by `batch` requests; `requests` could be drafted for."""
        for request in requests:
            request.expected_gain += self._gain / batch
            request.steps += 1

    def end_request(self, request: PrefillState) -> None:
        if request.tokens:
            self.lengths.observe(request.tokens)
            if request.price > 0.0:
                self.copied.observe(request.price, request.copied / request.tokens)
