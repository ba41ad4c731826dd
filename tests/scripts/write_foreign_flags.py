"""Writes the tables of docs/flags.md: `python tests/scripts/write_foreign_flags.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from outrider.cli.foreign import TABLE
from outrider.cli.foreign_flags import MODEL_COMMANDS, ForeignFlag

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "flags.md"
BEGIN, END = "<!-- foreign flags: begin -->", "<!-- foreign flags: end -->"


def tables() -> str:
    """All tables, in Markdown."""
    parts = []
    for title, rows in (
        ("The same under another name", [row for row in TABLE if _mapped(row)]),
        ("Accepted, whatever the value", [row for row in TABLE if not _mapped(row) and row.accepts is None]),
        ("Accepted with one value only", [row for row in TABLE if not _mapped(row) and row.accepts]),
        ("Refused", [row for row in TABLE if row.always_refused]),
    ):
        head = f"### {title}\n\n| flag | of | commands | here |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(_row(row) for row in rows) + "\n")
    return "\n".join(parts)


def replaced(text: str) -> str:
    """The document with the tables of today."""
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    return re.sub(pattern, lambda _: f"{BEGIN}\n{tables()}{END}", text, flags=re.S)


def _mapped(row: ForeignFlag) -> bool:
    return bool(row.same_as or row.stored or row.engine)


def _row(row: ForeignFlag) -> str:
    flags = ", ".join(f"`{flag}`" for flag in row.flags)
    commands = "all" if row.commands == MODEL_COMMANDS else ", ".join(row.commands)
    return f"| {flags} | {row.of} | {commands} | {'; '.join(_here(row))} |"


def _here(row: ForeignFlag) -> Iterator[str]:
    if row.same_as:
        yield f"`{row.same_as}`" + (f"; `serve`: {row.instead}" if row.instead else "")
    elif row.stored:
        yield row.meaning
    elif row.engine:
        yield "as the argument of `LLM(…)` ([python.md](python.md))"
    elif row.accepts is None:
        yield row.note or "changes nothing"
    else:
        if row.accepts:
            yield "accepted: " + ", ".join(f"`{value}`" for value in row.accepts)
        yield row.instead.replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8")), "utf-8")
