"""Reads one `{"name": …, "arguments": {…}}` as it is being written."""

from __future__ import annotations

import json

_ARGUMENTS = ("arguments", "parameters")


class CallScanner:
    """Follows a JSON object's text character by character. The members that matter are `name`, a text, and
    `arguments` or `parameters`, whose own text is handed on; others are passed over.

    name:   once its value is complete.
    done:   the object is closed. failed: this is no such object.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = self.failed = False
        self._depth = 0
        self._string = self._escape = False
        self._key: str | None = None  # of the member that is being read
        self._value: list[str] | None = None  # its text so far; None before the colon
        self._word: list[str] = []  # a key that is being read
        self._found: list[str] = []  # text of the arguments that was not taken yet
        self._arguments = False  # they have been read

    def push(self, text: str) -> int:
        """Take characters until the object is closed, or cannot be one; returns how many."""
        for at, char in enumerate(text):
            self._one(char)
            if self.done or self.failed:
                return at + (not self.failed)
        return len(text)

    def take(self) -> str:
        """Text of the arguments that came since the last call."""
        found, self._found = "".join(self._found), []
        return found

    def _one(self, char: str) -> None:
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
        """Lead on inside a string. True when it ends."""
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
        elif self._value or not char.isspace():  # blanks before a value are left out
            self._keep(char)

    def _keep(self, char: str) -> None:
        assert self._value is not None
        self._value.append(char)
        if self._key in _ARGUMENTS and not self._arguments:
            blank = char.isspace() and self._depth == 1 and not self._string
            if not blank:  # behind the value
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
