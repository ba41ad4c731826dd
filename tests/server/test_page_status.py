"""The data of the web page's strip: the last steps and the cost curve, as the engine reports them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider.decoding.types import StepRecord
from outrider.server.engine.async_engine import ServerEngine
from outrider.server.engine.stats import RECENT, EngineStats, Totals
from tests.server.engine_support import read, request, serve, toy_pipeline


def stats_after(target: Path, speculative: dict[str, Any] | str) -> EngineStats:
    async def client(engine: ServerEngine) -> EngineStats:
        await read(engine.submit([request("a", (1, 2, 3, 1, 2, 3), max_tokens=60)]))
        return engine.stats

    return serve(ServerEngine(toy_pipeline(target, speculative)), client)


def test_the_controllers_cost_curve_and_the_last_steps(target_file: Path, draft_file: Path) -> None:
    stats = stats_after(target_file, {"method": "auto", "model": str(draft_file)})
    assert len(stats.pass_seconds) == 32
    assert stats.pass_seconds[0] > 0
    assert all(a <= b for a, b in pairwise(stats.pass_seconds))
    assert 0 < len(stats.recent) <= RECENT
    assert all(accepted <= drafted for drafted, accepted in stats.recent)
    if stats.target_passes <= RECENT:
        assert sum(drafted for drafted, _ in stats.recent) == stats.drafts.num_draft_tokens
        assert sum(accepted for _, accepted in stats.recent) == stats.drafts.num_accepted_tokens


def test_a_controller_that_measures_nothing_has_no_curve(target_file: Path) -> None:
    stats = stats_after(target_file, "none")
    assert stats.pass_seconds == ()
    assert {drafted for drafted, _ in stats.recent} == {0}


def test_the_last_steps_alone_are_kept() -> None:
    totals = Totals()
    for count in range(RECENT + 3):
        totals.record(StepRecord("ngram", count, count // 2, 1, 0.0, 0.1, 0.0))
    recent = totals.snapshot().recent
    assert recent[0] == (3, 1)
    assert recent[-1] == (RECENT + 2, (RECENT + 2) // 2)
