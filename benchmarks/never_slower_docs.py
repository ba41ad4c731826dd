"""Write what benchmarks/never_slower.py measured into results/never_slower.md and the README's table.

    python benchmarks/never_slower.py …
    python benchmarks/never_slower_docs.py

The source is benchmarks/results/never_slower.json. Files in the same folder whose names begin alike hold what
other machines measured; each has a section between markers of its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from never_slower import RESULTS, rows, summary
from outrider.bench.report import markdown_table, markers, put_into, put_sections

DOCUMENT = RESULTS / "never_slower.md"
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


if __name__ == "__main__":
    main()
