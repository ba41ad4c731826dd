"""When a draft model processes a sequence's unprocessed tokens: an investment that may not pay.

The prefill is worthless when the output ends soon, or when lookups find more in the text. So it is deferred
until drafting would have gained its price, as in the ski rental problem (Karlin et al. 1988): for less than
that where it is cheap, for more where it is dear, and for more again where prefills have not paid of late.

Gains and prices are in tokens that plain decoding would have produced in the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.policy.tuning import DEFAULT, Tuning


class PrefillState:
    """One request: the gain that drafting would have had, and what its prefill cost, if it was bought."""

    __slots__ = ("bought", "expected_gain", "gain_before", "price")

    def __init__(self) -> None:
        self.expected_gain = 0.0  # before this step
        self.bought = False
        self.price = 0.0
        self.gain_before = 0.0  # expected_gain when it was bought


class DraftPrefillPolicy:
    """Decides for one draft model. Calls per step: begin_step, is_worth and buy, end_step."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._gain = self._price = 0.0  # in this step
        # Decayed sums over requests: prices, and the gains after them, up to the price of each.
        self._prices = self._paid = 0.0

    def begin_step(self) -> None:
        self._gain = self._price = 0.0

    def is_worth(self, requests: Sequence[PrefillState], price: float, gain: float) -> bool:
        """Note the gain that drafting would have in this step, and say whether these requests have missed
        enough gain, this step's included, for `price` to be paid."""
        self._gain = max(self._gain, gain)
        missed = sum([request.expected_gain for request in requests])
        return missed + gain >= self._wait(price)

    def _wait(self, price: float) -> float:
        """Tokens that must have been missed before so many are spent."""
        tuning = self._tuning
        weight = tuning.prefill_prior_weight
        paid = (self._paid + weight) / (self._prices + weight)
        return price * min(tuning.prefill_max_wait, price / (tuning.prefill_full_wait_price * paid))

    def buy(self, price: float) -> None:
        """The step's requests are prefilled."""
        self._price = price

    def end_step(self, requests: Sequence[PrefillState], batch: int) -> None:
        """The step's gain and price are shared by `batch` requests; `requests` could be drafted for."""
        for request in requests:
            if self._price > 0.0:
                if not request.bought:
                    request.bought, request.gain_before = True, request.expected_gain
                request.price += self._price / batch
            request.expected_gain += self._gain / batch

    def end_request(self, request: PrefillState) -> None:
        """Learn whether the request's prefill has paid."""
        if request.bought:
            decay = self._tuning.prefill_decay
            self._prices = decay * self._prices + request.price
            self._paid = decay * self._paid + min(request.price, request.expected_gain - request.gain_before)
            request.bought = False
