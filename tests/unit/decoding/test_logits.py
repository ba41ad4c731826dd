"""Changes to single logits: bad words, logits processors and constraints, along a draft's path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.constraint import Mask
from outrider.decoding.sampling.logits import LogitsPipeline
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.errors import ConfigError

VOCAB = 8
EOS = 7
ROW = np.linspace(-1.0, 1.0, VOCAB).astype(np.float32)


class After:
    """A constraint by table: what may follow, by the output's last token (-1 at its start)."""

    def __init__(self, table: dict[int, set[int]]) -> None:
        self._table = table

    def _next(self, context: TokenContext) -> set[int]:
        return self._table[context.output[-1] if context.output_length else -1]

    def allowed(self, context: TokenContext) -> Mask | None:
        mask = np.zeros(VOCAB, bool)
        mask[list(self._next(context))] = True
        return mask

    def forced(self, context: TokenContext, most: int) -> list[int]:
        return []

    def ended(self, context: TokenContext) -> bool:
        return not self._next(context)


def left(context: TokenContext, **arguments: Any) -> set[int]:
    """The ids that can still be drawn."""
    extra = {key: arguments.pop(key) for key in ("bad_words", "constraint") if key in arguments}
    row = LogitsPipeline(SamplingParams(**arguments), VOCAB, {EOS}, **extra).row(ROW, context)
    return set(np.flatnonzero(row > -np.inf).tolist())


ALL = set(range(VOCAB))


def test_nothing_to_do_gives_the_models_own_row() -> None:
    assert LogitsPipeline(SamplingParams(), VOCAB).row(ROW, TokenContext([1])) is ROW


def test_a_bad_word_is_ruled_out_where_it_would_end() -> None:
    context = TokenContext([1, 2])
    words = [(3,), (1, 2, 4), (2, 5)]
    assert left(context, bad_words=words) == ALL - {3}  # the prompt does not count
    assert left(context.then(2), bad_words=words) == ALL - {3, 5}
    assert left(context.then(1).then(2), bad_words=words) == ALL - {3, 4, 5}
    context.append(1)
    assert left(context, bad_words=words) == ALL - {3}
    assert left(context.then(2), bad_words=words) == ALL - {3, 4, 5}  # half written, half drafted
    assert left(context.then(2).then(2), bad_words=words) == ALL - {3, 5}


def test_logits_processors_get_what_they_ask_for() -> None:
    seen: list[tuple[Any, ...]] = []

    def two(output: list[int], logits: np.ndarray) -> np.ndarray:
        seen.append((output, logits.copy()))
        return logits * 2

    def three(prompt: list[int], output: list[int], logits: np.ndarray) -> np.ndarray:
        seen.append((prompt, output, logits.copy()))
        return logits + 1

    context = TokenContext([1, 2])
    context.append(4)
    before = ROW.copy()
    params = SamplingParams(logits_processors=[two, three], logit_bias={0: 3.0}, presence_penalty=1.0)
    row = LogitsPipeline(params, VOCAB).row(ROW, context.then(5))
    assert ROW.tobytes() == before.tobytes()
    assert seen[0][0] == [4, 5]
    assert seen[1][:2] == ([1, 2], [4, 5])
    assert seen[0][1].dtype == np.float32
    biased = ROW.astype(np.float64) + np.array([3.0] + [0.0] * 7)
    assert seen[0][1] == pytest.approx(biased)
    assert seen[1][2] == pytest.approx(2 * biased)
    assert row == pytest.approx(2 * biased + 1 - np.isin(np.arange(VOCAB), [4, 5]))


def test_a_processor_cannot_lift_what_is_ruled_out() -> None:
    def zeros(output: list[int], logits: np.ndarray) -> np.ndarray:
        assert np.isneginf(logits[2])
        return np.zeros_like(logits)

    assert left(TokenContext([1]), logits_processors=[zeros], allowed_token_ids=[0, 3]) == {0, 3}
    assert left(TokenContext([1]), logits_processors=[zeros], bad_words=[(2,)]) == ALL - {2}


def test_a_smaller_vocabulary_is_padded_for_processors() -> None:
    sizes: list[int] = []

    def processor(output: list[int], logits: np.ndarray) -> np.ndarray:
        sizes.append(len(logits))
        return logits[::-1] if len(logits) < VOCAB else logits

    sampler = Sampler(SamplingParams(logits_processors=[processor]), VOCAB).restricted(5)
    assert len(sampler.adjusted(ROW[:5], TokenContext([1]))) == 5
    assert sizes == [VOCAB]


def _raises(output: list[int], logits: np.ndarray) -> np.ndarray:
    raise KeyError("no\nsuch key")


def _bad(make: Callable[[np.ndarray], Any]) -> Callable[[list[int], np.ndarray], Any]:
    def bad(output: list[int], logits: np.ndarray) -> Any:
        return make(logits)

    return bad


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (_raises, "position 1 failed: KeyError"),
        (_bad(lambda x: x[1:]), r"shape \(7,\)"),
        (_bad(lambda _: None), "object"),
        (_bad(lambda x: x > 0), "bool"),
        (_bad(lambda x: x * np.nan), r"NaN or \+inf"),
        (_bad(lambda x: np.where(x > 0, np.inf, x)), r"NaN or \+inf"),
    ],
)
def test_a_processors_fault_is_one_line_with_its_name(processor: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        LogitsPipeline(SamplingParams(logits_processors=[processor]), VOCAB).row(ROW, TokenContext([1]))
    assert "\n" not in str(caught.value)
    assert processor.__qualname__ in str(caught.value)


def test_a_constraint_is_asked_about_the_path() -> None:
    constraint = After({-1: {1, 2}, 1: {3}, 3: {4, EOS}, 4: {EOS}})
    context = TokenContext([5])
    assert left(context, constraint=constraint) == {1, 2}
    assert left(context.then(1), constraint=constraint) == {3}
    assert left(context.along([1, 3]), constraint=constraint) == {4, EOS}
    assert left(context.along([1, 3]), constraint=constraint, allowed_token_ids=[1, 4]) == {4}
    assert left(context, constraint=constraint, bad_words=[(2,)]) == {1}


def test_a_constrained_text_goes_on_where_it_should_but_ends_where_it_must() -> None:
    constraint = After({-1: {1, EOS}, 1: {EOS}})
    context = TokenContext([5])
    for arguments in ({"ignore_eos": True}, {"min_tokens": 4}):
        assert left(context, constraint=constraint, **arguments) == {1}
        assert left(context.then(1), constraint=constraint, **arguments) == {EOS}


def test_no_token_left_is_an_error_of_one_line() -> None:
    sampler = Sampler(
        SamplingParams(allowed_token_ids=[2]), VOCAB, {EOS}, constraint=After({-1: {1}}), bad_words=[(3,)]
    )
    with pytest.raises(ConfigError, match=r"no token is left to choose at position 1: .*structured output"):
        sampler.token(ROW, TokenContext([5]))


def test_forced_and_ended_are_the_constraints() -> None:
    sampler = Sampler(SamplingParams(), VOCAB, constraint=After({-1: {1}, 1: set()}))
    context = TokenContext([5])
    assert sampler.forced(context, 3) == []
    assert [sampler.ended(context), sampler.ended(context.then(1))] == [False, True]
    plain = Sampler(SamplingParams(), VOCAB)
    assert (plain.forced(context, 3), plain.ended(context), plain.constraint) == ([], False, None)
