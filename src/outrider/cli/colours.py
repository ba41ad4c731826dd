"""Tokens in the colour of where they came from."""

from __future__ import annotations

import argparse
import os
import sys

from outrider.outputs import Chunk

COLOURS = {"accepted": "\x1b[32m", "recovered": "\x1b[33m", "bonus": "\x1b[36m"}  # green, yellow, cyan
RESET, DIM = "\x1b[0m", "\x1b[2m"


def add_colour(group: argparse._ArgumentGroup) -> None:
    """Add `--color`; `wanted` reads it."""
    group.add_argument(
        *("-co", "--color"),
        nargs="?",
        const="on",
        default="off",
        choices=("on", "off", "auto"),
        help="show accepted tokens green, recovered yellow, bonus cyan; auto: on a terminal without NO_COLOR",
    )


def wanted(choice: str) -> bool:
    """Whether stdout should have colours."""
    return choice == "on" or (choice == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def shown(chunk: Chunk, colour: bool) -> str:
    """A piece of text, in the colour of its source if `colour`."""
    if not colour or chunk.kind is None or not chunk.text:
        return chunk.text
    return f"{COLOURS[chunk.kind]}{chunk.text}{RESET}"
