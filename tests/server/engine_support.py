"""Engines of toy models for the server's tests, and short ways to use them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from outrider.config.engine import parse_engine
from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.base import SeqHandle
from outrider.engines.step import CachedStepEngine
from outrider.pipeline import Pipeline, build
from outrider.server.engine.async_engine import ServerEngine, Stream
from tests.conftest import load_toy

T = TypeVar("T")
SECONDS = 30.0  # after which a test has failed


class Shared(CachedStepEngine):
    """All its sequences share prefixes."""

    def open(
        self,
        prompt: Sequence[int],
        capacity: int,
        namespace: str | None = None,
        taps: tuple[int, ...] = (),
    ) -> SeqHandle:
        return super().open(prompt, capacity, namespace or "everybody", taps)


def toy_pipeline(
    target: Path, speculative: dict[str, Any] | str | None = "ngram", **arguments: Any
) -> Pipeline:
    """A pipeline of toy models with the file's sizes: a vocabulary of 320 and a context of 256."""
    return build(parse_engine(str(target), speculative, **{"max_num_seqs": 2, **arguments}), load_toy)


def request(name: str, prompt: Sequence[int] = (1, 2, 3), **arguments: Any) -> Request:
    own = {key: arguments.pop(key) for key in ("detokenizer", "constraint", "namespace") if key in arguments}
    params = SamplingParams(**{"max_tokens": 6, **arguments})
    return Request(name, tuple(prompt), params, seed=5, **own)


def alone(pipeline: Pipeline, asked: Request) -> list[int]:
    """A request's tokens without other requests and without a prefix cache."""
    events = pipeline.runner().generate([replace(asked, namespace=None)])
    return [event.token_id for event in events if isinstance(event, TokenEvent)]


def tokens(events: Iterable[Event], name: str) -> list[int]:
    return [e.token_id for e in events if isinstance(e, TokenEvent) and e.request_id == name]


def ends(events: Iterable[Event]) -> dict[str, FinishEvent]:
    return {e.request_id: e for e in events if isinstance(e, FinishEvent)}


def reasons(events: Iterable[Event]) -> dict[str, str]:
    return {name: event.finish_reason for name, event in ends(events).items()}


async def read(stream: Stream) -> list[Event]:
    return [event async for event in stream]


def serve(engine: ServerEngine, client: Callable[[ServerEngine], Awaitable[T]]) -> T:
    """What a client makes of a started engine, which is stopped after; within SECONDS."""

    async def main() -> T:
        engine.start()
        try:
            async with asyncio.timeout(SECONDS):
                return await client(engine)
        finally:
            engine.stop()

    return asyncio.run(main())
