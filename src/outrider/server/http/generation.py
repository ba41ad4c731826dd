"""From an inner request to an answer, whole or streamed. Knows no dialect; these implement `Answer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.request import Request
from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.server.engine.stream import Stream
from outrider.server.http import sse
from outrider.server.http.disconnect import while_connected
from outrider.server.http.errors import ApiError, api_error, json_response
from outrider.server.http.generation_request import GenerationRequest
from outrider.server.http.service import Service


@dataclass(slots=True, eq=False)
class Sample:
    """One sample and what has been generated of it.

    index:           among all samples of the request.
    text:            the text of each token, and at the end what the detokenizer still held.
    tokens:          kept for whole answers only.
    num_tokens:      generated so far.
    end:             None until the sample ends.
    prompt_logprobs: of the prompt's tokens but the first, when they are asked for.
    cutoff:          where the dialect has a rule of its own for the end of a text: takes the text of each
                     token, and returns how many of its characters belong to a text that ends there, or None
                     for one that goes on.
    cut:             the rule has ended it; what the engine still generates is left out.
    """

    index: int
    request: Request
    text: list[str] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)
    num_tokens: int = 0
    end: FinishEvent | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    cutoff: Callable[[str], int | None] | None = None
    cut: bool = False

    def add(self, event: Event) -> TokenEvent | None:
        """Take an event of this sample. Returns a token with the text that it adds; None for the end, and
        for tokens that come after it. Raises ApiError when it ended without a result."""
        if isinstance(event, TokenEvent):
            return None if self.cut else self._token(event)
        if self.cut and event.finish_reason != "error":
            self.end = replace(event, finish_reason="length", stop_reason=None, text_tail="")
            return None
        if event.finish_reason == "error":
            error = event.error or RuntimeError("a request ended with an error that nobody named")
            raise api_error(error) from error
        if event.finish_reason == "abort":
            raise ApiError(503, "the server is stopping", code="server_stopping")
        self.text.append(event.text_tail)
        self.end = event
        return None

    def _token(self, event: TokenEvent) -> TokenEvent:
        kept = None if self.cutoff is None else self.cutoff(event.text)
        if kept is not None:
            self.cut, event = True, replace(event, text=event.text[:kept])
        self.num_tokens += 1
        self.text.append(event.text)
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        return event


class Answer(ABC):
    """One answer in the shape of a dialect. `respond` calls the methods, all in the event loop's thread.

    A whole answer is one call of `document`. A streamed one is a call of `opening`, one of `chunks` for each
    delivery of a sample's tokens, then `closing`, or `failure` in the place of whatever is left.
    """

    media_type = sse.MEDIA_TYPE  # of a streamed answer

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.samples = [Sample(index, sample) for index, sample in enumerate(request.samples)]

    @abstractmethod
    def document(self) -> Any:
        """The JSON document of a whole answer. All samples have ended, and their `tokens` were kept."""

    def opening(self) -> Iterable[bytes]:
        """The beginning of a stream, sent before there are tokens."""
        return ()

    @abstractmethod
    def chunks(self, sample: Sample, tokens: Sequence[TokenEvent]) -> Iterable[bytes]:
        """What a stream sends for new tokens of a sample, which has taken them; `sample.end` is set with the
        last ones, of which there may then be none."""

    @abstractmethod
    def closing(self) -> Iterable[bytes]:
        """The end of a stream, when all samples have ended."""

    @abstractmethod
    def failure(self, error: ApiError) -> Iterable[bytes]:
        """The end of a stream that failed."""


async def respond(
    service: Service, http: HttpRequest, request: GenerationRequest, answer: Answer
) -> Response:
    """Generate, and answer. Raises ApiError when the engine does not take the request, and when a sample of
    a whole answer fails; an error after the start of a stream is part of it (`Answer.failure`)."""
    request.arrival.timer.prompts(request.prompt_sizes)
    if request.stream:
        parts = _streamed(service.submit(request.samples), request, answer)
        return sse.StreamResponse(parts, answer.media_type)
    return await while_connected(http, _whole(service, request, answer))


async def _whole(service: Service, request: GenerationRequest, answer: Answer) -> Response:
    samples = {sample.request.request_id: sample for sample in answer.samples}
    async with service.submit(request.samples) as stream:
        while events := await stream.batch():
            request.arrival.timer.batch(events)
            for event in events:
                sample = samples[event.request_id]
                if (token := sample.add(event)) is not None:
                    sample.tokens.append(token)
            _cancel_cut(stream, answer)
    return json_response(answer.document())


async def _streamed(
    stream: Stream, request: GenerationRequest, answer: Answer
) -> AsyncGenerator[bytes, None]:
    samples = {sample.request.request_id: sample for sample in answer.samples}
    try:
        async with stream:
            for part in answer.opening():
                yield part
            while events := await stream.batch():
                request.arrival.timer.batch(events)
                for request_id, own in _by_sample(events):
                    sample = samples[request_id]
                    tokens = [token for event in own if (token := sample.add(event)) is not None]
                    for part in answer.chunks(sample, tokens):
                        yield part
                _cancel_cut(stream, answer)
        for part in answer.closing():
            yield part
    except Exception as error:
        for part in answer.failure(api_error(error)):
            yield part


def _cancel_cut(stream: Stream, answer: Answer) -> None:
    """Let the engine generate no more when every sample is at its end, one of them by a rule of the
    dialect."""
    samples = answer.samples
    if any(sample.cut for sample in samples) and all(s.cut or s.end is not None for s in samples):
        stream.cancel()


def _by_sample(events: Sequence[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Events grouped by request id, in the order of each group's first event."""
    groups: dict[str, list[Event]] = {}
    for event in events:
        groups.setdefault(event.request_id, []).append(event)
    yield from groups.items()
