"""`outrider bench` in-process, on toy models: the document, the table, identity, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import machine, report, runner
from outrider.bench.interleaved import run_interleaved
from outrider.cli.main import main
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.verifiers.coupled import CoupledVerifier

pytestmark = pytest.mark.usefixtures("toy_engine")


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = machine.probe
    monkeypatch.setattr(machine, "probe", lambda: probe(0.005))


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    rows = [("a", "one", "the quick brown fox"), ("b", "two", "over the lazy"), ("c", "one", "def self")]
    lines = [json.dumps({"id": i, "workload": w, "prompt": p}) for i, w, p in rows]
    path.write_text("\n".join(lines), "utf-8")
    return path


@pytest.fixture
def bench(target_file: Path, workload: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str) -> tuple[int, str, str]:
        status = main(["bench", "-m", str(target_file), "--workload", str(workload), "-n", "12", *args])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_the_document(bench: Any, draft_file: Path) -> None:
    status, out, _ = bench("-md", str(draft_file), "--runs", "2", "--json")
    assert status == 0
    document = json.loads(out)
    assert document.keys() == {
        *("machine", "models", "settings", "workloads", "geomean", "geomean_by_temperature"),
    }
    assert [(w["workload"], w["prompts"]) for w in document["workloads"]] == [("one", 2), ("two", 1)]
    for workload in document["workloads"]:
        assert list(workload["methods"]) == ["none", "suffix", "draft_model", "auto"]
        assert workload["temperature"] == 0.0
        for method, m in workload["methods"].items():
            assert m.keys() >= {
                *("speedup", "speedup_ci", "tokens_per_s", "ttft_ms", "tpot_ms", "acceptance_rate"),
                *("mean_acceptance_length", "block_efficiency", "identical", "accepted_per_pos", "seconds"),
            }
            parts = m["seconds"]
            assert sum(v for k, v in parts.items() if k != "total") == pytest.approx(parts["total"], rel=0.05)
            assert m["tokens"] == 12 * m["runs"]
            assert len(m["ratios"]) == len(m["speculation"]) == workload["prompts"]
            assert all(m["speculation"].values())
            assert (m.keys() >= {"predicted_speedup", "measured_speedup", "steps"}) == (method == "auto")
            assert m["identical"] is True
            assert m["speedup_ci"][0] <= m["speedup"] * 1.0001
            assert (m["speedup"], m["speedup_ci"]) == (1.0, [1.0, 1.0]) or method != "none"
        assert workload["methods"]["draft_model"]["acceptance_rate"] is not None
        assert workload["methods"]["none"]["acceptance_rate"] is None
    assert document["geomean"]["none"] == 1.0
    assert document["geomean_by_temperature"] == {"0": document["geomean"]}
    assert document["settings"]["num_speculative_tokens"] == 16
    assert document["settings"]["temperatures"] == [0.0]
    assert set(document["models"]) == {"target", "draft"}
    assert document["machine"]["probe"]["before"]["read_gb_per_s"] > 0


def test_the_table(bench: Any) -> None:
    status, out, _ = bench(
        "--methods", "ngram", "--draft", "3", "--temp", "0.6", "--seed", "4", "--limit", "1"
    )
    assert status == 0
    assert "speed-up" in out
    assert "probe:" in out
    assert "Geometric mean over workloads: none ×1.00, ngram" in out
    assert "temperature 0.6, seed 4" in out
    assert out.count(" yes") == 4


def test_markdown_has_the_same_rows(bench: Any) -> None:
    _, out, _ = bench("--runs", "1", "--json")
    document = json.loads(out)
    text = report.markdown(document)
    assert text.count("\n| ") == 2 + len(report.rows(document))
    assert len(report.rows(document)) == 6


def test_a_changed_token_is_seen_and_is_status_1(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CoupledVerifier.verify

    def broken(self: Any, draft: Any, scores: Any, sampler: Any, context: Any) -> Any:
        verdict = right(self, draft, scores, sampler, context)
        if not len(draft):
            return verdict
        return type(verdict)(tuple(range(len(draft))), verdict.next_token, "bonus")  # accepts anything

    monkeypatch.setattr(CoupledVerifier, "verify", broken)
    status, out, _ = bench("--methods", "ngram", "--prompt-lookup-max", "1", "--runs", "1", "--json")
    assert status == 1
    methods = [w["methods"] for w in json.loads(out)["workloads"]]
    assert all(m["none"]["identical"] for m in methods)
    assert not all(m["ngram"]["identical"] for m in methods)


def test_what_the_controller_did_is_of_this_workload_alone(bench: Any) -> None:
    _, out, _ = bench("--methods", "auto", "--runs", "2", "--json")
    for workload in json.loads(out)["workloads"]:
        auto = workload["methods"]["auto"]
        assert sum(auto["steps"].values()) <= auto["tokens"]
        assert sum(auto["steps"].values()) * auto["block_efficiency"] == pytest.approx(auto["tokens"])


def test_several_temperatures(bench: Any) -> None:
    status, out, _ = bench("--methods", "ngram", "--temps", "0, 0.9,0", "--runs", "1", "--json")
    assert status == 0
    document = json.loads(out)
    assert [(w["workload"], w["temperature"]) for w in document["workloads"]] == [
        *(("one", 0.0), ("one", 0.9), ("two", 0.0), ("two", 0.9)),
    ]
    assert document["settings"]["temperatures"] == [0.0, 0.9]
    assert set(document["geomean_by_temperature"]) == {"0", "0.9"}
    text = report.text(document)
    for words in (
        "one, T 0 ",
        "two, T 0.9",
        "temperatures 0, 0.9",
        "At temperature 0.9: none ×1.00, ngram",
    ):
        assert words in text


def test_workloads_during_which_the_machine_changed_are_named(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([8.0, 8.1, 4.0])  # GB/s before, between and after the two workloads
    monkeypatch.setattr(machine, "probe", lambda: {"read_gb_per_s": next(speeds), "gflop_per_s": 2.0})
    _, out, _ = bench("--methods", "ngram", "--runs", "1", "--json")
    document = json.loads(out)
    assert report.unsteady(document) == ["two (51%)"]
    assert document["machine"]["probe"]["steady"] is False
    assert "moved during two (51%)" in report.text(document)


def test_a_file_gets_the_document_and_the_screen_the_table(bench: Any, tmp_path: Path) -> None:
    place = tmp_path / "found.json"
    status, out, _ = bench("--methods", "none", "--runs", "1", "--json", str(place))
    assert status == 0
    assert "tokens/pass" in out
    document = json.loads(place.read_text("utf-8"))
    assert out.strip() == report.text(document).strip()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--methods", "ngarm"], ["'ngarm'", "did you mean 'ngram'"]),
        (["--methods", "draft_model"], ["-md"]),
        (["--methods", "ngram", "-md", "x"], ["-md", "draft_model"]),
        (["--runs", "0"], ["--runs", "0"]),
        (["--limit", "0"], ["--limit", "0"]),
        (["--seeds", "0"], ["--seeds", "0"]),
        (["--draft", "0"], ["--draft", "0"]),
        (["-n", "0"], ["-n", "0"]),
        (["--temp", "nan"], ["temperature"]),
        (["--workload", "no-such"], ["'no-such'", "chat, reasoning, code, edit, summary, extract"]),
        (["--temps", "0,warm"], ["--temps", "'warm'"]),
        (["--temps", ""], ["--temps", "''"]),
        (["--temps", "0,-1"], ["temperature"]),
        (["--temps", "0,0.7", "--temp", "0.7"], ["--temp", "--temps"]),
        (["--json", "."], ["--json", "'.'"]),
        (["--json", "no/such/file.json"], ["--json", "'no/such/file.json'"]),
        (["--plot", "."], ["--plot", "'.'"]),
        (["--plot", "no/such/folder.html"], ["--plot", "'no/such/folder.html'"]),
        (["-md", "absent.gguf"], ["absent.gguf"]),
    ],
)
def test_bad_input(bench: Any, args: list[str], words: list[str]) -> None:
    status, out, err = bench(*args)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize("flag", ["--plot", "--temps", "--seeds"])
def test_flags_that_do_not_apply_to_a_cost_curve(
    flag: str, target_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "-m", str(target_file), "--cost-curve", flag, "0"]) == 2
    assert flag in capsys.readouterr().err


def test_each_prompt_is_measured_with_several_seeds(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int | None]] = []

    def watched(methods: Any, prompt: Any, params: SamplingParams, *turns: Any) -> Any:
        asked.append((params.temperature, params.seed))
        return run_interleaved(methods, prompt, params, *turns)

    monkeypatch.setattr(runner, "run_interleaved", watched)
    status, out, _ = bench(
        *("--methods", "ngram", "--runs", "2", "--seeds", "2", "--temps", "0,0.7", "--seed", "5", "--json")
    )
    assert status == 0
    one = [(0.0, 5), (0.0, 7)], [(0.7, 5), (0.7, 7), (0.7, 1005), (0.7, 1007)]
    two = [(0.0, 6)], [(0.7, 6), (0.7, 1006)]
    assert asked == [text for cell in (*one, *two) for text in 2 * cell]
    document = json.loads(out)
    assert document["settings"]["seeds"] == 2
    assert [(w["prompts"], list(w["methods"]["ngram"]["ratios"])) for w in document["workloads"]] == [
        *((2, ["a", "c"]), (2, ["a", "c", "a #2", "c #2"]), (1, ["b"]), (1, ["b", "b #2"])),
    ]


def test_two_texts_with_one_name_are_refused(target_file: Path, tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "w.jsonl"
    rows = [{"id": i, "workload": "w", "prompt": "the"} for i in ("a", "a #2")]
    place.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    args = ["bench", "-m", str(target_file), "--workload", str(place), "--temp", "0.7", "--seeds"]
    for unread in ([], ["-m", "absent.gguf"]):  # no model is looked for before
        assert main([*args, "2", *unread]) == 2
        assert "'a #2'" in capsys.readouterr().err
    assert main([*args, "1", "-n", "4", "--runs", "1"]) == 0


def test_two_prompts_with_one_id_are_refused(bench: Any, workload: Path) -> None:
    status, _, err = bench("--workload", str(workload))
    assert status == 2
    assert "'a'" in err
