"""A bench document as a table for a terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each workload and method, as text, without the header."""
    found: list[tuple[str, ...]] = []
    for workload in document["workloads"]:
        for method, m in workload["methods"].items():
            low, high = m["speedup_ci"]
            found.append(
                (
                    workload["workload"],
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
    return "\n".join([*_about(document), "", *_aligned([HEADER, *rows(document)]), "", _means(document)])


def markdown(document: dict[str, Any]) -> str:
    """The same for a document in Markdown."""
    table = [f"| {' | '.join(row)} |" for row in [HEADER, ("---",) * len(HEADER), *rows(document)]]
    return "\n\n".join(
        ["\n".join(f"- {line}" for line in _about(document)), "\n".join(table), _means(document)]
    )


def _about(document: dict[str, Any]) -> list[str]:
    about, models, settings = document["machine"], document["models"], document["settings"]
    probe = about["probe"]
    steady = "steady" if probe["steady"] else f"moved by {probe['drift']:.0%}: other load, measure again"
    before, after = probe["before"], probe["after"]
    return [
        f"machine: {about['cpu']}, {about['cores']} cores",
        f"probe: {before['read_gb_per_s']:.1f} → {after['read_gb_per_s']:.1f} GB/s read, "
        f"{before['gflop_per_s']:.1f} → {after['gflop_per_s']:.1f} Gflop/s on one thread ({steady})",
        *(f"{role}: {name}" for role, name in models.items()),
        f"{settings['max_tokens']} tokens, temperature {settings['temperature']:g}, seed {settings['seed']}, "
        f"draft of up to {settings['num_speculative_tokens']}, {settings['runs']} interleaved runs",
    ]


def _means(document: dict[str, Any]) -> str:
    means = ", ".join(f"{method} ×{value:.2f}" for method, value in document["geomean"].items())
    return f"Geometric mean over workloads: {means}. Decoding only, without the prompt's prefill."


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
