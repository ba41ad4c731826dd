"""Finds tool calls in generated text, whole or token by token. tool_forms.py has the forms of calls."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.models.text.marks import overlap
from outrider.models.text.native_calls import Scanner
from outrider.models.text.tool_call_scanner import decoded
from outrider.models.text.tool_families import Family
from outrider.server.http.tool_forms import ANYWHERE, AT_START, Opening, is_enforced
from outrider.server.http.tool_opening import MORE, Opened, Step

HELD_CHARS = 2048  # a call is held back until it is complete, or so long that a client should see it grow
_MARKS = {
    family: re.compile("|".join(re.escape(opening.mark) for opening in openings))
    for family, openings in ANYWHERE.items()
}
_ALPHANUMERIC = string.ascii_letters + string.digits


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


@dataclass(slots=True)
class _Candidate:
    """Text that may be a call.

    before:  blanks before the opening, and its mark.
    parts:   the text after it that was consumed.
    size:    characters of `parts`.
    scanner: None until the JSON begins; then it has consumed what follows.
    json_at: characters of `parts` before the JSON.
    closers: what is dropped after the call.
    sent:    the call was reported.
    enforced: whether a grammar saw the call begin; None while it is not known.
    """

    opening: Opening
    before: str
    closers: tuple[str, ...]
    parts: list[str] = field(default_factory=list)
    size: int = 0
    scanner: Scanner | None = None
    json_at: int = 0
    sent: bool = False
    enforced: bool | None = None

    def take(self, text: str) -> None:
        self.parts.append(text)
        self.size += len(text)


class ToolParser:
    """Finds calls in a text that arrives in pieces; how it is cut makes no difference.

    Text that may begin a call is held back until it is decided, and is ordinary text if it does not become
    one: a call is JSON, or can safely be made JSON. A call of more than HELD_CHARS is reported as soon as its
    name is known, and then as it is written. `calls` has all calls so far.

    names:    the tools' names; a call without its family's mark counts only if it names one of them.
    enforced: a grammar enforces the arguments of calls that begin in certain ways; no others count.
    formed:   the request has a form of its own for what is no call: only marks at the start of the text begin
              calls.
    forced:   the text is calls and nothing else, by a grammar: they are reported as they are written.
    schemas:  of the tools' arguments, by name, for forms of calls that do not tell texts from other values.
    """

    def __init__(
        self,
        family: Family,
        names: Collection[str],
        *,
        enforced: bool = False,
        formed: bool = False,
        forced: bool = False,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._schemas = schemas or {}
        self.calls: list[ToolCall] = []
        self._family, self._names = family, names
        self._enforced, self._formed = enforced, formed
        self._held_chars = 0 if forced or enforced or formed else HELD_CHARS
        self._held = ""  # text that is not decided yet
        self._candidate: _Candidate | None = None
        self._last: _Candidate | None = None  # directly after a call: its closing marks are dropped
        self._in_array = self._brace = False  # after a call: within an array; one more brace is dropped
        self._broken: str | None = None  # within a reported call that is no JSON: its closing mark
        self._at_start = True  # the text so far is blank
        self._after_call = False  # after a call and its marks: blanks are dropped
        self._gap = ""  # then: the blanks before the call
        self._ended = False  # no more text will come

    def push(self, text: str) -> Parsed:
        """Parse more text."""
        out = Parsed()
        self._held += text
        while self._step(out):
            pass
        return out

    def finish(self, *, cut: bool = False) -> Parsed:
        """The end of the text. What is still held back is ordinary text; when the text was cut off (at
        `max_tokens`, say), a call that had begun is a call as far as it came."""
        self._ended = True
        out = Parsed()
        while self._step(out) or self._end_candidate(out, cut):
            pass
        rest = self._held.strip()
        if self._last is None or not any(mark.startswith(rest) for mark in ("", *self._last.closers)):
            out.content += self._held
        self._held = ""
        return out

    def _step(self, out: Parsed) -> bool:
        """Consume part of the text that is held. False: more text is needed."""
        if self._broken is not None:
            return self._pass_on(self._broken, out)
        if self._candidate is not None:
            if self._candidate.scanner is None:
                return self._open(self._candidate, out)
            return self._scan(self._candidate, self._candidate.scanner, out)
        if self._last is not None:
            return self._skip_closers(self._last)
        return self._find_call(out)

    def _add_text(self, out: Parsed, text: str) -> None:
        out.content += text
        self._at_start = self._at_start and not text.strip()

    # --- Before a call -----------------------------------------------------------------------------

    def _find_call(self, out: Parsed) -> bool:
        """Find the opening of a call in ordinary text. False: more text is needed."""
        if self._after_call:
            self._held = self._held.lstrip()
        if not self._held:
            return False
        if self._after_call and not self._at_start:  # keep texts before and after calls apart
            self._held = self._gap + self._held
        self._after_call, self._gap = False, ""
        if self._at_start and (begun := self._find_first_call()) is not False:
            return bool(begun)
        openings = () if self._formed else ANYWHERE[self._family]
        if openings and (found := _MARKS[self._family].search(self._held)) is not None:
            opening = next(opening for opening in openings if opening.mark == found[0])
            text = self._held[: found.start()].rstrip()
            self._begin(opening, self._held[len(text) : found.end()], self._held[found.end() :])
            self._add_text(out, text)
            return True
        keep = max((overlap(self._held, opening.mark) for opening in openings), default=0)
        size = len(self._held[: len(self._held) - keep].rstrip() if openings else self._held)
        self._add_text(out, self._held[:size])  # blanks may precede a call
        self._held = self._held[size:]
        return False

    def _find_first_call(self) -> bool | None:
        """Find an opening at the start of the text. False: there is none; None: undecided."""
        rest = self._held.lstrip()
        openings = AT_START[self._family]
        if self._formed:
            openings = tuple(opening for opening in ANYWHERE[self._family] if opening.own)
        if not rest or (any(_begins(opening.mark, rest) for opening in openings) and not self._ended):
            return None
        marks = [opening.mark for opening in ANYWHERE[self._family]]
        if not self._formed and any(rest.startswith(mark) or _begins(mark, rest) for mark in marks):
            return False
        opening = next((opening for opening in openings if rest.startswith(opening.mark)), None)
        if opening is None or (not opening.mark and rest[0] not in "{["):
            return False
        before = len(self._held) - len(rest) + len(opening.mark)
        self._begin(opening, self._held[:before], self._held[before:])
        return True

    def _begin(self, opening: Opening, before: str, rest: str) -> None:
        self._candidate = _Candidate(opening, before, opening.closers)
        self._held = rest

    def _open(self, candidate: _Candidate, out: Parsed) -> bool:
        """Find the call after its opening. False: more text is needed."""
        fenced = "```" in candidate.closers
        opened = Opened(
            self._family, candidate.opening.mark, self._in_array, fenced, self._ended, self._schemas
        )
        step = opened.read(self._held)
        if step is MORE:
            return False
        if not isinstance(step, Step):
            return self._give_up(candidate, out)
        self._in_array = self._in_array or step.array
        if step.closer and step.closer not in candidate.closers:
            candidate.closers = (step.closer, *candidate.closers)
        self._take(candidate, step.size)
        if step.scanner is not None:
            candidate.scanner, candidate.json_at = step.scanner, candidate.size
        return True

    def _take(self, candidate: _Candidate, size: int) -> None:
        candidate.take(self._held[:size])
        self._held = self._held[size:]

    def _give_up(self, candidate: _Candidate, out: Parsed) -> bool:
        """The opening is ordinary text; what follows it is looked at again."""
        rest = "".join(candidate.parts) + self._held
        size = 0 if candidate.before.strip() else len(rest) - len(rest.lstrip()) + 1
        self._add_text(out, candidate.before + rest[:size])
        self._held, self._candidate, self._in_array = rest[size:], None, False
        return True

    # --- Within a call -----------------------------------------------------------------------------

    def _scan(self, candidate: _Candidate, scanner: Scanner, out: Parsed) -> bool:
        """Let the scanner consume the text that is held, and report what it found."""
        self._take(candidate, scanner.push(self._held))
        is_long = candidate.size > self._held_chars and scanner.began is not None
        if is_long and not candidate.sent and self._counts(candidate, scanner):
            self._report(candidate, scanner, out)
        if candidate.sent:
            self._add_arguments(out, scanner.take())
        if scanner.failed:
            if scanner.lacks_brace and self._held.startswith("{"):  # the next call
                return self._end_call(candidate, scanner, out, scanner.close_all())
            for mark in candidate.closers:
                if self._held.startswith(mark):
                    return self._end_call(candidate, scanner, out, scanner.close_all())
                if mark.startswith(self._held) and not self._ended:
                    return False
            return self._end_call(candidate, scanner, out, False)
        return scanner.done and self._end_call(candidate, scanner, out, True)

    def _counts(self, candidate: _Candidate, scanner: Scanner) -> bool:
        """Whether what was found is a call of one of the tools, as far as it is known."""
        if not scanner.name or not (candidate.opening.own or scanner.name in self._names):
            return False
        if self._enforced:
            if candidate.enforced is None and scanner.began is not None:
                text = "".join(candidate.parts)[: candidate.json_at + scanner.began]
                candidate.enforced = is_enforced(self._family, candidate.before + text, self._names)
            return bool(candidate.enforced)
        if scanner.done and decoded(scanner.arguments).startswith('"'):  # a text that is no object
            return False
        return scanner.arguments is not None or not candidate.opening.needs_arguments

    def _report(self, candidate: _Candidate, scanner: Scanner, out: Parsed) -> None:
        call = ToolCall(self._new_id(), str(scanner.name))
        candidate.sent = True
        self._gap = self._gap or candidate.before[: len(candidate.before) - len(candidate.before.lstrip())]
        self.calls.append(call)
        out.begin(len(self.calls) - 1, call)

    def _new_id(self) -> str:
        if self._family == "mistral":  # its templates refuse ids of any other shape
            return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def _add_arguments(self, out: Parsed, arguments: str) -> None:
        if arguments:
            self.calls[-1].arguments += arguments
            out.extend(len(self.calls) - 1, arguments)

    def _end_call(self, candidate: _Candidate, scanner: Scanner, out: Parsed, is_json: bool) -> bool:
        """After the JSON of a candidate, or where it turned out to be none."""
        if not candidate.sent and not (is_json and self._counts(candidate, scanner)):
            return self._give_up(candidate, out)
        if candidate.sent:
            self._add_arguments(out, scanner.take())
        else:
            self._report(candidate, scanner, out)
            self._add_arguments(out, decoded(scanner.arguments))
        self._candidate = None
        if is_json:
            self._last, self._brace = candidate, True
        else:
            self._broken = next(iter(candidate.closers), "")
            self._last = candidate
        return True

    def _pass_on(self, mark: str, out: Parsed) -> bool:
        """Hand on what follows where a reported call is no JSON, up to its closing mark."""
        at = self._held.find(mark) if mark else -1
        size = at if at >= 0 else len(self._held) - (0 if self._ended else overlap(self._held, mark))
        self._add_arguments(out, self._held[:size])
        self._held = self._held[size:]
        if at >= 0:
            self._broken = None
        return at >= 0

    def _end_candidate(self, out: Parsed, cut: bool) -> bool:
        """Decide on what is held back when the text has ended. False: there is nothing."""
        candidate = self._candidate
        if candidate is None:
            return False
        scanner = candidate.scanner
        if scanner is None:
            return self._give_up(candidate, out)
        if cut and not candidate.sent and scanner.began is not None and self._counts(candidate, scanner):
            self._report(candidate, scanner, out)
        if candidate.sent:
            if not cut:
                scanner.close_all()
            self._add_arguments(out, scanner.take())
            self._candidate, self._last = None, candidate
            return True
        closable = bool(candidate.opening.mark) or scanner.lacks_brace
        is_json = not cut and closable and scanner.close_all()
        return self._end_call(candidate, scanner, out, is_json)

    # --- After a call ------------------------------------------------------------------------------

    def _skip_closers(self, last: _Candidate) -> bool:
        """Drop what closes a call. False: more text is needed."""
        self._held = rest = self._held.lstrip()
        if not rest:
            return False
        if (rest[0] == "}" and self._brace) or (self._in_array and rest[0] in ",]"):
            self._brace = self._brace and rest[0] != "}"
            self._in_array = self._in_array and rest[0] != "]"
            self._held = rest[1:]
            return True
        for mark in last.closers:
            if rest.startswith(mark):
                last.closers = tuple(other for other in last.closers if other != mark)
                self._brace = False
                self._held = rest[len(mark) :]
                return True
            if mark.startswith(rest):
                self._held = "" if self._ended else rest
                return False
        self._last = None
        named = self._family == "pythonic" and self._in_array and rest[0].isidentifier()
        if named or (rest[0] == "{" and (self._in_array or (last.closers and last.opening.mark))):
            self._candidate = _Candidate(last.opening, "", last.closers)
            return True
        self._after_call, self._in_array = True, False
        return True


def _begins(mark: str, text: str) -> bool:
    """Whether a text may go on to be a mark, and is not yet."""
    return mark.startswith(text) and text != mark
