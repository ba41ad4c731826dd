"""What every engine must do, whatever drafts it is given."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.types import Draft, Verdict
from outrider.engines.base import ForwardItem, LanguageModel
from tests.conformance.engines import ENGINES, Models

PROMPT = [7, 1, 4, 2]
MADE: dict[str, Models] = {name: make() for name, make in ENGINES.items()}


def logits_after(model: LanguageModel, tokens: list[int]) -> npt.NDArray[np.float32]:
    """float32[vocab] after a text, from an empty cache, one token a pass."""
    cache = model.new_cache(len(tokens))
    row = np.empty(0, np.float32)
    for token in tokens:
        ids, parents = np.array([token], np.int32), np.array([-1], np.int32)
        row = model.forward([ForwardItem(cache, ids, parents, np.array([0], np.int32))])[0][0]
    cache.close()
    return row


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 7))
    tokens = [draw(st.integers(0, 47)) for _ in range(size)]
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, "test")


def paths(draft: Draft) -> list[list[int]]:
    """The nodes from the anchor to each node."""
    found: list[list[int]] = []
    for node, parent in enumerate(draft.parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=25)
@given(steps=st.lists(trees(), min_size=1, max_size=3), chunk=st.integers(1, 4), data=st.data())
def test_rows_are_those_of_the_text_alone(
    name: str, steps: list[Draft], chunk: int, data: st.DataObject
) -> None:
    model, engine = MADE[name].target, MADE[name].engine()
    seq = engine.open(PROMPT, 60)
    while engine.prefill(seq, chunk):
        pass
    text = list(PROMPT)
    for draft in steps:
        (scores,) = engine.score([(seq, draft)])
        walks = [[], *paths(draft)]
        for row, walk in zip(scores.logits, walks, strict=True):
            expected = logits_after(model, text + draft.tokens[walk].tolist())
            np.testing.assert_array_equal(row, expected)
        path = data.draw(st.sampled_from(walks))
        following = data.draw(st.integers(0, 47))
        engine.commit(seq, Verdict(tuple(path), following, "bonus"))
        text += [*draft.tokens[path].tolist(), following]
        assert (seq.cache.length, seq.anchor) == (len(text) - 1, following)
    engine.close(seq)


@pytest.mark.parametrize("name", ENGINES)
def test_sequences_of_a_batch_do_not_meet(name: str) -> None:
    engine = MADE[name].engine()
    drafts = [Draft.chain([1, 2, 3], "t"), Draft.empty(), Draft.chain([5], "t")]
    prompts = [[3], [1, 2, 3, 4, 5, 6], [9, 9]]
    together = [engine.open(prompt, 30) for prompt in prompts]
    for seq in together:
        assert engine.prefill(seq, 100) == 0
    scores = engine.score(list(zip(together, drafts, strict=True)))
    for prompt, draft, found in zip(prompts, drafts, scores, strict=True):
        alone = engine.open(prompt, 30)
        engine.prefill(alone, 100)
        np.testing.assert_array_equal(found.logits, engine.score([(alone, draft)])[0].logits)


@pytest.mark.parametrize("name", ENGINES)
def test_a_failed_pass_changes_no_cache(name: str) -> None:
    model = MADE[name].target
    first, second = model.new_cache(4), model.new_cache(1)
    ids, parents, rows = np.array([1, 2], np.int32), np.array([-1, 0], np.int32), np.empty(0, np.int32)
    with pytest.raises(ValueError):  # noqa: PT011 (each engine words it)
        model.forward([ForwardItem(first, ids, parents, rows), ForwardItem(second, ids, parents, rows)])
    for bad in (-1, model.vocab_size):
        with pytest.raises(ValueError):  # noqa: PT011
            model.forward([ForwardItem(first, np.array([1, bad], np.int32), parents, rows)])
    assert (first.length, second.length) == (0, 0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_cache_refuses_what_it_does_not_hold(name: str) -> None:
    model = MADE[name].target
    cache = model.new_cache(8)
    assert (cache.length, cache.capacity) == (0, 8)
    ids = np.array([1, 2, 3, 4], np.int32)
    model.forward([ForwardItem(cache, ids, np.arange(-1, 3, dtype=np.int32), np.empty(0, np.int32))])
    for length in (5, -1):
        with pytest.raises(ValueError):  # noqa: PT011
            cache.truncate(length)
    for base, slots in ((1, [3, 2]), (1, [2, 2]), (2, [1]), (1, [4])):
        with pytest.raises(ValueError):  # noqa: PT011
            cache.keep(base, slots)
    assert cache.length == 4
    cache.keep(1, [3])
    assert cache.length == 2
    cache.close()
    with pytest.raises(ValueError):  # noqa: PT011
        cache.truncate(0)
