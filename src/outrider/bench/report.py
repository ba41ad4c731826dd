"""A bench document as a table for a terminal or as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BASELINE = "none"
UNSTEADY = 0.1  # a probe that moved by more than this casts doubt on what lies between
HEADER = (
    "workload",
    "method",
    "tok/s",
    "speed-up",
    "95% interval",
    "accepted",
    "length",
    "tokens/pass",
    "same",
)


def temperatures(document: dict[str, Any]) -> list[float]:
    """Those that were measured; documents of one may lack the list."""
    settings = document["settings"]
    found: list[float] = settings.get("temperatures") or [settings["temperature"]]
    return found


def name_of(document: dict[str, Any], workload: dict[str, Any]) -> str:
    """A workload's name, with its temperature where several were measured."""
    name: str = workload["workload"]
    return f"{name}, T {workload['temperature']:g}" if len(temperatures(document)) > 1 else name


def rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each workload and method, as text, without the header."""
    found: list[tuple[str, ...]] = []
    for workload in document["workloads"]:
        for method, m in workload["methods"].items():
            low, high = m["speedup_ci"]
            found.append(
                (
                    name_of(document, workload),
                    method,
                    f"{m['tokens_per_s']:.1f}",
                    f"×{m['speedup']:.2f}",
                    f"{low:.2f}–{high:.2f}",
                    "–" if m["acceptance_rate"] is None else f"{m['acceptance_rate']:.0%}",
                    "–" if m["mean_acceptance_length"] is None else f"{m['mean_acceptance_length']:.2f}",
                    "–" if m["block_efficiency"] is None else f"{m['block_efficiency']:.2f}",
                    "yes" if m["identical"] else "NO",
                )
            )
    return found


def text(document: dict[str, Any]) -> str:
    """The table, what it was measured on, and the geometric means."""
    return "\n".join([*about(document), "", *_aligned([HEADER, *rows(document)]), "", *_ending(document)])


def markdown(document: dict[str, Any]) -> str:
    """The same for a document in Markdown."""
    notes = "\n".join(f"- {line}" for line in about(document))
    return "\n\n".join([notes, markdown_table([HEADER, *rows(document)]), means(document)])


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Rows of text, the header first, as a table in Markdown."""
    header, *rest = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rest])


def about(document: dict[str, Any]) -> list[str]:
    """What the numbers were measured on, in lines."""
    on, models, settings = document["machine"], document["models"], document["settings"]
    probe = on["probe"]
    steady = "steady" if probe["steady"] else f"moved by {probe['drift']:.0%}: other load, measure again"
    before, after = probe["before"], probe["after"]
    several = temperatures(document)
    warmth = f"temperature{'s' if len(several) > 1 else ''} {', '.join(f'{t:g}' for t in several)}"
    return [
        f"machine: {on['cpu']}, {on['cores']} cores",
        f"probe: {before['read_gb_per_s']:.1f} → {after['read_gb_per_s']:.1f} GB/s read, "
        f"{before['gflop_per_s']:.1f} → {after['gflop_per_s']:.1f} Gflop/s on one thread ({steady})",
        *(f"{role}: {name}" for role, name in models.items()),
        f"{settings['max_tokens']} tokens, {warmth}, seed {settings['seed']}, "
        f"draft of up to {settings['num_speculative_tokens']}, {settings['runs']} interleaved runs",
    ]


def unsteady(document: dict[str, Any]) -> list[str]:
    """Workloads during which the machine's speed moved, in words."""
    return [
        f"{name_of(document, w)} ({w['drift']:.0%})"
        for w in document["workloads"]
        if w.get("drift", 0.0) > UNSTEADY
    ]


def means(document: dict[str, Any]) -> str:
    """The geometric means, in a sentence."""
    values = ", ".join(f"{method} ×{value:.2f}" for method, value in document["geomean"].items())
    return f"Geometric mean over workloads: {values}. Decoding only, without the prompt's prefill."


def _ending(document: dict[str, Any]) -> list[str]:
    lines = [means(document)]
    if len(temperatures(document)) > 1:
        for warmth, by_method in document["geomean_by_temperature"].items():
            lines.append(
                f"At temperature {warmth}: " + ", ".join(f"{m} ×{v:.2f}" for m, v in by_method.items())
            )
    if moved := unsteady(document):
        lines.append(f"The probe moved during {', '.join(moved)}: other load, measure those again.")
    return lines


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    cells = [
        [
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in table
    ]
    return ["  ".join(row).rstrip() for row in cells]


def put_between(text: str, begin: str, end: str, body: str, name: str) -> str:
    """`text`, the document `name`, with what is between two markers replaced. Raises SystemExit when it has
    no markers."""
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not pattern.search(text):
        raise SystemExit(f"{name} has no {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def put_into(document: Path, begin: str, end: str, body: str) -> None:
    """Replace what is between two markers of a file. Raises SystemExit when it has no markers."""
    text = document.read_text("utf-8")
    document.write_text(put_between(text, begin, end, body, document.name), "utf-8")


def markers(name: str) -> tuple[str, str]:
    """What is before and behind the section of a results file."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def put_sections(document: Path, place: Path, section: Callable[[Mapping[str, Any]], str]) -> None:
    """Put what `section` makes of a results file into a document, and what it makes of those beside it whose
    names begin alike, as other machines have measured; each has `markers` of its name."""
    for found in sorted(place.parent.glob(f"{place.stem}*.json")):
        put_into(document, *markers(found.stem), section(json.loads(found.read_text("utf-8"))))
