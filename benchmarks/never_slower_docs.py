"""Writes the results of benchmarks/never_slower.py into results/never_slower.md and the README's table.

    python benchmarks/never_slower.py …
    python benchmarks/never_slower_docs.py

The source is benchmarks/results/never_slower.json. Files never_slower*.json in the same folder are from
other machines. Each file has its own section, between markers of its name. What `never_slower.py --short`
found, short_texts.json, goes into results/short_texts.md in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import never_slower_short
from never_slower import RESULTS, rows, summary
from outrider.bench.report import markdown_table, markers, put_into, put_sections

DOCUMENT = RESULTS / "never_slower.md"
SHORT_DOCUMENT = RESULTS / "short_texts.md"
README = RESULTS.parents[1] / "README.md"
MODELS = {
    "smollm2": "the 135M alone",
    "qwen": "the 1.5B with lookups alone",
    "pair": "the 1.5B with lookups and the 0.5B as its draft",
}


# The README's rows: cells of the full table that show where speculation pays and where it does not.
SHOWN = {
    ("pair", "0", "edit"): "copying with small changes",
    ("pair", "0", "extract"): "extraction to JSON",
    ("pair", "0", "code"): "writing code",
    ("pair", "0.7", "chat"): "chat",
    ("smollm2", "0.7", "chat"): "chat",
    ("smollm2", "1.5", "random text"): "random text",
}
DRAFTERS = {"pair": "1.5B, lookups and a 0.5B draft", "smollm2": "135M, lookups only"}


def main() -> None:
    put_sections(DOCUMENT, RESULTS / "never_slower.json", section)
    put_sections(SHORT_DOCUMENT, RESULTS / "short_texts.json", short_section)
    result = json.loads((RESULTS / "never_slower.json").read_text("utf-8"))
    put_into(README, *markers("speedups"), readme_table(result))


def readme_table(result: Mapping[str, Any]) -> str:
    """The rows SHOWN, with tokens per second of plain decoding and of `auto`."""
    found = {(c["models"], c["temperature"], c["workload"]): c for c in result["cells"]}
    lines = [
        [
            "task",
            "target and drafters",
            "temperature",
            "plain tok/s",
            "Outrider tok/s",
            "speed-up",
            "same tokens",
        ]
    ]
    for cell, task in SHOWN.items():
        methods = found[cell]["methods"]
        plain, auto = methods["none"], methods["auto"]
        rates = [f"{m['tokens_per_s']:.0f}" for m in (plain, auto)]
        same = "yes" if auto["identical"] else "NO"
        lines.append([task, DRAFTERS[cell[0]], cell[1], *rates, f"×{auto['speedup']:.2f}", same])
    machine = result["machine"]
    note = f"{machine['cpu']}, {machine['cores']} cores; answers of up to {result['settings']['n']} tokens."
    return f"{markdown_table(lines)}\n\n{note}"


def section(result: Mapping[str, Any]) -> str:
    """The document of never_slower.py as a paragraph, a table and the targets."""
    found = {(c["models"], c["temperature"], c["workload"]): c for c in result["cells"]}
    settings, machine = result["settings"], result["machine"]
    models = "; ".join(f"`{name}` is {MODELS[name]}" for name in dict.fromkeys(c[0] for c in found))
    tried = ", ".join(settings["fixed"]) or "all fixed settings"
    return "\n".join(
        [
            f"Written by `benchmarks/never_slower_docs.py`: {machine['cpu']}, {machine['cores']} cores, up "
            f"to {settings['n']} tokens; {settings['limit']} prompts of a workload, runs of each: "
            f"{settings['runs']}. {models}. `best fixed` is the best one of {tried}. `drift` is how far the "
            "probe moved, `same` says that all texts were plain decoding's.",
            "",
            markdown_table(rows(found)),
            "",
            "```text",
            summary(result["targets"]),
            "```",
        ]
    )


def short_section(result: Mapping[str, Any]) -> str:
    """The document of `never_slower.py --short` as a paragraph, a table and the targets."""
    found: dict[tuple[str, ...], Any] = {
        (c["models"], c["temperature"], c["workload"]): c for c in result["cells"]
    }
    settings, machine = result["settings"], result["machine"]
    return "\n".join(
        [
            f"Written by `benchmarks/never_slower_docs.py`: {machine['cpu']}, {machine['cores']} cores; "
            f"{settings['limit'] or never_slower_short.USUAL_LIMIT} prompts of a kind, "
            f"answers of up to {settings['n']} tokens, runs of each: {settings['runs']}. "
            "`auto` says what the controller knew (`warm`: it had learned "
            "from the texts before; `cold`: each text is the first of its process) and the cap on draft "
            "tokens. The slowest text has its speed-up, and in parentheses what that may be but for the "
            "noise: how far two plain runs of the same text came apart. `best fixed` is the best fixed "
            "setting with the same cap.",
            "",
            markdown_table(never_slower_short.rows(found)),
            "",
            "```text",
            summary(result["targets"]),
            "```",
        ]
    )


if __name__ == "__main__":
    main()
