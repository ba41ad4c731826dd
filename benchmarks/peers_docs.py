"""Write what benchmarks/peers.py measured into results/peers.md.

    python benchmarks/peers.py …
    python benchmarks/peers_docs.py

The source is benchmarks/results/peers.json. Files in the same folder whose names begin alike hold what other
machines measured; each has a section between markers of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.bench.report import markdown_table, put_sections
from peers import LOOPED, OWN, RESULT, rows, summary

DOCUMENT = RESULT.with_suffix(".md")


def main() -> None:
    put_sections(DOCUMENT, RESULT, section)


def section(result: Mapping[str, Any]) -> str:
    """The document of peers.py as a paragraph, a table and the target."""
    settings, machine = result["settings"], result["machine"]
    peers = {name: info for name, info in result["engines"].items() if name != OWN}
    versions = "; ".join(f"{name} is {info['package']} {info['version']}" for name, info in peers.items())
    tried = "; ".join(
        f"of {name} {', '.join(s for s in info['settings'] if s != 'plain')}" for name, info in peers.items()
    )
    looped = " and ".join(name for name in peers if name in LOOPED)
    loop = f" {looped} gives passes only: its speculation is our own greedy loop." if looped else ""
    return "\n".join(
        [
            f"Written by `benchmarks/peers_docs.py`: {' and '.join(settings['models'])}, {machine['cpu']}, "
            f"{settings['threads']} threads, {settings['n']} tokens, {settings['limit']} prompts of a "
            f"workload, runs of each: {settings['runs']}. Tokens per second at temperature 0, without "
            f"prefill. {versions}. Tried on a prompt of each workload, the best one measured on all: "
            f"{tried}.{loop}",
            "",
            markdown_table(rows(result)),
            "",
            "```text",
            summary(result),
            "```",
        ]
    )


if __name__ == "__main__":
    main()
