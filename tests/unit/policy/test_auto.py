from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.cost_model import CostModel
from outrider.policy.draft_model import DraftModelState
from outrider.policy.optimism import Optimism
from outrider.policy.output_lengths import OutputLengths
from outrider.policy.planner import Planner
from outrider.policy.request_state import RequestState
from outrider.policy.tree import DraftPlan, DraftQuery, Lookup, ModelDraft, Node, Proposal
from outrider.policy.tuning import DEFAULT
from tests.support.calls import calls_of
from tests.support.controllers import LOOKUP, MODEL, Named, make_auto

TARGET = {1: 0.050, 2: 0.051, 4: 0.054, 8: 0.070, 16: 0.120}
DRAFT = {1: 0.010, 4: 0.011, 16: 0.020}


def chain(tokens: Sequence[int], confidence: float = 0.9, length: int = 8) -> Lookup:
    paths = [confidence ** (i + 1) for i in range(len(tokens))]
    return Lookup(list(tokens), list(range(-1, len(tokens) - 1)), [confidence] * len(tokens), paths, length)


def limits(count: int = 1, tokens: int = 100) -> list[DraftLimits]:
    return [DraftLimits(str(i), tokens, 100) for i in range(count)]


def ask(
    name: str = "0", lookup: Lookup | None = None, unprocessed: int | None = None, budget: int = 16
) -> DraftQuery:
    proposals = [] if lookup is None else [Proposal(LOOKUP, lookup)]
    if unprocessed is not None:
        proposals.append(Proposal(MODEL, unprocessed=unprocessed))
    return DraftQuery(name, budget, proposals)  # type: ignore[arg-type]


def make(model: bool = True, **options: Any) -> Named:
    return Named(make_auto(CostModel(TARGET), CostModel(DRAFT) if model else None, **options))


def taught(controller: Named, rate: float, tokens: int = 40) -> Named:
    """The controller after a text of which so many drawn tokens were verified and accepted at that rate."""
    past = controller.model.begin()
    for i in range(tokens):
        right = int((i + 1) * rate + 1e-9) > int(i * rate + 1e-9)
        drawn = Node(5, -1, 1, 1.0, (MODEL,), model_rank=1 + i % 4)
        controller.model.observe_verified(past, [drawn], {-1, 0} if right else {-1})
    return controller


def record(
    controller: Named, tree: Sequence[Node], accepted: int, name: str = "0", seconds: float = 0.0
) -> None:
    emitted = [node.token for node in tree[:accepted]]
    if accepted < len(tree) or not tree:  # else the text may go on as a lookup says further on
        emitted.append(-5)
    controller.observe(name, range(accepted), emitted)
    size = len(tree)
    verify = seconds or controller.planner.target.at(100).seconds(1 + size)
    source = "suffix" if size else "none"
    controller.record(name, StepRecord(source, size, accepted, accepted + 1, 0.0, verify, 0.001))


def step(controller: Named, asked: DraftQuery, accepted: int | None = None) -> tuple[DraftPlan, list[Node]]:
    """One step of one request without the draft model's help."""
    (budget,) = controller.choose(limits())
    if not budget:
        record(controller, [], 0)
        return DraftPlan(), []
    (plan,) = controller.plan([asked])
    (tree,) = controller.finish([asked], [plan], [None])
    record(controller, tree, len(tree) if accepted is None else min(accepted, len(tree)))
    return plan, tree


def test_a_good_lookup_is_verified_as_far_as_it_pays() -> None:
    controller = make(model=False)
    _, tree = step(controller, ask(lookup=chain(range(16), 0.9)))
    assert 4 <= len(tree) < 16
    assert [node.parent for node in tree] == list(range(-1, len(tree) - 1))
    controller = make(model=False)
    sizes = [len(step(controller, ask(lookup=chain(range(16), 0.001)), 0)[1]) for _ in range(8)]
    assert sizes[-1] == 0, "what is never right does not pay"


def test_the_draft_model_draws_when_it_has_kept_up() -> None:
    controller = make()
    controller.choose(limits())
    (plan,) = controller.plan([ask(unprocessed=1)])
    assert plan.draft_tokens == 8, "as far as its confidence carries"
    assert plan.guide is not None
    plan.guide.drew(-1, 0.99)
    assert plan.guide.next_node() == 0
    plan.guide.drew(0, 0.05)
    assert plan.guide.next_node() == -1
    blunt = make(confident=False)
    blunt.choose(limits())
    (plan,) = blunt.plan([ask(unprocessed=1)])
    assert 1 <= plan.draft_tokens < 8
    assert plan.guide is None


def test_what_it_missed_is_part_of_the_price() -> None:
    controller = make()
    controller.choose(limits(tokens=3))
    (plan,) = controller.plan([ask(unprocessed=400, budget=3)])
    assert plan.draft_tokens == 0, "three tokens will not pay for four hundred"
    controller.choose(limits(tokens=2000))
    (plan,) = controller.plan([ask(unprocessed=400)])
    assert plan.draft_tokens > 0, "two thousand will"


def steps_until_drawn(lookup: Lookup, behind: int, known: float | None = None) -> int:
    """Steps in which the draft model, so many tokens behind at first, is not let draw; 100 at most."""
    controller = make() if known is None else taught(make(), known)
    for steps in range(100):
        asked = ask(lookup=lookup, unprocessed=behind + steps)
        controller.choose(limits(tokens=2000))
        (plan,) = controller.plan([asked])
        if plan.draft_tokens:
            return steps
        (tree,) = controller.finish([asked], [plan], [None])
        record(controller, tree, len(tree))
    return 100


def test_catching_up_waits_while_lookups_may_make_it_worthless() -> None:
    assert 2 <= steps_until_drawn(Lookup(), 1500) <= 60, "what it costs must have been missed"
    assert steps_until_drawn(chain(range(8), 0.95), 1500) == 100, "a text that is copied needs no draft model"


def test_cheap_catching_up_waits_less_for_its_price() -> None:
    waits = [steps_until_drawn(Lookup(), behind) for behind in (30, 400, 800)]
    assert waits[0] <= 2 < 2 * waits[1] < waits[2], "twice the price waits more than twice as long"


def test_a_draft_model_known_to_be_good_is_caught_up_sooner_and_a_bad_one_later() -> None:
    unknown, good, bad = (steps_until_drawn(Lookup(), 400, known) for known in (None, 0.9, 0.3))
    assert 0 < good < unknown < bad


def steps_until_read(controller: Named, name: str, drawing: int) -> int:
    """Steps in which a text waits to be read into the draft model, which then draws for so many more."""
    waited, read = 0, 0
    while read <= drawing:
        asked = ask(name, Lookup(), unprocessed=1 if read else 400)
        controller.choose([DraftLimits(name, 2000, 100)])
        (plan,) = controller.plan([asked])
        if not plan.draft_tokens:
            waited += 1
            record(controller, [], 0, name)
            continue
        read += 1
        (tree,) = controller.finish([asked], [plan], [ModelDraft([5, 6], [0.9] * 2)], 0.02, [(1, 0)] * 2)
        record(controller, tree, len(tree), name)
    controller.release(name)
    return waited


def test_a_text_waits_longer_behind_others_that_were_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(drawing: int) -> list[int]:
        controller = taught(make(), DEFAULT.model_start)
        return [steps_until_read(controller, str(text), drawing) for text in range(6)]

    short, long = waits(0), waits(60)
    assert max(short) > short[0]
    assert max(long[1:]) < long[0]
    monkeypatch.setattr(OutputLengths, "observe", lambda *_: None)
    assert max(waits(0)) == short[0]


def test_a_new_text_is_not_held_to_the_rate_of_the_one_before() -> None:
    """Else a draft model that did well would never be fed another short text: what it missed is dear, and at
    the rate that it reaches a step gains nothing."""
    controller = make()
    asked = ask(unprocessed=1)
    for _ in range(40):
        controller.choose(limits())
        (plan,) = controller.plan([asked])
        drawn = ModelDraft(list(range(plan.draft_tokens)), [0.99] * plan.draft_tokens)
        (tree,) = controller.finish([asked], [plan], [drawn], 0.05, [(1, 0)] * plan.draft_tokens)
        record(controller, tree, len(tree))
    controller.release("0")
    controller.choose([DraftLimits("1", 30, 400)])
    (plan,) = controller.plan([ask("1", unprocessed=400)])
    assert plan.draft_tokens > 0


def drawn_at_once(controller: Named, texts: int, accepted: int, tokens: int = 200) -> list[bool]:
    """Whether the draft model, 60 tokens behind, is let draw in the first step of each of some texts; what it
    draws there and in steps after it is accepted up to `accepted`."""
    found = []
    for text in range(texts):
        name = f"{text}"
        drawing: list[bool] = []
        for at in range(12):
            controller.choose([DraftLimits(name, tokens - at, 100 + at)])
            missed = 1 if any(drawing) else 60 + at
            asked = ask(name, unprocessed=missed)
            (plan,) = controller.plan([asked])
            drawn = ModelDraft([5], [0.6]) if plan.draft_tokens else None
            fed = [] if drawn is None else [(missed, max(0, missed - 2))]
            (tree,) = controller.finish([asked], [plan], [drawn], 0.011 if drawn else 0.0, fed)
            record(controller, tree, min(accepted, len(tree)), name)
            drawing.append(drawn is not None)
        controller.release(name)
        found.append(drawing[0])
    return found


def test_before_a_prefill_what_is_hoped_of_a_text_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn_at_once(make(), 1, accepted=1) == [True]
    monkeypatch.setattr(Optimism, "hoped", lambda _, expected: [0.0] * len(expected))
    assert drawn_at_once(make(), 1, accepted=1) == [False], "without hope the text is not processed"
    controller = make()
    controller.choose(limits())
    (plan,) = controller.plan([ask(unprocessed=1)])
    assert plan.draft_tokens, "with nothing to process, what is expected decides"


def test_a_bad_text_or_two_do_not_shut_the_draft_model_out_of_the_others() -> None:
    """Catching up with a text is more than any probe may cost, so without a fresh start nothing would ever
    show that another text is another case."""
    controller = make()
    bad = drawn_at_once(controller, 30, accepted=0)
    assert bad[0]
    assert 2 <= sum(bad[5:]) <= 14, "now and then it is tried again"
    good = drawn_at_once(controller, 20, accepted=1)
    assert all(good[good.index(True) :])
    assert good.index(True) <= 8
    stubborn = make()
    stubborn.model.begin = lambda: DraftModelState(DEFAULT)  # type: ignore[method-assign]  # no fresh start
    assert not any(drawn_at_once(stubborn, 30, accepted=0)[5:])
    assert not any(drawn_at_once(stubborn, 20, accepted=1)), "the twin: shut out for good"


def test_a_strong_lookup_leaves_the_draft_model_alone() -> None:
    controller = make()
    controller.choose(limits())
    (plan,) = controller.plan([ask(lookup=chain(range(12), 0.97), unprocessed=1)])
    assert plan.draft_tokens == 0
    assert len(plan.nodes) >= 8


@pytest.mark.parametrize(("stated", "tree"), [(True, True), (False, False), (True, False)])
def test_a_stated_chain_or_one_without_trees_stays_a_chain(stated: bool, tree: bool) -> None:
    controller = make(branching=tree)
    controller.choose(limits())
    asked = ask(lookup=chain([7], 0.4), unprocessed=1)
    (plan,) = controller.plan([asked])
    assert plan.draft_tokens
    drawn = ModelDraft([1, 2, 3], [0.9, 0.5, 0.01], stated)
    (nodes,) = controller.finish([asked], [plan], [drawn], 0.03, [(1, 0)] * len(drawn.tokens))
    tokens = [node.token for node in nodes]
    assert tokens == ([1, 2, 3] if stated else [1, 2, 3][: len(tokens)])
    assert [node.parent for node in nodes] == list(range(-1, len(nodes) - 1))


def test_a_drafter_that_is_off_is_probed_with_back_off() -> None:
    controller = make(model=False)
    drafted = [bool(step(controller, ask(lookup=chain([1], 0.5)), 0)[1]) for _ in range(300)]
    first = drafted.index(False)
    assert first < 12, "a few misses are enough"
    probes = [i for i, d in enumerate(drafted) if d and i > first]
    assert probes, "but it is tried again"
    gaps = [b - a for a, b in pairwise(probes)]
    assert all(b >= a for a, b in pairwise(gaps))
    assert gaps[0] >= 8, "no two within eight steps"
    assert max(gaps) <= 64, "and one in every sixty-four"
    assert controller.planner.budget.spent > 0.0


def test_a_success_brings_it_back_and_a_long_match_too() -> None:
    controller = make(model=False)
    for _ in range(60):
        step(controller, ask(lookup=chain([1, 2, 3], 0.5, length=2)), 0)
    assert step(controller, ask(lookup=chain([1, 2, 3], 0.5, length=2)), 0)[1] == []
    assert step(controller, ask(lookup=chain(range(8), 0.95, length=20)))[1], "the text has changed character"


def test_what_is_not_verified_for_its_small_chance_is_learned_from_too() -> None:
    """The text tells whether a lookup would have been right. Else its chance would stay small for good."""

    class VerifiedOnly(Planner):
        """The twin: learns from what was verified."""

        def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
            super().observe(state, accepted, emitted if state.tree else ())

    def drafts_again(controller: Named) -> int | None:
        """Steps until a lookup that becomes right after many misses is verified again."""
        controller.planner.budget.take(controller.planner.budget.seconds)  # nothing to probe with
        for right in (False, True):
            for at in range(100):
                controller.choose(limits())
                asked = ask(lookup=chain([1], 0.4))
                (plan,) = controller.plan([asked])
                (tree,) = controller.finish([asked], [plan], [None])
                if right and tree:
                    return at
                controller.observe("0", [], [1, 2] if right else [2])
        return None

    again = drafts_again(make(model=False))
    assert again is not None
    assert again < 30
    assert drafts_again(Named(make_auto(CostModel(TARGET), planner=VerifiedOnly))) is None


def test_useless_lookups_are_slept_over_where_looking_is_dear() -> None:
    controller = make(model=False)
    budgets = []
    for _ in range(60):
        (budget,) = controller.choose(limits())
        budgets.append(budget)
        if budget:
            controller.planner.observe_lookup_seconds(0.002, 1)
            (plan,) = controller.plan([ask(lookup=Lookup())])
            controller.finish([ask()], [plan], [None])
        record(controller, [], 0)
    assert all(budgets[:4])
    assert budgets.count(0) > 30
    longest = max(len(run) for run in "".join("z" if not b else " " for b in budgets).split())
    assert longest == 4, "a lookup that begins to hit is found within four steps"
    controller.choose([DraftLimits("0", 100, 100, constrained=True)])
    assert controller.choose([DraftLimits("0", 100, 100, constrained=True)]) == [16], (
        "a grammar's own tokens are free"
    )


def test_lookups_that_save_less_than_they_take_are_slept_over_too() -> None:
    """Each saves something of the pass, and looking up takes more than that: without sleep, drafting would be
    slower than not."""

    def looks(seconds: float, chance: float) -> int:
        controller = Named(make_auto(CostModel({1: 0.01, 2: 0.0101, 4: 0.012, 8: 0.02, 16: 0.04})))
        found = 0
        for at in range(120):
            (budget,) = controller.choose(limits())
            if not budget:
                record(controller, [], 0)
                continue
            found += 1
            asked = ask(lookup=chain([1], 0.27))
            (plan,) = controller.plan([asked])
            (tree,) = controller.finish([asked], [plan], [None])
            controller.planner.observe_lookup_seconds(seconds, 1)
            record(controller, tree, len(tree) if at % 100 < 100 * chance else 0)
        return found

    assert looks(0.00002, 0.3) > 100, "cheap"
    assert looks(0.004, 0.3) < 60, "two fifths of a pass, for a third of a token"
    assert looks(0.004, 1.0) > 100, "a whole one"


def test_a_text_counts_as_one_like_those_before_until_it_shows() -> None:
    """Most texts begin without a copy: in one where others copied, vain looks go on, and elsewhere not."""
    controller = make(model=False)

    def looks(name: str, steps: int, lookup: Lookup) -> int:
        """Looks until the first sleep."""
        for at in range(steps):
            (budget,) = controller.choose([DraftLimits(name, 16, 100)])
            if not budget:
                return at
            asked = ask(name, lookup)
            (plan,) = controller.plan([asked])
            (tree,) = controller.finish([asked], [plan], [None])
            controller.planner.observe_lookup_seconds(0.002, 1)
            record(controller, tree, len(tree), name)
        return steps

    assert looks("a copy", 100, chain(range(8), 0.9)) == 100
    behind_a_copy = looks("after it", 100, Lookup())
    assert 20 < behind_a_copy < 100, "but not for good"
    for name in ("vain", "vain too"):
        for _ in range(100):
            looks(name, 1, Lookup())
    assert looks("after those", 100, Lookup()) < 4


def test_a_wide_step_sleeps_longer_over_what_all_its_requests_look_up_in_vain() -> None:
    controller = make(model=False)
    names = [str(i) for i in range(8)]
    asleep: list[int] = []
    for _ in range(200):
        budgets = controller.choose(limits(8))
        asleep.append(budgets.count(0))
        awake = [name for name, budget in zip(names, budgets, strict=True) if budget]
        if awake:
            plans = controller.plan([ask(name, Lookup()) for name in awake])
            controller.finish([ask(name) for name in awake], plans, [None] * len(awake))
            controller.planner.observe_lookup_seconds(
                0.0013 * len(awake), len(awake)
            )  # 15% of a pass when all do
        for name in names:
            record(controller, [], 0, name, TARGET[8] / 8)
    runs = "".join("z" if count == 8 else " " for count in asleep).split()
    assert 4 < max(map(len, runs)) <= 16


def test_budgets_are_within_the_room() -> None:
    assert make().choose([DraftLimits("a", 0), DraftLimits("b", 3), DraftLimits("c", 99)]) == [0, 3, 16]


def test_across_requests_the_likeliest_nodes_win() -> None:
    controller = Named(make_auto(CostModel({1: 0.05, 2: 0.05, 5: 0.05, 6: 0.2, 16: 2.0})))
    controller.choose(limits(2))
    asks = [ask("0", chain(range(8), 0.95)), ask("1", chain(range(8), 0.3))]
    plans = controller.plan(asks)
    assert [len(plan.nodes) for plan in plans] == [3, 0]


def test_a_jump_of_the_costs_asks_for_a_plain_step() -> None:
    controller = make(model=False)
    lookup = ask(lookup=chain(range(4), 0.9))
    for _ in range(20):
        step(controller, lookup)
    widths = []
    for _ in range(8):
        controller.choose(limits())
        (plan,) = controller.plan([lookup])
        (tree,) = controller.finish([lookup], [plan], [None])
        widths.append(len(tree))
        record(controller, tree, len(tree), seconds=0.2 if tree else 0.05)
    assert 0 in widths[2:5]
    curve = controller.planner.target.at(100)
    assert curve.seconds(1) < 0.08
    assert curve.seconds(5) > 0.15


def test_it_explains_itself() -> None:
    controller = make()
    assert controller.explain("0") == "off: no step was taken"
    for _ in range(30):
        step(controller, ask(lookup=chain(range(6), 0.9)), 6)
    said = controller.explain("0")
    assert said.startswith("on in 30 of 30 steps: suffix in 30 (")
    assert "tokens accepted" in said
    assert "measured" in said
    account = controller.state("0").account
    assert account.measured is not None
    assert 2.0 < account.measured < 8.0
    assert account.predicted == pytest.approx(account.measured, rel=0.35)
    off = make()
    for _ in range(30):
        step(off, ask(lookup=chain([1], 0.01)), 0)
    said = off.explain("0")
    assert said.startswith("off in ")
    assert re.search(
        r"suffix was too unlikely to be right in \d+ \([\d.]+%, and it pays from [\d.]+%\)", said
    )
    assert "draft_model could not draft in" in said


def test_it_says_what_else_keeps_it_from_drafting() -> None:
    controller = make()
    for _ in range(30):
        step(controller, ask(lookup=chain([1], 0.9)), 1)
    controller.release("0")
    for _ in range(5):
        step(controller, ask(lookup=Lookup(), unprocessed=1500), 0)
    step(controller, ask(lookup=chain([1], 0.9), unprocessed=1500), 1)
    said = controller.explain("0")
    assert said.startswith("off in 5 of 6 steps: ")
    assert "suffix found nothing in 5; draft_model would have had to read what it had missed" in said
    found = re.search(r"in 5 \(for ([0-9.]+) plain steps\)", said)
    assert found is not None
    # By DRAFT a token more takes 0.75 ms from four tokens on: 1496 * 0.75 = 1122 ms, of steps of 50 ms.
    assert float(found[1]) == pytest.approx(22.4, rel=0.05)


def test_release_forgets_the_request_and_keeps_what_it_taught() -> None:
    controller = make(model=True)
    for _ in range(20):
        step(controller, ask(lookup=chain(range(4), 0.5)), 0)
    learned = controller.lookup.rates.mean
    state = controller.states["0"]
    controller.release("0")
    controller.controller.release(state)
    controller.planner.observe(state, [], [1])
    controller.controller.record(state, StepRecord("none", 0, 0, 1, 0.0, 0.05, 0.001))
    assert sys.getrefcount(state) == 2, "nothing holds it but this test"
    assert controller.lookup.rates.mean == learned
    assert controller.controller.account().emitted == 20


@pytest.mark.parametrize(("model", "most"), [(False, 250), (True, 600)])
def test_a_step_costs_little(model: bool, most: int) -> None:
    """All that the controller adds to a step: less than twice the calls that it makes today, as few for the
    thousandth step. (benchmarks/step_overhead.py has the time.)"""
    controller = make(model=model)
    asked = ask(lookup=chain(range(4), 0.9), unprocessed=1 if model else None)

    def calls(steps: int) -> float:
        return calls_of(lambda: [step(controller, asked) for _ in range(steps)]) / steps

    calls(20)
    early = calls(60)
    assert early < most
    for _ in range(1000):
        step(controller, asked)
    assert calls(60) < 1.1 * early


def test_prompts_in_the_pass_make_no_draft_pay_that_would_not_without() -> None:
    """They have to be computed in some pass, so a long pass is no reason to verify what is unlikely."""
    sizes = []
    for prompt_tokens in (0, 48):
        controller = make(model=False)
        controller.choose(limits(), prompt_tokens)
        asked = ask(lookup=chain(range(16), 0.9))
        (plan,) = controller.plan([asked])
        sizes.append(len(plan.nodes))
    alone, beside = sizes
    assert 0 < beside <= alone


def test_more_prompt_tokens_join_passes_that_usual_drafts_make_long() -> None:
    """Else a prompt would wait for as many passes as without speculation, and for longer ones."""
    controller = make(model=False)
    plainly = controller.controller.prefill_budget(1)
    for _ in range(60):
        _, tree = step(controller, ask(lookup=chain(range(16), 0.9)))
    seconds = controller.planner.target.at(100).seconds
    usual = 1 + len(tree)
    assert usual > 8
    assert controller.controller.prefill_budget(1) > plainly
    assert seconds(usual + controller.controller.prefill_budget(1)) <= 2.0 * seconds(usual)


@pytest.mark.parametrize(("usual", "share"), [(0.8, 0.99), (0.9, 0.5)])
def test_a_text_of_which_the_target_is_sure_is_read_sooner(usual: float, share: float) -> None:
    def waits(certain: tuple[float, ...]) -> int:
        controller = taught(make(), usual)
        controller.choose(limits())
        assert controller.controller.confidence_rows_wanted(controller.state("0")) > 0
        for steps in range(100):
            asked = ask(lookup=chain(range(2), 0.5), unprocessed=300 + steps)
            controller.choose(limits(tokens=2000))
            (plan,) = controller.plan([asked])
            if plan.draft_tokens:
                return steps
            controller.finish([asked], [plan], [None])
            seen = StepRecord("none", 0, 0, 1, 0.0, controller.planner.target.at(100).seconds(1), 0.001)
            controller.record("0", replace(seen, certain=certain))
            certain = ()
        return 100

    without, here = waits(()), waits((share,) * 16)
    assert without != here
    assert (here < without) == (share > 0.85)


def test_without_a_draft_model_no_confidence_of_the_target_is_wanted() -> None:
    controller = make(model=False)
    controller.choose(limits())
    assert controller.controller.confidence_rows_wanted(controller.state("0")) == 0
