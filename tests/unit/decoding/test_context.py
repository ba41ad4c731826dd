from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext

TOKENS = st.lists(st.integers(0, 9), max_size=30)


def as_dict(context: TokenContext) -> dict[int, int]:
    ids, counts = context.counts()
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 30))
def test_counts_look_ahead_without_changing_the_sequence(
    prompt: list[int], output: list[int], path: list[int], ask_at: int
) -> None:
    context = TokenContext(prompt)
    for i, token in enumerate(output):
        if i == ask_at:  # from here on the counts are kept up instead of made
            context.counts()
        context.append(token)
    expected = {**dict.fromkeys(prompt, 0), **Counter(output)}
    assert as_dict(context) == expected
    view = context
    for token in path:
        view = view.then(token)
    assert as_dict(view) == {**dict.fromkeys(prompt, 0), **Counter(output + path)}
    assert as_dict(context) == expected
    assert (view.position, view.output_length) == (len(prompt + output + path), len(output + path))
    assert context.tokens == prompt + output


def test_many_distinct_tokens() -> None:
    context = TokenContext([0])
    context.counts()
    for token in range(1000):
        context.append(token)
    assert as_dict(context) == dict.fromkeys(range(1000), 1)


def test_a_view_cannot_grow() -> None:
    with pytest.raises(ValueError, match="view"):
        TokenContext([1]).then(2).append(3)
