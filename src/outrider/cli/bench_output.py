"""Where `outrider bench` puts its document."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

STDOUT = Path("-")  # the value of --json without a file name


def now() -> str:
    """The time in UTC, for a document."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_writable(args: argparse.Namespace) -> None:
    """Raise ConfigError, before anything is measured, if an output file could not be written."""
    if args.plot is not None:
        from outrider.bench import page

        page.check_available()
    for flag, path in (("--json", args.json), ("--plot", args.plot)):
        if path in (None, STDOUT):
            continue
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"{flag}: {str(path)!r} cannot be written")


def output(document: dict[str, Any], text: Callable[[dict[str, Any]], str], json_to: Path | None) -> None:
    """Print the document: as a table (None), as JSON (STDOUT), or as a table with the JSON in a file."""
    if json_to != STDOUT:
        print(text(document), flush=True)
    if json_to is None:
        return
    found = json.dumps(document, ensure_ascii=False, allow_nan=False)
    if json_to == STDOUT:
        print(found, flush=True)
    else:
        write("--json", json_to, f"{found}\n")


def write(flag: str, path: Path, text: str) -> None:
    """Write a file that a flag names. Raises ConfigError."""
    try:
        path.write_text(text, "utf-8")
    except OSError as e:
        raise ConfigError(f"{flag}: {str(path)!r} cannot be written: {e.strerror}") from None
