from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.sampling.logprobs import token_logprobs
from outrider.errors import ModelError

ROWS = st.lists(st.integers(-6, 6), min_size=1, max_size=40).map(lambda v: np.array(v, np.float32))


@given(ROWS, st.data())
def test_it_is_the_log_softmax_with_ranks(row: np.ndarray, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    count = data.draw(st.integers(-1, len(row) + 3))
    total = math.fsum(math.exp(v) for v in row.tolist())
    exact = [v - math.log(total) for v in row.tolist()]
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    found = token_logprobs(row, token, count)
    assert found.token == token
    assert found.logprob == pytest.approx(exact[token], abs=1e-12)
    assert found.rank == 1 + order.index(token)
    wanted = order if count < 0 else order[:count]
    assert found.top_ids.tolist() == wanted
    assert found.top_ranks.tolist() == list(range(1, len(wanted) + 1))
    assert found.top_logprobs.tolist() == pytest.approx([exact[i] for i in wanted], abs=1e-12)


@given(ROWS, st.data())
def test_chosen_tokens_take_the_place_of_the_likeliest(row: np.ndarray, data: st.DataObject) -> None:
    ids = st.integers(0, len(row) - 1)
    token, chosen = data.draw(ids), data.draw(st.lists(ids, min_size=1))
    every, found = token_logprobs(row, token, -1), token_logprobs(row, token, len(chosen), chosen)
    assert (found.token, found.logprob, found.rank) == (token, every.logprob, every.rank)
    columns = ("top_ids", "top_logprobs", "top_ranks")
    rows = list(zip(*(getattr(every, name).tolist() for name in columns), strict=True))
    wanted = [entry for entry in rows if entry[0] in {token, *chosen}]
    assert list(zip(*(getattr(found, name).tolist() for name in columns), strict=True)) == wanted


def test_the_same_row_gives_the_same_bits_wherever_it_lies() -> None:
    rows = np.random.default_rng(1).normal(0, 4, (7, 1031)).astype(np.float32)
    for i, row in enumerate(rows):
        one, other = token_logprobs(row, 5, 9), token_logprobs(row.copy(), 5, 9)
        assert one.logprob == other.logprob, i
        assert one.top_logprobs.tobytes() == other.top_logprobs.tobytes()


def test_what_the_model_rules_out_has_no_probability() -> None:
    found = token_logprobs(np.array([0.0, -np.inf, 0.0], np.float32), 1, -1)
    assert (found.logprob, found.rank) == (-math.inf, 3)
    assert found.top_logprobs.tolist() == [pytest.approx(-math.log(2))] * 2 + [-math.inf]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_numbers_is_the_models_fault(bad: float) -> None:
    row = np.full(3, bad, np.float32)
    with pytest.raises(ModelError, match="maximum"):
        token_logprobs(row, 0, 1)
