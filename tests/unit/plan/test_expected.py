"""The speed-up to expect of drafts on record, against a simulation with the same acceptance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.acceptance_record import Group, TextCounts, add, place_of
from outrider.models.open import open_model
from outrider.plan import profiles, speed
from outrider.plan.curves import Curve
from outrider.plan.document import Pair, document
from outrider.plan.expected import MIN_TEXTS, MIN_TRIALS, expected, rates_of
from outrider.plan.shapes import shape_source
from outrider.plan.text import text

TARGET = Curve({1: 0.100, 2: 0.105, 4: 0.110, 8: 0.130, 16: 0.200}, "measured", 0.0)
DRAFT = 0.010
GREEDY = Group("draft_model", "coupled", "greedy")
AUTO = Group("auto", "coupled", "greedy")


def drawn(acceptance: float, length: int, steps: int, seed: int) -> TextCounts:
    """A text whose draft tokens are accepted with this probability, each if those before it are."""
    random = np.random.default_rng(seed)
    proposed, accepted, tokens = [0] * length, [0] * length, 0
    for _ in range(steps):
        for position in range(length):
            proposed[position] += 1
            if random.random() >= acceptance:
                break
            accepted[position] += 1
            tokens += 1
        tokens += 1
    return TextCounts(tokens, steps, 0.0, 0.0, tuple(proposed), tuple(accepted))


def row(texts: list[TextCounts], group: Group = GREEDY) -> dict[str, Any]:
    (found,) = expected(TARGET, DRAFT, {group: tuple(texts)})
    return found


def test_constant_acceptance_gives_the_formulas_speedup() -> None:
    found = row([drawn(0.8, 8, 400, seed) for seed in range(12)])
    best = speed.best(TARGET, DRAFT, 0.8)
    assert found["rates"] == pytest.approx([0.8] * 8, abs=0.05)
    assert found["acceptance"] == pytest.approx(0.8, abs=0.01)
    assert found["length"] in range(best.length - 2, best.length + 3)
    assert found["speedup"] == pytest.approx(best.speedup, rel=0.03)
    low, high = found["interval"]
    assert low < found["speedup"] < high
    assert found["interval_from"] == "bootstrap over texts"


@pytest.mark.parametrize("count", [MIN_TEXTS, MIN_TEXTS - 3])
def test_the_interval_covers_the_true_speedup(count: int) -> None:
    """Of 95%: of 60 records it misses few. Texts of a few steps, as the interval must be wide then."""
    true = {k: speed.speedup(TARGET, DRAFT, 0.7, k) for k in speed.LENGTHS}
    missed = 0
    for seed in range(60):
        found = row([drawn(0.7, 4, 40, 100 * seed + i) for i in range(count)])
        low, high = found["interval"]
        missed += not low <= true[found["length"]] <= high
    assert found["interval_from"] == ("bootstrap over texts" if count >= MIN_TEXTS else "Wilson on the rates")
    assert missed <= 9


def test_more_texts_narrow_the_interval() -> None:
    few, many = (row([drawn(0.7, 4, 60, seed) for seed in range(n)])["interval"] for n in (8, 40))
    assert many[1] - many[0] < few[1] - few[0]


def test_a_draft_that_never_pays() -> None:
    found = row([drawn(0.02, 4, 100, seed) for seed in range(9)])
    assert (found["length"], found["speedup"], found["interval"]) == (0, 1.0, (1.0, 1.0))


def test_positions_that_were_hardly_tried_are_left_out() -> None:
    counts = TextCounts(50, 40, 0.0, 0.0, (40, 20, MIN_TRIALS - 1, 5), (20, 9, 5, 5))
    assert rates_of([counts]) == (0.5, 0.45)
    assert row([counts])["length"] in (0, 1, 2)
    assert expected(TARGET, DRAFT, {GREEDY: (TextCounts(5, 5, 0.0, 0.0, (3,), (2,)),)}) == []


def test_auto_is_told_by_its_times() -> None:
    texts = [TextCounts(30, 20, 2.0 + i / 10, 1.0, (9,), (8,)) for i in range(10)]
    found = row(texts, AUTO)
    assert found["length"] is None
    assert found["speedup"] == pytest.approx(2.45)
    assert 2.2 < found["interval"][0] < 2.45 < found["interval"][1] < 2.7
    few = row(texts[:3], AUTO)
    assert few["interval"] == pytest.approx((2.0, 2.2))
    assert few["interval_from"] == "range of the texts"
    assert expected(TARGET, DRAFT, {AUTO: (drawn(0.7, 4, 40, 0),)}) == []


# --- In the document -------------------------------------------------------------------------------


def planned(target: Any, draft: Any) -> dict[str, Any]:
    fast = Curve({1: DRAFT, 16: 0.03}, "predicted", None)
    found = document(
        Pair(target, draft, 256, 1, 10**12, "of this test"),
        lambda source, threads, drafts=False: fast if drafts else TARGET,
    )
    json.dumps(found)
    return found


def test_the_plan_tells_what_is_on_record(
    target_file: Path, draft_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    target, draft = open_model(target_file), open_model(draft_file)
    found = planned(target, draft)
    assert found["speed"]["draft"]["expected"] == []
    assert "Expected speed-up" not in text(found), "then the speed-up as a function of acceptance is all"
    add(place_of(target, draft), [(GREEDY, drawn(0.8, 5, 200, seed)) for seed in range(9)])
    found = planned(target, draft)
    (told,) = found["speed"]["draft"]["expected"]
    assert (told["source"], told["texts"], told["times"]) == ("record", 9, "predicted")
    shown = text(found)
    assert "measured with this pair here" in shown
    assert f"{told['speedup']:.2f}" in shown


def test_a_pair_of_the_table_has_profiles_in_the_package() -> None:
    found = planned(shape_source("qwen-coder-1.5b"), shape_source("qwen-coder-0.5b"))
    told = found["speed"]["draft"]["expected"]
    assert {row["source"] for row in told} == set(profiles.profiles())
    assert "measured with this pair, in the package" in text(found)
    assert (
        planned(shape_source("llama-3.1-8b"), shape_source("llama-3.2-1b"))["speed"]["draft"]["expected"]
        == []
    )


def test_drafts_of_a_known_target_are_named() -> None:
    found = planned(shape_source("llama-3.3-70b"), None)
    assert found["known_drafts"] == ["llama-3.2-1b", "llama-3.2-3b"]
    assert "(-md NAME): llama-3.2-1b, llama-3.2-3b" in text(found)
    assert planned(shape_source("llama-3.2-1b"), None)["known_drafts"] == []


def test_the_profiles_of_the_package_are_whole() -> None:
    for profile in profiles.profiles().values():
        assert profile.texts
        rates = rates_of(profile.texts)
        assert len(rates) >= 4
        assert min(rates) > 0.2
        assert max(rates) <= 1.0
