"""Answers of the Responses API: one response of output items, whole or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outrider.decoding.events import TokenEvent
from outrider.server.http.dialects import inner
from outrider.server.http.dialects.responses.fields import ResponsesRequest
from outrider.server.http.dialects.responses.store import ResponseStore
from outrider.server.http.dialects.responses.translate import new_id
from outrider.server.http.errors import ApiError
from outrider.server.http.generation import Answer, Sample
from outrider.server.http.generation_request import GenerationRequest
from outrider.server.http.openai_answer import prediction_usage
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.sample_reader import Block, BlockEvent
from outrider.server.http.service import Service
from outrider.server.http.sse import named_event

_TYPES = {"text": "message", "reasoning": "reasoning", "call": "function_call"}


class ResponseAnswer(Answer):
    """One response, which is stored at its end unless the request says otherwise.

    chat:    the inner request that `request` came from.
    body:    the request as it was sent.
    inputs:  the items of the request's own input.
    history: those of the conversation before it.
    """

    def __init__(
        self,
        service: Service,
        chat: ChatRequest,
        request: GenerationRequest,
        *,
        store: ResponseStore,
        body: ResponsesRequest,
        inputs: Sequence[Mapping[str, Any]],
        history: Sequence[Mapping[str, Any]],
    ) -> None:
        super().__init__(request)
        self._store, self._body, self._inputs, self._history = store, body, inputs, history
        self._blocks = inner.block_reader(service, chat, request)
        self._ids: dict[int, str] = {}  # of output items, by their index
        self._sample = self.samples[0]
        self._created, self._number = time.time(), 0

    def document(self) -> dict[str, Any]:
        for _ in self._blocks.read(self._sample.tokens, self._sample.end):
            pass
        return self._ended()

    def opening(self) -> Iterator[bytes]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._response("in_progress", []))

    def chunks(self, sample: Sample, tokens: Sequence[TokenEvent]) -> Iterator[bytes]:
        for found in self._blocks.read(tokens, sample.end):
            yield from self._parts(found)

    def closing(self) -> Iterator[bytes]:
        response = self._ended()
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> Iterator[bytes]:
        codes = {429: "rate_limit_exceeded"}
        code = codes.get(error.status, "invalid_prompt" if error.status < 500 else "server_error")
        response = self._response("failed", self._output(), error={"code": code, "message": error.message})
        yield self._event("response.failed", response=response)

    # --- Documents ---------------------------------------------------------------------------------

    def _ended(self) -> dict[str, Any]:
        """The response at its end; stores it."""
        assert self._sample.end is not None
        cut = self._sample.end.finish_reason == "length"
        response = self._response(
            "incomplete" if cut else "completed",
            self._output(),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            completed_at=None if cut else time.time(),
            usage=self._usage(),
        )
        if self._body.store is not False:
            space = self.request.arrival.namespace
            history = [*self._history, *self._inputs, *response["output"]]
            self._store.add(space, response, self._inputs, history)
        return response

    def _response(self, status: str, output: list[dict[str, Any]], **members: Any) -> dict[str, Any]:
        body, params = self._body, self.request.samples[0].params
        choice = body.tool_choice
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        return {
            "id": self.request.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.request.arrival.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": "auto"
            if choice is None
            else choice
            if isinstance(choice, str)
            else _plain(choice),
            "tools": [_plain(tool) for tool in body.tools or ()],
            "top_logprobs": 0,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
            **members,
        }

    def _usage(self) -> dict[str, Any]:
        assert self._sample.end is not None
        prompt, written = sum(self.request.prompt_sizes), self._sample.num_tokens
        cached = self._sample.end.metrics.cached_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {
                "reasoning_tokens": self._blocks.reasoning_tokens,
                **(prediction_usage(self.samples) or {}),
            },
            "total_tokens": prompt + written,
        }

    def _output(self) -> list[dict[str, Any]]:
        blocks = self._blocks.blocks
        return [self._item(index, block, index + 1 == len(blocks)) for index, block in enumerate(blocks)]

    def _item(self, index: int, block: Block, last: bool) -> dict[str, Any]:
        end = self._sample.end
        cut = last and (end is None or end.finish_reason == "length")
        head = self._begun(index, block)
        head["status"] = "incomplete" if cut else "completed"
        if block.kind == "call":
            return {**head, "arguments": block.text or "{}"}
        return {**head, "content": [_part(block)]}

    def _begun(self, index: int, block: Block) -> dict[str, Any]:
        """An item without content."""
        kind = _TYPES[block.kind]
        item_id = self._ids.setdefault(index, new_id(kind))
        head: dict[str, Any] = {"id": item_id, "type": kind, "status": "in_progress"}
        if block.call is not None:
            return {**head, "call_id": block.call.id, "name": block.call.name, "arguments": ""}
        if block.kind == "reasoning":
            return {**head, "summary": [], "content": [], "encrypted_content": None}
        return {**head, "role": "assistant", "content": []}

    # --- Events ------------------------------------------------------------------------------------

    def _event(self, name: str, /, **members: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(name, {"type": name, "sequence_number": number, **members})

    def _parts(self, found: BlockEvent) -> Iterator[bytes]:
        block, index = found.block, len(self._blocks.blocks) - 1
        if found.what == "begin":
            item = self._begun(index, block)
            yield self._event("response.output_item.added", output_index=index, item=item)
        at: dict[str, Any] = {"item_id": self._ids[index], "output_index": index}
        if block.kind != "call":
            at["content_index"] = 0
        name = {
            "text": "response.output_text",
            "reasoning": "response.reasoning_text",
            "call": "response.function_call_arguments",
        }[block.kind]
        extra: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        if found.what == "begin" and block.kind != "call":
            yield self._event("response.content_part.added", **at, part={**_part(block), "text": ""})
        elif found.what == "more":
            yield self._event(f"{name}.delta", **at, delta=found.text, **extra)
        elif found.what == "end":
            yield from self._finished(name, at, found, extra)

    def _finished(
        self, name: str, at: Mapping[str, Any], found: BlockEvent, extra: Mapping[str, Any]
    ) -> Iterator[bytes]:
        index, block = at["output_index"], found.block
        item = self._item(index, block, found.last)
        if block.call is not None:
            yield self._event(f"{name}.done", **at, name=block.call.name, arguments=item["arguments"])
        else:
            yield self._event(f"{name}.done", **at, text=block.text, **extra)
            yield self._event("response.content_part.done", **at, part=_part(block))
        yield self._event("response.output_item.done", output_index=index, item=item)


def _part(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


def _plain(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_dump(by_alias=True)
    return found
