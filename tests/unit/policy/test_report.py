"""Why nothing was drafted: each reason is said where it is the reason, and none contradicts itself."""

from __future__ import annotations

import random
import re

import pytest

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.cost_model import CostModel
from outrider.policy.report import _WORDS, UNLIKELY, Account, Off, brief, explain
from outrider.policy.tree import Lookup, ModelDraft
from tests.support.controllers import Named, make_auto
from tests.unit.policy.test_auto import TARGET, ask, chain, limits, make, record, step, taught

PLAIN = StepRecord("none", 0, 0, 1, 0.0, 0.05, 0.001)


def reasons(controller: Named, name: str = "0") -> set[tuple[str, str]]:
    return set(controller.state(name).account.off)


def test_a_lookup_that_finds_nothing() -> None:
    controller = make(model=False)
    for _ in range(3):
        step(controller, ask(lookup=Lookup()))
    assert controller.explain("0") == "off in 3 of 3 steps: suffix found nothing in 3"


def test_a_lookup_that_finds_what_is_unlikely() -> None:
    controller = make(model=False)
    for _ in range(20):
        step(controller, ask(lookup=chain([1], 0.001)), 0)
    said = controller.explain("0")
    found = re.search(
        r"suffix was too unlikely to be right in \d+ \(([\d.]+)%, and it pays from ([\d.]+)%\)", said
    )
    assert found is not None, said
    assert float(found[1]) < float(found[2])


def test_finding_nothing_and_finding_the_unlikely_are_told_apart() -> None:
    """The mean chance is that of the steps in which it was too low; what was verified is not in it."""
    controller = make(model=False)
    for at in range(24):
        step(controller, ask(lookup=chain([1], 0.95) if at in (3, 7) else Lookup()), 1)
    said = controller.explain("0")
    assert said.startswith("off in 22 of 24 steps: suffix found nothing in 22; suffix in 2 (2 of 2 tokens")
    assert "pays from" not in said


def test_a_draft_model_that_would_have_to_read_first() -> None:
    controller = make()
    for _ in range(3):
        step(controller, ask(lookup=Lookup(), unprocessed=1500), 0)
    said = controller.explain("0")
    assert re.search(
        r"draft_model would have had to read what it had missed first in 3 \(for [\d.]+ plain", said
    ), said


def test_a_draft_model_that_is_too_unlikely_or_too_slow() -> None:
    controller = taught(make(), 0.1, tokens=400)
    controller.planner.budget.take(controller.planner.budget.seconds)  # nothing to probe with
    step(controller, ask(unprocessed=1), 0)
    assert reasons(controller) == {("suffix", "nothing"), ("draft_model", UNLIKELY)}
    assert "draft_model was too unlikely to be right in 1 (" in controller.explain("0")
    slow = Named(make_auto(CostModel(TARGET), CostModel({1: 0.2, 16: 0.4})))
    slow.planner.budget.take(slow.planner.budget.seconds)
    step(slow, ask(unprocessed=1), 0)
    assert "draft_model was too slow to pay in 1, however likely" in slow.explain("0")


def test_a_new_draft_model_is_tried_on_one_text_at_a_time() -> None:
    controller = make()
    controller.choose(limits(2))
    queries = [ask("0", unprocessed=1), ask("1", unprocessed=1)]
    plans = controller.plan(queries)
    assert [bool(plan.draft_tokens) for plan in plans] == [True, False]
    controller.finish(queries, plans, [None, None])
    controller.record("1", PLAIN)
    assert ("draft_model", "cold") in reasons(controller, "1")
    assert "draft_model was being tried on another text in 1" in controller.explain("1")


def test_a_draft_model_that_cannot_draft() -> None:
    controller = make()
    step(controller, ask(), 0)
    assert "draft_model could not draft in 1" in controller.explain("0")


def test_what_a_draft_model_drew_is_too_unlikely() -> None:
    controller = taught(make(confident=True), 0.9)
    controller.choose(limits())
    asked = ask(unprocessed=1)
    plans = controller.plan([asked])
    assert plans[0].draft_tokens
    for _ in range(40):  # that confidence has never been right
        controller.model.first.observe(controller.model.begin().first, 1, 0.01, False)
    (tree,) = controller.finish([asked], plans, [ModelDraft([5], [0.01])], 0.01, [(1, 0)])
    assert tree == []
    controller.record("0", PLAIN)
    assert controller.explain("0").endswith("what draft_model drew was too unlikely to be right in 1")


def test_a_plain_pass_is_timed() -> None:
    controller = make(model=False)
    lookup = ask(lookup=chain(range(4), 0.9))
    for _ in range(20):
        step(controller, lookup)
    controller.state("0").account.reset()
    for _ in range(8):
        controller.choose(limits())
        (plan,) = controller.plan([lookup])
        (tree,) = controller.finish([lookup], [plan], [None])
        record(controller, tree, len(tree), seconds=0.2 if tree else 0.05)
    assert ("", "measuring") in reasons(controller)


def test_lookups_that_are_left_out() -> None:
    controller = make(model=False)
    for _ in range(60):
        (budget,) = controller.choose(limits())
        if budget:
            controller.planner.observe_lookup_seconds(0.002, 1)
            (plan,) = controller.plan([ask(lookup=Lookup())])
            controller.finish([ask()], [plan], [None])
        record(controller, [], 0)
    assert re.search(
        r"lookups, which had saved less time than they take, were left out in \d\d", controller.explain("0")
    )


def test_room_for_one_token_only() -> None:
    controller = make(model=False)
    controller.choose([DraftLimits("0", 0, 100)])
    record(controller, [], 0)
    assert controller.explain("0") == "off in 1 of 1 steps: there was room for one token only in 1"


def test_no_drafter() -> None:
    controller = Named(make_auto(CostModel(TARGET), lookup=False))
    controller.choose(limits())
    plans = controller.plan([asked := ask()])
    controller.finish([asked], plans, [None])
    record(controller, [], 0)
    assert controller.explain("0") == "off in 1 of 1 steps: there is no drafter"


@pytest.mark.parametrize("model", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_reason_contradicts_itself(model: bool, seed: int) -> None:
    """In each step in which a token was too unlikely, its chance was below what would have paid."""
    made, controller = random.Random(seed), make(model=model)
    account = controller.state("0").account
    for _ in range(200):
        before = {key: list(sums) for key, sums in account.off.items()}
        lookup = chain(range(made.randint(1, 6)), made.random()) if made.random() < 0.7 else Lookup()
        unprocessed = made.randint(1, 60) if made.random() < 0.8 else None
        step(controller, ask(lookup=lookup, unprocessed=unprocessed), made.choice((0, 0, 1)))
        for key, (steps, chance, need) in account.off.items():
            old = before.get(key, [0.0, 0.0, 0.0])
            if key[1] == UNLIKELY and steps > old[0]:
                assert chance - old[1] <= need - old[2] + 1e-9
    total = sum(1 for _ in account.off)
    assert total


def test_accounts_add_up() -> None:
    one, other = Account(), Account()
    for account in (one, other):
        account.add(PLAIN, 0.05, 1.0)
        account.add_off([Off("suffix", UNLIKELY, 0.04, 0.0900), Off("draft_model", "prefill", 0.0, 3.0)])
    one.merge(other)
    assert explain(one) == (
        "off in 2 of 2 steps: suffix was too unlikely to be right in 2 (4%, and it pays from 9%); "
        "draft_model would have had to read what it had missed first in 2 (for 3.0 plain steps)"
    )
    one.reset()
    assert explain(one) == "off: no step was taken"


def test_percentages_that_look_equal_get_more_digits() -> None:
    account = Account()
    account.add(PLAIN, 0.05, 1.0)
    account.add_off([Off("suffix", UNLIKELY, 0.0912, 0.0937)])
    assert "(9.1%, and it pays from 9.4%)" in explain(account)


def off(*reasons: Off) -> Account:
    """An account of a step without a draft for these reasons."""
    account = Account()
    account.add(PLAIN, 0.05, 1.0)
    account.add_off(reasons)
    return account


@pytest.mark.parametrize("reason", _WORDS)
def test_a_label_says_the_reason_without_numbers(reason: str) -> None:
    words = brief(explain(off(Off("suffix", reason, 0.04, 0.09))))
    assert words
    assert not re.search(r"\d|[(){}%]", words)
    assert all(other == reason or brief(explain(off(Off("suffix", other)))) != words for other in _WORDS)


def test_a_label_has_the_reasons_of_most_steps() -> None:
    account = off(Off("suffix", "nothing"), Off("draft_model", UNLIKELY, 0.04, 0.09))
    for _ in range(9):
        account.merge(off(Off("suffix", "nothing"), Off("draft_model", UNLIKELY, 0.04, 0.09)))
    account.merge(off(Off("", "measuring")))
    account.add(StepRecord("suffix", 4, 0, 1, 0.0, 0.05, 0.001), 0.05, 1.0)
    assert brief(explain(account)) == "suffix found nothing; draft_model was too unlikely to be right"
    assert brief("off: there is no drafter") == "there is no drafter"
    assert brief("off: num_speculative_tokens is 0") == "num_speculative_tokens is 0"
    assert brief("on in 3 of 4 steps: suffix in 3 (2 of 5 tokens accepted)") == ""
    assert brief("off in 9 of 9 steps: no draft was asked for") == "no draft was asked for"


def test_a_label_where_no_reason_has_half_of_the_steps() -> None:
    reasons = "suffix found nothing in 4; a plain pass was timed in 3; suffix could not draft in 3"
    assert brief(f"off in 10 of 10 steps: {reasons}") == "suffix found nothing"
