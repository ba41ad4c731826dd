"""Mixed batches give the same logits as separate passes, and leave no prompt half processed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.types import Draft, FloatArray, IntArray, TargetScores, Verdict
from outrider.engines.base import ForwardItem, SeqHandle, StepEngine
from outrider.engines.step import CachedStepEngine
from tests.conformance.engines import ENGINES, Models
from tests.support.toy_model import ToyModel

MADE: dict[str, Models] = {name: make() for name, make in ENGINES.items()}
OTHER = [5, 9, 2]


def alone(engine: StepEngine, prompt: Sequence[int], draft: Draft) -> FloatArray:
    """The rows of a draft after a prompt whose prefill shared no pass."""
    seq = engine.open(prompt, 90)
    engine.prefill(seq, 1000)
    (scores,) = engine.score([(seq, draft)])
    engine.close(seq)
    return scores.logits


def in_mixed_batches(
    engine: StepEngine, prompts: Sequence[Sequence[int]], chunks: Sequence[int], draft: Draft
) -> list[FloatArray]:
    """The same for several prompts whose prefill shares passes, in chunks, with a sequence that decodes."""
    first = engine.open(OTHER, 90)
    engine.prefill(first, 1000)
    reference = engine.open(OTHER, 90)
    engine.prefill(reference, 1000)
    seqs = [engine.open(prompt, 90) for prompt in prompts]
    for chunk in chunks:
        (mine,) = engine.score([(first, draft)], [(seq, chunk) for seq in seqs])
        (plain,) = engine.score([(reference, draft)])
        np.testing.assert_array_equal(mine.logits, plain.logits)
        verdict = Verdict((0,), 3, "recovered") if len(draft) else Verdict((), 3, "bonus")
        engine.commit(first, verdict)
        engine.commit(reference, verdict)
    assert engine.score([], [(seq, 1000) for seq in seqs]) == []
    assert all(len(seq.pending) == 0 and seq.committed == seq.cache.length for seq in seqs)
    scores: list[TargetScores] = engine.score([(seq, draft) for seq in seqs])
    return [s.logits for s in scores]


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=20)
@given(
    prompts=st.lists(st.lists(st.integers(0, 47), min_size=1, max_size=40), min_size=1, max_size=3),
    chunks=st.lists(st.integers(0, 20), max_size=4),
    drafted=st.lists(st.integers(0, 47), max_size=3),
)
def test_prompts_in_mixed_batches_give_the_same_rows(
    name: str, prompts: list[list[int]], chunks: list[int], drafted: list[int]
) -> None:
    engine, draft = MADE[name].engine(), Draft.chain(drafted, "t")
    for prompt, rows in zip(prompts, in_mixed_batches(engine, prompts, chunks, draft), strict=True):
        np.testing.assert_array_equal(rows, alone(engine, prompt, draft))


def test_a_chunk_that_is_counted_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: a chunk's last token counts as still to come, and is computed twice."""
    right = CachedStepEngine._written

    def wrong(self: CachedStepEngine, seq: SeqHandle, count: int) -> None:
        right(self, seq, count)
        if len(seq.pending):
            seq.pending = np.concatenate((seq.pending[:1], seq.pending))

    engine, prompt = CachedStepEngine(ToyModel(48, 128)), [*range(20)]
    expected = alone(engine, prompt, Draft.empty())
    (found,) = in_mixed_batches(engine, [prompt], [4], Draft.empty())
    np.testing.assert_array_equal(found, expected)
    monkeypatch.setattr(CachedStepEngine, "_written", wrong)
    (found,) = in_mixed_batches(engine, [prompt], [4], Draft.empty())
    assert (found != expected).any()


def test_a_failed_pass_changes_no_sequence() -> None:
    class Failing(ToyModel):
        broken = False

        def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
            if self.broken:
                raise RuntimeError("the pass failed")
            return super().forward(items)

    model = Failing(48, 128)
    engine = CachedStepEngine(model)
    first, second = engine.open(OTHER, 40), engine.open([*range(10)], 40)
    engine.prefill(first, 100)
    engine.prefill(second, 2)
    before = [(s.cache.length, s.committed, s.pending.tolist(), s.anchor) for s in (first, second)]
    model.broken = True
    with pytest.raises(RuntimeError, match="the pass failed"):
        engine.score([(first, Draft.empty())], [(second, 3)])
    model.broken = False
    with pytest.raises(ValueError, match="once"):
        engine.score([], [(second, 3), (second, 3)])
    full = engine.open([*range(10)], 4)
    with pytest.raises(ValueError, match="do not fit"):
        engine.score([(first, Draft.empty())], [(second, 3), (full, 9)])
    after = [(s.cache.length, s.committed, s.pending.tolist(), s.anchor) for s in (first, second)]
    assert after == before


@pytest.mark.parametrize("name", ENGINES)
def test_a_pass_computes_no_more_than_it_is_asked_for(name: str) -> None:
    engine = MADE[name].engine()
    seqs = [engine.open([*range(n)], 40) for n in (10, 4, 1)]
    assert engine.score([], [(seqs[0], 6), (seqs[1], 0), (seqs[2], 8)]) == []
    left: list[IntArray] = [seq.pending for seq in seqs]
    assert [ids.tolist() for ids in left] == [[6, 7, 8], [0, 1, 2], []]
    assert [seq.committed for seq in seqs] == [6, 0, 0]


TREE = Draft(np.array([7, 8, 9, 4], np.int32), np.array([-1, -1, 0, 1], np.int32), None, "test")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("draft", [Draft.empty(), Draft.chain([7, 8, 9], "test"), TREE], ids=len)
@pytest.mark.parametrize("taps", [(), (0, 1)])
def test_the_rest_of_a_prompt_shares_the_pass_of_its_anchor(
    name: str, draft: Draft, taps: tuple[int, ...]
) -> None:
    models = MADE[name]
    engine, prompt = models.engine(), [*range(20), 3]
    usual, whole = (engine.open(prompt, 90, taps=taps) for _ in range(2))
    engine.prefill(usual, 1000)
    engine.prefill(whole, 6)
    (expected,), (scores,) = engine.score([(usual, draft)]), engine.score([(whole, draft)])
    np.testing.assert_array_equal(scores.logits, expected.logits)
    assert not len(whole.pending)
    if taps:
        assert scores.hidden is not None
        assert expected.hidden is not None
        np.testing.assert_array_equal(scores.hidden, expected.hidden)
        held = [seq.hidden for seq in (usual, whole) if seq.hidden is not None]
        states = [np.concatenate([rows for _, rows in hidden.take_prompt()]) for hidden in held]
        np.testing.assert_array_equal(states[1], states[0])
    for seq in (usual, whole):
        engine.commit(seq, Verdict((0,) if len(draft) else (), 5, "bonus"))
    again = [engine.score([(seq, Draft.chain([2], "test"))])[0].logits for seq in (usual, whole)]
    np.testing.assert_array_equal(again[1], again[0])
