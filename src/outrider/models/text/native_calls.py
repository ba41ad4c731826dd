"""Incremental scanners for tool calls that are not written as JSON; their arguments are turned into JSON.

Each is used as `CallScanner` is, after the call's name has been read, and has the same members.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

from outrider.models.text.marks import overlap

MAX_KEY = 200  # characters of a parameter's name
MAX_CALL = 1 << 20  # characters of a call that is read as a whole
_PYTHON_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class Scanner(Protocol):
    """What scans a call; tool_call_scanner.CallScanner says what the members mean."""

    name: str | None
    began: int | None
    done: bool
    failed: bool

    @property
    def arguments(self) -> str | None: ...
    @property
    def lacks_brace(self) -> bool: ...
    def push(self, text: str) -> int: ...
    def take(self) -> str: ...
    def close_all(self) -> bool: ...


class _Native:
    """What the scanners below share. Subclasses take the text character by character."""

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self.began: int | None = 0
        self.done = self.failed = False
        self._out: list[str] = []
        self._taken = 0

    @property
    def arguments(self) -> str | None:
        """The arguments so far, as JSON."""
        return "".join(self._out) or None

    @property
    def lacks_brace(self) -> bool:
        return False

    def take(self) -> str:
        """The text of the arguments since the last call of `take`."""
        found = "".join(self._out[self._taken :])
        self._taken = len(self._out)
        return found

    def push(self, text: str) -> int:
        """Consume characters until the call is closed or has failed; returns how many were consumed."""
        taken = 0
        for char in text:
            if self.done or self.failed:
                break
            self._advance(char)
            taken += not self.failed
        return taken

    def close_all(self) -> bool:
        """Close the call where it may end. False, and nothing else changes, where it may not."""
        return False

    def _advance(self, char: str) -> None:
        raise NotImplementedError


class XmlScanner(_Native):
    """Qwen3-Coder's and Qwen3.5's calls: `<parameter=KEY>\\nVALUE\\n</parameter>` for each argument, and
    `</function>`.

    A value is text where the tool's schema says so, and is read as JSON otherwise, or as text if it is none.

    schema: of the arguments.
    """

    _END, _PARAMETER, _VALUE_END = "</function>", "<parameter=", "</parameter>"

    def __init__(self, name: str, schema: Mapping[str, Any] | None = None) -> None:
        super().__init__(name)
        found = (schema or {}).get("properties")
        self._properties: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        self._held = ""  # of a mark, or of a value
        self._key: str | None = None  # of the value
        self._is_text = self._first = False  # the value is a text; nothing of it has been taken
        self._out.append("{")

    def close_all(self) -> bool:
        if self._key is not None or (self._held and not self._END.startswith(self._held)):
            return False
        self._out.append("}")
        self.failed, self.done = False, True
        return True

    def _advance(self, char: str) -> None:
        if self._key is not None:
            self._held += char
            self._value()
            return
        if not self._held and char.isspace():
            return
        held = self._held + char
        if held == self._END:
            self._held = ""
            self.close_all()
        elif held.startswith(self._PARAMETER) and char == ">":
            self._begin(held[len(self._PARAMETER) : -1].strip())
        elif not self._may_go_on(held):
            self.failed = True
        else:
            self._held = held

    def _may_go_on(self, held: str) -> bool:
        within = held.startswith(self._PARAMETER) and len(held) < len(self._PARAMETER) + MAX_KEY
        return within or self._END.startswith(held) or self._PARAMETER.startswith(held)

    def _begin(self, key: str) -> None:
        wanted = self._properties.get(key)
        self._key, self._held, self._first = key, "", True
        self._is_text = isinstance(wanted, Mapping) and wanted.get("type") == "string"
        self._out.append(", " if len(self._out) > 1 else "")
        self._out.append(json.dumps(key, ensure_ascii=False) + ": " + ('"' if self._is_text else ""))

    def _value(self) -> None:
        if self._first and len(self._held) == 1:  # the line break after the mark
            self._first = False
            self._held = "" if self._held == "\n" else self._held
        if self._held.endswith(self._VALUE_END):
            text = self._held.removesuffix(self._VALUE_END).removesuffix("\n")
            self._out.append(_escaped(text) + '"' if self._is_text else _json_of(text))
            self._key, self._held = None, ""
        elif self._is_text:
            ends = ("\n" + self._VALUE_END, self._VALUE_END)
            size = len(self._held) - max(overlap(self._held, end) for end in ends)
            self._out.append(_escaped(self._held[:size]))
            self._held = self._held[size:]


class GemmaScanner(_Native):
    """Gemma 4's calls: `{key:<|"|>text<|"|>,other:[1,true],inner:{…}}`, with keys and words as they are."""

    _QUOTE = '<|"|>'

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._held = ""  # of a text's last mark, or a word
        self._in_text = False
        self._stack: list[str] = []  # closing brackets of the open containers

    def _advance(self, char: str) -> None:
        self._held += char
        if self._in_text:
            if self._held.endswith(self._QUOTE):
                self._out.append(_escaped(self._held.removesuffix(self._QUOTE)) + '"')
                self._in_text, self._held = False, ""
            else:
                size = len(self._held) - overlap(self._held, self._QUOTE)
                self._out.append(_escaped(self._held[:size]))
                self._held = self._held[size:]
        elif self._held.lstrip() == self._QUOTE:
            self._out.append('"')
            self._in_text, self._held = True, ""
        elif char in "{}[],:" and not self._QUOTE.startswith(self._held.lstrip()):
            self._punctuation(char, self._held[:-1].strip())
            self._held = ""
        if len(self._held) > MAX_KEY and not self._in_text:
            self.failed = True

    def _punctuation(self, char: str, word: str) -> None:
        """A bracket, comma or colon, and the key or word before it."""
        if word:
            self._out.append(json.dumps(word, ensure_ascii=False) if char == ":" else _json_of(word))
        if char in "{[":
            self._stack.append("}" if char == "{" else "]")
        elif not self._stack or (char in "}]" and self._stack.pop() != char):
            self.failed = True
            return
        self._out.append({",": ", ", ":": ": "}.get(char, char))
        if not self._stack:
            self.failed = not _is_object(self.arguments or "")
            self.done = not self.failed


class PythonScanner(_Native):
    """Arguments of a call as Python writes it, `a=1, b="x")`, up to the closing parenthesis.

    An argument is known when it is complete; of a text that has no unusual escapes, each character is.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._text: list[str] = []  # of the current argument
        self._size = 0  # characters of the call
        self._depth = 1
        self._quote = ""  # of the text that the last character is in
        self._escape = False
        self._keys: set[str] = set()
        self._shown: str | None = None  # of the current argument's value, a text: what has been taken
        self._showing = False
        self._out.append("{")

    def _advance(self, char: str) -> None:
        self._size += 1
        if self._size > MAX_CALL:
            self.failed = True
        elif self._quote:
            self._text.append(char)
            self._character(char)
        elif self._depth == 1 and char in ",)":
            self._end_argument(char)
        else:
            if char in "\"'":
                self._quote = char
                self._begin_text()
            self._depth += (char in "([{") - (char in ")]}")
            self._text.append(char)

    def _begin_text(self) -> None:
        """A quote: where it begins the argument's value, the text is shown as it comes."""
        key, equals, before = "".join(self._text).partition("=")
        if self._shown is None and equals and not before.strip() and self._take_key(key.strip()):
            self._showing, self._shown = True, ""
            self._out.append('"')

    def _character(self, char: str) -> None:
        """A character of a text, its end included."""
        escaped, self._escape = self._escape, char == "\\" and not self._escape
        if char == self._quote and not escaped:
            self._quote, self._showing = "", False
        elif self._showing and not self._escape:
            plain = _PYTHON_ESCAPES.get(char) if escaped else char if char >= " " else None
            if plain is None:  # it is shown when the argument is complete
                self._showing = False
            else:
                self._shown = f"{self._shown}{plain}"
                self._out.append(_escaped(plain))

    def _take_key(self, key: str) -> bool:
        if not key.isidentifier() or key in self._keys:
            return False
        self._keys.add(key)
        self._out.append(f"{', ' if len(self._keys) > 1 else ''}{json.dumps(key, ensure_ascii=False)}: ")
        return True

    def _end_argument(self, char: str) -> None:
        """A comma or the closing parenthesis."""
        text, shown = "".join(self._text), self._shown
        self._text, self._shown = [], None
        if text.strip():
            self.failed = not self._argument(text, shown)
        else:
            self.failed = char == ","
        if char == ")" and not self.failed:
            self._out.append("}")
            self.done = True

    def _argument(self, text: str, shown: str | None) -> bool:
        """Write a complete argument, or what is left of it. False: it is none."""
        found = _python_argument(text)
        if found is None or (shown is None and not self._take_key(found[0])):
            return False
        value = found[1]
        if shown is None:
            self._out.append(json.dumps(value, ensure_ascii=False))
            return True
        if not isinstance(value, str) or not value.startswith(shown):
            return False
        self._out.append(_escaped(value[len(shown) :]) + '"')
        return True


def _python_argument(text: str) -> tuple[str, Any] | None:
    """`a=1` as name and value; None for what is no literal with a name."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or len(call.keywords) != 1:
            return None
        found = call.keywords[0]
        if not isinstance(call.func, ast.Name) or found.arg is None:
            return None
        value = ast.literal_eval(found.value)
        json.dumps(value, allow_nan=False)
        return found.arg, value
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _escaped(text: str) -> str:
    """A text within the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_of(text: str) -> str:
    """A value as JSON: itself if it is JSON, Python's words, and else a string."""
    stripped = text.strip()
    if stripped in _PYTHON_WORDS:
        return json.dumps(_PYTHON_WORDS[stripped])
    try:
        found = json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    infinite = isinstance(found, float) and not math.isfinite(found)
    return json.dumps(text, ensure_ascii=False) if infinite else stripped


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
