"""An error in one request ends that request, and affects no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.decoding import loop
from outrider.decoding.context import TokenContext
from outrider.decoding.events import Event
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.stops import Emitter
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.pipeline import Pipeline
from outrider.server.engine.async_engine import ServerEngine
from tests.server.engine_support import alone, ends, read, request, serve, tokens, toy_pipeline
from tests.support.toy_model import ToyModel

GOOD = [request(name, prompt, max_tokens=20) for name, prompt in (("x", [4]), ("y", [5, 6]), ("z", [7] * 9))]


class Fault(Exception):  # noqa: N818
    """What the tests throw."""


class BadConstraint:
    """Permits everything and fails after so many tokens, in the method named."""

    def __init__(self, where: str, after: int) -> None:
        self._where, self._after = where, after

    def _call(self, where: str, context: TokenContext) -> None:
        output = len(context.tokens) - context.prompt_length + len(context.path)
        if where == self._where and output >= self._after:
            raise Fault(where)

    def allowed(self, context: TokenContext) -> None:
        self._call("allowed", context)

    def forced(self, context: TokenContext, most: int) -> list[int]:
        self._call("forced", context)
        return []

    def ended(self, context: TokenContext) -> bool:
        self._call("ended", context)
        return False


class BadDetokenizer:
    """Fails at its nth token, or when flushed."""

    def __init__(self, at: int) -> None:
        self._left = at

    def push(self, token_id: int) -> str:
        self._left -= 1
        if self._left == 0:
            raise Fault("push")
        return "."

    def hidden(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        if self._left < 0:
            raise Fault("flush")
        return ""


class BadDrafter:
    """Drafts the prompt again, and fails for requests whose id says where: begin, propose, observe or end."""

    name = "bad"
    needs: frozenset[str] = frozenset()

    def begin(self, request: Request) -> None:
        self._call("begin", request.request_id)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        for job in jobs:
            self._call("propose", job.request_id)
        return [Draft.chain(job.context.tokens[: min(3, job.budget)], self.name) for job in jobs]

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        self._call("observe", request_id)

    def end(self, request_id: str) -> None:
        self._call("end", request_id)

    def _call(self, where: str, request_id: str) -> None:
        if where in request_id:
            raise Fault(where)


class Poisoned(ToyModel):
    """Says NaN after the token 200."""

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        rows = super().forward(items)
        for item, logits in zip(items, rows, strict=True):
            logits[np.asarray(item.tokens)[item.rows] == 200] = np.nan
        return rows


def faulty(name: str, **arguments: Any) -> Request:
    return request(name, [1, 2], max_tokens=20, **arguments)


FAULTS = {
    **{
        f"constraint-{where}-{after}": faulty("bad", constraint=BadConstraint(where, after))
        for where in ("allowed", "forced", "ended")
        for after in (0, 1, 7)
        if (where, after) != ("forced", 0)
    },
    **{f"detokenizer-{at}": faulty("bad", detokenizer=BadDetokenizer(at)) for at in (1, 5)},
    "detokenizer-flush": faulty("bad", detokenizer=BadDetokenizer(-1)),
    "nan": request("bad", [200], max_tokens=20),
    "processor": faulty("bad", logits_processors=(lambda *_: 1 / 0,)),
}


def together(pipeline: Pipeline, bad: Request) -> dict[str, list[Event]]:
    """The events of each request, with the bad one submitted among the others; the engine works
    afterwards."""

    async def client(engine: ServerEngine) -> dict[str, list[Event]]:
        streams = {sample.request_id: engine.submit([sample]) for sample in (GOOD[0], bad, *GOOD[1:])}
        found = {name: await read(stream) for name, stream in streams.items()}
        assert engine.healthy
        assert (engine.stats.running, engine.stats.waiting, engine.stats.cache_bytes) == (0, 0, 0)
        found["later"] = await read(engine.submit([replace(GOOD[0], request_id="later")]))
        return found

    return serve(ServerEngine(pipeline), client)


def poisoned(target_file: Path, speculative: str | None) -> Pipeline:
    model = Poisoned(320, 256, seed=1, sharpness=3.0, memory=0.2)
    engine = CachedStepEngine(model)
    return replace(toy_pipeline(target_file, speculative, max_num_seqs=3), engine=engine)


@pytest.mark.grid(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("speculative", [None, "ngram", "suffix"])
def test_a_fault_ends_its_request_only(target_file: Path, fault: str, speculative: str | None) -> None:
    pipeline, bad = poisoned(target_file, speculative), FAULTS[fault]
    if "detokenizer" in fault:  # they count
        bad = replace(bad, detokenizer=BadDetokenizer({"1": 1, "5": 5}.get(fault[-1], -1)))
    if speculative is None and fault.startswith("constraint-forced"):
        pytest.skip("plain decoding does not ask")
    found = together(pipeline, bad)
    end = ends(found["bad"])["bad"]
    assert end.finish_reason == "error"
    assert end.error is not None
    for sample in GOOD:
        assert tokens(found[sample.request_id], sample.request_id) == alone(pipeline, sample)
        assert ends(found[sample.request_id])[sample.request_id].finish_reason in ("length", "stop")
    assert tokens(found["later"], "later") == alone(pipeline, GOOD[0])


@pytest.mark.parametrize("where", ["begin", "propose", "observe", "end"])
def test_a_drafters_fault_ends_its_request_only(
    target_file: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = toy_pipeline(target_file, "ngram", max_num_seqs=3)
    expected = {sample.request_id: alone(pipeline, sample) for sample in GOOD}
    drafter = BadDrafter()
    drafting = replace(pipeline.drafting, drafter=drafter, parts=(drafter,))
    bad = faulty(where)
    found = together(replace(pipeline, drafting=drafting), bad)
    assert ends(found[where])[where].finish_reason == ("length" if where == "end" else "error")
    for name, said in expected.items():
        assert tokens(found[name], name) == said
    if where == "end":
        assert "could not be released" in caplog.text


def test_a_request_that_the_loop_itself_refuses_ends_with_that_error(
    target_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the check at the door cannot see."""
    pipeline = toy_pipeline(target_file, None)

    right = Emitter

    def emitter(request: Request, max_context: int) -> Any:
        if request.request_id == "bad":
            raise Fault("not ready")
        return right(request, max_context)

    monkeypatch.setattr(loop, "Emitter", emitter)
    found = together(pipeline, faulty("bad"))
    assert isinstance(ends(found["bad"])["bad"].error, Fault)
    assert tokens(found["x"], "x") == alone(pipeline, GOOD[0])


def test_many_clients_that_come_and_go(target_file: Path) -> None:
    """A few hundred requests, some bad, some cancelled, some whose stream is never read: each gets its own
    text."""
    pipeline = poisoned(target_file, "suffix")
    chance = random.Random(7)
    expected = {
        (a, b): alone(pipeline, request("r", [a, b], max_tokens=12, temperature=1.0))
        for a in range(5)
        for b in range(5)
    }

    async def one(engine: ServerEngine, number: int) -> str:
        prompt = chance.randrange(5), chance.randrange(5)
        name, kind = f"r{number}", chance.choice(["read", "read", "read", "cancel", "unread", "bad"])
        arguments: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "namespace": chance.choice("ab")}
        if kind == "bad":
            arguments["constraint"] = BadConstraint("allowed", 3)
        stream = engine.submit([request(name, prompt, **arguments)])
        if kind == "unread":
            return kind
        said: list[int] = []
        async with stream:
            async for event in stream:
                said += tokens([event], name)
                if kind == "cancel" and len(said) == 4:
                    break
        right = expected[prompt]
        assert said == (right[:4] if kind == "cancel" else right[:3] if kind == "bad" else right)
        return kind

    async def client(engine: ServerEngine) -> list[str]:
        async def some(first: int) -> list[str]:
            return [await one(engine, number) for number in range(first, first + 25)]

        groups = await asyncio.gather(*(some(25 * worker) for worker in range(10)))
        return [kind for group in groups for kind in group]

    engine = ServerEngine(pipeline, max_waiting=250)
    kinds = serve(engine, client)
    finished = engine.stats.finished
    assert sum(finished.values()) == len(kinds) == 250
    assert finished["error"] == kinds.count("bad")
