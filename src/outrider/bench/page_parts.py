"""Parts of a self-contained HTML page, and the page around them.

Names of models, workloads and servers come from outside, so all text is escaped here, and the page's content
security policy forbids scripts and loading anything.
"""

from __future__ import annotations

import html as markup
from collections.abc import Mapping, Sequence
from importlib import resources

from outrider.bench import plots

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def escaped(text: str) -> str:
    """Text from outside."""
    return markup.escape(plots.printable(text))


def note(text: str, kind: str = "note") -> str:
    return f'<p class="{kind}">{escaped(text)}</p>'


def figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escaped(caption)}</figcaption></figure>"


def table(caption: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escaped(c)}</td>" for c in line) + "</tr>\n" for line in lines)
    return (
        f'<div class="wide" tabindex="0"><table><caption>{escaped(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def means(values: Mapping[str, float]) -> str:
    """Speed-ups in large figures, by what they are of."""
    each = (f"<li><b>×{value:.2f}</b>{escaped(name)}</li>" for name, value in values.items())
    return "\n".join(('<ul class="means">', *each, "</ul>"))


def facts(found: Mapping[str, str | None]) -> str:
    """What stands at the top: names and values, without those that are None."""
    lines = (f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in found.items() if v is not None)
    return f'<dl class="facts">{"".join(lines)}</dl>'


def whole(title: str, parts: Sequence[str]) -> str:
    """The page. parts: elements as HTML."""
    style = resources.files("outrider.bench").joinpath("page.css").read_text("utf-8")
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
            f"<h1>{escaped(title)}</h1>",
            *parts,
            "</main>\n</body>\n</html>\n",
        )
    )
