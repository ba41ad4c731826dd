"""Reads one sample's text as it is written: reasoning, ordinary text, and tool calls. Knows no dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.models.text.chat import content_text
from outrider.models.text.reasoning import ThoughtReader, reader_after
from outrider.models.text.tokenizer import Tokenizer
from outrider.server.http import sampling_fields, tools
from outrider.server.http.chat_templates import ChatTemplates
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_forms import calls_are_marked
from outrider.server.http.tool_parser import ToolCall, ToolParser


@dataclass(slots=True)
class Read:
    """What new text brought: reasoning, ordinary text, and in OpenAI's shape one delta for each call."""

    reasoning: str = ""
    content: str = ""
    deltas: list[dict[str, Any]] = field(default_factory=list)

    def extend(self, deltas: Sequence[dict[str, Any]]) -> None:
        """Add deltas of calls; those that go on with the last one become part of it."""
        for delta in deltas:
            if self.deltas and "id" not in delta and self.deltas[-1]["index"] == delta["index"]:
                self.deltas[-1]["function"]["arguments"] += delta["function"]["arguments"]
            else:
                self.deltas.append(delta)


class SampleReader:
    """Reads one sample's text.

    parser:    None finds no tool calls.
    parallel:  there may be several calls; otherwise those after the first are dropped.
    reasoning: None takes all for ordinary text.

    reasoning_tokens: tokens of the thoughts and their marks, of those that `read` was given.
    """

    def __init__(
        self,
        parser: ToolParser | None = None,
        *,
        parallel: bool = True,
        reasoning: ThoughtReader | None = None,
    ) -> None:
        self._parser, self._parallel, self._reasoning = parser, parallel, reasoning
        self.reasoning_tokens = 0

    @classmethod
    def of(
        cls, templates: ChatTemplates, body: ChatRequest, tokenizer: Tokenizer, prompt: Sequence[int]
    ) -> SampleReader:
        """The reader of a sample of a request, whose prompt is given as token ids. Raises ApiError."""
        reasoning = _thought_reader(templates, body, tokenizer, prompt)
        use, family = tools.tool_use(body), templates.tool_family(body.chat_template)
        names = [tool.function.name for tool in use.tools]
        formed = not use.forced and sampling_fields.output_format(body) is not None
        # Where calls have no mark, JSON that is asked for could not be told from them.
        if not names or (formed and not calls_are_marked(family)):
            return cls(parallel=use.parallel, reasoning=reasoning)
        schemas = {tool.function.name: tool.function.parameters or {} for tool in use.tools}
        parser = ToolParser(
            family, names, enforced=use.enforced, formed=formed, forced=use.forced, schemas=schemas
        )
        return cls(parser, parallel=use.parallel, reasoning=reasoning)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        found = [] if self._parser is None else self._parser.calls
        return found if self._parallel else found[:1]

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.inside

    @property
    def parts_thoughts(self) -> bool:
        """Whether thoughts are told apart from the answer."""
        return self._reasoning is not None

    def each(self, tokens: Sequence[TokenEvent], end: FinishEvent | None) -> Iterator[Read]:
        """What each new token brings, and at the end what was held back. end: of the sample, with its last
        tokens."""
        for token in tokens:
            before = self.in_reasoning
            read = self.push(token.text)
            self.reasoning_tokens += before or self.in_reasoning or bool(read.reasoning)
            yield read
        if end is not None:
            yield self.push(end.text_tail, end)

    def read(self, tokens: Sequence[TokenEvent], end: FinishEvent | None) -> Read:
        """The same as one."""
        found = Read()
        for read in self.each(tokens, end):
            found.reasoning += read.reasoning
            found.content += read.content
            found.extend(read.deltas)
        return found

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


def _thought_reader(
    templates: ChatTemplates, body: ChatRequest, tokenizer: Tokenizer, prompt: Sequence[int]
) -> ThoughtReader | None:
    """What parts the thoughts from the answer of a request; None where they are left in the text."""
    made = templates.parted_format(body)
    return None if made is None else reader_after(made, tokenizer, prompt, continued_text(body))


def continued_text(body: ChatRequest) -> str | None:
    """The text of the message that an answer goes on with; None if it goes on with none."""
    if not body.continue_final_message:
        return None
    return content_text(body.messages[-1].content, "the last message") or ""


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

    blocks: so far; the last one may still grow.
    """

    def __init__(self, reader: SampleReader) -> None:
        self.reader = reader
        self.blocks: list[Block] = []
        self._open: Block | None = None

    def read(self, tokens: Sequence[TokenEvent], end: FinishEvent | None) -> Iterator[BlockEvent]:
        """The events of new tokens. end: of the sample, with the last ones."""
        for read in self.reader.each(tokens, end):
            yield from self._take(read)
        if end is not None:
            yield from self._close(last=True)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thoughts and their marks."""
        return self.reader.reasoning_tokens

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
