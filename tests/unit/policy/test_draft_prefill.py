"""When a draft model processes a sequence's unprocessed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.draft_prefill import CopiedTexts, DraftPrefillPolicy, PrefillState
from outrider.policy.output_lengths import BUCKETS, END, LENGTHS, OutputLengths, bucket_of
from outrider.policy.tuning import DEFAULT

# For a price in tokens: what must have been promised before it is paid, at least.
LEAST = {1.0: 0.17, 2.5: 1.08, 5.0: 4.34, 8.0: 11.1, 10.0: 17.3, 12.5: 27.1, 100.0: 250.0, 1000.0: 2500.0}


ENDLESS = 100_000  # tokens that an output may have


class Named:
    """A policy whose requests go by names. By default it has met long outputs, and expects no others."""

    def __init__(self, lengths: Sequence[int] | None = None) -> None:
        tuning = replace(DEFAULT, length_prior_weight=0.0) if lengths is None else DEFAULT
        self.policy = DraftPrefillPolicy(tuning)
        lengths = [100_000] if lengths is None else lengths
        self.requests: dict[str, PrefillState] = {}
        for length in lengths:
            self.policy.lengths.observe(length)

    def _of(self, names: Sequence[str]) -> list[PrefillState]:
        return [self.requests.setdefault(name, PrefillState()) for name in names]

    def begin_step(self) -> None:
        self.policy.begin_step()

    def is_worth(self, names: Sequence[str], price: float, gain: float, left: int = ENDLESS) -> bool:
        return self.policy.is_worth(self._of(names), price, gain, left)

    def end_step(self, names: Sequence[str], batch: int, emitted: int = 1) -> None:
        self.policy.end_step(self._of(names), batch)
        for request in self._of(names):
            request.tokens += emitted

    def end(self, name: str) -> None:
        self.policy.end_request(self._of([name])[0])
        del self.requests[name]


def steps_until_worth(
    prefill: Named, price: float, *, gain: float = 1.0, text: str = "a", left: int = ENDLESS
) -> int:
    """Steps in which it waits."""
    for steps in range(1000):
        prefill.begin_step()
        if prefill.is_worth([text], price, gain, left):
            return steps
        prefill.end_step([text], 1)
    return 1000


def test_in_a_long_output_it_waits_for_the_price() -> None:
    assert steps_until_worth(Named(), 5.0) == 4, "nearly all of it; the step's own promise counts"
    assert steps_until_worth(Named(), 2.5) == 1, "half of half the price"
    assert steps_until_worth(Named(), 100.0) == 249, "at most two and a half times the price"
    assert steps_until_worth(Named(), 0.0) == 0


@given(st.floats(0.0, 300.0), st.floats(0.0, 300.0))
def test_it_waits_longer_for_a_higher_price(a: float, b: float) -> None:
    less, more = (steps_until_worth(Named(), price) for price in sorted((a, b)))
    assert less <= more <= 2.5 * max(a, b)


def test_where_outputs_are_short_it_waits_until_they_are_not() -> None:
    for length in (3, 5, 8):
        assert steps_until_worth(Named([length] * 40), 3.0, gain=0.3) >= length
    assert steps_until_worth(Named([8] * 40), 3.0, gain=1.0) < 3, "half of seven tokens is more"
    assert steps_until_worth(Named([300] * 40), 3.0, gain=0.3) < 8
    assert steps_until_worth(Named([]), 3.0, gain=0.3) in range(7, 13), "unknown: p / (exp(gain) - 1) = 8.6"


def test_it_waits_for_the_end_of_the_shortest_outputs_until_they_are_known_to_be_rare() -> None:
    """Labels, names and numbers: whoever waits four tokens loses little of any other output."""
    assert steps_until_worth(Named([]), 1.8, gain=1.2) == 4, "the first of a process"
    assert steps_until_worth(Named([]), 0.2, gain=1.2) == 0, "little is lost"
    assert steps_until_worth(Named([30] * 60), 1.5, gain=1.2) == 0
    assert steps_until_worth(Named([30, 30, 30, 30, 2] * 8), 1.5, gain=1.2) == 2, "a fifth are labels"
    assert steps_until_worth(Named([2, *[30] * 60]), 1.5, gain=1.2) == 0, "long ago"


def test_a_bucket_for_each_length() -> None:
    assert [bucket_of(length) for length in range(10)] == [0, 0, 1, 2, 3, 4, 5, 6, 7, 7]
    assert all(low <= length < high for length, (low, high) in zip(LENGTHS, BUCKETS, strict=True))
    assert all(BUCKETS[bucket_of(n)][0] <= n < BUCKETS[bucket_of(n)][1] for n in range(1, END))
    assert bucket_of(END) == bucket_of(10**6) == len(BUCKETS) - 1


def test_an_output_that_may_not_last_is_not_invested_in() -> None:
    assert steps_until_worth(Named(), 3.0, left=3) == 1000
    assert steps_until_worth(Named(), 3.0, left=100) < 3


def test_lengths_are_learned_from_ended_outputs() -> None:
    prefill = Named([])
    for number in range(40):
        for _ in range(4):
            prefill.begin_step()
            prefill.end_step([str(number)], 1)
        prefill.end(str(number))
    assert steps_until_worth(prefill, 3.0) == 4
    prefill.end("a")
    for number in range(120):
        prefill.begin_step()
        prefill.end_step([str(number)], 1, emitted=1000)
        prefill.end(str(number))
    assert steps_until_worth(prefill, 3.0, text="b") < 4


def after_texts(count: int, *, price: float = 5.0, copied: int) -> Named:
    """A policy that has met texts with prefills of this price, of 1,000 tokens each, of which lookups alone
    gave `copied`."""
    prefill = Named()
    for number in range(count):
        prefill.begin_step()
        prefill.is_worth([str(number)], price, 0.01)
        prefill.end_step([str(number)], 1, emitted=1000)
        prefill.is_worth([str(number)], 0.0, 0.01)  # its prompt is processed now
        prefill.requests[str(number)].copied = copied
        prefill.end(str(number))
    return prefill


def test_where_texts_are_no_copies_it_does_not_wait_for_one_to_begin() -> None:
    assert steps_until_worth(after_texts(0, copied=0), 5.0) == 4
    assert steps_until_worth(after_texts(9, copied=0), 5.0) == 0
    assert steps_until_worth(after_texts(9, copied=300), 5.0) == 2, "half of it"
    assert steps_until_worth(after_texts(9, copied=600), 5.0) == 4, "most of it, as edits are"
    assert steps_until_worth(after_texts(9, copied=1000), 5.0) == 4


def test_what_short_prompts_were_asked_for_says_nothing_of_long_ones() -> None:
    prefill = after_texts(9, price=5.0, copied=0)
    assert steps_until_worth(prefill, 4.5) == 0
    assert steps_until_worth(prefill, 40.0, text="b") == 99
    assert steps_until_worth(prefill, 2.4, text="c") == 1


def test_a_text_of_which_no_prefill_was_considered_says_nothing_of_copies() -> None:
    prefill = Named()
    for number in range(9):
        prefill.begin_step()
        prefill.end_step([str(number)], 1, emitted=1000)
        prefill.end(str(number))
    assert steps_until_worth(prefill, 5.0) == 4


def test_requests_share_a_price() -> None:
    prefill = Named()
    prefill.begin_step()
    prefill.is_worth(["a", "b"], 10.0, 0.01)
    prefill.end_step(["a", "b"], 2, emitted=1000)
    prefill.end("a")
    prefill.end("b")
    assert [prefill.policy.copied.share(price) for price in (2.4, 2.6, 9.9, 10.1)] == [1.0, 0.0, 0.0, 1.0]


@given(
    prices=st.lists(st.floats(0.0, 1e5), max_size=20),
    shares=st.lists(st.floats(0.0, 1.0), min_size=20, max_size=20),
)
def test_the_share_of_copies_is_one_of_what_was_met(prices: list[float], shares: list[float]) -> None:
    copied, known = CopiedTexts(DEFAULT), CopiedTexts(replace(DEFAULT, length_prior_weight=0.0))
    for price, share in zip(prices, shares, strict=False):
        for each in (copied, known):
            each.observe(price, share)
        assert copied.share(price) > 0.0, "what is not known yet counts"
        met = shares[: len(prices)]
        assert (
            min(met) - 1e-12
            <= known.share(price)
            <= min(1.0, max(met) / DEFAULT.prefill_copied_share) + 1e-12
        )
    off = CopiedTexts(replace(DEFAULT, prefill_copied_share=0.0))
    off.observe(5.0, 0.0)
    assert off.share(5.0) == 1.0


@given(
    lengths=st.lists(st.integers(1, 5000), max_size=30),
    tokens=st.integers(0, 3000),
    left=st.integers(0, 3000),
    price=st.floats(0.01, 1e4),
    gain=st.floats(0.001, 20.0),
)
def test_it_never_pays_where_the_output_cannot_earn_the_price(
    lengths: list[int], tokens: int, left: int, price: float, gain: float
) -> None:
    known = OutputLengths()
    for length in lengths:
        known.observe(length)
    saved = (left + 1) * gain / (1.0 + gain)  # by drafts in all that may come
    if known.pays(tokens, left, price, gain):
        assert saved >= price
    assert known.pays(tokens, left, 0.0, gain)
    assert not known.pays(tokens, left, price, 0.0)


@given(
    price=st.floats(0.0, 1e4) | st.sampled_from(sorted(LEAST)),
)
def test_the_wait_keeps_to_its_bound(price: float) -> None:
    """Whatever the length."""
    prefill = Named()
    prefill.begin_step()
    # More is waited for a higher price, so that of the next lower one in the table is a bound too.
    least = max((promise for lower, promise in LEAST.items() if lower <= price), default=0.0)
    assert least == 0.0 or not prefill.is_worth(["a"], price, 0.99 * least - 1e-9)
