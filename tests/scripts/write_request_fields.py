"""Writes the tables of docs/requests.md from the table of known request fields.

python tests/scripts/write_request_fields.py
"""

from __future__ import annotations

import re
from pathlib import Path

from outrider.server.http.protocol import ChatRequest, CompletionRequest
from outrider.server.http.request_fields import HONOURED, RENAMED, UNUSED

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "requests.md"
_TABLE = re.compile(r"(<!-- (\w+): begin -->\n).*?(<!-- \2: end -->)", re.S)


def tables() -> dict[str, str]:
    """The tables in Markdown, by the names that the document's marks have."""
    honoured = [
        f"| `{name}` | {_paths(name)} | {_whose(whose)} | {meaning} |"
        for name, (whose, meaning) in HONOURED.items()
    ]
    renamed = [
        f"| `{name}` | {_whose(whose)} | `{new}` | {how} |" for name, (whose, new, how) in RENAMED.items()
    ]
    unused = [
        f"| `{name}` | {_whose(whose)} | {accepted.words} | {reason} |"
        for name, (whose, accepted, reason) in UNUSED.items()
    ]
    return {
        "honoured": _table("| field | paths | of | meaning |", honoured),
        "renamed": _table("| field | of | here | how |", renamed),
        "unused": _table("| field | of | accepted | why not other values |", unused),
    }


def written(text: str) -> str:
    """A document with its tables written anew."""
    found = tables()
    return _TABLE.sub(lambda mark: f"{mark[1]}\n{found[mark[2]]}\n{mark[3]}", text)


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows, ""])


def _paths(name: str) -> str:
    chat, completion = name in ChatRequest.model_fields, name in CompletionRequest.model_fields
    return "both" if chat and completion else "chat" if chat else "completions"


def _whose(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "clients and gateways"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8")), "utf-8")
