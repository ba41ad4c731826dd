"""The chat templates in use: the model's own, and those that requests bring."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict

from outrider.models.text.chat import ChatTemplate
from outrider.models.text.tokenizer import Tokenizer
from outrider.server.http.errors import bad
from outrider.server.http.tools import Family, call_marks_are_special, family_of

MAX_REQUEST_TEMPLATES = 4  # compiled templates of requests that are kept


class ChatTemplates:
    """Compiled chat templates. `get` and `close` may be called from any thread.

    source:           the template of conversations whose request brings none; None if the model has none.
    trust_requests:   whether requests may bring their own.
    tool_call_parser: the form of tool calls; None chooses it by the template.
    """

    def __init__(
        self, tokenizer: Tokenizer, source: str | None, *, trust_requests: bool, tool_call_parser: str | None
    ) -> None:
        self.source = source
        self._tokenizer, self._trust_requests = tokenizer, trust_requests
        self._tool_call_parser = tool_call_parser
        self._lock = threading.Lock()  # of the two below
        self._default: ChatTemplate | None = None
        self._from_requests: OrderedDict[str, ChatTemplate] = OrderedDict()

    def get(self, from_request: str | None = None) -> ChatTemplate:
        """The template to render with. Raises ConfigError when there is none, ApiError for a request's own
        template when these are not trusted."""
        with self._lock:
            if from_request is None:
                if self._default is None:
                    self._default = ChatTemplate(self.source, self._tokenizer)
                return self._default
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
        return family_of(from_request or self.source, self._tool_call_parser)

    @functools.cached_property
    def call_marks_are_special(self) -> bool:
        """Whether the marks of tool calls are special tokens, which are not part of a text by default."""
        return call_marks_are_special(self._tokenizer)

    def close(self) -> None:
        """End the processes in which templates are rendered."""
        with self._lock:
            for template in (self._default, *self._from_requests.values()):
                if template is not None:
                    template.close()
