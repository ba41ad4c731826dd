"""`outrider bench --synthetic`: acceptance is what was asked for, and passes are real."""

from __future__ import annotations

import json

import numpy as np
import pytest

from outrider.bench import synthetic
from outrider.cli.main import main
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel
from outrider.models.source import ModelSource
from outrider.models.sources.known import Shape
from outrider.plan import shapes
from outrider.plan.slices import with_random_weights


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    shape = Shape("llama", 2, 256, 4, 2, 64, 512, tied=True, vocab=1024, positions=131_072, theta=5e5)
    monkeypatch.setitem(shapes.SHAPES, "tiny", shape)
    return shapes.shape_source("tiny:q4_0")


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_draft_tokens_are_accepted_as_often_as_asked(tiny: ModelSource, acceptance: float) -> None:
    model = NativeModel.load(with_random_weights(tiny), threads=1, weights_cache=False)
    target = synthetic.SyntheticTarget(model, synthetic.Acceptance.of(acceptance))
    cache = model.new_cache(2100)
    accepted, positions = 0, 2000
    tokens, parents = np.array([1, 2], np.int32), np.array([-1, 0], np.int32)
    for _ in range(positions):
        (rows,) = target.forward([ForwardItem(cache, tokens, parents, np.array([0], np.int32))])
        accepted += int(rows[0].argmax() == 2)
        cache.truncate(cache.length - 1)
    # Five standard deviations of a binomial share.
    assert abs(accepted / positions - acceptance) <= 5 * np.sqrt(acceptance * (1 - acceptance) / positions)


def test_a_draft_is_as_sure_as_it_is_right(tiny: ModelSource) -> None:
    model = NativeModel.load(with_random_weights(tiny), threads=1, weights_cache=False)
    draft = synthetic.SyntheticDraft(model, synthetic.Acceptance.of(0.8))
    item = ForwardItem(model.new_cache(8), *(np.array(v, np.int32) for v in ([1], [-1], [0])))
    for rows in (draft.forward([item]), draft.forward_subset([item], np.arange(4, dtype=np.int32))):
        finite = rows[0][0][np.isfinite(rows[0][0])].astype(np.float64)
        share = np.exp(finite - finite.max())
        assert (share / share.sum()).max() == pytest.approx(0.8, abs=1e-3)


def test_the_command(tiny: ModelSource, capsys: pytest.CaptureFixture[str]) -> None:
    line = "bench --synthetic -m tiny:q4_0 -md tiny:q4_0 --acceptance 0.9 -n 40 --runs 1 -t 1"
    assert main([*line.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["synthetic"] is True
    assert found["target"]["name"] == "synthetic tiny q4_0"
    runs = {run["method"]: run for run in found["runs"]}
    assert runs["none"]["speedup"] == 1.0
    assert runs["none"]["mean_acceptance_length"] == 1.0
    assert runs["draft_model 1"]["measured_acceptance"] > 0.6
    assert runs["draft_model 5"]["mean_acceptance_length"] > runs["draft_model 1"]["mean_acceptance_length"]
    assert main(line.split()) == 0
    assert capsys.readouterr().out.startswith("SYNTHETIC")


def test_the_command_with_a_head(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape("llama", 6, 256, 4, 2, 64, 512, tied=True, vocab=1024, positions=131_072, theta=5e5)
    monkeypatch.setitem(shapes.SHAPES, "tiny", shape)
    line = "bench --synthetic -m tiny:q4_0 -md eagle3-tiny --acceptance 0.9 -n 40 --runs 1 -t 1 --json"
    assert main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["draft"]["name"].startswith("synthetic EAGLE-3 head for tiny")
    assert found["draft"]["weights_bytes"] < found["target"]["weights_bytes"]
    runs = {run["method"]: run for run in found["runs"]}
    assert runs["eagle3 1"]["measured_acceptance"] > 0.6
    assert runs["eagle3 5"]["mean_acceptance_length"] > runs["eagle3 1"]["mean_acceptance_length"]
    assert main([*line.replace("eagle3-tiny", "eagle3-llama-3.1-8b").split()]) == 2
    assert "for another target" in capsys.readouterr().err


def test_acceptance_by_position(tiny: ModelSource) -> None:
    """A token at each position of a chain is accepted as often as its own rate says."""
    model = NativeModel.load(with_random_weights(tiny), threads=1, weights_cache=False)
    rates = (0.9, 0.3, 0.6)
    target = synthetic.SyntheticTarget(model, synthetic.Acceptance("a profile", rates, 0.6))
    cache, steps, accepted = model.new_cache(600), 400, np.zeros(4)
    tokens, parents = np.arange(1, 6, dtype=np.int32), np.arange(-1, 4, dtype=np.int32)
    for _ in range(steps):
        item = ForwardItem(cache, tokens, parents, np.arange(4, dtype=np.int32))
        (rows,) = target.forward([item])
        accepted += rows.argmax(1) == tokens[1:]
        cache.truncate(cache.length - 4)
    for count, rate in zip(accepted, (*rates, rates[-1]), strict=True):
        assert abs(count / steps - rate) <= 5 * np.sqrt(rate * (1 - rate) / steps)


def test_a_recorded_profile_by_its_name(tiny: ModelSource, capsys: pytest.CaptureFixture[str]) -> None:
    line = "bench --synthetic -m tiny:q4_0 -md tiny:q4_0 --acceptance qwen-coder-edit -n 40 --runs 1 -t 1"
    assert main([*line.split(), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {run["acceptance"] for run in runs} == {"qwen-coder-edit"}
    assert max(run["mean_acceptance_length"] for run in runs) > 3.0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-m tiny:q4_0 --acceptance 0.5,x", "--acceptance"),
        ("-m tiny:q4_0 --acceptance qwen-coder-cod", "did you mean 'qwen-coder-code'"),
        ("-m tiny:q4_0 --runs 0", "--runs"),
        ("-m tiny:q4_0 -n 1", "-n"),
        ("-m tiny:q4_0 --workload chat", "--workload"),
        ("-m other", "'other'"),
        ("-m tiny:q4_0 -md tiny:q5", "'q5'"),
    ],
)
def test_bad_input_is_told_in_one_line(
    tiny: ModelSource, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert main(["bench", "--synthetic", *line.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert words in shown.err
