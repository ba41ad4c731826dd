"""The engine behind the server, as its event loop sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.config import parse_engine
from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.params import SamplingParams
from outrider.decoding.request import Request
from outrider.pipeline import Pipeline, build
from outrider.server.engine import ServerEngine
from tests.conftest import load_toy


@pytest.fixture
def pipeline(target_file: Path) -> Pipeline:
    return build(parse_engine(str(target_file), "ngram", max_num_seqs=2), load_toy)


def request(name: str, prompt: Sequence[int] = (1, 2, 3), **arguments: object) -> Request:
    params = SamplingParams(**{"max_tokens": 6, **arguments})  # type: ignore[arg-type]
    return Request(name, tuple(prompt), params, seed=5)


def tokens(events: list[Event], name: str) -> list[int]:
    return [e.token_id for e in events if isinstance(e, TokenEvent) and e.request_id == name]


def reasons(events: list[Event]) -> dict[str, str]:
    return {e.request_id: e.finish_reason for e in events if isinstance(e, FinishEvent)}


def test_samples_of_a_request_come_through_one_stream(pipeline: Pipeline) -> None:
    expected = list(pipeline.loop().generate([request("a"), request("b", [4]), request("c", [5])]))

    async def main() -> list[Event]:
        engine = ServerEngine(pipeline)
        engine.start()
        stream = engine.submit([request("a"), request("b", [4]), request("c", [5])])
        events = [event async for event in stream]
        assert stream.finished
        assert await stream.batch() == []
        await engine.drain(10)
        return events

    events = asyncio.run(main())
    for name in "abc":
        assert tokens(events, name) == tokens(expected, name) != []
    assert reasons(events) == dict.fromkeys("abc", "length")
