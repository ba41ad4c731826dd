"""Renders the document of `outrider bench --endpoint` as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.bench import endpoint_report as report
from outrider.bench import plots
from outrider.bench.page_parts import facts, figure, means, note, table, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = {"clients": "clients at a time", "rate": "requests a second, at random times"}


def html(document: Mapping[str, Any]) -> str:
    """The page: servers, speed-ups, and times and throughput by load."""
    title = "outrider bench: " + " against ".join(
        f"{server['server']} at {server['url']}" for server in document["servers"]
    )
    loads = document["loads"]
    compared = [load for load in loads if "speedup" in load]
    parts = [_facts(document)]
    if compared:
        parts += [
            means({report.load_name(load): load["speedup"] for load in compared}),
            note("Speed-up of A over B, by the time of a token after the first, in pairs of answers."),
            "<h2>Speed-up by load</h2>",
            figure(
                plots.points(
                    "speedup", "Speed-up by load",
                    [(report.load_name(load), load["pairs"], {"A": load}) for load in compared], ["A"], "B",
                ),
                "n: pairs of answers to the same prompt in the same round.",
            ),
            *(note(line) for line in report.speedups(document)),
        ]  # fmt: skip
    parts.append("<h2>By load</h2>")
    for key, words in _KINDS.items():
        if found := [load for load in loads if load[key]]:
            caption = f"By {words}; lines are medians, dashes the 95th percentiles."
            parts.append(figure(curves(found, key, words), caption))
    parts.append(table(report.TIMES_NOTE, report.HEADER, report.rows(document)))
    return whole(title, parts)


def _facts(document: Mapping[str, Any]) -> str:
    version = document.get("outrider")
    same = [(load["identical"], load["pairs"]) for load in document["loads"] if "pairs" in load]
    equal = f"{sum(a for a, _ in same)} of {sum(b for _, b in same)} pairs of texts" if same else None
    rounds = f"{document['prompts']} prompts, rounds of each load: {document['runs']}"
    return facts(
        {
            "date": document.get("created"),
            "version": None if version is None else f"outrider {version}",
            "command": document.get("command"),
            **report.servers(document),
            "settings": f"temperature 0, at most {document['max_tokens']} tokens, {rounds}",
            "equal": equal,
        }
    )


def curves(loads: Sequence[Mapping[str, Any]], key: str, words: str) -> str:
    """A plot of throughput and times by load, with a line for each server.

    loads: all with a number under `key`, "clients" or "rate".
    """
    loads = sorted(loads, key=lambda load: float(load[key]))
    at = [float(load[key]) for load in loads]
    names = report.NAMES[: len(loads[0]["servers"])]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 2, squeeze=False)
        for axes, what in zip(panels.flat, ("tokens_per_s", *report.TIMES), strict=True):
            for i, name in enumerate(names):
                style: dict[str, Any] = {"color": plots.SERIES[i], "linewidth": 1.5}
                found = [load["servers"][i][what] for load in loads]
                if what == "tokens_per_s":
                    axes.plot(at, found, marker=plots.MARKERS[i], markersize=4, label=name, **style)
                    continue
                middle, high = ([float("nan") if q is None else q[p] for q in found] for p in ("p50", "p95"))
                axes.plot(at, middle, marker=plots.MARKERS[i], markersize=4, **style)
                axes.plot(at, high, linestyle="--", marker="_", **style)  # seen at a lone load too
            axes.set_title(report.TIMES.get(what, "throughput"), fontsize=10)
            axes.set(xlabel=words, ylabel="ms" if what in report.TIMES else "tokens/s")
            axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
            axes.set_xticks(at, [f"{x:g}" for x in at])
            axes.grid()
        figure.legend(loc="outside upper center", ncols=6)

    said = "; ".join(
        f"{report.load_name(load)}: "
        + ", ".join(f"{n} {f['tokens_per_s']:.1f}" for n, f in zip(names, load["servers"], strict=True))
        for load in loads
    )
    return plots.svg(
        key, f"Throughput and times by {words}", f"Lines by load. Tokens/s: {said}.", (7.5, 5.2), draw
    )
