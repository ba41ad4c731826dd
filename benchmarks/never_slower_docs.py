"""Put what benchmarks/never_slower.py measured into docs/bench.md, between its markers.

    python benchmarks/never_slower.py …
    python benchmarks/never_slower_docs.py

It is taken from benchmarks/results/never_slower.json, and what other machines measured from the files beside
it whose names begin alike; each has markers of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from never_slower import RESULTS, rows, summary
from outrider.bench.report import markdown_table, put_sections

DOCUMENT = RESULTS.parents[1] / "docs" / "bench.md"
MODELS = {
    "smollm2": "the 135M alone",
    "qwen": "the 1.5B with lookups alone",
    "pair": "the 1.5B with lookups and the 0.5B as its draft",
}


def main() -> None:
    put_sections(DOCUMENT, RESULTS / "never_slower.json", section)


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
