"""A head with a part of the vocabulary is exact: its texts have the target's probabilities, also where the
target draws what the head does not have. And a head that knows something is used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.decoding.events import TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Distribution, Draft, FloatArray
from outrider.decoding.verifiers.base import VERIFIERS
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engines.base import ForwardItem
from outrider.engines.heads import HeadItem
from outrider.engines.step import CachedStepEngine
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.fixed import FixedController
from outrider.policy.planner import Planner
from tests.conformance.engines import HEAD_TAPS, Models, head_drafter, on_engines
from tests.conformance.harness import PARAMS, make_drafter, requests, run, visible
from tests.conformance.test_distribution import LENGTH, PROMPT, TARGET, TEXTS, VOCAB, probabilities
from tests.conformance.test_exactness import batch_for, models, plain
from tests.support.heads import NumpyHead, knowing_head
from tests.support.toy_model import ToyModel

HEAD = knowing_head(TARGET, (0, 1, 2), rows=3)


def small_head() -> Eagle3Drafter:
    """With three of the four ids."""
    ids = HEAD.ids.astype(np.int32)
    return Eagle3Drafter(
        NumpyHead(HEAD), taps=(0, 1, 2), order=(0, 1, 2), target_ids=ids, max_context=16, draws="independent"
    )


def excess(rule: str, drafter: Eagle3Drafter) -> tuple[float, float]:
    """How many standard deviations Pearson's statistic of the texts lies above its mean, and the share of
    drafted tokens that were accepted."""
    loop = StepLoop(
        CachedStepEngine(TARGET),
        drafter,
        VERIFIERS[rule](),
        FixedController(2),
        clock=lambda: 0.0,
        max_num_seqs=100,
    )
    params = SamplingParams(max_tokens=LENGTH)
    texts: dict[str, int] = {}
    drafted = accepted = 0
    for event in loop.generate(Request(str(seed), PROMPT, params, seed=seed) for seed in range(TEXTS)):
        if isinstance(event, TokenEvent):
            texts[event.request_id] = texts.get(event.request_id, 0) * VOCAB + event.token_id
        else:
            drafted += event.metrics.drafts.num_draft_tokens
            accepted += event.metrics.drafts.num_accepted_tokens
    counts = np.bincount(list(texts.values()), minlength=VOCAB**LENGTH)
    expected = TEXTS * probabilities()
    order = np.argsort(expected)
    rare = order[: int(np.searchsorted(np.cumsum(expected[order]), 10.0)) + 1]  # lumped into one cell
    common = np.setdiff1d(order, rare)
    found, wanted = (np.append(values[common], values[rare].sum()) for values in (counts, expected))
    degrees = len(found) - 1
    statistic = (((found - wanted) ** 2 / wanted).sum() - degrees) / (2 * degrees) ** 0.5
    return float(statistic), accepted / drafted


def test_texts_come_with_the_targets_probabilities() -> None:
    far, rate = excess("rejection", small_head())
    assert abs(far) < 4.0
    assert 0.1 < rate < 0.9


class StatesTooMuch(Eagle3Drafter):
    """States equal probabilities of all of the head's ids, whatever the token was drawn from."""

    def propose(self, jobs, prefill_budget=None):  # type: ignore[no-untyped-def]
        return [wrongly_stated(draft) for draft in super().propose(jobs, prefill_budget)]


def wrongly_stated(draft: Draft) -> Draft:
    even = Distribution(HEAD.ids, np.full(3, 1 / 3))
    return Draft(draft.tokens, draft.parents, (even,) * len(draft), draft.source)


def test_a_head_that_states_other_distributions_is_caught() -> None:
    drafter = small_head()
    drafter.__class__ = StatesTooMuch
    assert excess("rejection", drafter)[0] > 8.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedTarget(ToyModel):
    """A pass takes a second, and a fiftieth of that for each further token."""

    clock = Clock()

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        self.clock.now += 0.98 + 0.02 * sum(len(item.tokens) for item in items)
        return super().forward(items)


class TimedHead(NumpyHead):
    """A pass takes a twentieth of the target's."""

    def forward_head(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        TimedTarget.clock.now += 0.05
        return super().forward_head(items, fed_back=fed_back)


def knowing() -> Models:
    target = TimedTarget(48, 128, seed=1, sharpness=3.0, memory=0.05)
    return Models(target, target, TimedHead(knowing_head(target, HEAD_TAPS, rows=46, sway=0.1)))


def test_a_head_that_knows_its_target_is_right() -> None:
    made = knowing()
    expected = run(made.engine(), None, requests(PARAMS["temperature"]))
    found = run(made.engine(), head_drafter(made), requests(PARAMS["temperature"]))
    assert visible(found) == visible(expected)
    drafts = [output.end.metrics.drafts for output in found.values() if output.end is not None]
    accepted = sum(d.num_accepted_tokens for d in drafts)
    assert accepted > 20
    assert accepted > 0.2 * sum(d.num_draft_tokens for d in drafts)


@pytest.mark.parametrize(
    ("engine", "params"), on_engines(["greedy", "penalties", "constrained", "stop strings", "bias", "hot"])
)
def test_under_auto_it_changes_nothing(engine: str, params: str) -> None:
    made = make_drafter("mixed eagle3", models(engine), {})
    found = run(models(engine).engine(), made, batch_for(engine, params), length=5)
    assert visible(found) == visible(plain(engine, params))


def test_under_auto_it_takes_part_as_a_draft_model_does() -> None:
    """Lookups and the head, each where it saves time by the clock."""
    made, clock = knowing(), TimedTarget.clock
    head, lookup = head_drafter(made), SuffixDrafter()
    planner = Planner(CostModel({n: 0.98 + 0.02 * n for n in (1, 2, 4, 8, 16)}))
    planner.add_lookup(lookup.name)
    planner.add_model(head.name, CostModel({1: 0.05, 16: 0.05}))
    drafter = AutoDrafter(planner, [lookup], [head], clock=clock)
    assert drafter.taps == (0, 2)
    loop = StepLoop(
        made.engine(), drafter, CoupledVerifier(), AutoController(planner), clock=clock, max_num_seqs=2
    )
    params = SamplingParams(temperature=0.8, max_tokens=60, ignore_eos=True)
    batch = [Request(str(seed), (seed, 7), params, seed=seed) for seed in range(4)]
    began, count = clock.now, 0
    sources: set[str | None] = set()
    for event in loop.generate(batch):
        if isinstance(event, TokenEvent):
            count += 1
            sources.add(event.source)
    assert {"eagle3", "suffix"} <= sources
    assert clock.now - began < 0.8 * count / 2, "in less time than two at a time take without drafts"
