"""The tokens that a draft model skips: the middle of long sequences, and copies generated meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.draft_context import COPY_TAIL_TOKENS, HEAD_TOKENS, TAIL_TOKENS, DraftContext


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

    def extend(self, text: list[int], copied: int) -> None:
        self.text += [Token(token) for token in text[len(self.text) :]]
        for i, token in enumerate(self.text):
            token.copied |= i >= max(len(text) - copied, self.prompt_length) and not token.settled

    def drop_copied(self, read: int) -> None:
        far = [token for token in self.text if not token.left_out][:-COPY_TAIL_TOKENS]
        for token in far[read:]:
            token.left_out = token.copied and not token.settled
            token.settled = True
        for token in far[:read]:
            token.settled = True

    def truncate_middle(self, read: int) -> None:
        kept = [token for token in self.text if not token.left_out]
        for token in kept[max(HEAD_TOKENS, read) : max(0, len(kept) - TAIL_TOKENS)]:
            token.left_out = True
        self.drop_copied(read)

    def unprocessed_prompt(self, read: int) -> int:
        unread = [token for token in self.text if not token.left_out][read:]
        return sum(token in unread for token in self.text[: self.prompt_length])

    @property
    def tokens(self) -> list[int]:
        return [token.token for token in self.text if not token.left_out]


# For each step: new tokens, how many of all are copied then, and what happens: the middle is left out, or the
# model processes all.
Steps = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 80), st.sampled_from(["", "", "", "", "truncates", "processes"])
    ),
    max_size=20,
)


@given(st.integers(1, 200), Steps)
def test_it_leaves_out_unprocessed_copies_and_a_middle(
    prompt: int, steps: list[tuple[int, int, str]]
) -> None:
    new = count()
    text = [next(new) for _ in range(prompt)]
    kept_context, oracle, read = DraftContext(prompt), Oracle(prompt), list[int]()
    truncated = False
    for written, copied, then in [(0, 0, "processes" if prompt < 60 else ""), *steps]:
        text += [next(new) for _ in range(written)]
        kept_context.extend(text, copied)
        oracle.extend(text, copied)
        kept_context.drop_copied(len(read))
        oracle.drop_copied(len(read))
        if then == "truncates":
            truncated = True
            kept_context.truncate_middle(len(read))
            oracle.truncate_middle(len(read))
            assert len(kept_context.tokens) <= max(len(read), HEAD_TOKENS) + TAIL_TOKENS
        assert kept_context.tokens == oracle.tokens
        assert kept_context.unprocessed_prompt(len(read)) == oracle.unprocessed_prompt(len(read))
        assert kept_context.tokens[: len(read)] == read, "what was read stays"
        assert truncated or kept_context.tokens[:prompt] == text[:prompt], "so does the prompt"
        least = min(HEAD_TOKENS, prompt)
        assert kept_context.tokens[:least] == text[:least], "its beginning always"
        assert kept_context.tokens[-COPY_TAIL_TOKENS:] == text[-COPY_TAIL_TOKENS:], "and the end"
        if then == "processes":
            read = kept_context.tokens[:-1]


def test_a_long_copy_takes_no_time_to_read() -> None:
    kept_context, text = DraftContext(1000), list(range(1000))
    for start in range(0, 900, 15):
        text += range(start, start + 15)
        kept_context.extend(text, min(24, start))
        kept_context.drop_copied(0)
    assert len(text) == 1900
    assert kept_context.tokens == [*range(1000), *text[1000:1015], *text[-COPY_TAIL_TOKENS:]]
