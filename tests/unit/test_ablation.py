"""benchmarks/ablation.py: mechanisms that are switched off, what they gain, and memoized rows."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.decoding.types import FloatArray, IntArray
from outrider.drafters import auto
from outrider.engines.base import ForwardItem
from outrider.policy.cost_model import CostModel
from outrider.policy.planner import Planner
from outrider.policy.request_state import RequestState
from outrider.policy.tree import Node
from outrider.policy.tuning import DEFAULT
from tests.native.support import item
from tests.support.benchmarks import script
from tests.support.toy_model import ToyModel

drafting: Any = importlib.import_module("outrider.drafting")

COSTS = {1: 10.0, 8: 20.0}


@pytest.fixture(scope="module")
def ablation() -> Any:
    return script("ablation")


@pytest.fixture(scope="module")
def memoized() -> Any:
    return script("memoized_rows")


class CountingModel(ToyModel):
    """A toy with vocabulary blocks of two ids that counts its passes."""

    vocab_block_size = 2
    passes = 0

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        self.passes += 1
        return super().forward(items)

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        raise AssertionError("rows are stored whole")


def test_every_mechanism_can_be_off_and_is_on_again(ablation: Any) -> None:
    before = [[s.owner.__dict__[s.name] for s in m.switches] for m in ablation.MECHANISMS]
    planner = drafting.Planner
    for mechanism, originals in zip(ablation.MECHANISMS, before, strict=True):
        assert mechanism.switches or mechanism.tuning, mechanism.name
        with ablation.off([mechanism]):
            now = [switch.owner.__dict__[switch.name] for switch in mechanism.switches]
            assert all(a is not b for a, b in zip(now, originals, strict=True)), mechanism.name
            tuning = drafting.Planner().tuning
            for name, value in mechanism.tuning.items():
                assert getattr(tuning, name) == value != getattr(DEFAULT, name), (mechanism.name, name)
    assert before == [[s.owner.__dict__[s.name] for s in m.switches] for m in ablation.MECHANISMS]
    assert drafting.Planner is planner
    assert len({m.name for m in ablation.MECHANISMS}) == len(ablation.MECHANISMS)


def test_request_odds_that_are_off_leave_nothing_known_of_a_request(ablation: Any) -> None:
    known = {mechanism.name: mechanism for mechanism in ablation.MECHANISMS}
    tree = [Node(7, -1, 0, 0.5, ("draft_model",), 1, 0.7)]
    for name, expected in (("request odds", True), ("sibling choices", False)):
        with ablation.off([known[name]]):
            planner = Planner()
            model = planner.add_model("draft_model", CostModel())
            planner.add_lookup("suffix")
            state = RequestState()
            planner.begin_request(state)
            state.tree, state.tree_source = tree, "draft_model"
            before = state.models["draft_model"].first, state.lookups["suffix"].rates
            planner.observe(state, [0], [7, 8])
            after = state.models["draft_model"].first, state.lookups["suffix"].rates
            assert [old is not new for old, new in zip(before, after, strict=True)] == [expected] * 2
            model.observe_pruned(state.models["draft_model"], tree, [])
            assert (state.models["draft_model"].first is not after[0]) == expected


def test_several_are_off_at_once_and_an_error_leaves_all_on(ablation: Any) -> None:
    known = {mechanism.name: mechanism for mechanism in ablation.MECHANISMS}
    budget, planner = auto.PREFILL_BUDGET_SINGLE, drafting.Planner
    several = [known[n] for n in ("deferred draft prefill", "sibling choices", "prefill in parts")]

    def fail() -> None:
        with ablation.off(several):
            tuning = drafting.Planner().tuning
            assert (tuning.prefill_max_wait, tuning.max_siblings) == (0.0, 1)
            assert budget < auto.PREFILL_BUDGET_SINGLE
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (budget, planner) == (auto.PREFILL_BUDGET_SINGLE, drafting.Planner)
    assert drafting.Planner().tuning == DEFAULT


def test_the_gain_is_that_of_the_geometric_means(ablation: Any) -> None:
    on = {"chat 0 a 0": 1.0, "chat 0 b 1": 4.0, "edit 0 c 0": 3.0, "edit 0.7 c 0": 6.0}
    without = on | {"chat 0 a 0": 0.25, "edit 0.7 c 0": 3.0}
    assert ablation.cells(on) == pytest.approx({("chat", "0"): 2.0, ("edit", "0"): 3.0, ("edit", "0.7"): 6.0})
    found = ablation.summary(on, without)
    assert found["speedup"] == pytest.approx(9.0 ** (1 / 3))
    assert found["gain"] == pytest.approx(100 * (4.0 ** (1 / 3) - 1))
    assert found["by_temperature"] == pytest.approx({"0": 100 * (2**0.5 - 1), "0.7": 100.0})
    assert found["by_workload"] == pytest.approx({"chat": 100.0, "edit": 100 * (2**0.5 - 1)})
    same = ablation.summary(on, on)
    assert (same["gain"], same["error"]) == (0.0, 0.0)


def test_a_run_over_other_texts_is_left_out_of_the_tables(ablation: Any) -> None:
    on = {"chat 0 a 0": 1.0, "edit 0 c 0": 3.0}
    both = "sibling choices + exploration"
    runs = {ablation.EVERYTHING: on, both: on, "sibling choices": {**on, "edit 0 c 0": 2.0}, "lookups": {}}
    runs["shoelaces"] = {**on, "edit 0 c 0": 2.5}
    runs["exploration"] = dict(on)
    document = {"limit": 1, "seeds": 1, "draft": True, "everything_on": 1.0, "off": ablation.gains(runs)}
    found = ["sibling choices", "shoelaces", both, "exploration"]
    assert list(document["off"]) == found, "highest gains first"
    for text in (ablation.table(document), ablation.page(document, ablation.MECHANISMS)):
        assert text.count(both) == 1
        assert "lookups" not in text.replace("`", "")
    lines = ablation.page(document, ablation.MECHANISMS).splitlines()
    assert "Off or on, all texts take the same time: exploration." in lines
    headings = [line for line in lines if line.startswith("##")]
    assert headings == ["## Several at once", "## Deleted since"]
    assert lines[-1].startswith("| shoelaces |"), "no mechanism any more"
    known = {mechanism.name: mechanism for mechanism in ablation.MECHANISMS}
    (row,) = [line for line in lines if line.startswith("| sibling choices |")]
    assert f"{known['sibling choices'].decides} | `policy/tree_growth.py` | +22.47" in row


def test_runs_and_their_pairs_have_one_name(ablation: Any) -> None:
    assert ablation.joined("a b+ c,d") == ["a b + c", "d"]
    assert ablation.joined("") == []


def test_rows_are_those_of_the_model_and_computed_once(memoized: Any, tmp_path: Path) -> None:
    inner: Any = CountingModel(60, seed=3)
    store = memoized.RowStore(inner, tmp_path)
    model = memoized.MemoizedModel(store, COSTS, clock := script("replay").Clock())
    cache, real = model.new_cache(32), inner.new_cache(32)
    steps: list[tuple[list[int], list[int] | None]] = [
        ([1, 2, 3], None),
        ([4, 5, 6, 7], [-1, 0, 0, 2]),
    ]
    for tokens, parents in steps:
        began, expected = clock(), ToyModel.forward(inner, [item(real, tokens, parents)])[0]
        (rows,) = model.forward([item(cache, tokens, parents)])
        stored = np.isfinite(rows)
        assert (stored.sum(1) == memoized.STORED).all()
        np.testing.assert_array_equal(rows[stored], expected[stored])
        assert (rows.argmax(1) == expected.argmax(1)).all()
        assert clock() - began == pytest.approx(model.costs.seconds(len(tokens)))
    for each in (cache, real):
        each.keep(3, [3, 5])
    expected = ToyModel.forward(inner, [item(real, [9])])[0]
    assert model.forward([item(cache, [9])])[0].argmax(1) == expected.argmax(1)

    passes, subset = inner.passes, np.arange(5, 25, dtype=np.int32)
    store.save()
    for known in (store, memoized.RowStore(inner, tmp_path)):  # from the file too
        again = memoized.MemoizedModel(known, COSTS, script("replay").Clock())
        cache = again.new_cache(32)
        for tokens, parents in steps:
            again.forward([item(cache, tokens, parents)])
        assert inner.passes == passes
    (rows,) = again.forward_subset([item(again.new_cache(8), [1, 2, 3])], subset)
    assert not np.isfinite(rows[:, :10]).any()
    assert not np.isfinite(rows[:, 50:]).any()


def test_the_rows_of_a_text_are_computed_together(memoized: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memoized, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(memoized, "MAX_TEXTS", 2)
    inner: Any = CountingModel(60, seed=3)
    store = memoized.RowStore(inner)
    model = memoized.MemoizedModel(store, COSTS, script("replay").Clock())
    prompt, output = [1, 2, 3], [4, 5, 6, 7, 8]
    store.begin("a", prompt, output)
    assert (inner.passes, store.computed) == (2, 5), "no row after the last token"
    expected = ToyModel.forward(inner, [item(inner.new_cache(8), [*prompt, *output[:-1]])])[0]
    cache, passes = model.new_cache(8), inner.passes
    for i, tokens in enumerate([prompt, *([token] for token in output[:-1])]):
        (rows,) = model.forward([item(cache, tokens)])
        stored = np.isfinite(rows[-1])
        np.testing.assert_array_equal(rows[-1][stored], expected[i + 2][stored])
    assert inner.passes == passes + 1, "rows of the prompt"
    for name in ("b", "c", "d"):  # others with the same beginning, and a cache that is made again
        store.begin(name, prompt, [4, 5, 9])
    store.begin("a", prompt, output)
    assert store.computed == 5 + 2
    (row,) = model.forward([item(cache, [11])])
    expected = ToyModel.forward(inner, [item(inner.new_cache(9), [*prompt, *output[:-1], 11])])[0]
    np.testing.assert_array_equal(row[-1][np.isfinite(row[-1])], expected[-1][np.isfinite(row[-1])])


def test_a_row_whose_likeliest_are_left_out_is_computed_again_whole(memoized: Any) -> None:
    inner: Any = CountingModel(60, seed=3)
    model = memoized.MemoizedModel(memoized.RowStore(inner), COSTS, script("replay").Clock())
    expected = ToyModel.forward(inner, [item(inner.new_cache(8), [1, 2])])[0]
    blocks = np.unique(expected[-1].argsort()[:6] // 2).astype(np.int32)
    for _ in range(2):
        (rows,) = model.forward_subset([item(model.new_cache(8), [1, 2])], blocks)
        inside = np.repeat(np.isin(np.arange(30), blocks), 2)
        np.testing.assert_array_equal(rows[-1][inside], expected[-1][inside])
        assert not np.isfinite(rows[-1][~inside]).any()


def test_runs_of_other_code_or_texts_are_not_taken(ablation: Any, tmp_path: Path) -> None:
    place = tmp_path / "runs.jsonl"
    assert ablation.read_runs(place, "a") == {}
    runs = [
        {"off": "x", "code": "b", "speedup": {}},
        {"off": "y", "code": "a", "speedup": {"chat 0 a 0": 1.0}},
    ]
    place.write_text("".join(json.dumps(run) + "\n" for run in runs), "utf-8")
    assert ablation.read_runs(place, "a") == {"y": {"chat 0 a 0": 1.0}}
    texts = [script("replay").Text("chat", "a", 0.0, 0, "", [1], [token], [1.0]) for token in (2, 3)]
    first, second = (ablation.fingerprint([text]) for text in texts)
    assert first != second
    assert first == ablation.fingerprint(texts[:1])


def test_the_page_is_that_of_the_results(ablation: Any) -> None:
    document = json.loads((ablation.RESULTS / "ablation.json").read_text("utf-8"))
    page = (ablation.RESULTS / "ablation.md").read_text("utf-8")
    assert page == ablation.page(document, ablation.MECHANISMS), "benchmarks/ablation.py --page writes it"
