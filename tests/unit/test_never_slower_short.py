"""benchmarks/never_slower_short.py: cells, the schedule of other load, the noise of a text, and verdicts."""

from __future__ import annotations

import argparse
import itertools
import signal
from typing import Any

import pytest

from outrider.bench import workloads
from tests.support.benchmarks import script


@pytest.fixture(scope="module")
def short() -> Any:
    return script("never_slower_short")


def _method(ratios: list[list[float]], total: float = 1.0) -> dict[str, Any]:
    value = sorted(ratios[0])[len(ratios[0]) // 2]
    return {
        "speedup": value,
        "speedup_ci": [value - 0.01, value + 0.01],
        "identical": True,
        "seconds": {"total": total},
        "ratios": {str(i): each for i, each in enumerate(ratios)},
    }


def _cell(auto: list[list[float]], again: list[list[float]], **fixed: float) -> dict[str, Any]:
    methods = {"none": _method([[1.0]], 3.0), "plain again": _method(again), "warm 3": _method(auto, 2.1)}
    methods |= {name.replace("_", " "): _method([[v] * 3 for _ in auto]) for name, v in fixed.items()}
    return {"methods": methods, "caps": {"warm 3": 3}, "drift": 0.01, "machine": {}, "sweep": {}}


STILL = [[1.0, 1.0, 1.0]] * 2


def _verdicts(short: Any, kind: str, cell: dict[str, Any]) -> dict[str, str]:
    return {c["target"]: c["verdict"] for c in short.targets({("pair", "0", kind): cell})}


def test_a_text_is_too_slow_by_more_than_its_noise_only(short: Any) -> None:
    slow = [[1.0, 1.0, 1.0], [0.90, 0.80, 0.91]]
    assert _verdicts(short, "labels", _cell(slow, STILL))["slowest text"] == "MISSED"
    loud = [[1.0, 1.0, 1.0], [1.0, 1.05, 0.99]]
    assert _verdicts(short, "labels", _cell(slow, loud))["slowest text"] == "unsure"
    elsewhere = [[1.0, 1.05, 1.0], [1.0, 1.0, 1.0]]  # the other text's noise is no excuse
    assert _verdicts(short, "labels", _cell(slow, elsewhere))["slowest text"] == "MISSED"
    once = [[1.0, 1.0, 1.0], [0.95, 0.80, 0.96]]  # a single run does not decide
    assert _verdicts(short, "labels", _cell(once, STILL))["slowest text"] == "holds"


def test_the_text_that_surely_is_slow_comes_before_a_noisy_one(short: Any) -> None:
    methods = _cell([[0.8] * 3, [0.9] * 3], [[0.7, 1.0, 1.0], [1.0, 1.01, 1.0]])["methods"]
    text, value, (low, high) = short.worst_text(methods, "warm 3")
    assert (text, value) == ("1", 0.9)
    assert (low, high) == pytest.approx((0.9 / 1.01, 0.9 * 1.01))


def test_a_second_plain_run_that_is_slower_or_faster_is_as_much_noise(short: Any) -> None:
    for ratio in (0.8, 1.25):
        methods = _cell([[1.0]], [[1.0, ratio]])["methods"]
        assert short.noise(methods, "0") == pytest.approx(1.25)


def test_the_best_fixed_setting_has_no_higher_cap(short: Any) -> None:
    cell = _cell([[1.2] * 3] * 2, STILL, suffix_3=1.25, draft_model_5=2.0)
    found = {c["target"]: c for c in short.targets({("pair", "0", "tools"): cell})}
    assert found["as fast as the best"]["value"] == pytest.approx(1.2 / 1.25)
    assert [c["verdict"] for c in found.values()] == ["holds"] * 4
    names = ["suffix 1", "suffix 8", "draft_model 3", "ngram 3"]
    assert short.within(names, 3) == ["suffix 1", "draft_model 3", "ngram 3"]
    swept = dict(zip(names, (1.0, 3.0, 2.0, 1.5), strict=True))
    assert short.finalists(swept, [1, 3, 5, 8]) == ["suffix 1", "draft_model 3", "suffix 8"]
    assert short.finalists({}, [1, 3]) == []
    assert len(short.rows({("pair", "0", "tools"): cell})) == 2


def test_the_texts_of_all_short_kinds_have_one_mean(short: Any) -> None:
    fast, slow = _cell([[1.2] * 3] * 2, STILL), _cell([[0.9] * 3] * 2, STILL)
    found = {("pair", "0", "labels"): fast, ("pair", "0", "facts"): slow, ("pair", "0", "long 1000"): slow}
    (pooled,) = short.over_all_kinds(found)
    assert pooled["value"] == pytest.approx((1.2 * 0.9) ** 0.5)
    assert (pooled["where"], pooled["verdict"]) == ("pair, T 0, warm 3", "holds")


def test_targets_of_other_load_and_of_the_loop(short: Any) -> None:
    cell = _cell([[0.96] * 3] * 2, STILL)
    assert _verdicts(short, "busy code", cell) == {"under other load": "holds"}
    assert _verdicts(short, "labels", cell)["never slower"] == "MISSED"
    cell["caps"] = {"own text 5": 5, "earlier outputs 5": 5}
    cell["methods"] |= {"own text 5": _method(STILL, 2.1), "earlier outputs 5": _method(STILL, 1.0)}
    found = {c["target"]: c for c in short.targets({("pair", "0.7", "loop chat"): cell})}
    assert found["loop"]["value"] == pytest.approx(3.0 / 2.1), "of the seconds in all"
    assert [c["verdict"] for c in found.values()] == ["MISSED", "holds"]


def test_other_load_comes_and_goes_at_the_same_tokens(short: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [short.is_loaded(tokens) for tokens in range(short.LOAD_TOKENS)]
    assert not loaded[0]
    assert sum(a != b for a, b in itertools.pairwise(loaded)) == 3, "on, off, on"
    assert sum(loaded) == short.LOAD_TOKENS / 2
    sent: list[int] = []
    with short.Load("busy") as load:
        send = load._process.send_signal

        def watched(number: int) -> None:
            sent.append(number)
            send(number)

        monkeypatch.setattr(load._process, "send_signal", watched)
        for tokens in (0, 23, 24, 30, 48, 75, 0):
            load.at(tokens)
        process = load._process
    assert sent == [signal.SIGCONT, signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL]
    assert process.returncode == -signal.SIGKILL, "one that stands still is ended too"


def test_long_prompts_end_with_their_question(short: Any) -> None:
    own = {item.id: item.prompt for item in workloads.load("passages")}
    for size in (10, 1500, 3000):
        items = short.long_items(size, lambda text: len(text.split()))
        assert len(items) == len(own)
        for item in items:
            assert item.prompt.endswith(own[item.id])
            assert len(item.prompt.split()) >= size
            assert len(item.prompt.split()) < max(size, len(own[item.id].split())) + 800
            assert (item.prompt == own[item.id]) == (len(own[item.id].split()) >= size)


def test_the_cells_and_their_methods(short: Any) -> None:
    args = argparse.Namespace(
        sets=["pair"],
        kinds=["labels", "busy code", "loop chat"],
        temps=[0.0, 0.7],
        caps=[1, 16],
        cold_caps=[5],
    )
    assert list(short.cells(args)) == [
        ("pair", "0", "labels"), ("pair", "0.7", "labels"), ("pair", "0", "busy code"),
        ("pair", "0.7", "loop chat"),
    ]  # fmt: skip
    assert short.autos("labels", args) == {"warm 1": 1, "warm 16": 16, "cold 5": 5}
    assert short.autos("long 3000", args) == {"warm 16": 16, "cold 16": 16}
    assert short.autos("memory code", args) == {"warm 16": 16}
    assert short.autos("loop chat", args) == {"own text 5": 5, "earlier outputs 5": 5}
    alone = short.fixed_settings(None, [1, 5])
    assert list(alone) == ["suffix 1", "ngram 1", "suffix 5", "ngram 5"]
    assert [n for n in short.fixed_settings("d", [2]) if "draft" in n] == ["draft_model 1", "draft_model 2"]
