"""benchmarks/serve.py on a toy: every token of every answer is counted, and the tables have the results."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.http_support import Running, running, toy_pipeline
from tests.support.benchmarks import script


@pytest.fixture(scope="module")
def modules() -> Any:
    """serve_parts and serve_load."""
    return SimpleNamespace(parts=script("serve_parts"), load=script("serve_load"))


def started(server: Running) -> Any:
    """A server, as serve.py sees one that it started."""
    fields = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return SimpleNamespace(name="toy", url=server.url, peer=False, fields=fields, about="", log=str)


@pytest.fixture
def served(server: Running) -> Any:
    """The shared toy server."""
    return started(server)


@pytest.fixture
def slow(roomy_file: Path) -> Iterator[Running]:
    """A toy server whose tokens come one by one: the shared one may have written all before any is read."""
    with running(toy_pipeline(roomy_file, slow=True)) as made:
        yield made


def test_load_counts_every_token(modules: Any, slow: Running) -> None:
    served = started(slow)
    modules.parts.warm_up(served)
    before = slow.engine.stats.finished
    found = modules.parts.load(served, clients=3, limit=1, max_tokens=8, salt="a")
    ended = {k: n - before[k] for k, n in slow.engine.stats.finished.items()}
    assert found["requests"] == found["answered"] == 6 == ended["length"] + ended["stop"]
    assert 0 < found["tokens"] <= 48
    assert len(found["texts"]) == 6
    assert 0 < found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"] <= found["seconds"] * 1e3
    assert found["tpot_ms"]["p50"] > 0
    again = modules.parts.load(served, clients=1, limit=1, max_tokens=8, salt="a")
    assert again["texts"] == found["texts"]
    assert again["tokens"] == found["tokens"]
    assert modules.parts.load(served, 1, 1, 8, "b")["texts"].keys().isdisjoint(found["texts"])


def test_prefill_and_prefix(modules: Any, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "STREAMS": 2,
        "LONG_PROMPT": 64,
        "SYSTEM_PROMPT": 48,
        "WATCHED": 0.3,
        "SETTLED": 4,
    }.items():
        monkeypatch.setattr(modules.parts, name, value)
    found = modules.parts.prefill(served, "a")
    assert found["ratio"] > 0
    assert found["before"]["tokens_per_s"] > 0
    assert found["ttft_ms"] > 0
    times = modules.parts.prefix(served, "a", repeats=2)
    assert times["first_ms"] > 0
    assert times["ratio"] > 0


def entry(load: Any, text: str, rate: float) -> dict[str, Any]:
    spread = {"p50": 1.0, "p99": 2.0, "mean": 1.5}
    return {
        **{"requests": 1, "answered": 1, "tokens": 5, "seconds": 1.0, "tokens_per_s": rate, "about": ""},
        **{"ttft_ms": spread, "itl_ms": spread, "tpot_ms": spread, "texts": {"a": text}},
        **{"probe": {"read_gb_per_s": 9.0}, "drift": 0.01},
    }


def test_the_tables(modules: Any) -> None:
    load = modules.load
    args = argparse.Namespace(rounds=2, clients=[1, 4], parts=["load", "prefix"])
    keys = load.turns(args, ["outrider", "outrider, plain"])
    assert keys[:2] == [("load", "outrider", "1", "0"), ("load", "outrider, plain", "1", "0")]
    assert len(keys) == len(set(keys)) == 12
    assert keys[6][1] == "outrider, plain", "the other one begins in the second round"
    found = {
        key: entry(load, "same", 10.0 + n) if key[0] == "load"
        else {"first_ms": 100.0, "second_ms": 5.0, "ratio": 0.05, "about": "", "drift": 0.0, "probe": {}}
        for n, key in enumerate(keys)
    }  # fmt: skip
    summary = load.summary(found, args)
    assert summary["identical"]
    assert (summary["lost"], summary["compared"], len(summary["load"])) == (0, 4, 4)
    about = {
        "machine": {"cpu": "a processor", "cores": 2},
        "settings": {"model": "m", "threads": 2, "slots": 8, "max_tokens": 8, "limit": 1},
    }
    text = load.rendered({**about, **summary})
    assert "| 1 | outrider | 13.5 |" in text, "the median of 10 and 17"
    assert "| outrider | 100 | 5 | 0.050 |" in text
    found[keys[0]] = entry(load, "other", 10.0)
    changed = load.summary(found, args)
    assert not changed["identical"]
    assert "NOT THE SAME" in load.rendered({**about, **changed})
    found[keys[0]]["answered"] = 0
    assert load.summary(found, args)["lost"] == 1


def test_the_document_has_the_marks(modules: Any) -> None:
    text = modules.load.DOCUMENT.read_text("utf-8")
    assert all(text.count(mark) == 1 for mark in modules.load.MARKS)
