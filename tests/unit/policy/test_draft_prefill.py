"""decoding/catching_up.py: when a draft model is fed what it missed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.draft_prefill import DraftPrefillPolicy

WAIT = 12  # steps that promise a token each before a price of 8 is paid, where nothing is known of others
# For a price in tokens: what must have been promised before it is paid, at least.
LEAST = {1.0: 0.2, 2.5: 1.25, 5.0: 5.0, 8.0: 12.8, 10.0: 20.0, 12.5: 31.25, 100.0: 250.0, 1000.0: 2500.0}


def steps_until_worth(
    catching_up: DraftPrefillPolicy, price: float, *, promise: float = 1.0, new: bool = False, text: str = "a"
) -> int:
    """Steps in which it waits; then the price is paid."""
    for steps in range(1000):
        catching_up.begin_step()
        if catching_up.is_worth([text], price, promise, new=new):
            catching_up.pay(price)
            catching_up.end_step([text], 1)
            return steps
        catching_up.end_step([text], 1)
    return 1000


def write(
    catching_up: DraftPrefillPolicy, steps: int, promise: float, text: str = "a", covered: int = 0
) -> None:
    """A text goes on that is caught up."""
    for _ in range(steps):
        catching_up.begin_step()
        assert catching_up.is_worth([text], 0.0, promise, new=False)
        catching_up.end_step([text], 1)
        catching_up.covered(text, covered)
    catching_up.forget(text)


def wait(
    catching_up: DraftPrefillPolicy, steps: int, price: float, text: str = "a", covered: int = 0
) -> None:
    """A text goes on that is not caught up yet."""
    for _ in range(steps):
        catching_up.begin_step()
        assert not catching_up.is_worth([text], price, 1.0, new=False)
        catching_up.end_step([text], 1)
        catching_up.covered(text, covered)


def test_it_waits_for_the_price() -> None:
    assert steps_until_worth(DraftPrefillPolicy(), 5.0) == 4, "all of it; the step's own promise counts"
    assert steps_until_worth(DraftPrefillPolicy(), 2.5) == 1, "half of half the price"
    assert steps_until_worth(DraftPrefillPolicy(), 100.0) == 249, "at most two and a half times the price"
    assert steps_until_worth(DraftPrefillPolicy(), 100.0, new=True) == 149, (
        "and one and a half times if unknown"
    )
    assert steps_until_worth(DraftPrefillPolicy(), 0.0) == 0


@given(st.floats(0.0, 300.0), st.floats(0.0, 300.0), st.booleans())
def test_it_waits_longer_for_a_higher_price(a: float, b: float, new: bool) -> None:
    less, more = (steps_until_worth(DraftPrefillPolicy(), price, new=new) for price in sorted((a, b)))
    assert less <= more <= 2.5 * max(a, b)
    assert steps_until_worth(DraftPrefillPolicy(), a, new=True) <= steps_until_worth(DraftPrefillPolicy(), a)


def test_it_waits_longer_where_catching_up_has_not_paid() -> None:
    waits = []
    for text in range(6):
        catching_up = DraftPrefillPolicy()
        for before in range(text):
            steps_until_worth(catching_up, 8.0, text=str(before))
            write(catching_up, 10, 0.0, str(before))
        waits.append(steps_until_worth(catching_up, 8.0))
    assert waits == sorted(waits)
    assert waits[0] == WAIT
    assert waits[-1] == 19, "but not for ever: two and a half times eight, the last step's promise included"


def test_it_waits_no_longer_where_it_has_paid_and_less_again_where_it_pays() -> None:
    catching_up = DraftPrefillPolicy()
    for text in "abcdefgh":
        assert steps_until_worth(catching_up, 8.0, text=text) == WAIT
        write(catching_up, 8, 1.0, text)
    for text in "xy":
        steps_until_worth(catching_up, 8.0, text=text)
        write(catching_up, 4, 0.0, text)
    worse = steps_until_worth(catching_up, 8.0, text="z")
    assert worse > WAIT
    write(catching_up, 100, 1.0, "z")
    assert WAIT < steps_until_worth(catching_up, 8.0) < worse


def test_what_lookups_would_have_found_soon_pays_for_nothing() -> None:
    waits = []
    for covered in (0, 1, 2, 3, 9):
        catching_up = DraftPrefillPolicy()
        for text in "abcdef":
            steps_until_worth(catching_up, 8.0, text=text)
            write(catching_up, 4, 3.0, text, covered)
        waits.append(steps_until_worth(catching_up, 8.0))
    assert waits[0] == waits[1] == WAIT, "the price is made up for"
    assert waits[1] < waits[2] < waits[3] == waits[4], "but what a step lacks takes nothing from others"


def test_what_is_covered_counts_in_texts_that_were_caught_up() -> None:
    catching_up = DraftPrefillPolicy()
    wait(catching_up, 8, 8.0, covered=5)
    assert steps_until_worth(catching_up, 8.0) == WAIT - 8, "what was promised stays promised"


def test_a_text_that_was_not_caught_up_teaches_nothing() -> None:
    catching_up = DraftPrefillPolicy()
    wait(catching_up, 5, 50.0, "b")
    catching_up.forget("b")
    assert steps_until_worth(catching_up, 8.0) == WAIT


@given(
    texts=st.lists(
        st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.integers(0, 5), st.integers(1, 4)), max_size=20
    ),
    price=st.floats(0.0, 1e4) | st.sampled_from(sorted(LEAST)),
)
def test_the_wait_keeps_to_its_bounds(texts: list[tuple[float, float, int, int]], price: float) -> None:
    """Whatever other texts have taught."""
    catching_up = DraftPrefillPolicy()
    for number, (paid, promise, steps, among) in enumerate(texts):
        for _ in range(steps):
            catching_up.begin_step()
            if catching_up.is_worth([str(number)], paid, promise, new=False):
                catching_up.pay(paid)
            catching_up.end_step([str(number)], among)
        catching_up.forget(str(number))
    catching_up.begin_step()
    assert catching_up.is_worth(["a"], price, 2.5 * price, new=False)
    # More is waited for a higher price, so that of the next lower one in the table is a bound too.
    least = max((promise for lower, promise in LEAST.items() if lower <= price), default=0.0)
    assert least == 0.0 or not catching_up.is_worth(["a"], price, 0.99 * least - 1e-9, new=False)
