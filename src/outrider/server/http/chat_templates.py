"""The chat templates in use: those of the model, and those that requests bring."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError
from outrider.models.text.chat import RESERVED, ChatTemplate
from outrider.models.text.reasoning import ReasoningFormat, format_of
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.tool_families import Family
from outrider.server.http.errors import bad
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_forms import family_of, special_marks, special_token

MAX_REQUEST_TEMPLATES = 4  # compiled templates of requests that are kept
WITH_TOOLS = "tool_use"  # transformers' name of a model's template for conversations with tools


def is_reserved(name: str) -> bool:
    """Whether a variable of a template is set from elsewhere, or cannot be one."""
    return name in RESERVED or not name.isidentifier()


class ChatTemplates:
    """Compiled chat templates. `get` and `close` may be called from any thread.

    source:           the template of conversations whose request brings none; None if the model has none.
    named:            the model's further templates, by name; "tool_use" is taken where there are tools.
    trust_requests:   whether requests may bring their own.
    tool_call_parser: the form of tool calls; None chooses it by the template.
    reasoning_parser: how thoughts are marked, a name of `reasoning.PARSERS`; "none" leaves them in the text,
                      and None chooses by the template and the vocabulary.
    variables:        of the templates, where a request does not set them.
    Raises ConfigError for variables that are not theirs to set.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str | None,
        *,
        named: Mapping[str, str] | None = None,
        trust_requests: bool,
        tool_call_parser: str | None,
        reasoning_parser: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.variables = dict(variables or {})
        for name in self.variables:
            if is_reserved(name):
                raise ConfigError(f"--chat-template-kwargs has {name[:80]!r}, which is not its to set")
        self.source, self._named = source, dict(named or {})
        self._tokenizer, self._trust_requests = tokenizer, trust_requests
        self._tool_call_parser, self._reasoning_parser = tool_call_parser, reasoning_parser
        self._lock = threading.Lock()  # of the two below
        self._own: dict[str | None, ChatTemplate] = {}  # by source
        self._marks: dict[Family, dict[str, int]] = {}
        self._thought_marks: dict[str, dict[str, int]] = {}
        self._from_requests: OrderedDict[str, ChatTemplate] = OrderedDict()

    def source_of(self, from_request: str | None = None, *, tools: bool = False) -> str | None:
        """The source of the template to render with. `from_request` is a template, or the name of one of the
        model's; tools: whether the conversation has tools."""
        if from_request is not None:
            return self._named.get(from_request, from_request)
        return self._named.get(WITH_TOOLS, self.source) if tools else self.source

    def get(self, from_request: str | None = None, *, tools: bool = False) -> ChatTemplate:
        """The template to render with. Raises ConfigError when there is none, ApiError for a request's own
        template when these are not trusted."""
        with self._lock:
            if from_request is None or from_request in self._named:
                source = self.source_of(from_request, tools=tools)
                if source not in self._own:
                    self._own[source] = ChatTemplate(source, self._tokenizer)
                return self._own[source]
            if not self._trust_requests:
                raise bad(
                    "chat_template is refused: this server uses the model's own "
                    "(--trust-request-chat-template allows others)",
                    "chat_template",
                )
            if (template := self._from_requests.get(from_request)) is None:
                if len(self._from_requests) >= MAX_REQUEST_TEMPLATES:
                    self._from_requests.popitem(last=False)  # its process ends with the last rendering
                template = self._from_requests[from_request] = ChatTemplate(from_request, self._tokenizer)
            self._from_requests.move_to_end(from_request)
            return template

    def tool_family(self, from_request: str | None = None) -> Family:
        """How tool calls are written in the texts of a template."""
        return family_of(self.source_of(from_request, tools=True), self._tool_call_parser)

    def reasoning_format(self, from_request: str | None = None) -> ReasoningFormat | None:
        """How thoughts are marked in the texts of a template; None if they are not told apart."""
        return format_of(self.source_of(from_request), self._reasoning_parser, self._tokenizer)

    def parted_format(self, body: ChatRequest) -> ReasoningFormat | None:
        """The same for a request, which may want its thoughts left in the text."""
        return None if body.reasoning_format == "none" else self.reasoning_format(body.chat_template)

    def thought_marks(self, made: ReasoningFormat) -> dict[str, int]:
        """Those marks of thoughts that are special tokens, which are not part of a text by default, with
        their ids."""
        if made.name not in self._thought_marks:
            ids = {mark: special_token(self._tokenizer, mark) for mark in made.marks}
            self._thought_marks[made.name] = {mark: i for mark, i in ids.items() if i is not None}
        return self._thought_marks[made.name]

    def special_marks(self, family: Family) -> dict[str, int]:
        """The marks of tool calls that are special tokens, which are not part of a text by default, with
        their ids."""
        if family not in self._marks:
            self._marks[family] = special_marks(self._tokenizer, family)
        return self._marks[family]

    @functools.cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The special tokens, but for those that end a text."""
        ends = self._tokenizer.eos_ids
        ids = range(self._tokenizer.vocab_size)
        return tuple(token for token in ids if self._tokenizer.is_special(token) and token not in ends)

    def close(self) -> None:
        """End the processes in which templates are rendered."""
        with self._lock:
            for template in (*self._own.values(), *self._from_requests.values()):
                template.close()
