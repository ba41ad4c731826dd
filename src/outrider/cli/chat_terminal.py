"""Where `outrider chat` reads and writes: a terminal, by prompt_toolkit, or plain lines."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent

MAX_LINE = 4 << 20  # bytes
KEPT_LINES = 1000  # of the input's history
DIM, RESET = "\x1b[2m", "\x1b[0m"


class Console(Protocol):
    """The user's side of a chat."""

    def read(self, *, going_on: bool) -> str:
        """The next line; `going_on`: of a message that has begun. Raises EOFError at the end, and
        KeyboardInterrupt."""

    def write(self, text: str) -> None:
        """A piece of an answer."""

    def say(self, text: str) -> None:
        """Something about the chat."""

    @property
    def interactive(self) -> bool:
        """Whether somebody sits in front of it."""


class PlainConsole:
    """Reads lines from stdin; answers go to stdout, the rest to stderr."""

    interactive = False

    def read(self, *, going_on: bool) -> str:
        del going_on
        raw = sys.stdin.buffer.readline(MAX_LINE)
        if not raw:
            raise EOFError
        return raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class TerminalConsole:
    """A terminal.

    status:   the line below the input.
    commands: completed after /.
    history:  the file of earlier input; None keeps none.
    """

    interactive = True

    def __init__(self, status: Callable[[], str], commands: Sequence[str], history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings

        class FileHistory(History):
            def load_history_strings(self) -> Iterable[str]:
                assert history is not None
                return reversed(earlier_lines(history))

            def store_string(self, string: str) -> None:
                assert history is not None
                keep_line(history, string)

        keys = KeyBindings()

        @keys.add("enter", eager=True)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", eager=True)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._dim = not os.environ.get("NO_COLOR")
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if history is None else FileHistory(),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            multiline=True,  # Enter still ends the input, by its binding
            key_bindings=keys,
            bottom_toolbar=status,
            prompt_continuation=". ",
        )

    def read(self, *, going_on: bool) -> str:
        return self._session.prompt(". " if going_on else "> ")

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        if self._dim and "\x1b" not in text:
            text = f"{DIM}{text}{RESET}"
        print(text, flush=True)


def earlier_lines(path: Path) -> list[str]:
    """The input that is kept in a file, the oldest first; what is damaged is left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LINE))
            rows = file.read().splitlines()
    except OSError:
        return []
    found: list[str] = []
    for row in rows[-KEPT_LINES:]:
        with contextlib.suppress(ValueError, RecursionError):
            text: Any = json.loads(row)
            if isinstance(text, str):
                found.append(text)
    return found


def keep_line(path: Path, text: str) -> None:
    """Add a line of input to the file, which only its owner may read; of twice KEPT_LINES the older half is
    dropped. Where nothing can be written, nothing is kept."""
    with contextlib.suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        row = json.dumps(text) + "\n"
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            file.write(row.encode())
            file.seek(0)
            rows = file.read().splitlines(keepends=True)
            if len(rows) > 2 * KEPT_LINES:
                file.truncate(0)
                file.write(b"".join(rows[-KEPT_LINES:]))
