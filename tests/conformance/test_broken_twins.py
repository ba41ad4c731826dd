"""The suite's own test: each classic mistake, made on purpose, must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.decoding.context import Counts, TokenContext
from outrider.decoding.sampling import sampler as sampler_module
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.stops import Emitter, Finish
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.engines.base import Cache, ForwardItem, SeqHandle, StepEngine
from outrider.engines.native import NativeCache, NativeModel
from outrider.engines.step import CachedStepEngine
from outrider.models.open import open_model
from tests.conformance.engines import Models, toy_models, whole_prompt_models
from tests.conformance.harness import PARAMS, answers, make_drafter, requests, run, visible
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyCache, ToyModel

BATTERY = ["right_branch_last", "random_tree", "right_then_wrong", "draft_model"]


def caught(
    models: Models,
    *,
    engine: Callable[[], StepEngine] | None = None,
    verifier: CoupledVerifier | None = None,
    params: Sequence[str] = ("penalties", "temperature", "greedy"),
) -> Iterator[tuple[str, str]]:
    """The cases of a small battery in which speculation shows, or fails: (drafter, params)."""
    for name in params:
        expected = run(models.engine(), None, requests(PARAMS[name]))
        for drafter in BATTERY:
            made = make_drafter(drafter, models, answers(expected))
            try:
                outputs = run((engine or models.engine)(), made, requests(PARAMS[name]), verifier=verifier)
            except ValueError:
                yield drafter, name
            else:
                if visible(outputs) != visible(expected):
                    yield drafter, name


def test_the_sound_original_passes_the_battery() -> None:
    assert list(caught(toy_models())) == []
    assert list(caught(whole_prompt_models())) == []


class DropsTheRest(CachedStepEngine):
    """Scores the anchor without the prompt tokens that are pending."""

    def score(self, batch: Sequence[tuple[SeqHandle, Draft]], *more: Any) -> list[TargetScores]:
        for seq, _ in batch:
            seq.pending = seq.pending[:0]
        return super().score(batch, *more)


def test_an_anchor_without_the_rest_of_its_prompt_is_caught() -> None:
    models = whole_prompt_models()
    usual, whole, broken = (
        visible(run(engine, None, requests(PARAMS["greedy"]), max_num_seqs=1))
        for engine in (toy_models().engine(), models.engine(), DropsTheRest(models.target))
    )
    assert whole == usual
    assert broken != usual


class AcceptsOneTooMany(CoupledVerifier):
    """Goes on to a child of the last accepted node although the target wants another token."""

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        verdict = super().verify(draft, scores, sampler, context)
        at = verdict.path[-1] if verdict.path else -1
        children = np.flatnonzero(draft.parents == at)
        if not len(children):
            return verdict
        node = int(children[0])
        for token in [*draft.tokens[list(verdict.path)], draft.tokens[node]]:
            context = context.then(int(token))
        return Verdict((*verdict.path, node), sampler.token(scores.logits[node + 1], context), "recovered")


class TrustsTheDraft(CoupledVerifier):
    """Accepts whatever is likely enough, instead of what the target draws."""

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        path: list[int] = []
        at = -1
        while True:
            row = scores.logits[at + 1]
            likely = [
                n for n in np.flatnonzero(draft.parents == at) if row[draft.tokens[n]] > row.max() - 1.0
            ]
            if not likely:
                return Verdict(tuple(path), sampler.token(row, context), "bonus")
            at = int(likely[0])
            path.append(at)
            context = context.then(int(draft.tokens[at]))


class Shifted:
    """A context that gives the tokens of a path the position of the one after them."""

    def __init__(self, context: TokenContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def position(self) -> int:
        return self._context.position + (len(self._context.path) > 0)

    def then(self, token: int) -> Shifted:
        return Shifted(self._context.then(token))


class ForgetsThePath(Shifted):
    """A context that counts the committed tokens only."""

    @property
    def position(self) -> int:
        return self._context.position

    def counts(self) -> tuple[Counts, Counts]:
        return self._context._base.counts()

    def then(self, token: int) -> ForgetsThePath:
        return ForgetsThePath(self._context.then(token))


def in_context(wrapper: type[Shifted]) -> CoupledVerifier:
    class Wrapped(CoupledVerifier):
        def verify(
            self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext
        ) -> Verdict:
            return super().verify(draft, scores, sampler, wrapper(context))  # type: ignore[arg-type]

    return Wrapped()


class RowsOfTheWrongNode(CoupledVerifier):
    """Reads the row before a node instead of the row after it."""

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        rows = scores.logits[[0, *range(len(draft))]]
        return super().verify(draft, TargetScores(rows), sampler, context)


@pytest.mark.parametrize(
    "verifier",
    [
        AcceptsOneTooMany(),
        TrustsTheDraft(),
        RowsOfTheWrongNode(),
        in_context(Shifted),
        in_context(ForgetsThePath),
    ],
    ids=["accepts one too many", "trusts the draft", "wrong row", "wrong position", "forgets the path"],
)
def test_a_broken_verifier_is_caught(verifier: CoupledVerifier) -> None:
    assert any(caught(toy_models(), verifier=verifier))


class KeepsTheWrongSlots(ToyCache):
    """Keeps as many slots as it should, but the first ones."""

    def keep(self, base: int, slots: Sequence[int]) -> None:
        super().keep(base, range(base, base + len(slots)))


class TruncatesOneTooFew(ToyCache):
    def truncate(self, length: int) -> None:
        super().truncate(min(length + 1, self.length))


class SeesSiblings(ToyModel):
    """A causal mask where a tree's is needed: every earlier new token is seen."""

    def _visible(self, base: int, parents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        return np.tril(np.ones((len(parents), base + len(parents)), bool), base)


class SeesParentsOnly(ToyModel):
    """A mask that goes up one generation only."""

    def _visible(self, base: int, parents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        seen = super()._visible(base, parents)
        for node, parent in enumerate(parents):
            seen[node, base:] = False
            seen[node, base + node] = True
            if parent >= 0:
                seen[node, base + parent] = True
        return seen


class PositionsBySlot(ToyModel):
    """Gives a node the position of its slot instead of its depth."""

    def _positions(self, base: int, visible: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        return base + np.arange(len(visible))


def with_cache(kind: type[ToyCache]) -> type[ToyModel]:
    class Model(ToyModel):
        def new_cache(self, capacity: int) -> Cache:
            return kind(capacity)

    return Model


TARGET: dict[str, Any] = {"seed": 1, "sharpness": 2.5, "memory": 0.4}


@pytest.mark.parametrize(
    "model",
    [
        with_cache(KeepsTheWrongSlots),
        SeesSiblings,
        SeesParentsOnly,
        PositionsBySlot,
    ],
    ids=["keeps wrong slots", "ignores parents", "sees one generation", "slot positions"],
)
def test_a_broken_model_is_caught(model: type[ToyModel]) -> None:
    broken = model(48, 128, **TARGET)
    engine = CachedStepEngine(broken)
    assert any(caught(toy_models(), engine=lambda: engine))


def test_a_draft_cache_that_is_not_rolled_back_cannot_reach_the_output() -> None:
    """The other way round: a broken draft model only drafts worse."""
    models = toy_models()
    broken = with_cache(TruncatesOneTooFew)(48, 128, **TARGET)
    assert list(caught(Models(models.target, broken), params=["temperature"])) == []


class WatchedCache(NativeCache):
    """Knows whether tokens of it were ever rejected."""

    rolled_back = False

    def keep(self, base: int, slots: Sequence[int]) -> None:
        self.rolled_back |= base + len(slots) < self.length
        super().keep(base, slots)


class ForgetsTheWindow(NativeModel):
    """Attends to all positions once tokens have been rejected."""

    def __init__(self, sound: NativeModel) -> None:
        super().__init__(sound._core, sound.source)
        spec = sound.source.architecture
        layers = tuple(replace(layer, window=None) for layer in spec.layers)
        self.full = NativeModel.load(replace(sound.source, architecture=replace(spec, layers=layers)))

    def new_cache(self, capacity: int) -> WatchedCache:
        return WatchedCache(self._core, capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        forgets = any(isinstance(item.cache, WatchedCache) and item.cache.rolled_back for item in items)
        return self.full.forward(items) if forgets else super().forward(items)


def test_a_window_forgotten_on_rollback_is_caught(tmp_path: Path) -> None:
    path = tiny_gguf(
        tmp_path / "a.gguf",
        arch="gemma3",
        dims=Dims(window=12),
        tied=False,
        seed=3,
        keys={"gemma3.attention.sliding_window_pattern": 2},
    )
    target = NativeModel.load(open_model(path), threads=1)
    models = Models(target, target)
    assert list(caught(models, params=["greedy"])) == []
    assert any(caught(models, engine=lambda: CachedStepEngine(ForgetsTheWindow(target)), params=["greedy"]))


class ForgetsTheRollback(CachedStepEngine):
    """Leaves rejected tokens in the cache and calls them committed."""

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        seq.committed = seq.cache.length
        seq.anchor = verdict.next_token


class CommitsOneTooFew(CachedStepEngine):
    """Drops the last accepted token from the cache."""

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        super().commit(seq, verdict)
        if verdict.path:
            seq.cache.truncate(seq.cache.length - 1)
            seq.committed -= 1


class ForgetsTheAnchor(CachedStepEngine):
    """Takes the old anchor for the new one."""

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        anchor = seq.anchor
        super().commit(seq, verdict)
        if verdict.path:
            seq.anchor = anchor


@pytest.mark.parametrize("kind", [ForgetsTheRollback, CommitsOneTooFew, ForgetsTheAnchor])
def test_a_broken_commit_is_caught(kind: type[CachedStepEngine]) -> None:
    models = toy_models()
    assert any(caught(models, engine=lambda: kind(models.target)))


def test_a_commit_that_breaks_the_invariant_fails_loudly() -> None:
    class KeepsAll(ToyCache):
        def keep(self, base: int, slots: Sequence[int]) -> None:
            pass

    model = with_cache(KeepsAll)(48, 128, **TARGET)
    models = Models(model, toy_models().draft)
    outputs = run(models.engine(), make_drafter("draft_model", models, {}), requests(PARAMS["greedy"]))
    errors = [output.end.error for output in outputs.values() if output.end is not None]
    assert any(isinstance(error, AssertionError) for error in errors)


def test_noise_from_a_generator_with_a_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(5)

    def stateful(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return generator.gumbel(size=len(ids))

    monkeypatch.setattr(sampler_module, "gumbel", stateful)
    assert any(caught(toy_models(), params=["temperature"]))
    assert list(caught(toy_models(), params=["greedy"])) == []  # which draws nothing


class RunsOn(Emitter):
    """Notices the end of a text only at the end of an accepted run: here, one token late."""

    late: Finish | None = None

    def push(self, token: int) -> tuple[str, Finish | None]:
        if self.late is not None:
            return "", self.late
        text, self.late = super().push(token)
        return text, None


def test_text_after_its_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    models = toy_models()
    expected = run(models.engine(), None, requests(PARAMS["stop strings"]))
    monkeypatch.setattr("outrider.decoding.loop.Emitter", RunsOn)
    made = make_drafter("always_right", models, answers(expected))
    assert visible(run(models.engine(), made, requests(PARAMS["stop strings"]))) != visible(expected)
