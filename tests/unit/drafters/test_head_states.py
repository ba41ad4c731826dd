"""States that wait come out in the order in which they went in, and memory is given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters import head_states
from outrider.drafters.head_states import WaitingStates


@given(
    prompt=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 60)), max_size=4),
    adds=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=12),
    columns=st.none() | st.just(np.array([2, 3, 0, 1, 2, 3])),
)
def test_first_in_first_out(prompt: list[tuple[int, int]], adds: list[tuple[int, int]], columns: Any) -> None:
    """Each time so many rows are added, of a prompt at first, and so many taken."""
    states = WaitingStates(columns)
    waiting = np.empty((0, 4), np.float32)
    rng = np.random.default_rng(0)
    for i, (added, wanted) in enumerate([*prompt, *adds]):
        hidden = rng.standard_normal((100, 4)).astype(np.float32)
        rows = rng.permutation(100)[:added].tolist()
        if i < len(prompt):
            states.add_prompt(hidden[:added])
            waiting = np.concatenate([waiting, hidden[:added]])
        else:
            states.add(hidden, rows)
            waiting = np.concatenate([waiting, hidden[rows]])
        assert len(states) == len(waiting)
        if not len(waiting):
            continue
        taken = min(wanted, len(waiting))
        if taken:
            found = states.take(taken)
            expected = waiting[:taken] if columns is None else waiting[:taken, columns]
            np.testing.assert_array_equal(found, expected)
        states.drop(taken)
        waiting = waiting[taken:]
        np.testing.assert_array_equal(
            states.take(100) if len(waiting) else waiting,
            waiting[:100] if columns is None or not len(waiting) else waiting[:100, columns],
        )
        assert states.nbytes <= 16 * max(4 * (len(waiting) + head_states.SPARE_ROWS), 2 * len(waiting))


def test_a_prompts_states_are_not_copied() -> None:
    states, hidden = WaitingStates(), np.ones((50, 4), np.float32)
    states.add_prompt(hidden)
    assert np.shares_memory(states.take(50), hidden)
    states.add(hidden, [1])
    with pytest.raises(AssertionError, match="before its output"):
        states.add_prompt(hidden)


def test_none_wait_once_they_are_cleared() -> None:
    states = WaitingStates()
    states.add_prompt(np.ones((50, 4), np.float32))
    states.add(np.ones((50, 4), np.float32), [1, 2])
    states.clear()
    assert (len(states), states.nbytes) == (0, 0)
