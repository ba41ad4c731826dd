"""Answers of Ollama's API: one JSON document, or one a line as a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from outrider.decoding.events import TokenEvent
from outrider.server.http.dialects import inner
from outrider.server.http.errors import ApiError, json_bytes
from outrider.server.http.generation import Answer, Sample
from outrider.server.http.generation_request import GenerationRequest
from outrider.server.http.protocol import ChatRequest, CompletionRequest
from outrider.server.http.sample_reader import BlockEvent, BlockReader, SampleReader
from outrider.server.http.service import Service


def error_document(error: ApiError) -> dict[str, Any]:
    """An error in the form of this dialect."""
    return {"error": error.message}


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaAnswer(Answer):
    """One answer.

    model: as the request names it.
    chat:  answer with a `message`; otherwise with a `response`.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self,
        service: Service,
        body: ChatRequest | CompletionRequest,
        request: GenerationRequest,
        *,
        model: str | None,
        chat: bool,
    ) -> None:
        super().__init__(request)
        self._model, self._chat = model or request.arrival.model, chat
        self._blocks = (
            BlockReader(SampleReader())
            if isinstance(body, CompletionRequest)
            else inner.block_reader(service, body, request)
        )
        self._sample = self.samples[0]
        self._began = time.perf_counter_ns()

    def document(self) -> dict[str, Any]:
        parts = self._said(self._blocks.read(self._sample.tokens, self._sample.end))
        return self._wrapped(parts, self._ended())

    def chunks(self, sample: Sample, tokens: Sequence[TokenEvent]) -> Iterator[bytes]:
        said = self._said(self._blocks.read(tokens, sample.end))
        if said:
            yield _line(self._wrapped(said, {"done": False}))

    def closing(self) -> Iterator[bytes]:
        yield _line(self._wrapped({}, self._ended()))

    def failure(self, error: ApiError) -> Iterator[bytes]:
        yield _line(error_document(error))

    def _said(self, events: Iterable[BlockEvent]) -> dict[str, Any]:
        """What events bring: any of `thinking`, `content` and `tool_calls`. A call is sent when it is
        complete; one whose arguments are not a JSON object is text."""
        found: dict[str, Any] = {}
        for event in events:
            block = event.block
            if block.call is None:
                name = "thinking" if block.kind == "reasoning" else "content"
                if event.text:
                    found[name] = found.get(name, "") + event.text
            elif event.what == "end":
                arguments = _object(block.text)
                if arguments is None:
                    found["content"] = f"{found.get('content', '')}{block.call.name} {block.text}"
                    continue
                calls = [b for b in self._blocks.blocks if b.call is not None]
                function = {"index": calls.index(block), "name": block.call.name, "arguments": arguments}
                found.setdefault("tool_calls", []).append({"id": block.call.id, "function": function})
        return found

    def _wrapped(self, said: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        head = {"model": self._model, "created_at": now()}
        if self._chat:
            return {**head, "message": {"role": "assistant", "content": "", **said}, **end}
        more = {"thinking": said["thinking"]} if "thinking" in said else {}
        return {**head, "response": said.get("content", ""), **more, **end}

    def _ended(self) -> dict[str, Any]:
        end = self._sample.end
        assert end is not None
        times = end.metrics
        first = times.first_token or times.arrived
        return {
            "done": True,
            "done_reason": end.finish_reason,
            "total_duration": time.perf_counter_ns() - self._began,
            "load_duration": 0,
            "prompt_eval_count": sum(self.request.prompt_sizes),
            "prompt_eval_duration": _nanoseconds(first - times.arrived),
            "eval_count": self._sample.num_tokens,
            "eval_duration": _nanoseconds((times.last_token or first) - first),
        }


def _object(text: str) -> dict[str, Any] | None:
    """A JSON object, completed where the text breaks off; None for other text."""
    try:
        found = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _line(document: dict[str, Any]) -> bytes:
    return json_bytes(document) + b"\n"
