"""The simulator, and with it the controller's promises, on many generated texts and machines.

OUTRIDER_CASES makes it more of them than the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.acceptance_rates import RequestRates
from outrider.policy.auto import AutoController
from outrider.policy.exploration import ExplorationBudget
from outrider.policy.planner import Planner
from outrider.policy.request_state import RequestState
from outrider.policy.tree import DraftPlan, DraftQuery, Lookup, Node
from outrider.policy.tuning import DEFAULT
from tests.support.cases import FAMILIES, LENGTH, TEXTS, Case, case
from tests.support.controllers import make_auto
from tests.support.simulator import MODEL, FixedPolicy, Policy, Trace, World, simulate
from tests.support.traces import Machine, machine, text

CASES = int(os.environ.get("OUTRIDER_CASES", "20"))  # for each family
MOST_LOST = 0.02  # of plain decoding's time
WINDOW, MOST_PROBING = 10.0, 0.1  # seconds: of any ten, a hundredth may go into probes
WARM_UP = 12  # plain steps' time, once for all texts, that learning may cost beyond that


# --- The simulator itself -------------------------------------------------------------------------


def chain(tokens: Sequence[int], confidence: float = 0.9) -> Lookup:
    paths = [confidence ** (i + 1) for i in range(len(tokens))]
    return Lookup(
        list(tokens), list(range(-1, len(tokens) - 1)), [confidence] * len(tokens), paths, len(tokens)
    )


FLAT = World(lambda n, step: 1.0 + 0.1 * n, lambda n: 0.01 * n, overhead=0.5, looking=0.25)


def test_plain_decoding_takes_a_pass_for_each_token() -> None:
    out = simulate(FixedPolicy(), [Trace(5, [1, 2, 3])], FLAT)
    assert (out.tokens, len(out.steps)) == (3, 3)
    assert out.seconds == pytest.approx(3 * (1.1 + 0.5))


def test_accepted_nodes_save_passes() -> None:
    looked = [chain([1, 2, 9]), Lookup(), Lookup(), Lookup(), Lookup()]
    out = simulate(FixedPolicy(3), [Trace(5, [1, 2, 3, 4, 5], looked)], FLAT)
    assert [step[1:] for step in out.steps] == [(3, 3), (4, 0), (5, 0)]
    assert out.seconds == pytest.approx((1.4 + 0.75) + (1.1 + 0.75) + (1.1 + 0.5)), "no room, no looking"


def test_branches_and_the_models_chain() -> None:
    fork = Lookup([7, 1], [-1, -1], [0.5, 0.4], [0.5, 0.4], 1)
    out = simulate(FixedPolicy(2), [Trace(5, [1, 2, 3], [fork, Lookup(), Lookup()])], FLAT)
    assert [step[1] for step in out.steps] == [2, 3], "the second branch is right"
    trace = Trace(5, [1, 2, 3, 4, 5, 6], None, [1, 2, 9, 4, 5, 6])
    out = simulate(FixedPolicy(0, 3), [trace], FLAT)
    assert [step[1] for step in out.steps] == [3, 6]


def test_sibling_choices_are_verified_with_the_first() -> None:
    even = [0.5] * 6
    trace = Trace(5, [1, 2, 3, 4, 5, 6], None, [1, 9, 3, 4, 5, 6], even, [7, 2, 7, 7, 7, 7], even)
    out = simulate(FixedPolicy(0, 2, siblings=True), [trace], FLAT)
    assert out.steps[0][1:] == (3, 4), "the first is right; of the second, the sibling is"
    assert [step[1] for step in out.steps] == [3, 5, 6]
    alone = simulate(FixedPolicy(0, 2), [trace], FLAT)
    assert [step[1] for step in alone.steps] == [2, 5, 6]


def test_a_sibling_is_continued_and_stays_in_the_cache() -> None:
    class Both:
        """Samples two tokens at the first position, and one after each."""

        def __init__(self) -> None:
            self.drawn = 0

        def drew(self, parent: int, confidence: float) -> bool:
            self.drawn += 1
            return self.drawn == 1

        def next_node(self, ready: int = -1) -> int:
            return 1 if self.drawn == 2 else -1

    class Splits(FixedPolicy):
        def plan(self, queries: Sequence[DraftQuery]) -> list[DraftPlan]:
            return [
                DraftPlan(source=MODEL, draft_tokens=2, guide=Both()) if query.budget > 3 else DraftPlan()
                for query in queries
            ]

    fed: list[int] = []
    world = World(lambda n, step: 1.0, lambda n: fed.append(n) or 0.0)  # type: ignore[func-returns-value]
    even = [0.5] * 12
    # The first choice is always wrong, and right is the second; behind it the first.
    first, second = [99, 1, 99, 99, 4, 99, 99, 7, 99, 99, 10, 99], list(range(12))
    trace = Trace(5, list(range(12)), None, first, even, second, even)
    out = simulate(Splits(0, 4), [trace], world)
    assert [step[1:] for step in out.steps[:3]] == [(3, 3), (6, 3), (9, 3)]
    assert fed[:4] == [5, 1, 2, 1], "of three new tokens one is in the cache already"


def test_the_draft_models_prefill_takes_time() -> None:
    fed: list[int] = []
    world = World(lambda n, step: 1.0, lambda n: fed.append(n) or 0.0)  # type: ignore[func-returns-value]
    simulate(FixedPolicy(0, 3), [Trace(5, list(range(12)), None, [*range(9), 99, 99, 99])], world)
    # 5 of the prompt, then 2 single ones; after a full draft two are missing, the last drawn and the bonus.
    assert fed[:3] == [5, 1, 1]
    assert fed[3:6] == [2, 1, 1]
    assert fed[6:9] == [2, 1, 1]


def test_texts_share_passes() -> None:
    out = simulate(FixedPolicy(), [Trace(5, [1, 2]), Trace(5, [1]), Trace(5, [1])], FLAT, width=2)
    assert [round(end, 6) for end in out.ends] == [1.7, 3.4, 3.4]
    assert [round(b - a, 6) for a, b in zip([0.0, 1.7], [s[0] for s in out.steps], strict=True)] == [1.7, 1.7]
    assert out.tokens == 4


def test_a_stop_of_the_controller_is_heeded() -> None:
    class Stop:
        def __init__(self) -> None:
            self.said: list[float] = []

        def drew(self, parent: int, confidence: float) -> bool:
            self.said.append(confidence)
            return False

        def next_node(self, ready: int = -1) -> int:
            return len(self.said) - 1 if self.said[-1] > 0.5 else -1

    class Stops(FixedPolicy):
        def plan(self, queries: Sequence[DraftQuery]) -> list[DraftPlan]:
            return [DraftPlan(source=MODEL, draft_tokens=5, guide=Stop()) for _ in queries]

    trace = Trace(5, list(range(8)), None, list(range(8)), [0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert simulate(Stops(0, 5), [trace], FLAT).steps[0][2] == 3


# --- What the controller promises -----------------------------------------------------------------


def lost(made: Case, seconds: float) -> float:
    """Plain steps' time beyond MOST_LOST of plain decoding."""
    return (seconds - (1.0 + MOST_LOST) * made.plain) / made.step


@pytest.mark.grid(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_never_slower_and_as_fast_as_the_best_fixed_setting(family: str) -> None:
    ratios = []
    for seed in range(CASES):
        made = case(family, seed)
        seconds = made.run(made.auto()).seconds
        assert lost(made, seconds) <= WARM_UP, seed
        best = min(made.plain, *(made.run(policy).seconds for policy in made.fixed()))
        ratios.append((best + WARM_UP * made.step) / seconds)
        assert ratios[-1] >= 0.8, seed
    assert np.quantile(ratios, 0.1) >= 0.95
    assert np.exp(np.mean(np.log(ratios))) >= 0.99


def wide_passes_jump(n: int, step: int) -> float:
    return 3.0 if n > 1 and step >= 60 else 1.0


def everything_jumps(n: int, step: int) -> float:
    return 3.0 if step >= 60 else 1.0


@pytest.mark.parametrize("change", [wide_passes_jump, everything_jumps])
@pytest.mark.parametrize("family", ["copies and none", "a good model", "both drafters"])
def test_costs_that_jump(family: str, change: Callable[[int, int], float]) -> None:
    """Three surprises, a probe, and it knows: a few wide steps at three times the price."""
    for seed in range(max(2, CASES // 3)):
        made = case(family, seed, change)
        assert lost(made, made.run(made.auto()).seconds) <= 2 * WARM_UP, seed


def test_a_drafter_as_expensive_as_the_target_is_not_used() -> None:
    for chance in (0.3, 0.95):
        made_machine = Machine(0.02, 0.05, 4, 1.0, 0.05)
        random = np.random.default_rng(3)
        texts = [text(random, LENGTH, model=[chance]) for _ in range(TEXTS)]
        made = Case(made_machine, texts, made_machine.world(), True)
        assert lost(made, made.run(made.auto()).seconds) <= 4


@pytest.mark.parametrize("ratio", [0.1, 0.45, 0.5, 0.55])
def test_ties_cost_nothing(ratio: float) -> None:
    """Acceptance at what drafting costs: drafting or not is the same."""
    tie = Machine(0.03, 0.0, 1, ratio, 0.05)
    random = np.random.default_rng(5)
    texts = [text(random, LENGTH, model=[ratio], confident="none") for _ in range(TEXTS)]
    made = Case(tie, texts, tie.world(), False)
    assert lost(made, made.run(made.auto()).seconds) <= WARM_UP


def lost_in_batch(made: Case, policy: Policy, width: int) -> float:
    """Plain steps' time beyond MOST_LOST by which the mean text takes longer than plainly. (Not when the last
    one ends: a text that gains nothing itself waits for those that do.)"""
    plain = made.run(FixedPolicy(), width)
    later = np.mean(made.run(policy, width).ends) - (1.0 + MOST_LOST) * np.mean(plain.ends)
    return float(later) * len(plain.steps) / plain.seconds


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("family", ["useless drafters", "both drafters", "collapses"])
def test_batches(family: str, width: int) -> None:
    for seed in range(max(2, CASES // 4)):
        made = case(family, seed)
        assert lost_in_batch(made, made.auto(), width) <= WARM_UP, seed


def test_without_a_measurement_it_learns_the_curve() -> None:
    for seed in range(CASES):
        made = case("copies and none", seed)
        seconds = made.run(make_auto()).seconds
        assert lost(made, seconds) <= 2 * WARM_UP, seed


def test_it_is_deterministic() -> None:
    made = case("both drafters", 1)
    assert made.run(made.auto()).steps == made.run(made.auto()).steps


def test_second_choices_gain_time() -> None:
    """Where the first is often wrong and the second then right, on a machine where verifying is cheap."""
    cheap = Machine(0.05, 0.06, 8, 0.35, 0.0)
    random = np.random.default_rng(11)
    texts = [text(random, LENGTH, model=[0.5, 0.7], second=[0.7]) for _ in range(TEXTS)]
    world = cheap.world()
    made = Case(cheap, texts, world, True)
    chains = Case(cheap, [replace(t, second=None) for t in texts], world, True)
    assert made.run(made.auto()).seconds < 0.93 * chains.run(chains.auto()).seconds


class Forgetful(Planner):
    """Does not know how a request's drafters have done in it so far."""

    def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        super().observe(state, accepted, emitted)
        for lookup in state.lookups.values():
            lookup.rates = RequestRates()
        for model in state.models.values():
            model.first = model.sibling = model.lookahead = RequestRates()


def unlike_texts(seed: int) -> Case:
    """Twelve texts, each with drafters as good or bad as chance has it."""
    random = np.random.default_rng([seed, 99])
    made = machine(random)
    confident = str(random.choice(["honest", "vain", "blind", "none"]))
    texts = []
    for _ in range(12):
        model, copies = float(random.choice([0.1, 0.4, 0.7, 0.9])), float(random.choice([0.02, 0.3, 0.9]))
        texts.append(text(random, LENGTH, confident=confident, model=[model], copies=[copies]))
    return Case(made, texts, made.world(seed), confident != "none")


@pytest.mark.parametrize("width", [1, 4])
def test_what_a_request_shows_of_its_drafters_pays_where_requests_differ(width: int) -> None:
    """The mean text ends 1.6% sooner one at a time, and 1.0% with four at once (150 seeds); recorded texts of
    one kind after the other gain 0.4%."""
    gains = []
    for seed in range(2 * CASES):
        made = unlike_texts(seed)
        ends = [made.run(auto, width).ends for auto in (made.auto(), made.auto(planner=Forgetful))]
        gains.append(np.log(np.mean(ends[1]) / np.mean(ends[0])))
    assert np.mean(gains) > 0.004


# --- Exploration ----------------------------------------------------------------------------------


class Watched(ExplorationBudget):
    """Notes when how much was spent."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.log: list[tuple[float, float]] = []

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        super().pass_time(seconds)

    def take(self, seconds: float) -> bool:
        took = super().take(seconds)
        if took:
            self.log.append((self.now, seconds))
        return took

    def give_back(self, seconds: float) -> None:
        self.log.append((self.now, -seconds))
        super().give_back(seconds)

    def most_in_a_window(self) -> float:
        return max(
            (sum(s for at, s in self.log if start <= at <= start + WINDOW) for start, _ in self.log),
            default=0.0,
        )


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 0.2)), max_size=60))
def test_the_allowance_is_a_hundredth_of_any_ten_seconds(steps: list[tuple[float, float]]) -> None:
    watched = Watched()
    for passed, price in steps:
        watched.pass_time(passed)
        watched.take(price)
    assert watched.most_in_a_window() <= MOST_PROBING + 1e-9


def test_the_allowance_can_be_had() -> None:
    """Little by little, and a probe at the end that overdraws."""
    watched = Watched()
    for _ in range(1000):
        assert watched.take(0.00018)
        watched.pass_time(0.05)
    assert watched.take(0.06)
    assert 0.9 * MOST_PROBING < watched.most_in_a_window() <= MOST_PROBING + 1e-9


@pytest.mark.parametrize("family", ["useless drafters", "a bad model", "collapses"])
def test_probes_take_at_most_a_hundredth_of_any_ten_seconds(family: str) -> None:
    probed = 0
    for seed in range(CASES):
        made = case(family, seed)
        controller = made.auto()
        controller.planner.budget = watched = Watched()
        made.run(controller)
        assert watched.most_in_a_window() <= MOST_PROBING + 1e-9, seed
        probed += sum(seconds > 0.0 for _, seconds in watched.log)
    assert probed > CASES, "it does probe"


@pytest.mark.parametrize("family", ["useless drafters", "collapses"])
def test_a_probe_verifies_one_token(family: str) -> None:
    """Whatever else there is: its price was that of one."""

    probed: set[int] = set()

    class Probing(Planner):
        def finish(self, *arguments: Any) -> list[list[Node]]:
            trees = super().finish(*arguments)
            probing = [query.state.probe_price > 0.0 for query in arguments[0]]
            probed.update(len(tree) for tree, probes in zip(trees, probing, strict=True) if probes)
            return trees

    for seed in range(CASES):
        made = case(family, seed)
        made.run(made.auto(planner=Probing))
    assert probed == {1}


# --- Broken twins: each promise is one that a plausible bug breaks --------------------------------


def breaks(family: str, make: Callable[[Case], Policy]) -> bool:
    for seed in range(12):
        made = case(family, seed)
        seconds = made.run(make(made)).seconds
        best = min(made.plain, *(made.run(policy).seconds for policy in made.fixed()))
        if lost(made, seconds) > WARM_UP or (best + WARM_UP * made.step) / seconds < 0.8:
            return True
    return False


class FreeTime(AutoController):
    """Takes time for worth nothing."""

    def choose(self, batch: Sequence[Any], prompt_tokens: int = 0) -> list[int]:
        budgets = super().choose(batch, prompt_tokens)
        self.step.rate *= 0.1
        return budgets


class Deaf(Planner):
    """Does not learn from what is accepted."""

    def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        pass


class Blindfold(Planner):
    """Counts every node as accepted."""

    def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        nodes = state.tree
        super().observe(state, range(len(nodes)), [node.token for node in nodes])


@pytest.mark.parametrize("twin", [{"controller": FreeTime}, {"planner": Deaf}, {"planner": Blindfold}])
def test_a_controller_that_does_not_learn_or_count_is_caught(twin: dict[str, Any]) -> None:
    assert breaks("useless drafters", lambda made: made.auto(**twin))


def test_one_that_does_not_count_is_caught_in_batches() -> None:
    made = case("useless drafters", 0)
    assert lost_in_batch(made, made.auto(controller=FreeTime), 5) > WARM_UP


def test_always_and_never_drafting_are_caught() -> None:
    assert breaks("poor copies", lambda made: FixedPolicy(8))
    assert breaks("copies and none", lambda made: FixedPolicy())


def test_probing_at_will_is_caught() -> None:
    class Spendthrift(Watched):
        def take(self, seconds: float) -> bool:
            self.seconds = DEFAULT.exploration_reserve
            return super().take(seconds)

    most = []
    for seed in range(12):
        made = case("useless drafters", seed)
        controller = made.auto()
        controller.planner.budget = watched = Spendthrift()
        made.run(controller)
        most.append(watched.most_in_a_window())
    assert max(most) > MOST_PROBING
