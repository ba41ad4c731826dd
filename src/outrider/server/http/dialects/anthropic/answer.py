"""Answers of the Messages API: a message of content blocks, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from outrider.decoding.events import TokenEvent
from outrider.server.http.dialects import inner
from outrider.server.http.errors import ApiError
from outrider.server.http.generation import Answer, Sample
from outrider.server.http.generation_request import GenerationRequest
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.sample_reader import Block, BlockEvent
from outrider.server.http.service import Service
from outrider.server.http.sse import named_event

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_document(error: ApiError) -> dict[str, Any]:
    """An error in the form of this dialect."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    named = error.param is None or error.param in error.message
    message = error.message if named else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


class MessageAnswer(Answer):
    """One message.

    silent: the prompt alone is wanted; the one token that is generated is not sent.
    """

    def __init__(
        self, service: Service, body: ChatRequest, request: GenerationRequest, *, silent: bool
    ) -> None:
        super().__init__(request)
        self._blocks = inner.block_reader(service, body, request)
        self._sample, self._silent = self.samples[0], silent

    def document(self) -> dict[str, Any]:
        for _ in self.chunks(self._sample, self._sample.tokens):
            pass
        content = [_content(block) for block in self._blocks.blocks]
        called = any(block["type"] == "tool_use" for block in content)
        return {**self._head(), "content": content, **self._reason(called), "usage": self._usage()}

    def opening(self) -> Iterator[bytes]:
        start = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**start, "usage": self._usage()})
        yield _event("ping")

    def chunks(self, sample: Sample, tokens: Sequence[TokenEvent]) -> Iterator[bytes]:
        if self._silent:
            return
        for found in self._blocks.read(tokens, sample.end):
            yield self._part(found)

    def closing(self) -> Iterator[bytes]:
        called = any(block.kind == "call" for block in self._blocks.blocks)
        yield _event("message_delta", delta=self._reason(called), usage=self._usage())
        yield _event("message_stop")

    def failure(self, error: ApiError) -> Iterator[bytes]:
        yield named_event("error", error_document(error))

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.request.id,
            "type": "message",
            "role": "assistant",
            "model": self.request.arrival.model,
        }

    def _usage(self) -> dict[str, Any]:
        """Counts so far. Tokens from the prefix cache are known at the end; they are no input tokens."""
        end = self._sample.end
        cached = end.metrics.cached_tokens if end is not None else 0
        return {
            "input_tokens": sum(self.request.prompt_sizes) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": 0 if self._silent else self._sample.num_tokens,
        }

    def _reason(self, called: bool) -> dict[str, Any]:
        end = self._sample.end
        assert end is not None
        sequence = end.stop_reason if isinstance(end.stop_reason, str) else None
        if self._silent or end.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if called:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        reason = "end_turn" if sequence is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _part(self, found: BlockEvent) -> bytes:
        index = len(self._blocks.blocks) - 1
        if found.what == "begin":
            return _event("content_block_start", index=index, content_block=_begun(found.block))
        if found.what == "end":
            return _event("content_block_stop", index=index)
        delta: dict[str, Any] = {
            "text": {"type": "text_delta", "text": found.text},
            "reasoning": {"type": "thinking_delta", "thinking": found.text},
            "call": {"type": "input_json_delta", "partial_json": found.text},
        }[found.block.kind]
        return _event("content_block_delta", index=index, delta=delta)


def _event(name: str, /, **members: Any) -> bytes:
    return named_event(name, {"type": name, **members})


def _begun(block: Block) -> dict[str, Any]:
    """A content block without content."""
    if block.call is not None:
        return {"type": "tool_use", "id": _call_id(block), "name": block.call.name, "input": {}}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _content(block: Block) -> dict[str, Any]:
    """A content block. A call whose arguments are not a JSON object is text."""
    if block.call is not None:
        try:
            given = from_json(block.text or "{}", allow_partial=True)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            return {"type": "text", "text": f"{block.call.name} {block.text}"}
        return {**_begun(block), "input": given}
    if block.kind == "reasoning":
        return {**_begun(block), "thinking": block.text}
    return {"type": "text", "text": block.text}


def _call_id(block: Block) -> str:
    assert block.call is not None
    return "toolu_" + block.call.id.removeprefix("call_")
