"""An incremental scanner for one `{"name": …, "arguments": {…}}`."""

from __future__ import annotations

import json

_ARGUMENTS = ("arguments", "parameters")


class CallScanner:
    """Scans a JSON object's text character by character. It reads the members `name`, a string, and
    `arguments` or `parameters`, whose JSON text `take` returns; other members are skipped.

    name:   None until its value is complete.
    done:   the object is closed.
    failed: the text is not such an object.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = self.failed = False
        self._depth = 0
        self._string = self._escape = False
        self._key: str | None = None  # of the current member
        self._value: list[str] | None = None  # the text of its value so far; None before the colon
        self._word: list[str] = []  # the text of the current key so far
        self._found: list[str] = []  # text of the arguments that was not taken yet
        self._arguments = False  # the arguments are complete

    def push(self, text: str) -> int:
        """Consume characters until the object is closed or has failed; returns how many were consumed."""
        for at, char in enumerate(text):
            self._advance(char)
            if self.done or self.failed:
                return at + (not self.failed)
        return len(text)

    def take(self) -> str:
        """The text of the arguments since the last call of `take`."""
        found, self._found = "".join(self._found), []
        return found

    def _advance(self, char: str) -> None:
        if self._depth == 0:
            if char == "{":
                self._depth = 1
            elif not char.isspace():
                self.failed = True
        elif self._value is not None:
            self._in_value(char)
        elif self._string:
            self._word.append(char)
            if self._quoted(char):
                self._key = _text("".join(self._word))
                self.failed = self._key is None
        elif char == '"' and self._key is None:
            self._string, self._word = True, ['"']
        elif char == ":" and self._key is not None:
            self._value = []
        elif char == "}" and self._key is None:
            self.done = True
        elif not (char.isspace() or (char == "," and self._key is None)):
            self.failed = True

    def _quoted(self, char: str) -> bool:
        """Advance inside a string. True at its end."""
        if self._escape:
            self._escape = False
        elif char == "\\":
            self._escape = True
        elif char == '"':
            self._string = False
            return True
        return False

    def _in_value(self, char: str) -> None:
        assert self._value is not None
        if self._string:
            self._keep(char)
            self._quoted(char)
        elif char == '"':
            self._string = True
            self._keep(char)
        elif char in "{[":
            self._depth += 1
            self._keep(char)
        elif char in "}]" and self._depth > 1:
            self._depth -= 1
            self._keep(char)
        elif char in ",}" and self._depth == 1:
            self._end_value()
            self.done = char == "}" and not self.failed
        elif char == "]":
            self.failed = True
        elif self._value or not char.isspace():  # blanks before a value are dropped
            self._keep(char)

    def _keep(self, char: str) -> None:
        assert self._value is not None
        self._value.append(char)
        if self._key in _ARGUMENTS and not self._arguments:
            blank = char.isspace() and self._depth == 1 and not self._string
            if not blank:  # after the value
                self._found.append(char)

    def _end_value(self) -> None:
        value = "".join(self._value or ())
        if self._key == "name" and self.name is None:
            self.name = _text(value.strip())
            self.failed = not self.name
        elif self._key in _ARGUMENTS:
            self._arguments = True
        self._key, self._value = None, None


def _text(written: str) -> str | None:
    """A JSON string's value; None for anything else."""
    try:
        found = json.loads(written)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
