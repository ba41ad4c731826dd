from __future__ import annotations

import gc
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import DraftLimits, RequestState
from outrider.decoding.loop import StepLoop
from outrider.decoding.metrics import EARLIER_OUTPUTS
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, Verdict
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.confidence import approximate_probability
from outrider.drafters.copy_tracker import MIN_COPY
from outrider.drafters.draft_context import COPY_TAIL_TOKENS, HEAD_TOKENS, TAIL_TOKENS
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engines.base import EngineCaps
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError
from outrider.policy import request_state as policy_state
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.planner import Drawing, Planner
from outrider.policy.tree import DraftPlan, DraftQuery, ModelDraft, Node
from tests.support.controllers import MODEL, make_auto
from tests.support.toy_model import UNSCORED, ToyModel

COSTS = {1: 0.05, 2: 0.05, 8: 0.06, 16: 0.08}
PARAMS = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
VOCAB = 32


def target() -> ToyModel:
    return ToyModel(VOCAB, 256, seed=1, sharpness=3.0, memory=0.2)


def draft(similarity: float = 0.97) -> ToyModel:
    return ToyModel(VOCAB, 256, seed=2, sharpness=3.0, memory=0.2, like=target(), similarity=similarity)


def make(
    *, lookup: bool = True, model: bool = True, similarity: float = 0.97, tree: bool = True, **options: Any
) -> tuple[AutoController, AutoDrafter]:
    cheap = CostModel({1: 0.004, 8: 0.005}) if model else None
    controller = make_auto(CostModel(COSTS), cheap, branching=tree, **options)
    ticks = itertools.count()
    drafter = AutoDrafter(
        controller.planner,
        [SuffixDrafter(tree=tree)] if lookup else [],
        [DraftModelDrafter(draft(similarity))] if model else [],
        clock=lambda: next(ticks) / 1e4,
    )
    return controller, drafter


def job(context: TokenContext, state: RequestState = None, budget: int = 12, name: str = "r") -> ProposeJob:
    return ProposeJob(name, context, budget, Sampler(PARAMS, VOCAB), state=state)


def begin(
    drafter: AutoDrafter, controller: AutoController, prompt: Sequence[int]
) -> tuple[TokenContext, RequestState]:
    drafter.begin(Request("r", tuple(prompt), PARAMS))
    state = controller.begin()
    controller.choose([DraftLimits(state, 39, len(prompt))])
    return TokenContext(prompt), state


def test_there_must_be_a_drafter() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        AutoDrafter(make_auto().planner)


def test_its_needs_are_the_lookups() -> None:
    assert make()[1].needs == {"tree_attention"}
    assert make(tree=False)[1].needs == make(lookup=False)[1].needs == frozenset()


def test_a_strong_lookup_alone() -> None:
    controller, drafter = make()
    context, state = begin(drafter, controller, [*range(20), *range(12)])
    (found,) = drafter.propose([job(context, state)])
    assert found.source in ("suffix", "mixed")
    assert found.tokens[0] == 12
    assert found.tokens[:4].tolist() == [12, 13, 14, 15]


@pytest.mark.parametrize("tree", [True, False])
def test_without_a_match_the_model_draws(tree: bool) -> None:
    controller, drafter = make(tree=tree)
    context, state = begin(drafter, controller, [3, 1, 2])
    (found,) = drafter.propose([job(context, state)])
    assert found.source == "draft_model"
    chain = found.parents.tolist() == list(range(-1, len(found) - 1))
    assert chain != tree
    path, at = [], -1
    while at in found.parents.tolist():  # first choices come first
        at = found.parents.tolist().index(at)
        path.append(int(found.tokens[at]))
    assert 1 <= len(path) <= 8
    alone = DraftModelDrafter(draft())
    alone.begin(Request("r", (3, 1, 2), PARAMS))
    (same,) = alone.propose([job(TokenContext([3, 1, 2]), budget=len(path))])
    assert path == same.tokens.tolist()


def test_both_in_one_tree() -> None:
    controller = make_auto(CostModel({1: 0.05, 16: 0.0505}), CostModel({1: 0.004}))
    drafter = AutoDrafter(controller.planner, [SuffixDrafter()], [DraftModelDrafter(draft())])
    context, state = begin(drafter, controller, [7, 9, 5, 1, 7, 9, 6, 2, 7, 9])
    (found,) = drafter.propose([job(context, state)])
    assert found.source == "mixed"
    assert len(found) <= 12
    edges = list(zip(found.parents.tolist(), found.tokens.tolist(), strict=True))
    assert len(set(edges)) == len(edges), "equal prefixes are one node"


def test_tokens_of_earlier_outputs_are_told_apart() -> None:
    controller = make_auto(CostModel({1: 0.05, 16: 0.0505}), CostModel({1: 0.004}))
    suffix = SuffixDrafter(namespace=lambda _: "all")
    suffix.pool.add("all", [40, 41, 42, 43, 44, 45, 46, 47, 48, 49])
    drafter = AutoDrafter(controller.planner, [suffix], [DraftModelDrafter(draft())])
    context, state = begin(drafter, controller, [7, 41, 42, 43, 7, *range(40, 48)])
    (found,) = drafter.propose([job(context, state)])
    of_outputs, kept = found.count_of(EARLIER_OUTPUTS, range(len(found)))
    assert of_outputs == kept > 0
    own = [int(token) for i, token in enumerate(found.tokens) if found.origin(i) == EARLIER_OUTPUTS]
    assert own[0] == 48
    assert {found.origin(i) for i in range(len(found))} <= {EARLIER_OUTPUTS, "suffix", "draft_model"}
    assert found.source in ("suffix", "mixed")


def test_distributions_are_stated_for_the_whole_chain() -> None:
    controller = make_auto(CostModel(COSTS), CostModel({1: 0.004, 8: 0.005}))
    model = DraftModelDrafter(draft(), draws="independent")
    ticks = itertools.count()
    drafter = AutoDrafter(controller.planner, [SuffixDrafter()], [model], clock=lambda: next(ticks) / 1e4)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    drafter.begin(Request("r", (7, 9, 5, 9, 6, 9), params))
    state = controller.begin()
    controller.choose([DraftLimits(state, 39, 6)])
    sampler = Sampler(params, VOCAB, seed=4)
    asked = ProposeJob("r", TokenContext([7, 9, 5, 9, 6, 9]), 12, sampler, state=state)
    (found,) = drafter.propose([asked])
    assert found.source == "draft_model"
    assert found.probs is not None
    assert len(found.probs) == len(found)
    assert all(d is not None and d.of(int(t)) > 0.0 for d, t in zip(found.probs, found.tokens, strict=True))
    assert found.parents.tolist() == list(range(-1, len(found) - 1))


def test_what_was_accepted_reaches_the_controller() -> None:
    seen: list[tuple[tuple[int, ...], list[int]]] = []

    class Listens(Planner):
        def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
            seen.append((tuple(accepted), list(emitted)))

    controller = make_auto(CostModel(COSTS), planner=Listens)
    drafter = AutoDrafter(controller.planner, [SuffixDrafter()])
    context, state = begin(drafter, controller, [*range(20), *range(12)])
    (found,) = drafter.propose([job(context.along([12, 13]), state, 6)])
    assert len(found) >= 2
    assert int(found.tokens[0]) == 14
    whole = found.after((12, 13), "constraint")
    drafter.observe("r", whole, Verdict((0, 1, 2, 3), 9, "recovered"), UNSCORED)
    assert seen == [((0, 1), [*found.tokens[:2], 9])], "a constraint's own tokens are not the drafters'"
    drafter.propose([job(context.along([12, 13]), state, 6)])
    drafter.observe("r", whole, Verdict((0,), 9, "recovered"), UNSCORED)
    assert len(seen) == 1, "nothing was tried after a rejected token"


def test_a_models_confidence_is_about_a_probability() -> None:
    random = np.random.default_rng(0)
    row = random.normal(0, 2, 1000).astype(np.float32)
    row[700] = 9.0
    exact = np.exp(row.astype(float) - row.max())
    exact /= exact.sum()
    assert exact[700] <= approximate_probability(row, 700, 0.0) <= 1.0
    assert 0.0 <= approximate_probability(row, 3, 0.0) < 0.01
    assert (
        approximate_probability(row, 700, 2.0)
        < approximate_probability(row, 700, 1.0)
        < approximate_probability(row, 700, 0.1)
    )
    assert approximate_probability(np.full(7, np.nan, np.float32), 0, 1.0) == 0.0
    assert approximate_probability(row, 3, 1e-300) == 0.0


def test_a_model_stops_where_the_guide_says() -> None:
    confidence: list[float] = []

    class Three:
        def drew(self, parent: int, stated: float) -> bool:
            confidence.append(stated)
            return False

        def next_node(self, ready: int = -1) -> int:
            return len(confidence) - 1 if len(confidence) < 3 else -1

    model = DraftModelDrafter(draft())
    model.begin(Request("r", (3, 1, 2), PARAMS))
    (found,) = model.propose([replace(job(TokenContext([3, 1, 2])), guide=Three())])
    assert (len(found), len(confidence)) == (3, 3)
    assert all(0.0 < stated <= 1.0 for stated in confidence)


def test_how_many_tokens_a_model_has_not_processed() -> None:
    model = DraftModelDrafter(draft())
    model.begin(Request("r", (3, 1, 2), PARAMS))
    context = TokenContext([3, 1, 2])
    assert model.unprocessed(job(context)) == 3
    (found,) = model.propose([job(context, budget=3)])
    context.append(int(found.tokens[0]))
    context.append(31 if int(found.tokens[1]) != 31 else 30)
    assert model.unprocessed(job(context)) == 1
    assert model.unprocessed(job(context.along([4, 5]))) == 3
    full = TokenContext(range(30))
    small = DraftModelDrafter(draft(), max_context=20)
    small.begin(Request("r", (1,), PARAMS))
    assert small.unprocessed(job(full)) is None


def test_the_middle_of_an_expensive_prompt_is_skipped() -> None:
    prompt = [i % VOCAB for i in range(200)]
    for known in (0, 96):
        model = DraftModelDrafter(draft())
        model.share_prefixes(10**6)
        if known:
            model.begin(Request("before", tuple(prompt[: known + 1]), PARAMS, namespace="a"))
            model.propose([job(TokenContext(prompt[: known + 1]), budget=1, name="before")])
            model.end("before")
        model.begin(Request("r", tuple(prompt), PARAMS, namespace="a"))
        context = TokenContext(prompt)
        asked: list[int] = []

        def too_expensive(unprocessed: int, asked: list[int] = asked) -> bool:
            asked.append(unprocessed)
            return unprocessed > 100

        assert model.unprocessed(job(context)) == 200 - known
        assert model.unprocessed(job(context), 0, lambda _: False) == 200 - known
        assert model.unprocessed(job(context), 0, too_expensive) == (
            TAIL_TOKENS if known else HEAD_TOKENS + TAIL_TOKENS
        )
        assert asked == [200 - known]
        (found,) = model.propose([job(context, budget=3)])
        assert model.passes[0][0] == (TAIL_TOKENS if known else HEAD_TOKENS + TAIL_TOKENS)
        read = [*prompt[: max(HEAD_TOKENS, known)], *prompt[-TAIL_TOKENS:]]
        again = DraftModelDrafter(draft())
        again.begin(Request("r", tuple(read), PARAMS))
        (expected,) = again.propose([job(TokenContext(read), budget=3)])
        assert found.tokens.tolist() == expected.tokens.tolist()
        context.append(int(found.tokens[0]))
        assert model.unprocessed(job(context), 0, too_expensive) == 1, "processed tokens stay in the cache"


def test_a_prompt_beyond_the_draft_models_context_is_skimmed() -> None:
    prompt = [i % VOCAB for i in range(300)]
    model = DraftModelDrafter(draft(), max_context=100)
    model.begin(Request("r", tuple(prompt), PARAMS))
    context = TokenContext(prompt)
    assert model.unprocessed(job(context)) == HEAD_TOKENS + TAIL_TOKENS
    (found,) = model.propose([job(context, budget=3)])
    assert len(found) == 3


def test_a_long_prompt_is_not_read_whole_where_that_takes_long() -> None:
    fed = []
    for length in (200, 230):  # a draft pass of 200 tokens takes 13 plain steps, one of 230 takes 15
        controller = make_auto(CostModel(COSTS), CostModel({1: 0.0032, 2: 0.0064, 32: 0.1024}))
        drafter = AutoDrafter(controller.planner, [], [model := DraftModelDrafter(draft())])
        prompt = [i % VOCAB for i in range(length)]
        context, state = begin(drafter, controller, prompt)
        assert controller.planner.prompt_too_expensive(MODEL, length, state) == (length == 230)
        assert state.models[MODEL].truncated == (length == 230)
        for _ in range(9):
            (found,) = drafter.propose([job(context, state)])
            if len(found):
                break
        fed.append(sum([width for width, _ in model.passes]))
    assert fed[0] >= 200 > HEAD_TOKENS + TAIL_TOKENS + 20 > fed[1] >= HEAD_TOKENS + TAIL_TOKENS


def test_copies_that_lookups_wrote_are_not_read() -> None:
    controller, drafter = make()
    source = [(7 * i) % 31 for i in range(31)] * 2  # a text that does not repeat itself for 31 tokens
    source[40] = 31
    context, state = begin(drafter, controller, source)
    unprocessed: list[int] = []

    def plan(new: Sequence[DraftQuery]) -> list[DraftPlan]:
        unprocessed.extend([query.unprocessed(MODEL) or -1 for query in new])
        return [DraftPlan() for _ in new]

    controller.planner.plan = plan  # type: ignore[method-assign, assignment]
    copied = source[8:62]
    for token in copied:
        drafter.propose([job(context, state)])
        context.append(token)
    drafter.propose([job(context, state)])
    assert unprocessed[0] == len(source)
    assert min(unprocessed) > 0
    assert max(unprocessed) < len(source) + 2 * COPY_TAIL_TOKENS
    assert unprocessed[-1] <= len(source) + COPY_TAIL_TOKENS + MIN_COPY < len(source) + len(copied)


@pytest.mark.grid(2)
@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("tree", [True, False])
def test_the_text_is_plain_decodings_own_and_takes_fewer_passes(model: bool, tree: bool) -> None:
    def tokens(
        controller: AutoController | None, drafter: AutoDrafter | None
    ) -> tuple[dict[str, list[int]], int]:
        model = target()
        model.caps = EngineCaps(tree_attention=tree, exact_bits=True)
        engine = CachedStepEngine(model)
        ticks = itertools.count()
        from outrider.decoding.events import FinishEvent, TokenEvent
        from outrider.decoding.verifiers.coupled import CoupledVerifier
        from outrider.policy.fixed import FixedController

        loop = StepLoop(
            engine,
            drafter,
            CoupledVerifier(),
            controller or FixedController(0),
            clock=lambda: next(ticks) / 1e3,
            max_num_seqs=2,
        )
        out: dict[str, list[int]] = {}
        passes = 0
        requests = [
            Request(str(i), prompt, SamplingParams(temperature=0.7, max_tokens=60, ignore_eos=True), seed=i)
            for i, prompt in enumerate([(1, 2, 3), tuple([4, 5, 6, 7] * 4), (9,)])
        ]
        for event in loop.generate(requests):
            if isinstance(event, TokenEvent):
                out.setdefault(event.request_id, []).append(event.token_id)
            elif isinstance(event, FinishEvent):
                assert event.error is None
                passes += event.metrics.num_passes
        return out, passes

    def states() -> int:
        gc.collect()
        return sum(isinstance(found, policy_state.RequestState) for found in gc.get_objects())

    before = states()  # other tests' may be alive
    plain, most = tokens(None, None)
    controller, drafter = make(model=model, tree=tree, similarity=0.99)
    found, passes = tokens(controller, drafter)
    assert found == plain
    assert passes < most if model else passes <= most
    assert controller.account().emitted == 180
    assert states() <= before


def test_end_is_forgiven() -> None:
    controller, drafter = make()
    drafter.end("never begun")
    controller.release(controller.begin())
    drafter.observe("never begun", Draft.empty(), Verdict((), 1, "bonus"), UNSCORED)
    assert controller.account().emitted == 0


def test_an_empty_chain_of_the_model_is_no_chain() -> None:
    """The text has ids that the draft model does not know."""
    controller, drafter = make(lookup=False)
    context, state = begin(drafter, controller, [1, VOCAB + 5])
    (found,) = drafter.propose([job(context, state)])
    assert len(found) == 0


def test_chains_carry_their_confidence() -> None:
    noted: list[ModelDraft | None] = []

    class Notes(Planner):
        def finish(
            self,
            queries: Sequence[DraftQuery],
            plans: Sequence[DraftPlan],
            drafts: Sequence[ModelDraft | None],
            drawings: Mapping[str, Drawing] | None = None,
        ) -> list[list[Node]]:
            noted.extend(drafts)
            return super().finish(queries, plans, drafts, drawings)

    controller = make_auto(CostModel(COSTS), CostModel({1: 0.004}), planner=Notes)
    drafter = AutoDrafter(controller.planner, [], [DraftModelDrafter(draft())])
    context, state = begin(drafter, controller, [3, 1, 2])
    drafter.propose([job(context, state)])
    (chain,) = noted
    assert chain is not None
    assert len(chain.tokens) == len(chain.confidence) >= 1
    assert None not in chain.confidence


@pytest.mark.parametrize("others", [0, 1])
def test_a_prompt_is_read_in_few_steps_where_no_other_text_waits(others: int) -> None:
    controller, drafter = make(lookup=False)
    prompt = [i % VOCAB for i in range(100)]
    steps = 0
    states = [controller.begin() for _ in range(1 + others)]
    for name in ("r", "other")[: 1 + others]:
        drafter.begin(Request(name, tuple(prompt), PARAMS))
    context = TokenContext(prompt)
    while True:
        controller.choose([DraftLimits(state, 39, len(prompt)) for state in states])
        (found,) = drafter.propose([job(context, states[0])])
        if len(found):
            break
        steps += 1
    assert steps == (0, 3)[others]
