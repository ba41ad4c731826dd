"""What `outrider bench --endpoint` measured, as text: tables for a terminal, which its page shows too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.bench.cost_curve import aligned
from outrider.bench.plots import printable

NAMES = "AB"  # of the servers
TIMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL"}
TIMES_NOTE = "Times are milliseconds; TTFT is the time to the first text."
HEADER = (
    *("load", "", "requests", "tokens/s", "TTFT p50", "p95", "TPOT p50", "p95", "ITL p50", "p95"),
    *("accepted", "tokens a step"),
)


def text(document: Mapping[str, Any]) -> str:
    """The document for a reader."""
    lines = [f"{name}: {said}" for name, said in servers(document).items()]
    return "\n".join([*lines, "", aligned([HEADER, *rows(document)]), "", TIMES_NOTE, *speedups(document)])


def servers(document: Mapping[str, Any]) -> dict[str, str]:
    """Where and what each server is, by its name."""
    found = {}
    for name, server in zip(NAMES, document["servers"], strict=False):
        settings = ", ".join(f"{k} {v}" for k, v in server["speculation"].items())
        told = f"{server['url']}, {server['server']}, model {server['model']}"
        found[name] = printable(f"{told}; speculation: {settings}" if settings else told)
    return found


def rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each load and server, in the columns of HEADER."""
    return [
        (
            *(load_name(load), name, str(f["requests"]), f"{f['tokens_per_s']:.1f}"),
            *(_ms(f[key], p) for key in TIMES for p in ("p50", "p95")),
            "-" if f["acceptance_rate"] is None else f"{f['acceptance_rate']:.0%}",
            "-" if f["mean_acceptance_length"] is None else f"{f['mean_acceptance_length']:.2f}",
        )
        for load in document["loads"]
        for name, f in zip(NAMES, load["servers"], strict=False)
    ]


def speedups(document: Mapping[str, Any]) -> list[str]:
    """A sentence for each load of two servers."""
    found = []
    for load in document["loads"]:
        if "speedup" in load:
            low, high = load["speedup_ci"]
            found.append(
                f"{load_name(load)}: A writes {load['speedup']:.2f} times as fast as B "
                f"({low:.2f} to {high:.2f}, 95%), throughput {load['throughput_ratio']:.2f}; "
                f"{load['identical']} of {load['pairs']} texts equal"
            )
    return found


def load_name(load: Mapping[str, Any]) -> str:
    """What one load was."""
    return load_words(load["clients"] or 0, load["rate"] or 0.0)


def load_words(clients: int, rate: float) -> str:
    """A closed loop of clients; or, where these are 0, requests that arrive in a second."""
    if clients:
        return f"{clients} client{'' if clients == 1 else 's'}"
    return f"{rate:g} request{'' if rate == 1 else 's'}/s"


def _ms(quantiles: Mapping[str, float] | None, name: str) -> str:
    return "-" if quantiles is None else f"{quantiles[name]:.1f}"
