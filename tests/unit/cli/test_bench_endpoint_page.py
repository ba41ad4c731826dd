"""`outrider bench --endpoint --plot`: the page has what the terminal has, and servers' words stay text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.bench import endpoint_page, endpoint_report, page_parts, plots, workloads
from outrider.bench.workloads import Item
from outrider.cli.main import main
from tests.support.fake_vllm.vllm.server import FakeVllm
from tests.support.html_page import HOSTILE, Reader, harmless

pytest.importorskip("matplotlib")


def _times(ms: float) -> dict[str, float]:
    return {"p50": ms, "p95": 2 * ms, "p99": 3 * ms}


def _server(rate: float, **more: Any) -> dict[str, Any]:
    return {
        **{"requests": 12, "tokens": 300, "seconds": 9.0, "tokens_per_s": rate},
        **{"ttft_ms": _times(50.0), "tpot_ms": _times(7.0), "itl_ms": _times(6.5)},
        **{"acceptance_rate": 0.5, "mean_acceptance_length": 2.5},
    } | more


def _document(names: list[str], *, several: bool = True) -> dict[str, Any]:
    """Of one server, or of two of them."""
    loads = [{"clients": n or None, "rate": r or None} for n, r in ((4, 0), (1, 0), (0, 0.5), (0, 2.0))]
    pair = {"speedup": 1.25, "speedup_ci": [1.1, 1.4], "throughput_ratio": 1.2, "identical": 11, "pairs": 12}
    lone = _server(80.0, acceptance_rate=None, mean_acceptance_length=None, tpot_ms=None)
    return {
        "servers": [
            {"url": name, "server": name, "model": name, "speculation": {name: name}}
            for name in names[: 1 + several]
        ],
        **{"max_tokens": 32, "runs": 2, "prompts": 6, "outrider": "9.8.7"},
        **{"command": f"outrider bench --endpoint {names[0]}", "created": "2026-01-02T03:04:05+00:00"},
        "loads": [
            load | {"servers": [_server(100.0), lone][: 1 + several]} | (pair if several else {})
            for load in loads
        ],
    }


def test_the_page_has_what_the_terminal_has() -> None:
    document = _document(["one", "two"])
    source = endpoint_page.html(document)
    found = Reader(source)
    assert found.tags["svg"] == found.tags["desc"] == 3  # speed-ups, clients, rates
    shown = endpoint_report.text(document)
    for said in (*endpoint_report.speedups(document), *endpoint_report.servers(document).values()):
        assert said in found.words
        assert said in shown
    for cell in (
        "0.5 requests/s",
        "50.0",
        "14.0",
        "50%",
        "2.50",
        "×1.25",
        "44 of 48 pairs of texts",
        "n = 12",
    ):
        assert cell in found.words
    for fact in (
        "2026-01-02T03:04:05+00:00",
        "outrider 9.8.7",
        "6 prompts, rounds of each load: 2",
        "outrider bench --e",
    ):
        assert fact in Reader(source[: source.index("<h2>")]).words
    assert "Tokens/s: 1 client: A 100.0, B 80.0; 4 clients: A" in found.words  # in order, for who cannot see
    assert "http" not in source.replace("http-equiv", "")


def test_one_server_is_compared_with_nothing() -> None:
    words = Reader(endpoint_page.html(_document(["one"], several=False))).words
    assert "1 client: A 100.0;" in words
    assert "Speed-up" not in words
    assert "pairs" not in words


def test_ids_are_unique_and_colours_are_the_pages_own() -> None:
    source = endpoint_page.html(_document(["one", "two"]))
    found = Reader(source)
    assert len(found.ids) == len(set(found.ids)) > 20
    assert {r.removeprefix("#") for r in found.references} <= set(found.ids)
    assert not any(colour in source for colour in plots.VARIABLES)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", HOSTILE)
def test_what_servers_say_stays_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_page, "curves", lambda *_: "")  # it draws nothing that a server says
    document = _document([name, name])
    assert harmless(endpoint_page.html(document))
    assert not any(not c.isprintable() for c in endpoint_report.text(document) if c != "\n")
    monkeypatch.setattr(page_parts, "escaped", str)
    assert harmless(endpoint_page.html(document)) is ("<" not in name)


def test_the_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [Item(f"i{n}", "w", f"one {n}") for n in range(2)]
    monkeypatch.setattr(workloads, "load", lambda name: items)
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    place = tmp_path / "page.html"
    draft = {"method": "ngram<script>", "num_speculative_tokens": 2}
    with FakeVllm(model="<b>tiny", speculative=draft, pace=0.001) as one, FakeVllm("<b>tiny") as other:
        line = ["bench", "--endpoint", one.url, "--against", other.url, "-n", "12", "--workload", "w"]
        assert main([*line, "--clients", "2", "--plot", str(place)]) == 0
    source = place.read_text("utf-8")
    assert harmless(source)
    assert "model &lt;b&gt;tiny" in source
    for line_shown in capsys.readouterr().out.splitlines()[-1:]:
        assert line_shown in Reader(source).words
