"""From the engine's events to an answer, whole or streamed; what both endpoints have in common."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.request import Request
from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.server.engine.async_engine import Stream
from outrider.server.http.errors import ApiError, api_error, json_response
from outrider.server.http.metrics import Watch
from outrider.server.http.protocol import Sampling
from outrider.server.http.service import Service, namespace_of
from outrider.server.http.sse import DONE, EventStream, answer, event


@dataclass(slots=True, eq=False)
class Choice:
    """One sample, as far as it has come."""

    index: int
    request: Request
    begun: bool = False
    text: list[str] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)  # kept for a whole answer only
    count: int = 0  # of tokens
    end: FinishEvent | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class Answer:
    """An answer under way. Subclasses know the shape of their endpoint's choices.

    groups: the samples of every prompt.
    """

    prefix = ""  # of ids
    whole_object = ""  # names of OpenAI's
    chunk_object = ""

    def __init__(
        self,
        service: Service,
        body: Sampling,
        name: str,
        groups: Sequence[Sequence[Request]],
        watch: Watch,
    ) -> None:
        self.service, self.body, self.name = service, body, name
        self.model = service.check_model(body.model)
        self.created = int(time.time())
        requests = [request for group in groups for request in group]
        self.groups, self.requests = groups, requests
        self.choices = {r.request_id: Choice(index, r) for index, r in enumerate(requests)}
        self._prompt_tokens = sum(len(group[0].prompt) for group in groups)
        self._watch = watch
        watch.prompts(len(group[0].prompt) for group in groups)
        options = body.stream_options
        self.usage_at_end = bool(options and options.include_usage)
        self.usage_always = self.usage_at_end and bool(options and options.continuous_usage_stats)
        self.explains = bool(body.outrider or (options and options.include_outrider))

    # --- What subclasses say -----------------------------------------------------------------------

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        """The choice of a chunk that comes before the first token."""
        return None

    def piece(
        self, choice: Choice, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any] | None:
        """The choice of a chunk; None when there is nothing to tell."""
        raise NotImplementedError

    def whole(self, choice: Choice) -> dict[str, Any]:
        """A choice of a whole answer."""
        raise NotImplementedError

    # --- The two ways to answer --------------------------------------------------------------------

    async def collect(self, stream: Stream) -> Response:
        """The whole answer. Raises ApiError when a sample fails."""
        async with stream:
            while events := await stream.batch():
                self._watch.batch(events)
                for one in events:
                    choice = self.choices[one.request_id]
                    self._take(choice, one)
                    if isinstance(one, TokenEvent):
                        choice.tokens.append(one)
        return json_response(self.document())

    def document(self) -> dict[str, Any]:
        choices = []
        for choice in self.choices.values():
            found = self.whole(choice)
            if self.explains:
                found["outrider"] = self._explained(choice, choice.tokens, choice.end)
            choices.append(found)
        return {**self._head(self.whole_object), "choices": choices, "usage": self.usage()}

    async def stream(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        """Server-sent events. A failure becomes the last event."""
        try:
            async with stream:
                while events := await stream.batch():
                    self._watch.batch(events)
                    for chunk in self._chunks(events):
                        yield event(chunk)
            if self.usage_at_end:
                yield event({**self._head(self.chunk_object), "choices": [], "usage": self.usage()})
        except Exception as error:
            yield event(api_error(error).document())
        yield DONE

    def _chunks(self, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
        """A chunk for each choice that the events are about."""
        by_choice: dict[str, list[Event]] = {}
        for one in events:
            by_choice.setdefault(one.request_id, []).append(one)
        for name, mine in by_choice.items():
            choice = self.choices[name]
            for one in mine:
                self._take(choice, one)
            if not choice.begun:
                choice.begun = True
                if (opening := self.opening(choice)) is not None:
                    yield self._chunk(opening, None)
            tokens = [one for one in mine if isinstance(one, TokenEvent)]
            piece = self.piece(choice, tokens, choice.end)
            explained = self._explained(choice, tokens, choice.end) if self.explains else None
            if piece is not None or explained is not None:
                yield self._chunk(piece or self.nothing(choice), explained)

    def nothing(self, choice: Choice) -> dict[str, Any]:
        """The choice of a chunk that brings tokens without text."""
        raise NotImplementedError

    def _chunk(self, choice: dict[str, Any], explained: dict[str, Any] | None) -> dict[str, Any]:
        found = {**self._head(self.chunk_object), "choices": [choice]}
        if self.usage_at_end:
            found["usage"] = self.usage() if self.usage_always else None
        if explained is not None:
            found["outrider"] = explained
        return found

    def _take(self, choice: Choice, one: Event) -> None:
        """Count an event. Raises ApiError for one that ends its request without a result."""
        if isinstance(one, TokenEvent):
            choice.count += 1
            choice.text.append(one.text)
            if one.prompt_logprobs is not None:
                choice.prompt_logprobs = one.prompt_logprobs
            return
        if one.finish_reason == "error":
            error = one.error or RuntimeError("a request ended with an error that nobody named")
            raise api_error(error) from error
        if one.finish_reason == "abort":
            raise ApiError(503, "the server is stopping", code="server_stopping")
        choice.text.append(one.text_tail)
        choice.end = one

    # --- Parts -------------------------------------------------------------------------------------

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.service.fingerprint,
        }

    def usage(self) -> dict[str, Any]:
        completion = sum(self.counted(choice) for choice in self.choices.values())
        found: dict[str, Any] = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
        }
        # Of several samples of one prompt, all but the first find what the first has computed.
        groups = ((self.choices[request.request_id].end for request in group) for group in self.groups)
        cached = [min((end.metrics.cached_tokens for end in group if end), default=0) for group in groups]
        found["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
        return found

    def counted(self, choice: Choice) -> int:
        """Tokens of a choice that the client asked for."""
        return choice.count

    def _explained(
        self, choice: Choice, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any]:
        """How tokens came about; with the end, the seed and the metrics as well."""
        found: dict[str, Any] = {"index": choice.index, "tokens": [self._origin(choice, t) for t in tokens]}
        if end is not None:
            found["seed"] = choice.request.seed
            found["metrics"] = end.metrics.to_dict()
        return found

    def _origin(self, choice: Choice, token: TokenEvent) -> dict[str, Any]:
        plain = self.service.pipeline.drafting.drafter is None or choice.request.draft_limit == 0
        found = {"id": token.token_id, "text": token.text, "kind": "plain" if plain else token.kind}
        if (source := getattr(token, "source", None)) is not None:
            found["source"] = source
        return found


async def respond(
    service: Service,
    http: HttpRequest,
    body: Sampling,
    kind: type[Answer],
    make: Callable[[str, str], list[list[Request]]],
) -> Response:
    """Answer one request, whole or streamed. make: its samples, from the answer's name and the client's
    namespace; runs in a thread."""
    watch = service.metrics.watch()
    service.check_model(body.model)
    namespace, name = namespace_of(http.state), service.new_id(kind.prefix)

    async def begin() -> Answer:
        groups = await service.prepare(lambda: make(name, namespace))
        return kind(service, body, name, groups, watch)

    async def whole() -> Response:
        made = await begin()
        return await made.collect(service.submit(made.requests))

    if not body.stream:
        return await answer(http, whole())
    made = await begin()
    return EventStream(made.stream(service.submit(made.requests)))
