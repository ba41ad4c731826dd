"""Between the mark that opens a tool call and the call itself: names, brackets and code blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from outrider.models.text.harmony import CALL_OPEN, MESSAGE
from outrider.models.text.native_calls import GemmaScanner, PythonScanner, Scanner, XmlScanner
from outrider.models.text.tool_call_scanner import CallScanner
from outrider.models.text.tool_families import Family
from outrider.models.text.tool_words import OPEN
from outrider.server.http.tool_forms import FUNCTION_MARKS, GEMMA_OPEN, MISTRAL_OPEN

MAX_HEAD = 160  # characters of a name in front of its arguments, with what is between them
_FUNCTION, _NAMED_FUNCTION = FUNCTION_MARKS
_NAMED = {  # by opening: the name and what follows it, and the last character of that
    _FUNCTION: (re.compile(r"([a-zA-Z0-9_.-]{1,64})>", re.ASCII), ">"),
    _NAMED_FUNCTION: (re.compile(r'([a-zA-Z0-9_.-]{1,64})">', re.ASCII), ">"),
    OPEN: (re.compile(r"\s*<function=([a-zA-Z0-9_.-]{1,64})>", re.ASCII), ">"),
    MISTRAL_OPEN: (
        re.compile(r" ?([a-zA-Z0-9_.-]{1,64})(?:\[CALL_ID\][a-zA-Z0-9]*)?(?:\[ARGS\])?\s*(?=\{)", re.ASCII),
        "{",
    ),
    GEMMA_OPEN: (re.compile(r"\s*call:([a-zA-Z0-9_.-]{1,64})(?=\{)", re.ASCII), "{"),
    CALL_OPEN: (re.compile(r"([a-zA-Z0-9_.-]{1,64})" + re.escape(MESSAGE) + r"\s*(?=\{)", re.ASCII), "{"),
}
_PYTHON_CALL = (re.compile(r"\s*\[?\s*([a-zA-Z_][a-zA-Z0-9_.-]{0,63})\(", re.ASCII), "(")


@dataclass(frozen=True, slots=True)
class Step:
    """What has been read of the text before a call.

    size:    characters.
    scanner: of the call that follows; None: there is more to read before it.
    array:   the call is within a list of calls.
    closer:  what is dropped after the call, besides the opening's closers.
    """

    size: int
    scanner: Scanner | None = None
    array: bool = False
    closer: str = ""


class _Sign:
    """One of the two below."""


MORE: Final = _Sign()  # more text is needed
NO_CALL: Final = _Sign()


@dataclass(frozen=True, slots=True)
class Opened:
    """What is known where the text after an opening mark is read.

    in_array: within a list of calls.
    fenced:   within a code block.
    ended:    no more text will come.
    schemas:  of the tools' arguments, by name.
    """

    family: Family
    mark: str
    in_array: bool
    fenced: bool
    ended: bool
    schemas: Mapping[str, Mapping[str, Any]]

    def read(self, text: str) -> Step | _Sign:
        """The next step towards a call: what of `text` is before it."""
        rest = text.lstrip()
        size = len(text) - len(rest)
        if not rest:
            return MORE
        if self.family == "pythonic" and "{" not in rest[: len(rest) - len(rest.lstrip("[ \n{"))]:
            return self._named(text, *_PYTHON_CALL)
        if self.mark in FUNCTION_MARKS or (self.mark in _NAMED and self.mark != OPEN and rest[0] not in "{["):
            return self._named(text, *_NAMED[self.mark])
        if self.mark == OPEN and rest[0] == "<":
            return self._named(text, *_NAMED[OPEN])
        if rest[0] == "[" and not self.in_array:
            return Step(size + 1, array=True)
        return self._json(rest, size)

    def _json(self, rest: str, size: int) -> Step | _Sign:
        """The JSON of a call, or the code block that it is in."""
        if self.mark and not self.fenced and rest != "```json" and "```json".startswith(rest):
            return MORE
        fence = next((fence for fence in ("```json", "```") if self.mark and rest.startswith(fence)), "")
        if fence and not self.fenced:
            return Step(size + len(fence), closer="```")
        return Step(size, CallScanner()) if rest[0] == "{" else NO_CALL

    def _named(self, text: str, form: re.Pattern[str], last: str) -> Step | _Sign:
        """A name that is in front of the arguments: `form`, of which `last` is the last character."""
        window = text[:MAX_HEAD]
        found = form.match(window)
        if found is None:
            begun = self._may_begin(text.strip(), form)
            return MORE if begun and last not in window and len(window) < MAX_HEAD else NO_CALL
        name, size = found[1], found.end()
        if form is _PYTHON_CALL[0]:
            return Step(size, PythonScanner(name), array=True)
        if self.mark == GEMMA_OPEN:
            return Step(size, GemmaScanner(name))
        after = text[size:].lstrip()
        if self.mark in (OPEN, _FUNCTION):
            if not after and not self.ended:
                return MORE
            if after[:1] == "<":
                return Step(size, XmlScanner(name, self.schemas.get(name)), closer="</function>")
        return Step(size, CallScanner(name), closer="</function>" if self.mark == OPEN else "")

    def _may_begin(self, text: str, form: re.Pattern[str]) -> bool:
        """Whether a text without blanks around it may be the beginning of `form`."""
        if form is _PYTHON_CALL[0]:
            return _is_name(text.removeprefix("["))
        return self.mark != OPEN or _FUNCTION.startswith(text) or text.startswith(_FUNCTION)


def _is_name(text: str) -> bool:
    """Whether a text may be the beginning of a function's name."""
    return not text.strip() or text.strip().replace(".", "_").replace("-", "_").isidentifier()
