"""benchmarks/peers.py: the comparison, and the greedy loop for engines that offer forward passes only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench import report
from tests.support.benchmarks import script

loop, peers = script("peers_loop"), script("peers")


class Model:
    """The next token is a function of all before it; the cache must hold exactly these."""

    def __init__(self, seed: int, wrong_every: int = 0, end: int = -1) -> None:
        self.cache: list[int] = []
        self._seed, self._wrong_every, self._end = seed, wrong_every, end
        self.passes = 0

    def next(self, text: Sequence[int]) -> int:
        token = (sum((i % 5 + 1) * t for i, t in enumerate(text[-4:])) + len(text) // 3 + self._seed) % 7
        if self._wrong_every and len(text) % self._wrong_every == 0:
            return (token + 1) % 7
        return token

    def decode(self, tokens: Sequence[int], start: int, rows: int) -> list[int]:
        assert tokens
        assert start == len(self.cache)
        self.passes += 1
        self.cache += tokens
        return [self.next(self.cache[: len(self.cache) - rows + 1 + i]) for i in range(rows)]

    def truncate(self, length: int) -> None:
        assert length <= len(self.cache)
        del self.cache[length:]

    def ends(self, token: int) -> bool:
        return token == self._end


def _plainly(model: Model, prompt: list[int], most: int) -> list[int]:
    text = list(prompt)
    while len(text) - len(prompt) < most:
        text.append(model.next(text))
        if model.ends(text[-1]):
            break
    return text[len(prompt) :]


@given(
    prompt=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    most=st.integers(1, 30),
    count=st.integers(1, 6),
    wrong_every=st.integers(0, 4),
    end_and_kind=st.tuples(st.sampled_from([-1, 3]), st.sampled_from(["plain", "lookup", "draft"])),
)
def test_the_loop_gives_plain_decodings_tokens(
    prompt: list[int], most: int, count: int, wrong_every: int, end_and_kind: tuple[int, str]
) -> None:
    end, kind = end_and_kind
    target, draft = Model(1, end=end), Model(1, wrong_every)
    drafter = {
        "plain": loop.Plain,
        "lookup": lambda: loop.Lookup(count),
        "draft": lambda: loop.DraftModel(draft, count, prompt),
    }[kind]()
    tokens, seconds, drafted, accepted = loop.generate(target, prompt, most, drafter)
    assert tokens == _plainly(Model(1, end=end), prompt, most)
    assert seconds > 0
    assert 0 <= accepted <= drafted
    if kind == "draft" and not wrong_every and end == -1:
        assert accepted == drafted


def test_a_good_draft_saves_passes() -> None:
    target = Model(1)
    loop.generate(target, [1, 2, 3], 40, loop.DraftModel(Model(1), 3, [1, 2, 3]))
    assert target.passes == 1 + 10


def test_lookup_takes_the_last_occurrence_of_the_longest_end() -> None:
    text = [1, 2, 3, 9, 9, 1, 2, 3, 8, 7, 6, 1, 2, 3]
    assert loop.Lookup(2).propose(text) == [8, 7]
    assert loop.Lookup(9).propose(text) == [8, 7, 6, 1, 2, 3]
    assert loop.Lookup(2).propose([5, 2, 3, 4, 1, 2, 3]) == [4, 1]
    assert loop.Lookup(2).propose([1, 2, 3]) == []


SPEEDS = {
    ("outrider", "plain"): {"a": [20.0], "b": [20.0]},
    ("outrider", "auto"): {"a": [40.0], "b": [60.0]},
    ("x", "plain"): {"a": [10.0], "b": [30.0]},
    ("x", "draft 1"): {"a": [16.0], "b": [9.0]},
    ("x", "lookup 5"): {"a": [9.0], "b": [12.0]},
    ("y", "plain"): {"a": [5.0], "b": [5.0]},
}


def test_each_engine_goes_on_with_plain_decoding_and_its_best_speculation() -> None:
    assert peers.best_speculative(SPEEDS, "x") == "draft 1"
    assert peers.best_speculative(SPEEDS, "y") is None
    assert peers.finals(SPEEDS, ["outrider", "x", "y"]) == [
        *(("outrider", "plain"), ("outrider", "auto"), ("x", "plain"), ("x", "draft 1"), ("y", "plain")),
    ]


def test_outrider_is_compared_with_the_fastest_of_all_peers() -> None:
    row = peers.compared(SPEEDS, ["a", "b"])
    assert row["best_peer"] == "x, plain"  # faster than its speculation
    assert row["ratio"] == pytest.approx((4 * 2) ** 0.5)
    assert row["tokens_per_s"]["x, plain"] == pytest.approx(300**0.5)
    assert peers.compared(SPEEDS, ["a"])["best_peer"] == "x, draft 1"
    assert "×2.83" in peers.rows({"workloads": {"w": row}})[1]
    alone = {c: by for c, by in SPEEDS.items() if c[0] == "outrider"}
    assert "best_peer" not in peers.compared(alone, ["a"])
    assert peers.rows({"workloads": {"w": peers.compared(alone, ["a"])}})[1][-3:] == ["–"] * 3


def test_our_own_loop_is_named_in_the_table() -> None:
    row = {
        "tokens_per_s": {"ik_llama.cpp, plain": 1.0, "ik_llama.cpp, draft 3": 2.0, "llama.cpp, draft 3": 1.0}
    }
    head = peers.rows({"workloads": {"w": row}})[0]
    assert head[1:4] == ["ik_llama.cpp, plain", "ik_llama.cpp, draft 3 (loop)", "llama.cpp, draft 3"]


@pytest.mark.parametrize(("mean", "verdict"), [(2.0, "holds"), (1.98, "MISSED")])
def test_the_section_of_the_docs(mean: float, verdict: str) -> None:
    probe = {"before": {"read_gb_per_s": 20.0}, "after": {"read_gb_per_s": 25.0}, "drift": 0.25}
    engines = {
        "outrider": {"settings": ["plain", "auto"], "package": "outrider", "version": "1"},
        "ik_llama.cpp": {"settings": ["plain", "draft 1", "lookup 5"], "package": "ik", "version": "2.3"},
    }
    result = {
        "machine": {"cpu": "Some CPU", "probe": probe},
        "settings": {"models": ["t.gguf", "d.gguf"], "n": 64, "threads": 2, "limit": 3, "runs": 1},
        "engines": engines,
        "workloads": {"edit": {**peers.compared(SPEEDS, ["a", "b"]), "best_peer": "x, plain"}},
        "geomean": mean,
    }
    text = script("peers_docs").section(result)
    assert "t.gguf and d.gguf, Some CPU, 2 threads, 64 tokens, 3 prompts" in text
    assert "ik_llama.cpp is ik 2.3." in text
    assert "of ik_llama.cpp draft 1, lookup 5. ik_llama.cpp gives passes only" in text
    assert "| edit | 20.0 |" in text
    assert "| x, plain | ×2.83 |" in text
    assert "(moved by 25%)" in text
    assert f"×{mean:.2f} (target ×2: {verdict})" in text


def test_each_machines_results_have_a_section_of_their_own(tmp_path: Path) -> None:
    for name in ("peers", "peers-old", "other"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}), "utf-8")
    begin, end = report.markers("peers")
    older = report.markers("peers-old")
    document = tmp_path / "d.md"
    document.write_text(f"a\n{begin}\nx\n{end}\nb\n{older[0]}{older[1]}", "utf-8")
    report.put_sections(document, tmp_path / "peers.json", lambda result: f"of {result['name']}")
    text = f"a\n{begin}\nof peers\n{end}\nb\n{older[0]}\nof peers-old\n{older[1]}"
    assert document.read_text("utf-8") == text
    document.write_text(f"{begin}{end}", "utf-8")
    with pytest.raises(SystemExit, match="peers-old"):
        report.put_sections(document, tmp_path / "peers.json", lambda result: "")


def test_the_order_turns_back() -> None:
    both = [("a", "plain"), ("b", "plain")]
    assert list(peers.order(both, 0)) == both
    assert list(peers.order(both, 1)) == both[::-1]


def test_what_stopped_an_engine_is_reported(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho no module named numpy >&2\nexit 3\n", "utf-8")
    python.chmod(0o755)
    args = argparse.Namespace(log=None, model="m", model_draft=None, threads=1, context=8)
    with pytest.raises(SystemExit, match="someone stopped with status 3: no module named numpy "):
        peers.started("someone", str(python), args)
