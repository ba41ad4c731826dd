"""Tools: how calls are written by the model's family, enforced by a grammar, and found in the text.

Two forms are known. Hermes (Qwen, Hermes and others): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`,
as often as there are calls, between ordinary text. Llama 3's JSON: the whole answer is
`{"name": …, "parameters": {…}}`, more than one with `;` between them, maybe behind `<|python_tag|>`.
Small models of the first kind often leave the marks out, or write a block of Markdown in their place; an
answer that begins so, and names a tool, is a call as well.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from outrider.server.http.errors import bad
from outrider.server.http.protocol import ChatRequest, NamedTool, Tool
from outrider.server.http.toolscan import CallScanner

Family: TypeAlias = Literal["hermes", "llama3_json"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
STARTS: dict[Family, dict[str, str]] = {  # of an answer that is calls: the mark, and the one behind a call
    "hermes": {"```json": "```", "```": "```", "": ""},
    "llama3_json": {"<|python_tag|>": ";", "": ";"},
}
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_PREFACE = """\
You can call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
For each call write a JSON object with the function's name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": "FUNCTION", "arguments": {{…}}}}
</tool_call>"""


def family_of(template: str | None, wanted: str | None = None) -> Family:
    """The form that a chat template asks for; Hermes' when it asks for none."""
    if wanted is not None:
        return "llama3_json" if wanted == "llama3_json" else "hermes"
    source = template or ""
    return "llama3_json" if OPEN not in source and '"parameters"' in source else "hermes"


@dataclass(frozen=True, slots=True)
class Use:
    """What a request may do with its tools.

    tools:    those that may be called; () for none.
    shown:    those that the prompt tells of.
    forced:   the answer is calls and nothing else: of any tool, or of the one that was named.
    parallel: there may be several calls.
    """

    tools: tuple[Tool, ...] = ()
    shown: tuple[Tool, ...] = ()
    forced: bool = False
    named: bool = False
    parallel: bool = True


def use_of(body: ChatRequest) -> Use:
    """What a request asks for. Raises ApiError."""
    tools, choice = tuple(body.tools or ()), body.tool_choice
    if choice is None or choice == "none" or not tools:
        if not tools and choice not in (None, "none", "auto"):
            raise bad("tool_choice needs tools", "tool_choice")
        if choice == "none" or not tools:
            return Use()
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad("two tools have the same name", "tools")
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        wanted = tuple(tool for tool in tools if tool.function.name == choice.function.name)
        if not wanted:
            there = ", ".join(names)
            raise bad(
                f"tool_choice names {choice.function.name[:80]!r}; the tools are {there}", "tool_choice"
            )
        return Use(wanted, tools, forced=True, named=True, parallel=False)
    return Use(tools, tools, forced=choice == "required", parallel=parallel)


def grammar(use: Use, family: Family) -> str:
    """A Lark grammar (as llguidance extends it) of the calls that a request must answer with."""
    key = "arguments" if family == "hermes" else "parameters"
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": t.function.name}, key: t.function.parameters or _NO_ARGUMENTS},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for t in use.tools
    ]
    bodies = [json.dumps({**call, "x-guidance": _COMPACT}) for call in calls]
    rules = [f"body{n}: %json {body}" for n, body in enumerate(bodies)]
    body = "body: " + " | ".join(f"body{n}" for n in range(len(bodies)))
    if family == "hermes":
        call = f'call: "{OPEN}\\n" body "\\n{CLOSE}"'
        start = 'start: call ("\\n" call)*' if use.parallel else "start: call"
    else:
        call = "call: body"
        start = 'start: call ("; " call)*' if use.parallel else "start: call"
    return "\n".join([start, call, body, *rules])


def with_tools_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages for a chat template that knows no tools: their signatures in the system's message, calls and
    results as text, all in Hermes' form."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            text = f"<tool_response>\n{_text(content)}\n</tool_response>"
            if found and found[-1].get("responses"):
                found[-1]["content"] += "\n" + text
            else:
                found.append({"role": "user", "content": text, "responses": True})
        elif role == "assistant" and message.get("tool_calls"):
            calls = [_written(call["function"]) for call in message["tool_calls"]]
            parts = [_text(content), *calls] if content else calls
            found.append({"role": "assistant", "content": "\n".join(parts)})
        else:
            found.append(dict(message))
    for message in found:
        message.pop("responses", None)
    if not tools:
        return found
    preface = _PREFACE.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if found and found[0]["role"] == "system":
        first = {**found[0], "content": f"{_text(found[0].get('content') or '')}\n\n{preface}"}
        return [first, *found[1:]]
    return [{"role": "system", "content": preface}, *found]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    if len(parts) < len(content) or not all(isinstance(part, str) for part in parts):
        raise bad("a message has a content part that is not text; only text is supported", "messages")
    return "\n".join(str(part) for part in parts)


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function.get("arguments", {})}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"


@dataclass(slots=True)
class ToolCall:
    """A call as far as it has come; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""

    def document(self) -> dict[str, Any]:
        """OpenAI's shape."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class Parsed:
    """What some text brought: ordinary text, and calls' deltas in OpenAI's shape, one for each call."""

    content: str = ""
    deltas: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, index: int, call: ToolCall) -> None:
        self.deltas.append({"index": index, **call.document()})

    def more(self, index: int, arguments: str) -> None:
        """Arguments that go on with a call's."""
        if not self.deltas or self.deltas[-1]["index"] != index:
            self.deltas.append({"index": index, "function": {"arguments": ""}})
        self.deltas[-1]["function"]["arguments"] += arguments


class ToolParser:
    """Finds calls in a text that comes in pieces. What may be the start of a call is held back until it is
    clear; what turns out to be none is ordinary text. `calls` has all calls so far.

    names: the tools'; a call without marks must have one of them.
    """

    def __init__(self, family: Family, names: Collection[str]) -> None:
        self.calls: list[ToolCall] = []
        self._family, self._names = family, names
        self._held = ""  # text that may be the start of a mark
        self._scanner: CallScanner | None = None  # inside a call
        self._raw = ""  # what the scanner was given, its mark in front
        self._close, self._marked = CLOSE, True  # the mark that ends the call under way; whether one began it
        self._told = False  # the call under way is among `calls`
        self._closing = False  # behind a call: its closing mark, and blanks, are left out
        self._start = True  # no text but blanks was there yet
        self._behind = False  # directly behind a call: blanks are left out

    def push(self, text: str) -> Parsed:
        """More text."""
        out = Parsed()
        self._held += text
        while self._step(out):
            pass
        return out

    def finish(self) -> Parsed:
        """The end of the text: what was held back is told."""
        out = self.push("")
        if self._scanner is not None and not self._told:
            out.content += self._raw
        elif self._scanner is None and not (self._closing and self._close.startswith(self._held.strip())):
            out.content += self._held
        self._held, self._scanner = "", None
        return out

    def _step(self, out: Parsed) -> bool:
        """Consume some of what is held. False: more text is needed."""
        if self._scanner is not None:
            return self._scan(self._scanner, out)
        if self._closing and not self._leave():
            return False
        return self._look(out)

    def _leave(self) -> bool:
        """Leave out what follows a call. False while that is not clear."""
        rest = self._held.lstrip()
        if self._close.startswith(rest) and rest != self._close:
            return False
        self._held = rest.removeprefix(self._close)
        self._closing, self._behind = False, True
        return True

    def _look(self, out: Parsed) -> bool:
        """Look for the start of a call in ordinary text."""
        if self._behind:
            self._held = self._held.lstrip()
        if not self._held:
            return False
        self._behind = False
        if self._start and (clear := self._look_at_start()) is not False:
            return bool(clear)
        if self._family == "llama3_json":  # calls are the whole answer
            self._say(out, self._held)
            self._held = ""
            return False
        at = self._held.find(OPEN)
        if at >= 0:
            self._say(out, self._held[:at].rstrip())
            self._begin(OPEN, CLOSE, self._held[at + len(OPEN) :])
            return True
        keep = _overlap(self._held, OPEN)
        blank = len(self._held[: len(self._held) - keep].rstrip())  # it may precede a call
        self._say(out, self._held[:blank])
        self._held = self._held[blank:]
        return False

    def _look_at_start(self) -> bool | None:
        """Begin a call where the answer begins. False: it does not begin with one; None: it is not clear."""
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
        self._begin(self._held[: len(self._held) - len(body)], starts[mark], body)
        return True

    def _say(self, out: Parsed, text: str) -> None:
        out.content += text
        self._start = self._start and not text.strip()

    def _begin(self, mark: str, close: str, rest: str) -> None:
        self._scanner, self._raw, self._held, self._told = CallScanner(), mark, rest, False
        self._close, self._marked = close, mark == OPEN

    def _scan(self, scanner: CallScanner, out: Parsed) -> bool:
        """Lead the scanner along what is held, and tell what it found."""
        used = scanner.push(self._held)
        self._raw += self._held[:used]
        self._held = self._held[used:]
        unknown = scanner.name is not None and not self._marked and scanner.name not in self._names
        if scanner.name is not None and not self._told and not unknown:
            call = ToolCall(f"call_{secrets.token_hex(12)}", scanner.name)
            self.calls.append(call)
            self._told = True
            out.begin(len(self.calls) - 1, call)
        if self._told and (more := scanner.take()):
            self._argue(out, more)
        if scanner.failed or unknown:
            if not self._told:
                self._say(out, self._raw)
            self._scanner, self._closing = None, False
            return bool(self._held)
        if scanner.done:
            if not self._told:
                self._say(out, self._raw)
            elif not self.calls[-1].arguments:
                self._argue(out, "{}")
            self._scanner, self._closing = None, self._told
            return True
        return False

    def _argue(self, out: Parsed, arguments: str) -> None:
        self.calls[-1].arguments += arguments
        out.more(len(self.calls) - 1, arguments)


def _overlap(text: str, mark: str) -> int:
    """How long the longest end of a text is that the mark starts with."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
