"""When a draft model that has not read a text is fed what it missed: an investment that may not pay.

A text makes it worthless when it ends, or when lookups find more in it. So it waits until drawing would have
given its price, as one who rents skis before buying them (Karlin et al. 1988): less than that where it is
cheap beside what texts usually gain, and more where it is dear. And more again where it has not paid of late:
texts that are copied promise much while they begin, and need no draft model once they do. What it draws there
is no gain over lookups that would have found it a few tokens later, and is not counted as one.
"""

from __future__ import annotations

from collections.abc import Sequence

DEAR = 5.0  # tokens that catching up costs: this waits for all of its price, half of it for half of that
LONGEST_WAIT = 2.5  # times its price that it waits for at most
DEAR_NEW, LONGEST_NEW = 6.5, 1.5  # the same while nothing is known: reading also shows what drawing is worth
PAID_WEIGHT = 6.0  # tokens of catching up that paid, which count before anything is known
PAID_MEMORY = 0.8  # of what is known of that, after one more text


class DraftPrefillPolicy:
    """What drawing promised and what catching up cost, in tokens that plain decoding would have written."""

    def __init__(self) -> None:
        self._promise = self._price = 0.0  # in this step
        self._share = 0.0  # of the promise, for each text
        self._promised: dict[str, float] = {}  # in each text, this step left out
        self._bought: dict[str, tuple[float, float]] = {}  # (its price, what was promised before)
        # Decayed sums over texts: prices, and what was promised after them, up to the price of each.
        self._prices = self._paid = 0.0

    def begin_step(self) -> None:
        self._promise = self._price = 0.0

    def is_worth(self, ids: Sequence[str], price: float, promise: float, *, new: bool) -> bool:
        """Note what drawing promises these texts in this step, and say whether they have missed enough, that
        included, for `price` to be paid.

        new: whether little is known of the draft model yet.
        """
        self._promise = max(self._promise, promise)
        promised = sum([self._promised.get(request_id, 0.0) for request_id in ids])
        return promised + promise >= self._wait(price, new)

    def _wait(self, price: float, new: bool) -> float:
        """Tokens that must have been promised before so many are spent."""
        dear, longest = (DEAR_NEW, LONGEST_NEW) if new else (DEAR, LONGEST_WAIT)
        paid = (self._paid + PAID_WEIGHT) / (self._prices + PAID_WEIGHT)
        return price * min(longest, price / (dear * paid))

    def pay(self, price: float) -> None:
        """The step's texts are caught up."""
        self._price = price

    def end_step(self, ids: Sequence[str], among: int) -> None:
        """What the step promised and cost is shared by `among` texts, and these could be drafted for."""
        self._share = self._promise / among
        for request_id in ids:
            promised = self._promised.get(request_id, 0.0)
            if self._price > 0.0:
                price, before = self._bought.get(request_id, (0.0, promised))
                self._bought[request_id] = price + self._price / among, before
            self._promised[request_id] = promised + self._share

    def covered(self, request_id: str, tokens: int) -> None:
        """Of what the model has drawn in this step, lookups would have found so many tokens behind those
        before them: without it, the text would have taken a pass less for each than was reckoned."""
        if request_id in self._bought:
            self._promised[request_id] -= min(self._share, float(tokens))

    def forget(self, request_id: str) -> None:
        """The text has ended: learn whether catching up has paid in it."""
        promised = self._promised.pop(request_id, 0.0)
        if (bought := self._bought.pop(request_id, None)) is not None:
            price, before = bought
            self._prices = PAID_MEMORY * self._prices + price
            self._paid = PAID_MEMORY * self._paid + min(price, promised - before)
