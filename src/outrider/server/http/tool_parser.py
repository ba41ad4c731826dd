"""Finds tool calls in generated text, whole or token by token.

See tools.py for the forms. Small models often leave Hermes' marks out, or write a Markdown code block in
their place: an answer that starts like that and names a tool is a call as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from outrider.server.http.tool_call_scanner import CallScanner
from outrider.server.http.tools import CLOSE, OPEN, Family

STARTS: dict[Family, dict[str, str]] = {  # by opening mark at the start of an answer: the closing mark
    "hermes": {"```json": "```", "```": "```", "": ""},
    "llama3_json": {"<|python_tag|>": ";", "": ";"},
}


@dataclass(slots=True)
class ToolCall:
    """A call that may still grow; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""

    def document(self) -> dict[str, Any]:
        """The call in OpenAI's shape."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class Parsed:
    """What was found in new text: ordinary text, and in OpenAI's shape one delta for each call."""

    content: str = ""
    deltas: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, index: int, call: ToolCall) -> None:
        self.deltas.append({"index": index, **call.document()})

    def extend(self, index: int, arguments: str) -> None:
        """Add text to the arguments of a call."""
        if not self.deltas or self.deltas[-1]["index"] != index:
            self.deltas.append({"index": index, "function": {"arguments": ""}})
        self.deltas[-1]["function"]["arguments"] += arguments


class ToolParser:
    """Finds calls in a text that arrives in pieces. Text that may begin a call is held back until it is
    decided; text that does not become a call is ordinary text. `calls` has all calls so far.

    names: the tools' names; a call without marks counts only if it names one of them.
    """

    def __init__(self, family: Family, names: Collection[str]) -> None:
        self.calls: list[ToolCall] = []
        self._family, self._names = family, names
        self._held = ""  # text that may be the start of a mark
        self._scanner: CallScanner | None = None  # inside a call
        self._raw = ""  # the opening mark and the text that the scanner has consumed
        self._close, self._marked = CLOSE, True  # the current call: its closing mark; whether OPEN began it
        self._reported = False  # the current call is in `calls`
        self._closing = False  # a call's JSON has ended: blanks and the closing mark are dropped
        self._at_start = True  # the text so far is blank
        self._after_call = False  # directly after a call: blanks are dropped

    def push(self, text: str) -> Parsed:
        """Parse more text."""
        out = Parsed()
        self._held += text
        while self._step(out):
            pass
        return out

    def finish(self) -> Parsed:
        """The end of the text: what is still held back is ordinary text."""
        out = self.push("")
        if self._scanner is not None and not self._reported:
            out.content += self._raw
        elif self._scanner is None and not (self._closing and self._close.startswith(self._held.strip())):
            out.content += self._held
        self._held, self._scanner = "", None
        return out

    def _step(self, out: Parsed) -> bool:
        """Consume part of the text that is held. False: more text is needed."""
        if self._scanner is not None:
            return self._scan(self._scanner, out)
        if self._closing and not self._skip_close():
            return False
        return self._find_call(out)

    def _skip_close(self) -> bool:
        """Drop the closing mark after a call. False: undecided."""
        rest = self._held.lstrip()
        if self._close.startswith(rest) and rest != self._close:
            return False
        self._held = rest.removeprefix(self._close)
        self._closing, self._after_call = False, True
        return True

    def _find_call(self, out: Parsed) -> bool:
        """Find the start of a call in ordinary text. False: more text is needed."""
        if self._after_call:
            self._held = self._held.lstrip()
        if not self._held:
            return False
        self._after_call = False
        if self._at_start and (begun := self._find_first_call()) is not False:
            return bool(begun)
        if self._family == "llama3_json":  # calls are the whole answer
            self._add_text(out, self._held)
            self._held = ""
            return False
        at = self._held.find(OPEN)
        if at >= 0:
            self._add_text(out, self._held[:at].rstrip())
            self._begin_call(OPEN, CLOSE, self._held[at + len(OPEN) :])
            return True
        keep = _overlap(self._held, OPEN)
        blank = len(self._held[: len(self._held) - keep].rstrip())  # it may precede a call
        self._add_text(out, self._held[:blank])
        self._held = self._held[blank:]
        return False

    def _find_first_call(self) -> bool | None:
        """Begin a call at the start of the answer. False: it does not start with one; None: undecided."""
        rest = self._held.lstrip()
        starts = STARTS[self._family]
        if any(mark.startswith(rest) and mark != rest for mark in starts):
            return None
        mark = next(mark for mark in starts if rest.startswith(mark))
        body = rest[len(mark) :].lstrip()
        if not body:
            return None
        if not body.startswith("{"):
            return False
        self._begin_call(self._held[: len(self._held) - len(body)], starts[mark], body)
        return True

    def _add_text(self, out: Parsed, text: str) -> None:
        out.content += text
        self._at_start = self._at_start and not text.strip()

    def _begin_call(self, mark: str, close: str, rest: str) -> None:
        self._scanner, self._raw, self._held, self._reported = CallScanner(), mark, rest, False
        self._close, self._marked = close, mark == OPEN

    def _scan(self, scanner: CallScanner, out: Parsed) -> bool:
        """Let the scanner consume the text that is held, and report what it found."""
        used = scanner.push(self._held)
        self._raw += self._held[:used]
        self._held = self._held[used:]
        unknown = scanner.name is not None and not self._marked and scanner.name not in self._names
        if scanner.name is not None and not self._reported and not unknown:
            call = ToolCall(f"call_{secrets.token_hex(12)}", scanner.name)
            self.calls.append(call)
            self._reported = True
            out.begin(len(self.calls) - 1, call)
        if self._reported and (more := scanner.take()):
            self._add_arguments(out, more)
        if scanner.failed or unknown:
            if not self._reported:
                self._add_text(out, self._raw)
            self._scanner, self._closing = None, False
            return bool(self._held)
        if scanner.done:
            if not self._reported:
                self._add_text(out, self._raw)
            elif not self.calls[-1].arguments:
                self._add_arguments(out, "{}")
            self._scanner, self._closing = None, self._reported
            return True
        return False

    def _add_arguments(self, out: Parsed, arguments: str) -> None:
        self.calls[-1].arguments += arguments
        out.extend(len(self.calls) - 1, arguments)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of a text that is a prefix of the mark."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
