"""benchmarks/engine_process.py: an engine that answers line by line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.benchmarks import script

EngineProcess = script("engine_process").EngineProcess
DOUBLES = """
import json, sys
print(json.dumps({"settings": ["plain"]}), flush=True)
print("said beside it", file=sys.stderr)
for line in sys.stdin:
    if line.strip() == "null":
        print("no number", file=sys.stderr)
        sys.exit(4)
    print(json.dumps(2 * json.loads(line)), flush=True)
"""


def test_it_answers_until_it_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = EngineProcess("doubles", [sys.executable, "-c", DOUBLES], log)
    assert engine.info == {"settings": ["plain"]}
    assert engine.ask(4) == 8
    assert engine.ask(["a", 1.5]) == ["a", 1.5, "a", 1.5]
    engine.close()
    assert log.read_text("utf-8") == "said beside it\n"


@pytest.mark.parametrize("kept", [False, True])
def test_an_end_without_an_answer_is_reported_with_its_reason(tmp_path: Path, kept: bool) -> None:
    engine = EngineProcess("doubles", [sys.executable, "-c", DOUBLES], tmp_path / "log" if kept else None)
    with pytest.raises(SystemExit, match="doubles stopped with status 4: no number"):
        engine.ask(None)
