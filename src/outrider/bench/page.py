"""Renders a bench document as one self-contained HTML page: plots, tables, the machine and the settings.

Names of models and workloads come from files that users were given, so all such text is escaped, and the
page's content security policy forbids scripts and loading anything.
"""

from __future__ import annotations

import html as markup
import importlib.util
from collections.abc import Sequence
from importlib import resources
from typing import Any

from outrider.bench import plots, report
from outrider.bench.cost_curve import HEADER, floor_line, rows
from outrider.errors import ConfigError

_PAIRS = "n: pairs of a plain run and a method's run."
_COUNTS = ("prompts", "runs", "tokens", "drafted")
_MOST_DEPTHS = 16  # columns of the table of acceptance
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


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
        f"<h1>{_text(title)}</h1>",
        *_warnings(document),
        _facts(document),
        '<ul class="means">',
        *(
            f"<li><b>×{value:.2f}</b>{_text(method)}</li>"
            for method, value in document["geomean"].items()
            if method != report.BASELINE
        ),
        "</ul>",
        _note("Speed-up over plain decoding, geometric mean over workloads; of decoding, without prefill."),
        "<h2>Speed-up by workload</h2>",
        *(_figure(plots.speedups(document, t), f"Temperature {t:g}. {_PAIRS}") for t in several),
        _table(
            "Every workload and method. Without an interval: of a single pair of runs.",
            (*report.HEADER, *_COUNTS),
            [(*row, *counts) for row, counts in zip(report.rows(document), _counts(document), strict=True)],
        ),
        "<h2>Where time goes</h2>",
        *(_figure(plots.phases(document, t), f"Temperature {t:g}, milliseconds a token.") for t in several),
        "<h2>Acceptance by position</h2>",
        *_acceptance(document),
        "<h2>What a pass costs</h2>",
        *_cost_curve(document),
        *_controller(document),
    ]
    style = resources.files("outrider.bench").joinpath("page.css").read_text("utf-8")
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
            *parts,
            "</main>\n</body>\n</html>\n",
        )
    )


def _text(text: str) -> str:
    """Text from outside, escaped for the page."""
    return markup.escape(plots.printable(text))


def _note(text: str, kind: str = "note") -> str:
    return f'<p class="{kind}">{_text(text)}</p>'


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(caption: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_text(c)}</td>" for c in line) + "</tr>\n" for line in lines)
    return (
        f'<div class="wide" tabindex="0"><table><caption>{_text(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _warnings(document: dict[str, Any]) -> list[str]:
    found = []
    changed = [
        f"{method} on {report.name_of(document, w)}"
        for w in document["workloads"]
        for method, m in w["methods"].items()
        if not m["identical"]
    ]
    if changed:
        found.append(_note(f"The tokens were not plain decoding's: {', '.join(changed)}.", "bad"))
    if moved := report.unsteady(document):
        found.append(_note(f"Other load: the machine's speed moved during {', '.join(moved)}.", "bad"))
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
    facts = {
        "date": settings.get("created"),
        "version": f"outrider {on['outrider']}" if "outrider" in on else None,
        "command": settings.get("command"),
        "machine": ", ".join(filter(None, (about["machine"], on.get("system"), _threads(on)))),
        "probe": about["probe"],
        **document["models"],
        "settings": chosen,
        "identical": f"{verdict} ({total} runs of {sum(m['tokens'] for m in methods)} tokens)",
    }
    lines = (f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in facts.items() if v is not None)
    return f'<dl class="facts">{"".join(lines)}</dl>'


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
        return [_note("Nothing was drafted.")]
    counts = {m: plots.accepted_at(document["workloads"], m) for m in plots.methods(document)}
    deepest = max(len(by_depth) for found in counts.values() for _, by_depth in found.values())
    depths = range(min(deepest, _MOST_DEPTHS))
    lines = [
        (workload, method, str(drafts), *(str(by_depth[i]) if i < len(by_depth) else "0" for i in depths))
        for method, found in counts.items()
        for workload, (drafts, by_depth) in found.items()
    ]
    return [
        _figure(picture, "Share of a method's drafts that were accepted at least up to a position."),
        _table(
            "Counts behind the curves: drafts, and those accepted at least up to position 1, 2, ….",
            ("workload", "method", "drafts", *(str(i + 1) for i in depths)),
            lines,
        ),
    ]


def _cost_curve(document: dict[str, Any]) -> list[str]:
    curve = document.get("cost_curve")
    if curve is None:
        return [_note("Not measured: only the native engine's passes can be timed alone.")]
    lines = rows(curve["cost_curve_ms"], curve["weights_bytes"], curve["macs_per_token"])
    return [
        _figure(
            plots.cost_curve(curve),
            f"{curve['model']}, context {curve['context']} tokens; "
            f"each point is the median of {curve['rounds']} passes.",
        ),
        _note(floor_line(curve, curve["cost_curve_ms"].get("1")) + "."),
        _table("T(n): the flatter, the more a draft may be wrong and still pay.", HEADER, lines),
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
    return ["<h2>What the controller chose</h2>", _table("Of all steps.", header, lines)]
