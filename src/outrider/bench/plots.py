"""The plots of a bench document, as SVG elements that take their colours from the page's CSS variables."""

from __future__ import annotations

import html
import io
import itertools
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.bench.report import BASELINE, has_interval, temperatures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholder colours; in the SVG they are replaced by the page's variables --ink, --grid and --c0 to --c5.
INK, GRID = "#010203", "#040506"
SERIES = tuple(f"#0a0b{i:02x}" for i in range(6))
VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"} | {c: f"var(--c{i})" for i, c in enumerate(SERIES)}
MARKERS = ("o", "s", "^", "D", "v", "P")
PHASES = ("verify", "draft", "sampling", "other")
LONGEST_LABEL = 40
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, for search and screen readers
    "text.parse_math": False,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def printable(text: str) -> str:
    """Text with unprintable characters (line ends, direction marks, unassigned ones) replaced by U+FFFD."""
    return "".join(c if c.isprintable() else "�" for c in text)


def label(text: str) -> str:
    """A name as a label: printable and of at most LONGEST_LABEL characters. matplotlib hides labels that
    begin with an underscore, so such a name gets a zero-width space first."""
    shown = printable(text)
    shown = shown if len(shown) <= LONGEST_LABEL else shown[: LONGEST_LABEL - 1] + "…"
    return f"\u200b{shown}" if shown.startswith("_") else shown


def svg(
    name: str, title: str, description: str, size: tuple[float, float], draw: Callable[[Figure], None]
) -> str:
    """An <svg> element for an HTML page.

    name: letters and digits, unique in the page; the prefix of all ids in the element.
    title, description: plain text for screen readers.
    size: width and height in inches, which give the aspect ratio; the page scales it to the column.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # about glyphs that no font here has: the reader's browser may have them
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(out.getvalue(), name, title, description)


def _for_page(source: str, name: str, title: str, description: str) -> str:
    """matplotlib's document as one element of an HTML page."""
    root = ET.fromstring(source)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # an HTML parser knows what is inside <svg>
        found = dict(element.attrib)
        element.attrib.clear()
        for key, value in found.items():
            element.set(*_attribute(key, value, name))
    box = root.attrib["viewBox"]
    inside = "".join(ET.tostring(child, encoding="unicode") for child in root)
    return (
        f'<svg viewBox="{box}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(printable(title))}</title>'
        f'<desc id="{name}-desc">{html.escape(printable(description))}</desc>{inside}</svg>'
    )


def _attribute(key: str, value: str, name: str) -> tuple[str, str]:
    """The attribute with colours replaced by variables, and with `name` before ids and references to them."""
    for colour, variable in VARIABLES.items():
        value = value.replace(colour, variable)
    value = value.replace("url(#", f"url(#{name}-")
    if key == "id":
        return key, f"{name}-{value}"
    if key.endswith("href"):
        return "href", value.replace("#", f"#{name}-", 1)
    return key, value


def methods(document: dict[str, Any]) -> list[str]:
    """The methods without the baseline."""
    return [m for m in document["geomean"] if m != BASELINE]


def speedups(document: dict[str, Any], temperature: float) -> str:
    """A plot of the speed-up over plain decoding by workload and method, with intervals where there are any
    and the number of pairs of runs behind each point."""
    return points(
        f"speedup{_code(temperature)}",
        f"Speed-up by workload at temperature {temperature:g}",
        [(e["workload"], pairs(e), e["methods"]) for e in _at(document, temperature)],
        methods(document),
        "plain decoding",
    )


def points(
    name: str,
    title: str,
    rows: Sequence[tuple[str, int, Mapping[str, Mapping[str, Any]]]],
    series: Sequence[str],
    over: str,
) -> str:
    """A plot of speed-ups: a row for each label, of so many pairs, with a point and its interval for each
    series. over: what they are speed-ups over."""
    drawn = any(has_interval(found[one]) for _, _, found in rows for one in series)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, one in enumerate(series):
            colour = SERIES[i % len(SERIES)]
            for row, (_, _, found) in enumerate(rows):
                m = found[one]
                y = row + (i + 1) / (len(series) + 1) - 0.5
                if has_interval(m):
                    axes.plot(m["speedup_ci"], [y, y], color=colour, linewidth=2, solid_capstyle="round")
                axes.plot(
                    m["speedup"], y, MARKERS[i % len(MARKERS)], color=colour, markersize=6,
                    label=one if row == 0 else None,
                )  # fmt: skip
        axes.axvline(1.0, color=INK, linewidth=1, linestyle="--")
        axes.set_xlabel(f"speed-up over {over} (×){', 95% interval' if drawn else ''}")
        _rows(axes, [f"{label(text)}\nn = {n}" for text, n, _ in rows])
        _legend(figure, axes)

    words = "; ".join(
        f"{text}: " + ", ".join(f"{one} ×{found[one]['speedup']:.2f}" for one in series)
        for text, _, found in rows
    )
    height = 1.2 + len(rows) * (0.25 + 0.16 * len(series))
    said = f"Points{' with 95% intervals' if drawn else ''}. {words}."
    return svg(name, title, said, (7.5, height), draw)


def phases(document: dict[str, Any], temperature: float) -> str:
    """A bar chart of milliseconds per token by phase: verification, drafting, sampling, other."""
    entries = _at(document, temperature)
    bars = [
        (f"{label(e['workload'])}  {method}", [1e3 * m["seconds"][p] / m["tokens"] for p in PHASES])
        for e in entries
        for method, m in e["methods"].items()
    ]
    per_group = len(document["geomean"])

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places = [i + 0.6 * (i // per_group) for i in range(len(bars))]
        left = [0.0] * len(bars)
        for k, phase in enumerate(PHASES):
            values = [parts[k] for _, parts in bars]
            axes.barh(places, values, left=left, height=0.8, color=SERIES[k], label=phase)
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(places, [label(name) for name, _ in bars])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel("ms a token")
        _legend(figure, axes)

    words = "; ".join(
        f"{name}: " + ", ".join(f"{p} {v:.1f}" for p, v in zip(PHASES, parts, strict=True))
        for name, parts in bars
    )
    return svg(
        f"phases{_code(temperature)}", f"Where time goes at temperature {temperature:g}",
        f"Stacked bars, milliseconds a token. {words}.",
        (7.5, 1.2 + 0.2 * len(bars) + 0.12 * len(entries)), draw,
    )  # fmt: skip


def pairs(entry: Mapping[str, Any]) -> int:
    """How many pairs of a plain run and a method's run a workload's speed-ups are of."""
    return int(entry["methods"][BASELINE]["runs"])


def accepted_at(entries: Sequence[Mapping[str, Any]], method: str) -> dict[str, tuple[int, list[int]]]:
    """For each workload, the number of the method's drafts, and of them those with a token accepted at depth
    1, 2, ….

    All temperatures are counted together. Workloads in which the method did not draft are left out.
    """
    found = {}
    for workload in dict.fromkeys(e["workload"] for e in entries):
        mine = [e["methods"][method] for e in entries if e["workload"] == workload]
        drafts = sum(m["num_drafts"] for m in mine)
        if drafts:
            columns = itertools.zip_longest(*(m["accepted_per_pos"] for m in mine), fillvalue=0)
            found[workload] = drafts, [sum(column) for column in columns]
    return found


def acceptance_by_position(entries: Sequence[Mapping[str, Any]], method: str) -> dict[str, list[float]]:
    """The counts of `accepted_at` as shares of the drafts."""
    counts = accepted_at(entries, method)
    return {
        workload: [count / drafts for count in by_depth] for workload, (drafts, by_depth) in counts.items()
    }


def acceptance(document: dict[str, Any]) -> str | None:
    """A plot of acceptance by position, with a panel for each method; None when nothing was drafted."""
    by_method = {m: acceptance_by_position(document["workloads"], m) for m in methods(document)}
    by_method = {m: lines for m, lines in by_method.items() if lines}
    if not by_method:
        return None
    workloads = list(dict.fromkeys(e["workload"] for e in document["workloads"]))

    def draw(figure: Figure) -> None:
        columns = min(2, len(by_method))
        panels = figure.subplots(-(-len(by_method) // columns), columns, sharey=True, squeeze=False)
        used: dict[str, Any] = {}
        for axes in panels.flat[len(by_method) :]:
            axes.set_axis_off()
        for axes, (method, lines) in zip(panels.flat, by_method.items(), strict=False):
            for workload, shares in lines.items():
                i = workloads.index(workload)
                (used[workload],) = axes.plot(
                    range(1, len(shares) + 1), [100 * s for s in shares], color=SERIES[i % len(SERIES)],
                    marker=MARKERS[i % len(MARKERS)], markersize=4, linewidth=1.5,
                )  # fmt: skip
            axes.set_title(method, fontsize=10)
            axes.set(xlabel="position in the draft", ylabel="% of drafts", ylim=(0, 105))
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid()
        figure.legend(list(used.values()), [label(w) for w in used], loc="outside upper center", ncols=6)

    words = "; ".join(
        f"{m}, {w}: " + ", ".join(f"{s:.0%}" for s in shares[:8])
        for m, lines in by_method.items()
        for w, shares in lines.items()
    )
    return svg(
        "acceptance", "Acceptance by position", f"Share of drafts accepted up to each position. {words}.",
        (7.5, 0.8 + 2.4 * -(-len(by_method) // 2)), draw,
    )  # fmt: skip


def cost_curve(curve: Mapping[str, Any]) -> str:
    """A plot of T(n), the milliseconds of a pass over n tokens, and of the time to read the weights once."""
    times = {int(n): ms for n, ms in curve["cost_curve_ms"].items()}

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(list(times), list(times.values()), color=SERIES[0], marker="o", label="T(n)")
        axes.axhline(curve["floor_ms"], color=SERIES[1], linestyle="--", label="floor: weights read once")
        axes.set(xlabel="n, tokens in a pass", ylabel="ms", xlim=(0, None), ylim=(0, None))
        axes.grid()
        _legend(figure, axes)

    words = ", ".join(f"{n}: {ms:.1f}" for n, ms in times.items())
    return svg(
        "cost", "Cost curve", f"Milliseconds by tokens in a pass: {words}. Floor {curve['floor_ms']:.1f}.",
        (7.5, 3.4), draw,
    )  # fmt: skip


def _at(document: dict[str, Any], temperature: float) -> list[Mapping[str, Any]]:
    first = temperatures(document)[0]
    return [e for e in document["workloads"] if e.get("temperature", first) == temperature]


def _code(temperature: float) -> str:
    """A temperature in letters and digits, for ids."""
    return f"{temperature:g}".replace(".", "p").replace("-", "m").replace("+", "")


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows from the top down, with a line between them."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    for row in range(1, len(names)):
        axes.axhline(row - 0.5, color=GRID, linewidth=0.6)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6)
