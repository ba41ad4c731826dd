"""Renders a bench document as one self-contained HTML page: plots, tables, the machine and the settings."""

from __future__ import annotations

import importlib.util
from typing import Any

from outrider.bench import plots, report
from outrider.bench.cost_curve import HEADER, floor_line, rows
from outrider.bench.page_parts import facts, figure, means, note, table, whole
from outrider.errors import ConfigError

_PAIRS = "n: pairs of a plain run and a method's run."
_COUNTS = ("prompts", "runs", "tokens", "drafted")
_MOST_DEPTHS = 16  # columns of the table of acceptance


def check_available() -> None:
    """Raise ConfigError if matplotlib, which draws the plots, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install 'outrider[plots]'")


def html(document: dict[str, Any]) -> str:
    """The page of a bench document. Its optional key `cost_curve` holds the document of
    `outrider bench --cost-curve`."""
    several = report.temperatures(document)
    models = document["models"]
    title = "outrider bench: " + " with ".join(models.values())
    parts = [
        *_warnings(document),
        _facts(document),
        means({name: value for name, value in document["geomean"].items() if name != report.BASELINE}),
        note("Speed-up over plain decoding, geometric mean over workloads; of decoding, without prefill."),
        "<h2>Speed-up by workload</h2>",
        *(figure(plots.speedups(document, t), f"Temperature {t:g}. {_PAIRS}") for t in several),
        table(
            "Every workload and method. Without an interval: of a single pair of runs.",
            (*report.HEADER, *_COUNTS),
            [(*row, *counts) for row, counts in zip(report.rows(document), _counts(document), strict=True)],
        ),
        "<h2>Where time goes</h2>",
        *(figure(plots.phases(document, t), f"Temperature {t:g}, milliseconds a token.") for t in several),
        "<h2>Acceptance by position</h2>",
        *_acceptance(document),
        "<h2>What a pass costs</h2>",
        *_cost_curve(document),
        *_controller(document),
    ]
    return whole(title, parts)


def _warnings(document: dict[str, Any]) -> list[str]:
    found = []
    changed = [
        f"{method} on {report.name_of(document, w)}"
        for w in document["workloads"]
        for method, m in w["methods"].items()
        if not m["identical"]
    ]
    if changed:
        found.append(note(f"The tokens were not plain decoding's: {', '.join(changed)}.", "bad"))
    if moved := report.unsteady(document):
        found.append(note(f"Other load: the machine's speed moved during {', '.join(moved)}.", "bad"))
    return found


def _facts(document: dict[str, Any]) -> str:
    """When, with what and on what it was measured, and whether the tokens were the same."""
    settings, on = document["settings"], document["machine"]
    methods = [m for w in document["workloads"] for m in w["methods"].values()]
    same = sum(m["runs"] for m in methods if m["identical"])
    total = sum(m["runs"] for m in methods)
    verdict = "yes: every run has the tokens of plain decoding" if same == total else "NO"
    about = dict(line.split(": ", 1) for line in report.about(document) if ": " in line)
    *_, chosen = report.about(document)
    found = {
        "date": settings.get("created"),
        "version": f"outrider {on['outrider']}" if "outrider" in on else None,
        "command": settings.get("command"),
        "machine": ", ".join(filter(None, (about["machine"], on.get("system"), _threads(on)))),
        "probe": about["probe"],
        **document["models"],
        "settings": chosen,
        "identical": f"{verdict} ({total} runs of {sum(m['tokens'] for m in methods)} tokens)",
    }
    return facts(found)


def _threads(machine: dict[str, Any]) -> str | None:
    threads = machine.get("threads")
    return None if threads is None else f"{threads} threads"


def _counts(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """What each row of `report.rows` is of, in the columns of _COUNTS."""
    return [
        (str(w["prompts"]), str(m["runs"]), str(m["tokens"]), str(m["num_draft_tokens"]))
        for w in document["workloads"]
        for m in w["methods"].values()
    ]


def _acceptance(document: dict[str, Any]) -> list[str]:
    picture = plots.acceptance(document)
    if picture is None:
        return [note("Nothing was drafted.")]
    counts = {m: plots.accepted_at(document["workloads"], m) for m in plots.methods(document)}
    deepest = max(len(by_depth) for found in counts.values() for _, by_depth in found.values())
    depths = range(min(deepest, _MOST_DEPTHS))
    lines = [
        (workload, method, str(drafts), *(str(by_depth[i]) if i < len(by_depth) else "0" for i in depths))
        for method, found in counts.items()
        for workload, (drafts, by_depth) in found.items()
    ]
    return [
        figure(picture, "Share of a method's drafts that were accepted at least up to a position."),
        table(
            "Counts behind the curves: drafts, and those accepted at least up to position 1, 2, ….",
            ("workload", "method", "drafts", *(str(i + 1) for i in depths)),
            lines,
        ),
    ]


def _cost_curve(document: dict[str, Any]) -> list[str]:
    curve = document.get("cost_curve")
    if curve is None:
        return [note("Not measured: only the native engine's passes can be timed alone.")]
    lines = rows(curve["cost_curve_ms"], curve["weights_bytes"], curve["macs_per_token"])
    return [
        figure(
            plots.cost_curve(curve),
            f"{curve['model']}, context {curve['context']} tokens; "
            f"each point is the median of {curve['rounds']} passes.",
        ),
        note(floor_line(curve, curve["cost_curve_ms"].get("1")) + "."),
        table("T(n): the flatter, the more a draft may be wrong and still pay.", HEADER, lines),
    ]


def _controller(document: dict[str, Any]) -> list[str]:
    """Which drafters the controller chose and the speed-up that it predicted, for methods with a
    controller."""
    lines = []
    for w in document["workloads"]:
        for method, m in w["methods"].items():
            if "steps" not in m:
                continue
            steps = sum(m["steps"].values())
            used = ", ".join(f"{name} {count / steps:.0%}" for name, count in m["steps"].items())
            expected = m["predicted_speedup"]
            lines.append(
                (
                    report.name_of(document, w), method,
                    "–" if expected is None else f"×{expected:.2f}", f"×{m['speedup']:.2f}", used,
                )
            )  # fmt: skip
    if not lines:
        return []
    header = ("workload", "method", "predicted", "measured", "steps by drafter (none: plain)")
    return ["<h2>What the controller chose</h2>", table("Of all steps.", header, lines)]
