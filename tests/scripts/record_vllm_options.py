"""Records what an installed vLLM takes, for tests that run without it:

    OUTRIDER_VLLM_PYTHON=…/bin/python python tests/scripts/record_vllm_options.py

It writes tests/data/vllm/VERSION.json: the flags of its server and the keys of `speculative_config`.
"""

from __future__ import annotations

import json
from pathlib import Path

from outrider.engines.vllm.installed import Installed, installed

FOLDER = Path(__file__).resolve().parents[1] / "data" / "vllm"
MOST_CHOICES = 40  # longer lists are of models and parsers, which no test needs


def record(found: Installed, folder: Path = FOLDER) -> Path:
    """Write the file, and return it."""
    document = {
        "version": found.version,
        "flags": {
            name: {"dest": flag.dest, "takes": flag.takes, "choices": _short(flag.choices)}
            for name, flag in sorted(found.flags.items())
        },
        "speculative": {key: value and list(value) for key, value in found.speculative.items()},
        "request_fields": sorted(found.request_fields),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found.version.partition('+')[0]}.json"
    lines = [
        f"{json.dumps(key)}: {_rows(value) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in document.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _short(choices: tuple[str, ...] | None) -> list[str] | None:
    return None if choices is None or len(choices) > MOST_CHOICES else list(choices)


def _rows(table: dict[str, object]) -> str:
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()) + "\n}"


if __name__ == "__main__":
    print(record(installed()))
