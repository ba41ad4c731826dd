"""When a draft model processes a sequence's unprocessed tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.draft_prefill import DraftPrefillPolicy, PrefillState

WAIT = 11  # steps that promise a token each before a price of 8 is paid, where nothing is known of others
# For a price in tokens: what must have been promised before it is paid, at least.
LEAST = {1.0: 0.17, 2.5: 1.08, 5.0: 4.34, 8.0: 11.1, 10.0: 17.3, 12.5: 27.1, 100.0: 250.0, 1000.0: 2500.0}


class Named:
    """A policy whose requests go by names."""

    def __init__(self) -> None:
        self.policy = DraftPrefillPolicy()
        self.requests: dict[str, PrefillState] = {}

    def _of(self, names: Sequence[str]) -> list[PrefillState]:
        return [self.requests.setdefault(name, PrefillState()) for name in names]

    def begin_step(self) -> None:
        self.policy.begin_step()

    def is_worth(self, names: Sequence[str], price: float, gain: float) -> bool:
        return self.policy.is_worth(self._of(names), price, gain)

    def buy(self, price: float) -> None:
        self.policy.buy(price)

    def end_step(self, names: Sequence[str], batch: int) -> None:
        self.policy.end_step(self._of(names), batch)

    def end(self, name: str) -> None:
        self.policy.end_request(self._of([name])[0])
        del self.requests[name]


def steps_until_worth(prefill: Named, price: float, *, gain: float = 1.0, text: str = "a") -> int:
    """Steps in which it waits; then the price is paid."""
    for steps in range(1000):
        prefill.begin_step()
        if prefill.is_worth([text], price, gain):
            prefill.buy(price)
            prefill.end_step([text], 1)
            return steps
        prefill.end_step([text], 1)
    return 1000


def write(prefill: Named, steps: int, gain: float, text: str = "a") -> None:
    """A text goes on that is caught up."""
    for _ in range(steps):
        prefill.begin_step()
        assert prefill.is_worth([text], 0.0, gain)
        prefill.end_step([text], 1)
    prefill.end(text)


def wait(prefill: Named, steps: int, price: float, text: str = "a") -> None:
    """A text goes on that is not caught up yet."""
    for _ in range(steps):
        prefill.begin_step()
        assert not prefill.is_worth([text], price, 1.0)
        prefill.end_step([text], 1)


def test_it_waits_for_the_price() -> None:
    assert steps_until_worth(Named(), 5.0) == 4, "all of it; the step's own promise counts"
    assert steps_until_worth(Named(), 2.5) == 1, "half of half the price"
    assert steps_until_worth(Named(), 100.0) == 249, "at most two and a half times the price"
    assert steps_until_worth(Named(), 0.0) == 0


@given(st.floats(0.0, 300.0), st.floats(0.0, 300.0))
def test_it_waits_longer_for_a_higher_price(a: float, b: float) -> None:
    less, more = (steps_until_worth(Named(), price) for price in sorted((a, b)))
    assert less <= more <= 2.5 * max(a, b)


def test_it_waits_longer_where_prefill_has_not_paid() -> None:
    waits = []
    for text in range(6):
        prefill = Named()
        for before in range(text):
            steps_until_worth(prefill, 8.0, text=str(before))
            write(prefill, 10, 0.0, str(before))
        waits.append(steps_until_worth(prefill, 8.0))
    assert waits == sorted(waits)
    assert waits[0] == WAIT
    assert waits[-1] == 19, "but not for ever: two and a half times eight, the last step's promise included"


def test_it_waits_no_longer_where_it_has_paid_and_less_again_where_it_pays() -> None:
    prefill = Named()
    for text in "abcdefgh":
        assert steps_until_worth(prefill, 8.0, text=text) == WAIT
        write(prefill, 8, 1.0, text)
    for text in "xy":
        steps_until_worth(prefill, 8.0, text=text)
        write(prefill, 4, 0.0, text)
    worse = steps_until_worth(prefill, 8.0, text="z")
    assert worse > WAIT
    write(prefill, 100, 1.0, "z")
    assert WAIT < steps_until_worth(prefill, 8.0) < worse


def test_a_text_that_was_not_caught_up_teaches_nothing() -> None:
    prefill = Named()
    wait(prefill, 5, 50.0, "b")
    prefill.end("b")
    assert steps_until_worth(prefill, 8.0) == WAIT


@given(
    texts=st.lists(
        st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.integers(0, 5), st.integers(1, 4)), max_size=20
    ),
    price=st.floats(0.0, 1e4) | st.sampled_from(sorted(LEAST)),
)
def test_the_wait_keeps_to_its_bounds(texts: list[tuple[float, float, int, int]], price: float) -> None:
    """Whatever other texts have taught."""
    prefill = Named()
    for number, (paid, gain, steps, among) in enumerate(texts):
        for _ in range(steps):
            prefill.begin_step()
            if prefill.is_worth([str(number)], paid, gain):
                prefill.buy(paid)
            prefill.end_step([str(number)], among)
        prefill.end(str(number))
    prefill.begin_step()
    assert prefill.is_worth(["a"], price, 2.5 * price)
    # More is waited for a higher price, so that of the next lower one in the table is a bound too.
    least = max((promise for lower, promise in LEAST.items() if lower <= price), default=0.0)
    assert least == 0.0 or not prefill.is_worth(["a"], price, 0.99 * least - 1e-9)
