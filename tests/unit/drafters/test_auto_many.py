"""Under `auto` a further drafter takes part by being registered: here a lookup that knows the answers, one
that is always wrong, and a second draft model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outrider.decoding.controller import DraftLimits
from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Draft, FloatArray, StepRecord, TargetScores, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.auto import AutoDrafter, LookupDrafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.fixed import FixedController
from outrider.policy.planner import Planner
from outrider.policy.tree import DraftPlan, DraftQuery, Lookup
from tests.support.toy_model import ToyModel

VOCAB, LENGTH = 32, 80
TOY: dict[str, Any] = {"vocab_size": VOCAB, "max_positions": 256, "sharpness": 3.0, "memory": 0.2}
PROMPTS = [(1, 2, 3), (4, 5, 6, 7, 4, 5), (9,)]


class Timed(ToyModel):
    """Takes `first` seconds of a made-up clock for a token, and a fiftieth of that for each further one."""

    def __init__(self, clock: Clock, first: float, similarity: float | None = None) -> None:
        like = None if similarity is None else ToyModel(**TOY, seed=1)
        super().__init__(**TOY, seed=1 if like is None else 2, like=like, similarity=similarity or 0.0)
        self._clock, self._first = clock, first

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        self._clock.now += self._first * (0.98 + 0.02 * sum(len(item.tokens) for item in items))
        return super().forward(items)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def costs(first: float) -> CostModel:
    return CostModel({n: first * (0.98 + 0.02 * n) for n in (1, 2, 4, 8, 16)})


class Oracle:
    """Drafts what the text will be, or always something else; as sure of the one as of the other."""

    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, texts: dict[str, list[int]], *, right: bool) -> None:
        self.name, self._texts, self._right = name, texts, right

    def begin(self, request: Request) -> None:
        pass

    def lookup(self, job: ProposeJob, budget: int) -> Lookup:
        at = len(job.context.tokens) - len(PROMPTS[int(job.request_id)])
        tokens = self._texts[job.request_id][at : at + min(6, budget)]
        if not self._right:
            tokens = [(token + 1) % VOCAB for token in tokens]
        count = len(tokens)
        return Lookup(
            tokens, list(range(-1, count - 1)), [0.9] * count, [0.9 ** (i + 1) for i in range(count)], count
        )

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        raise AssertionError("the planner decides")

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        pass

    def end(self, request_id: str) -> None:
        pass


class OtherModel(DraftModelDrafter):
    name = "other_model"


@dataclass
class Result:
    texts: dict[str, list[int]] = field(default_factory=dict)
    passes: int = 0
    accepted: Counter[str | None] = field(default_factory=Counter)


def run(drafter: AutoDrafter | None, width: int = 1) -> Result:
    clock = Clock() if drafter is None else drafter.clock
    assert isinstance(clock, Clock)
    loop = StepLoop(
        CachedStepEngine(Timed(clock, 0.05)),
        drafter,
        CoupledVerifier(),
        FixedController(0) if drafter is None else AutoController(drafter.planner),
        clock=clock,
        max_num_seqs=width,
    )
    params = SamplingParams(temperature=0.7, max_tokens=LENGTH, ignore_eos=True)
    out = Result()
    for event in loop.generate([Request(str(i), p, params, seed=i) for i, p in enumerate(PROMPTS)]):
        if isinstance(event, TokenEvent):
            out.texts.setdefault(event.request_id, []).append(event.token_id)
            out.accepted[event.source] += event.source is not None
        else:
            assert isinstance(event, FinishEvent)
            assert event.error is None
            out.passes += event.metrics.num_passes
    return out


def with_lookups(*others: Oracle, model: bool = True) -> AutoDrafter:
    """A suffix drafter, these, and a draft model that is seldom right."""
    clock, planner = Clock(), Planner(costs(0.05))
    models = [DraftModelDrafter(Timed(clock, 0.01, 0.3))] if model else []
    drafters: list[LookupDrafter] = [SuffixDrafter(), *others]
    for drafter in drafters:
        planner.add_lookup(drafter.name)
    for each in models:
        planner.add_model(each.name, costs(0.01))
    return AutoDrafter(planner, drafters, models, clock=clock)


def with_models(*similarities: float) -> AutoDrafter:
    clock, planner = Clock(), Planner(costs(0.05))
    makers = (DraftModelDrafter, OtherModel)
    models = [make(Timed(clock, 0.01, s)) for make, s in zip(makers, similarities, strict=False)]
    for model in models:
        planner.add_model(model.name, costs(0.01))
    return AutoDrafter(planner, [], models, clock=clock)


@pytest.mark.parametrize("width", [1, 3])
def test_a_third_drafter_that_is_right_takes_most_of_the_passes_away(width: int) -> None:
    plain = run(None, width)
    without = run(with_lookups(), width)
    found = run(with_lookups(Oracle("oracle", plain.texts, right=True)), width)
    assert found.texts == without.texts == plain.texts
    assert 2 * found.passes < without.passes
    assert found.accepted["oracle"] > LENGTH


@pytest.mark.parametrize("width", [1, 3])
def test_one_that_is_wrong_is_switched_off(width: int) -> None:
    plain = run(None, width)
    without = run(with_lookups(), width)
    drafter = with_lookups(Oracle("liar", plain.texts, right=False))
    found = run(drafter, width)
    assert found.texts == plain.texts
    assert found.passes <= 1.05 * without.passes + 4
    assert found.accepted["liar"] < LENGTH / 10
    assert drafter.planner.lookups["liar"].rates.mean < 0.1 < drafter.planner.lookups["suffix"].rates.start


def test_a_lookup_that_is_off_is_probed_by_its_own_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []
    original = Planner._probe_lookup

    def watched(self: Planner, query: DraftQuery, plan: DraftPlan, price: float) -> bool:
        if not original(self, query, plan, price):
            return False
        probed.extend(plan.offered.sources[plan.nodes[-1]])
        return True

    monkeypatch.setattr(Planner, "_probe_lookup", watched)
    drafter = with_lookups(Oracle("liar", run(None).texts, right=False), model=False)
    run(drafter)
    assert "liar" in probed
    controller = AutoController(drafter.planner)
    controller.choose([DraftLimits(state := controller.begin(), 9, 9)])
    drafter.planner.plan([DraftQuery(state, 9)])
    controller.record(state, StepRecord("none", 0, 0, 1, 0.0, 0.05, 0.0))
    assert "liar found nothing" in controller.explain(state), "each drafter is spoken of"


def test_the_better_of_two_draft_models_drafts() -> None:
    plain = run(None)
    bad, both = run(with_models(0.3)), run(with_models(0.3, 0.99))
    assert both.texts == bad.texts == plain.texts
    assert both.passes < 0.7 * bad.passes
    assert both.accepted["other_model"] > both.accepted["draft_model"]
    swapped = run(with_models(0.99, 0.3))
    assert swapped.accepted["draft_model"] > swapped.accepted["other_model"]
