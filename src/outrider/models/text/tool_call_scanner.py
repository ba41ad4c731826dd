"""An incremental scanner for the JSON of one call, which repairs what can be repaired safely."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

_ARGUMENTS = ("arguments", "parameters")
_BLANK = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_IN_WORD = frozenset("-+.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MAY_END = ("comma", "item", "member")
_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEX = frozenset("0123456789abcdefABCDEF")
MAX_WORD = 400  # characters of a number

# What may come next: a value; a value or the end of an array; a key or the end of an object; a colon; a comma
# or the end of a container. After a comma the end may come, as the comma is dropped then.
_Next: TypeAlias = Literal["value", "item", "member", "colon", "comma"]


class CallScanner:
    """Scans `{"name": …, "arguments": {…}}` (or `parameters`) character by character; other members are
    skipped. Given a `name`, it scans the arguments alone.

    Repaired are line breaks and other control characters in strings, commas before a closing bracket,
    Python's True, False and None, `\\'` in a string, and a doubled opening brace, as some templates show it.
    Anything else that is not JSON fails.

    name:      None until its value is complete.
    began:     characters of the text before the arguments' first; None until they begin. Of arguments in
               brackets only, whose beginning can be sent before their end is known.
    done:      the object is closed.
    failed:    the text is not such an object.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.began: int | None = None
        self.done = self.failed = False
        self._bare = name is not None
        self._out: list[str] = []  # the text, repaired
        self._size = 0  # characters consumed
        self._stack: list[str] = []  # closing brackets of the open containers
        self._next: _Next = "value"
        self._in_string: Callable[[str], None] | None = None  # what takes the next character of a string
        self._escape = ""  # of a string: the escape so far
        self._word = ""  # a number or literal so far
        self._comma: str | None = None  # a comma that is not written yet, and blanks after it
        self._start = 0  # in `_out`: the start of the string, key or value of a member
        self._key: str | None = None  # of the current member
        self._arguments: tuple[int, int | None] | None = None  # where they are in `_out`
        self._taken = 0  # in `_out`: the end of what `take` returned

    def push(self, text: str) -> int:
        """Consume characters until the object is closed or has failed; returns how many were consumed."""
        before = self._size
        for char in text:
            if self.done or self.failed:
                break
            self._advance(char)
            self._size += not self.failed
        return self._size - before

    @property
    def arguments(self) -> str | None:
        """The text of the arguments as far as it is known; None when there are none."""
        if self._arguments is None:
            return None
        start, end = self._arguments
        return "".join(self._out[start:end])

    @property
    def lacks_brace(self) -> bool:
        """Whether name and arguments are complete, and nothing but the call's closing brace is missing."""
        ended = self._arguments is not None and self._arguments[1] is not None
        return ended and bool(self.name) and len(self._stack) == 1 and self._next == "comma"

    def take(self) -> str:
        """The text of the arguments since the last call of `take`."""
        if self._arguments is None:
            return ""
        start, end = self._arguments
        found = self._out[max(start, self._taken) : end]
        self._taken = len(self._out)
        return "".join(found)

    def close_all(self) -> bool:
        """Close what is still open after a complete value. False, and nothing else changes, where none is."""
        if self._in_string is not None or not self._stack:
            return False
        if self._word:
            self.failed = False
            self._end_word()
            if self.failed:
                return False
        if self._next not in _MAY_END:
            return False
        self.failed, self._comma = False, None
        while self._stack:
            self._close(self._stack[-1])
        return self.done

    def _advance(self, char: str) -> None:
        if self._in_string is not None:
            self._in_string(char)
            return
        if self._word:
            if char in _IN_WORD and len(self._word) < MAX_WORD:
                self._word += char
                return
            self._end_word()
        if self.failed:
            return
        if char in _BLANK:
            if self._comma is not None:
                self._comma += char
            elif self._stack:
                self._out.append(char)
        elif char in "}]":
            self._comma = None
            self._close(char)
        elif self._takes(char):
            self._begin(char)
        else:
            self.failed = True

    def _takes(self, char: str) -> bool:
        """Whether a character, neither blank nor a closing bracket, may follow."""
        if self._next == "member":
            return char == '"' or self._is_doubled(char)
        if self._next in ("colon", "comma"):
            return char == (":" if self._next == "colon" else ",")
        return char == "{" or (bool(self._stack) and (char in '"[' or char in _IN_WORD))

    def _is_doubled(self, char: str) -> bool:
        """Whether a character is the second of two opening braces of a call."""
        return char == "{" and self._out == ["{"] and not self._bare

    def _begin(self, char: str) -> None:
        if self._is_doubled(char):
            return
        if self._comma is not None:
            self._out.append(self._comma)
            self._comma = None
        if self._next in ("value", "item"):
            self._begin_value(char)
        elif self._next == "member":
            self._begin_string(char)
        elif self._next == "colon":
            self._out.append(char)
            self._next = "value"
        else:
            self._comma = char
            self._next = "member" if self._stack[-1] == "}" else "item"

    def _begin_value(self, char: str) -> None:
        self._begin_member(char)
        if char == '"':
            self._begin_string(char)
        elif char in "{[":
            self._out.append(char)
            self._stack.append("}" if char == "{" else "]")
            self._next = "member" if char == "{" else "item"
        else:
            self._word = char

    def _begin_member(self, char: str) -> None:
        """The first character of a value: note where the arguments begin."""
        depth, wanted = (0, True) if self._bare else (1, self._key in _ARGUMENTS)
        if len(self._stack) != depth:
            return
        self._start = len(self._out)
        if wanted and self._arguments is None:
            self._arguments = (self._start, None)
            if char in "{[":
                self.began = self._size

    def _begin_string(self, char: str) -> None:
        if len(self._stack) == 1:
            self._start = len(self._out)
        self._out.append(char)
        self._in_string = self._character

    def _character(self, char: str) -> None:
        """A character of a string."""
        if char == '"':
            self._out.append(char)
            self._in_string = None
            self._end_value()
        elif char == "\\":
            self._in_string, self._escape = self._escaped, char
        else:
            self._out.append(char if char >= " " else _CONTROLS.get(char, f"\\u{ord(char):04x}"))

    def _escaped(self, char: str) -> None:
        """A character of an escape."""
        self._escape += char
        if self._escape == "\\'":
            self._escape = "'"
        elif self._escape[1] == "u":
            if len(self._escape) > 2 and char not in _HEX:
                self.failed = True
            if len(self._escape) < 6:
                return
        elif char not in '"\\/bfnrt':
            self.failed = True
        self._out.append(self._escape)
        self._in_string = self._character

    def _end_word(self) -> None:
        word, self._word = self._word, ""
        if _NUMBER.fullmatch(word):
            self._out.append(word)
        elif word in _LITERALS:
            self._out.append(_LITERALS[word])
        else:
            self.failed = True
            return
        self._end_value()

    def _end_value(self) -> None:
        """After a key or a value, whose last character is written."""
        depth, is_key = len(self._stack), self._next == "member"
        if depth == 1 and not self._bare:
            self._end_member(is_key)
        self._next = "colon" if is_key else "comma"
        if not depth:
            self.done = True
            if self._bare and self._arguments is not None:
                self._arguments = (self._arguments[0], len(self._out))

    def _end_member(self, is_key: bool) -> None:
        """After a key or a value of the call itself."""
        text = "".join(self._out[self._start :]) if is_key or self._key == "name" else ""
        if is_key:
            self._key = str(json.loads(text))
        elif self._key == "name" and self.name is None:
            self.name = str(json.loads(text)) if text.startswith('"') else None
            self.failed = not self.name
        elif self._key in _ARGUMENTS and self._arguments is not None and self._arguments[1] is None:
            self._arguments = (self._arguments[0], len(self._out))

    def _close(self, char: str) -> None:
        """A closing bracket."""
        if not self._stack or self._stack[-1] != char or self._next not in _MAY_END:
            self.failed = True
            return
        self._out.append(char)
        self._stack.pop()
        self._next = "value"
        self._end_value()


def repaired(text: str) -> str | None:
    """The text of a JSON object, repaired; None for anything else."""
    scanner = CallScanner("")
    rest = text.strip()
    return scanner.arguments if scanner.push(rest) == len(rest) and scanner.done else None


def decoded(arguments: str | None) -> str:
    """A call's arguments: none are `{}`, and an object that was written as a string is that object."""
    text = (arguments or "").strip()
    if text in ("", "null"):
        return "{}"
    if text.startswith('"'):
        inner = str(json.loads(text))
        return "{}" if inner.strip() in ("", "null") else repaired(inner) or text
    return arguments or text


def past_arguments(arguments: Any) -> Any:
    """The arguments of a past call as an object, which templates write as JSON.

    None, an empty text and an empty list (an empty object in PHP) are `{}`. Text that is no JSON or has half
    of a surrogate pair stays text, as a model may have written it.
    """
    if isinstance(arguments, str):
        try:
            found = json.loads(decoded(arguments))
            json.dumps(found, ensure_ascii=False).encode()
            arguments = found
        except (ValueError, RecursionError):
            pass
    return {} if arguments in (None, "", []) else arguments
