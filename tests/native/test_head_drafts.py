"""The drafts that a head makes by itself are those of one pass and one draw after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.recording_guide import RecordingGuide
from outrider.engines.heads import DraftingHead
from outrider.engines.native import _core
from outrider.engines.native.head import NativeHead
from outrider.engines.native.sampling import NativeRows
from outrider.models.eagle3.open import open_head
from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.cost_model import CostCurve
from outrider.policy.tree_growth import ModelRates, TreeGrowth
from tests.support.heads import HeadDims, original_folder, tiny_head

VOCAB = 900  # ids of four of the sampler's groups
PART = HeadDims(vocab=VOCAB, rows=300)
WHOLE = HeadDims(vocab=VOCAB, rows=0)
CAPACITY = 200


@cache
def head_of(dims: HeadDims) -> tuple[NativeHead, Any]:
    with TemporaryDirectory() as folder:
        found = open_head(original_folder(Path(folder) / "head", tiny_head(dims, seed=4)))
        assert found is not None
        return NativeHead.load(found.source, threads=2), found.target_ids


class ByPass(Eagle3Drafter):
    """One pass and one draw after the other."""

    def _head_draws(self, job: ProposeJob) -> bool:
        return False


class AtOnce(Eagle3Drafter):
    """Counts the drafts that the head made by itself."""

    count = 0

    def _draft_at_once(self, starts: Sequence[Any]) -> None:
        self.count += len(starts)
        super()._draft_at_once(starts)


class OnePositionFurther(AtOnce):
    """Draws with the noise of the next position."""

    def _draft_at_once(self, starts: Sequence[Any]) -> None:
        for start in starts:
            start.job = ProposeJob(
                start.job.request_id,
                TokenContext([*start.job.context.tokens, 0]),
                start.job.budget,
                start.job.sampler,
                start.job.guide,
            )
        super()._draft_at_once(starts)


def drafter_of(kind: type[Eagle3Drafter], dims: HeadDims) -> Eagle3Drafter:
    head, ids = head_of(dims)
    return kind(head, taps=(1, 2, 3), order=(0, 1, 2), target_ids=ids, max_context=CAPACITY, chunk=32)


def guide_of(kind: str, rate: float) -> RecordingGuide | None:
    """kind: "none", "chain", or "tree", which grows the further the lower the rate is."""
    if kind == "none":
        return None
    if kind == "chain":
        return RecordingGuide(None)
    rates = ModelRates(AcceptanceRates(0.7), RequestRates(), AcceptanceRates(0.4), RequestRates())
    curve = CostCurve({1: 1.0, 4: 1.2, 16: 2.0})
    return RecordingGuide(TreeGrowth(rates, curve, CostCurve({1: 0.1, 8: 0.2}), rate, 1, max_siblings=3))


class Texts:
    """Requests of one drafter; with the same seed, the same random states and verdicts."""

    def __init__(self, drafter: Eagle3Drafter, params: Sequence[SamplingParams], seed: int) -> None:
        self.drafter, self.rng = drafter, np.random.default_rng(seed)
        self.contexts: dict[str, TokenContext] = {}
        self.samplers: dict[str, Sampler] = {}
        for i, each in enumerate(params):
            name, prompt = str(i), self.rng.integers(0, VOCAB, int(self.rng.integers(2, 50))).tolist()
            drafter.begin(Request(name, tuple(prompt), each))
            drafter.prefilled(name, 0, self.states(len(prompt) - 1))
            self.contexts[name] = TokenContext(prompt)
            self.samplers[name] = Sampler(each, VOCAB, {5}, seed=seed + i, rows=NativeRows())

    def states(self, count: int) -> Any:
        return self.rng.standard_normal((count, PART.width)).astype(np.float32)

    def step(self, kind: str, rate: float, budget: int, path: list[int]) -> list[Any]:
        """(tokens, parents, confidence) of each draft; a part of it is accepted."""
        guides = {name: guide_of(kind, rate) for name in self.contexts}
        jobs = [
            ProposeJob(name, context.along(path), budget, self.samplers[name], guides[name])
            for name, context in self.contexts.items()
        ]
        drafts = self.drafter.propose(jobs)
        for (name, context), draft in zip(self.contexts.items(), drafts, strict=True):
            whole = draft.after(path, "path")
            kept = self.accepted(whole)
            emitted = [*[int(whole.tokens[node]) for node in kept], int(self.rng.integers(0, VOCAB))]
            verdict = Verdict(tuple(kept), emitted[-1], "bonus")
            scores = TargetScores(np.empty((len(whole) + 1, 0), np.float32), self.states(len(whole) + 1))
            self.drafter.observe(name, whole, verdict, scores)
            for token in emitted:
                context.append(token)
        return [
            (draft.tokens.tolist(), draft.parents.tolist(), guide.stated if guide else None)
            for draft, guide in zip(drafts, guides.values(), strict=True)
        ]

    def accepted(self, draft: Draft) -> list[int]:
        kept: list[int] = []
        for node, parent in enumerate(draft.parents.tolist()):
            if parent == (kept[-1] if kept else -1) and self.rng.random() < 0.6:
                kept.append(node)
        return kept

    def end(self) -> None:
        for name in self.contexts:
            self.drafter.end(name)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.5]),
    top_k=st.sampled_from([-1, 1, 40]),
    top_p=st.sampled_from([0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    max_tokens=st.just(100),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["none", "chain", "tree"]),
        st.sampled_from([0.05, 0.3, 1.0]),
        st.integers(1, 6),
        st.sampled_from([[], [7], [8, 5, 9]]),
    ),
    min_size=1,
    max_size=4,
)


def compare(kind: type[Eagle3Drafter], dims: HeadDims, params: Any, steps: Any, seed: int) -> int:
    """How many drafts of the head there were; asserts that they are as they are one by one."""
    by_pass, at_once = (Texts(drafter_of(k, dims), params, seed) for k in (ByPass, kind))
    try:
        for step in steps:
            wanted, found = by_pass.step(*step), at_once.step(*step)
            for (tokens, parents, stated), other in zip(found, wanted, strict=True):
                assert (tokens, parents) == other[:2]
                assert (stated is None) == (other[2] is None)
                assert stated is None or stated == pytest.approx(other[2], abs=1e-6)
            assert at_once.drafter.passes == by_pass.drafter.passes
    finally:
        by_pass.end()
        at_once.end()
    assert isinstance(at_once.drafter, AtOnce)
    return at_once.drafter.count


@pytest.mark.parametrize("dims", [PART, WHOLE], ids=["a part of the vocabulary", "all of it"])
@settings(max_examples=60, deadline=None)
@given(params=st.lists(PARAMS, min_size=1, max_size=3), steps=STEPS, seed=st.integers(0, 1000))
def test_drafts_are_those_of_one_pass_after_the_other(
    dims: HeadDims, params: Any, steps: Any, seed: int
) -> None:
    assert compare(AtOnce, dims, params, steps, seed) > 0


def test_the_comparison_would_see_the_noise_of_another_position() -> None:
    params = [SamplingParams(temperature=1.5, max_tokens=100)]
    steps: Any = [("tree", 0.05, 6, [])] * 4
    assert compare(AtOnce, PART, params, steps, 1) == 4
    with pytest.raises(AssertionError):
        compare(OnePositionFurther, PART, params, steps, 1)


@pytest.fixture
def drafter() -> AtOnce:
    made = drafter_of(AtOnce, PART)
    assert isinstance(made, AtOnce)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.2},
        {"logit_bias": {7: 1.0}},
        {"min_tokens": 50},
        {"allowed_token_ids": [1, 5, 9, 100, 101, 500]},
    ],
)
def test_where_logits_are_adjusted_each_row_is_drawn_from_alone(
    drafter: AtOnce, options: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=0.7, max_tokens=100, **options)
    texts = Texts(drafter, [params], 3)
    ((tokens, _, _),) = texts.step("tree", 0.05, 4, [])
    assert tokens
    assert drafter.count == 0


def test_it_does_not_draw_for_other_draws_samplers_and_ids() -> None:
    head, ids = head_of(PART)
    warm = SamplingParams(temperature=0.7, max_tokens=100)

    def drawn(ids: Any = ids, rows: Any = NativeRows(), vocab: int = VOCAB, **options: Any) -> int:  # noqa: B008
        drafter = AtOnce(
            head, taps=(1, 2, 3), order=(0, 1, 2), target_ids=ids, max_context=CAPACITY, **options
        )
        texts = Texts(drafter, [warm], 3)
        texts.samplers["0"] = Sampler(warm, vocab, {5}, seed=3, rows=rows)
        texts.step("none", 1.0, 3, [])
        texts.end()
        return drafter.count

    assert isinstance(head, DraftingHead)
    assert drawn() == 1
    assert drawn(rows=None) == 0, "the specification in NumPy"
    assert drawn(draws="independent") == 0
    assert drawn(ids=ids[::-1].copy()) == 0, "draws go through ascending ids"
    assert drawn(vocab=int(ids[-1])) == 0, "the request may not have the head's last token"


def test_what_makes_no_draft_is_refused() -> None:
    head, ids = head_of(PART)
    core, cache = head._core, head.new_cache(50)
    drafts = _core.HeadDrafts(core, ids)
    states = np.zeros((2, PART.width), np.float32)
    sampling = (0.7, 0.0, -1, 1.0, 1, VOCAB, [5])
    good: list[Any] = [cache.core, [1, 2], states, [], 2, 3, sampling, None, False]
    assert len(drafts.draft([tuple(good)])[0]) == 1
    for at, bad, reason in (
        (1, [], "before and after"),
        (2, states[:1], "hidden states"),
        (2, np.zeros((2, 5), np.float32), "hidden states"),
        (1, [1, VOCAB], "vocabulary"),
        (3, [-1], "vocabulary"),
        (5, 0, "before and after"),
        (6, (-1.0, *sampling[1:]), "temperature"),
        (6, (float("nan"), *sampling[1:]), "temperature"),
        (6, (*sampling[:5], int(ids[-1]), [5]), "outside the vocabulary"),
    ):
        cache.truncate(0)
        job = [*good]
        job[at] = bad
        with pytest.raises(ValueError, match=reason):
            drafts.draft([tuple(job)])
    with pytest.raises(ValueError, match="ascend"):
        _core.HeadDrafts(core, ids[::-1].copy())
    with pytest.raises(ValueError, match="each row"):
        _core.HeadDrafts(core, ids[1:].copy())
    assert drafts.draft([]) == ([], [])


def test_logits_that_are_no_numbers_draft_nothing(drafter: AtOnce) -> None:
    texts = Texts(drafter, [SamplingParams(temperature=0.7, max_tokens=100)], 3)
    length = len(texts.contexts["0"].tokens)
    drafter.prefilled("0", length - 1, np.full((1, PART.width), np.nan, np.float32))
    texts.contexts["0"].append(3)
    drafter._requests["0"].tokens.append(3)
    ((tokens, _, _),) = texts.step("tree", 0.05, 4, [])
    assert (tokens, drafter.count) == ([], 1)
