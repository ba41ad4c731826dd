"""What a draft model leaves out of a text: what is too long, and copies that were written meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.draft_context import HEAD, KEPT, TAIL, DraftContext


@dataclass(eq=False)
class Token:
    token: int
    copied: bool = False
    settled: bool = False
    left_out: bool = False


class Oracle:
    """The same, by a look at every token of the text."""

    def __init__(self, prompt_length: int) -> None:
        self.prompt_length, self.text = prompt_length, list[Token]()

    def follow(self, text: list[int], copied: int) -> None:
        self.text += [Token(token) for token in text[len(self.text) :]]
        for i, token in enumerate(self.text):
            token.copied |= i >= max(len(text) - copied, self.prompt_length) and not token.settled

    def leave_out(self, read: int) -> None:
        far = [token for token in self.text if not token.left_out][:-KEPT]
        for token in far[read:]:
            token.left_out = token.copied and not token.settled
            token.settled = True
        for token in far[:read]:
            token.settled = True

    def skim(self, read: int) -> None:
        kept = [token for token in self.text if not token.left_out]
        for token in kept[max(HEAD, read) : max(0, len(kept) - TAIL)]:
            token.left_out = True
        self.leave_out(read)

    def prompt_left(self, read: int) -> int:
        unread = [token for token in self.text if not token.left_out][read:]
        return sum(token in unread for token in self.text[: self.prompt_length])

    @property
    def tokens(self) -> list[int]:
        return [token.token for token in self.text if not token.left_out]


# For each step: tokens that are written, how many of all are copied then, whether the model skims, or reads.
Steps = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 80), st.sampled_from(["", "", "", "", "skims", "reads"])),
    max_size=20,
)


@given(st.integers(1, 200), Steps)
def test_it_leaves_out_copies_that_were_not_read_and_what_it_skims(
    prompt: int, steps: list[tuple[int, int, str]]
) -> None:
    new = count()
    text = [next(new) for _ in range(prompt)]
    reading, oracle, read = DraftContext(prompt), Oracle(prompt), list[int]()
    skimmed = False
    for written, copied, then in [(0, 0, "reads" if prompt < 60 else ""), *steps]:
        text += [next(new) for _ in range(written)]
        reading.follow(text, copied)
        oracle.follow(text, copied)
        reading.leave_out(len(read))
        oracle.leave_out(len(read))
        if then == "skims":
            skimmed = True
            reading.skim(len(read))
            oracle.skim(len(read))
            assert len(reading.tokens) <= max(len(read), HEAD) + TAIL
        assert reading.tokens == oracle.tokens
        assert reading.prompt_left(len(read)) == oracle.prompt_left(len(read))
        assert reading.tokens[: len(read)] == read, "what was read stays"
        assert skimmed or reading.tokens[:prompt] == text[:prompt], "so does the prompt"
        least = min(HEAD, prompt)
        assert reading.tokens[:least] == text[:least], "its beginning always"
        assert reading.tokens[-KEPT:] == text[-KEPT:], "and the end"
        if then == "reads":
            read = reading.tokens[:-1]


def test_a_long_copy_takes_no_time_to_read() -> None:
    reading, text = DraftContext(1000), list(range(1000))
    for start in range(0, 900, 15):
        text += range(start, start + 15)
        reading.follow(text, min(24, start))
        reading.leave_out(0)
    assert len(text) == 1900
    assert reading.tokens == [*range(1000), *text[1000:1015], *text[-KEPT:]]
