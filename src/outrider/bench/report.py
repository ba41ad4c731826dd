"""Renders a bench document as text for a terminal or as Markdown."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.bench import stats

BASELINE = "none"
UNSTEADY = 0.1  # if two probes differ by more than this share, what was measured between them is doubtful
# Texts by their tokens: (name, the first length that is too long).
LENGTHS = (("under 16", 16), ("16 to 64", 65), ("over 64", sys.maxsize))
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
    """The measured temperatures. Documents of a single one may lack the list."""
    settings = document["settings"]
    found: list[float] = settings.get("temperatures") or [settings["temperature"]]
    return found


def name_of(document: dict[str, Any], workload: dict[str, Any]) -> str:
    """A workload's name, with its temperature if several were measured."""
    name: str = workload["workload"]
    return f"{name}, T {workload['temperature']:g}" if len(temperatures(document)) > 1 else name


def rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each workload and method, in the columns of HEADER."""
    found: list[tuple[str, ...]] = []
    for workload in document["workloads"]:
        for method, m in workload["methods"].items():
            found.append(
                (
                    name_of(document, workload),
                    method,
                    f"{m['tokens_per_s']:.1f}",
                    f"×{m['speedup']:.2f}",
                    interval(m),
                    "–" if m["acceptance_rate"] is None else f"{m['acceptance_rate']:.0%}",
                    "–" if m["mean_acceptance_length"] is None else f"{m['mean_acceptance_length']:.2f}",
                    "–" if m["block_efficiency"] is None else f"{m['block_efficiency']:.2f}",
                    "yes" if m["identical"] else "NO",
                )
            )
    return found


def has_interval(method: Mapping[str, Any]) -> bool:
    """Whether a method's speed-up has an interval. A single pair of runs has none, and neither has plain
    decoding against itself."""
    low, high = method["speedup_ci"]
    return bool(low < high)


def interval(method: Mapping[str, Any]) -> str:
    """The 95% interval of a method's speed-up as text; a dash when there is none."""
    if not has_interval(method):
        return "–"
    low, high = method["speedup_ci"]
    digits = 2 if f"{low:.2f}" != f"{high:.2f}" else 3
    return f"{low:.{digits}f}–{high:.{digits}f}"


def text(document: dict[str, Any]) -> str:
    """The machine and settings, the table and the geometric means, for a terminal."""
    return "\n".join([*about(document), "", *_aligned([HEADER, *rows(document)]), "", *_ending(document)])


def markdown(document: dict[str, Any]) -> str:
    """The same as Markdown."""
    notes = "\n".join(f"- {line}" for line in about(document))
    return "\n\n".join([notes, markdown_table([HEADER, *rows(document)]), means(document)])


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of these rows; the first one is the header."""
    header, *rest = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rest])


def about(document: dict[str, Any]) -> list[str]:
    """The machine, the models and the settings, one line each."""
    on, models, settings = document["machine"], document["models"], document["settings"]
    probe = on["probe"]
    steady = "steady" if probe["steady"] else f"moved by {probe['drift']:.0%}: other load, measure again"
    before, after = probe["before"], probe["after"]
    several = temperatures(document)
    at = f"temperature{'s' if len(several) > 1 else ''} {', '.join(f'{t:g}' for t in several)}"
    return [
        f"machine: {on['cpu']}, {on['cores']} cores",
        f"probe: {before['read_gb_per_s']:.1f} → {after['read_gb_per_s']:.1f} GB/s read, "
        f"{before['gflop_per_s']:.1f} → {after['gflop_per_s']:.1f} Gflop/s on one thread ({steady})",
        *(f"{role}: {name}" for role, name in models.items()),
        f"{settings['max_tokens']} tokens, {at}, seed {settings['seed']}, "
        f"draft of up to {settings['num_speculative_tokens']}, {settings['runs']} interleaved runs",
    ]


def by_length(document: dict[str, Any], method: str) -> list[tuple[str, int, float]]:
    """(lengths in tokens, number of texts, geometric mean of their speed-ups) for each class of LENGTHS that
    some text of the document is in."""
    found: dict[str, list[float]] = {}
    for workload in document["workloads"]:
        entry = workload["methods"][method]
        for name, ratios in entry["ratios"].items():
            found.setdefault(length_class(entry["lengths"][name]), []).append(stats.median(ratios))
    return [(name, len(found[name]), stats.geomean(found[name])) for name, _ in LENGTHS if name in found]


def length_class(tokens: int) -> str:
    """The name in LENGTHS of a text of so many tokens."""
    return next(name for name, below in LENGTHS if tokens < below)


def worst(document: dict[str, Any], method: str) -> tuple[str, int, float, str]:
    """(workload and text, tokens, speed-up, what the controller said) of a method's slowest text."""
    texts = [
        (stats.median(ratios), name_of(document, workload), name, workload["methods"][method])
        for workload in document["workloads"]
        for name, ratios in workload["methods"][method]["ratios"].items()
    ]
    ratio, workload_name, name, entry = min(texts, key=lambda text: text[0])
    return f"{workload_name}, {name}", entry["lengths"][name], ratio, entry["speculation"][name]


def unsteady(document: dict[str, Any]) -> list[str]:
    """Names of the workloads during which the machine's speed changed by more than UNSTEADY."""
    return [
        f"{name_of(document, w)} ({w['drift']:.0%})"
        for w in document["workloads"]
        if w.get("drift", 0.0) > UNSTEADY
    ]


def means(document: dict[str, Any]) -> str:
    """The geometric means as a sentence."""
    values = ", ".join(f"{method} ×{value:.2f}" for method, value in document["geomean"].items())
    return f"Geometric mean over workloads: {values}. Decoding only, without the prompt's prefill."


def _ending(document: dict[str, Any]) -> list[str]:
    lines = [means(document)]
    for method in document["geomean"]:
        if method == BASELINE or "lengths" not in document["workloads"][0]["methods"][method]:
            continue  # (documents of older versions have no lengths)
        classes = by_length(document, method)
        each = ", ".join(f"{name} ×{value:.2f} ({count})" for name, count, value in classes)
        where, tokens, ratio, reason = worst(document, method)
        lines.append(f"{method}, by tokens of a text (texts): {each}.")
        lines.append(f"  slowest: {where}, {tokens} tokens, ×{ratio:.2f}: {reason}")
    if len(temperatures(document)) > 1:
        for temperature, by_method in document["geomean_by_temperature"].items():
            lines.append(
                f"At temperature {temperature}: " + ", ".join(f"{m} ×{v:.2f}" for m, v in by_method.items())
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
    """`text` with everything between the two markers replaced by `body`. Raises SystemExit, which names the
    document `name`, when the markers are missing."""
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not pattern.search(text):
        raise SystemExit(f"{name} has no {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def put_into(document: Path, begin: str, end: str, body: str) -> None:
    """Replace everything between two markers of a file. Raises SystemExit when they are missing."""
    text = document.read_text("utf-8")
    document.write_text(put_between(text, begin, end, body, document.name), "utf-8")


def markers(name: str) -> tuple[str, str]:
    """The lines that begin and end the section of a results file in a document."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def put_sections(document: Path, place: Path, section: Callable[[Mapping[str, Any]], str]) -> None:
    """Update the sections of a document that are generated from results files.

    document: has a pair of `markers` for each results file.
    place:    a results file NAME.json. Files NAME*.json in its folder, from other machines, are rendered too.
    section:  makes the Markdown of one results file.
    """
    for found in sorted(place.parent.glob(f"{place.stem}*.json")):
        put_into(document, *markers(found.stem), section(json.loads(found.read_text("utf-8"))))
