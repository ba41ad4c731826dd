"""Reads one sample's text as it is written: reasoning, ordinary text, and tool calls. Knows no dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.models.text.tokenizer import Tokenizer
from outrider.server.http import sampling_fields, tools
from outrider.server.http.chat_templates import ChatTemplates
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_forms import calls_are_marked, special_token
from outrider.server.http.tool_parser import ToolCall, ToolParser, overlap

THINK, THOUGHT = "<think>", "</think>"
_TAIL = 16  # tokens of a prompt's end that may open the reasoning


def thinks(template: str | None) -> bool:
    """Whether a chat template is one of a model that writes its reasoning within <think> and </think>."""
    return template is not None and (THINK in template or THOUGHT in template)


def think_marks_are_special(tokenizer: Tokenizer) -> bool:
    """Whether the marks are special tokens, which are not part of a text by default."""
    return special_token(tokenizer, THINK) is not None


class ReasoningReader:
    """Splits a text that arrives in pieces into the reasoning at its start and the rest. Blanks around the
    reasoning belong to neither.

    inside: the prompt has opened the reasoning already.
    """

    def __init__(self, *, inside: bool) -> None:
        self._state: Literal["start", "inside", "after", "rest"] = "inside" if inside else "start"
        self._held = ""  # text that is not decided yet
        self._begun = False  # some reasoning was returned

    @property
    def inside(self) -> bool:
        return self._state == "inside"

    @classmethod
    def after_prompt(cls, tokenizer: Tokenizer, prompt: Sequence[int]) -> ReasoningReader:
        """The reader of an answer to a prompt, given as token ids."""
        tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False)
        return cls(inside=tail.rfind(THINK) > tail.rfind(THOUGHT))

    def push(self, text: str) -> tuple[str, str]:
        """The new reasoning, and the new text after it."""
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._start()
        if self._state == "inside":
            reasoning = self._inside()
        if self._state == "after":
            self._held = self._held.lstrip()
            self._state = "rest" if self._held else "after"
        if self._state != "rest":
            return reasoning, ""
        rest, self._held = self._held, ""
        return reasoning, rest

    def finish(self) -> tuple[str, str]:
        """What is still held back at the end of the text."""
        held, self._held = self._held, ""
        if self._state == "inside":
            held = held if self._begun else held.lstrip()
            return held.rstrip(), ""
        return ("", held) if self._state in ("start", "rest") else ("", "")

    def _start(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(THINK):
            self._state, self._held = "inside", begun.removeprefix(THINK)
        elif not THINK.startswith(begun):
            self._state = "rest"

    def _inside(self) -> str:
        """Reasoning that is decided."""
        before, mark, after = self._held.partition(THOUGHT)
        if mark:
            self._state, self._held = "after", after
            decided = before.rstrip()
        else:
            keep = overlap(before, THOUGHT)
            decided = before[: len(before) - keep].rstrip()
            self._held = before[len(decided) :]
        if not self._begun:
            decided = decided.lstrip()
        self._begun = self._begun or bool(decided)
        return decided


@dataclass(slots=True)
class Read:
    """What new text brought: reasoning, ordinary text, and in OpenAI's shape one delta for each call."""

    reasoning: str = ""
    content: str = ""
    deltas: list[dict[str, Any]] = field(default_factory=list)


class SampleReader:
    """Reads one sample's text.

    parser:    None finds no tool calls.
    parallel:  there may be several calls; otherwise those after the first are dropped.
    reasoning: None takes all for ordinary text.
    """

    def __init__(
        self,
        parser: ToolParser | None = None,
        *,
        parallel: bool = True,
        reasoning: ReasoningReader | None = None,
    ) -> None:
        self._parser, self._parallel, self._reasoning = parser, parallel, reasoning

    @classmethod
    def of(
        cls, templates: ChatTemplates, body: ChatRequest, reasoning: ReasoningReader | None = None
    ) -> SampleReader:
        """The reader of a sample of a request. Raises ApiError."""
        use, family = tools.tool_use(body), templates.tool_family(body.chat_template)
        names = [tool.function.name for tool in use.tools]
        formed = not use.forced and sampling_fields.output_format(body) is not None
        # Where calls have no mark, JSON that is asked for could not be told from them.
        if not names or (formed and not calls_are_marked(family)):
            return cls(parallel=use.parallel, reasoning=reasoning)
        parser = ToolParser(family, names, enforced=use.enforced, formed=formed, forced=use.forced)
        return cls(parser, parallel=use.parallel, reasoning=reasoning)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        found = [] if self._parser is None else self._parser.calls
        return found if self._parallel else found[:1]

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.inside

    def push(self, text: str, end: FinishEvent | None = None) -> Read:
        """Read more text. end: of the sample, with its last text; what was held back is then decided."""
        read = Read(content=text)
        if self._reasoning is not None:
            read.reasoning, read.content = self._reasoning.push(text)
            if end is not None:
                held = self._reasoning.finish()
                read.reasoning += held[0]
                read.content += held[1]
        if self._parser is not None:
            parsed = self._parser.push(read.content)
            read.content, read.deltas = parsed.content, parsed.deltas
            if end is not None:
                parsed = self._parser.finish(cut=end.finish_reason == "length")
                read.content += parsed.content
                read.deltas += parsed.deltas
        read.deltas = [d for d in read.deltas if self._parallel or d["index"] == 0]
        return read


Kind: TypeAlias = Literal["reasoning", "text", "call"]


@dataclass(slots=True, eq=False)
class Block:
    """A part of an answer, as dialects with content blocks or output items have them.

    text: so far; of a call its arguments, as JSON.
    call: of a tool.
    """

    kind: Kind
    text: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block begins, gets more text, or ends. last: it ends because the sample does."""

    what: Literal["begin", "more", "end"]
    block: Block
    text: str = ""
    last: bool = False


class BlockReader:
    """Reads one sample as a sequence of blocks, one after the other. Token by token, so that the blocks do
    not depend on how tokens are delivered.

    blocks:           so far; the last one may still grow.
    reasoning_tokens: tokens of the reasoning and its marks.
    """

    def __init__(self, reader: SampleReader) -> None:
        self.reader = reader
        self.blocks: list[Block] = []
        self.reasoning_tokens = 0
        self._open: Block | None = None

    def read(self, tokens: Sequence[TokenEvent], end: FinishEvent | None) -> Iterator[BlockEvent]:
        """The events of new tokens. end: of the sample, with the last ones."""
        for token in tokens:
            before = self.reader.in_reasoning
            yield from self._take(self.reader.push(token.text))
            self.reasoning_tokens += before or self.reader.in_reasoning
        if end is not None:
            yield from self._take(self.reader.push(end.text_tail, end))
            yield from self._close(last=True)

    def _take(self, read: Read) -> Iterator[BlockEvent]:
        yield from self._add("reasoning", read.reasoning)
        begun = [number for number, delta in enumerate(read.deltas) if "id" in delta]
        first = begun[0] if begun else len(read.deltas)
        for delta in read.deltas[:first]:  # of a call that has begun before
            yield from self._more(delta["function"]["arguments"])
        yield from self._add("text", read.content)
        for delta in read.deltas[first:]:
            if "id" in delta:
                call = self.reader.calls[delta["index"]]
                yield from self._begin(Block("call", call=call))
            yield from self._more(delta["function"]["arguments"])

    def _add(self, kind: Kind, text: str) -> Iterator[BlockEvent]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._begin(Block(kind))
        yield from self._more(text)

    def _begin(self, block: Block) -> Iterator[BlockEvent]:
        yield from self._close()
        self.blocks.append(block)
        self._open = block
        yield BlockEvent("begin", block)

    def _more(self, text: str) -> Iterator[BlockEvent]:
        if text and self._open is not None:
            self._open.text += text
            yield BlockEvent("more", self._open, text)

    def _close(self, last: bool = False) -> Iterator[BlockEvent]:
        if self._open is not None:
            block, self._open = self._open, None
            yield BlockEvent("end", block, last=last)
