"""Under any load a request's text is the same as on its own, bit for bit, and nothing leaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.decoding.events import Event
from outrider.decoding.request import Request
from outrider.decoding.types import IntArray
from outrider.engines.base import Cache
from outrider.engines.prefix import PrefixCache
from outrider.memory import Budget
from outrider.pipeline import Pipeline
from outrider.server.engine.scheduler import Scheduler
from tests.server.engine_support import Shared, alone, ends, request, tokens, toy_pipeline
from tests.support.toy_model import ToyModel

SLOTS = 3
BUDGET = 100  # of a unit for each token that a request may come to have
DRAFTERS: dict[str, Callable[[Path], dict[str, Any] | None]] = {
    "none": lambda draft: None,
    "ngram": lambda draft: {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
    "suffix": lambda draft: {"method": "suffix"},
    "draft_model": lambda draft: {"model": str(draft), "num_speculative_tokens": 3},
    "auto": lambda draft: {"method": "auto", "model": str(draft)},
}


class Watched(ToyModel):
    """Remembers its caches, to see that all are given back."""

    def __init__(self) -> None:
        super().__init__(320, 256, seed=1, sharpness=3.0, memory=0.2)
        self.caches: list[Cache] = []

    def new_cache(self, capacity: int) -> Cache:
        self.caches.append(super().new_cache(capacity))
        return self.caches[-1]

    @property
    def open_caches(self) -> int:
        def is_open(cache: Cache) -> bool:
            try:
                cache.truncate(cache.length)
            except ValueError:
                return False
            return True

        self.caches = [cache for cache in self.caches if is_open(cache)]
        return len(self.caches)


@dataclass
class World:
    """A pipeline whose requests share prefixes, and the same without."""

    pipeline: Pipeline
    model: Watched
    engine: Shared
    plain: Pipeline
    known: dict[str, list[int]] = field(default_factory=dict)  # what a request says alone

    def expected(self, asked: Request) -> list[int]:
        key = repr((asked.prompt, asked.params, asked.seed))
        if key not in self.known:
            self.known[key] = alone(self.plain, asked)
        return self.known[key]


def world(target: Path, draft: Path, drafter: str) -> World:
    pipeline = toy_pipeline(target, DRAFTERS[drafter](draft), max_num_seqs=SLOTS)
    model = Watched()
    engine = Shared(model)
    plain = toy_pipeline(target, None)
    return World(replace(pipeline, engine=engine), model, engine, plain)


@pytest.fixture(scope="module", params=DRAFTERS)
def drafted(request: pytest.FixtureRequest, target_file: Path, draft_file: Path) -> World:
    return world(target_file, draft_file, request.param)


@dataclass(frozen=True)
class Visit:
    """A request, the step before which it comes, and after how many steps it is cancelled, if at all."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    max_tokens: int
    at: int
    patience: int | None


SYSTEM = tuple(range(20, 60))  # several cache blocks, and more than a chunk of prefill in a mixed batch
visits = st.builds(
    Visit,
    prompt=st.builds(
        lambda shared, own: (*SYSTEM[:shared], *own),
        st.sampled_from((0, 7, 40)),
        st.lists(st.integers(1, 9), min_size=1, max_size=6),
    ),
    temperature=st.sampled_from((0.0, 0.7, 1.5)),
    seed=st.integers(0, 3),
    max_tokens=st.integers(1, 25),
    at=st.integers(0, 12),
    patience=st.none() | st.integers(0, 6),
)
load = st.lists(visits, min_size=1, max_size=8)


def run(world: World, load: Sequence[Visit]) -> tuple[dict[str, Request], set[str], list[Event]]:
    """Run a load of requests: (the requests, the ids of those cancelled, all events)."""
    budget = Budget(BUDGET)
    loop = world.pipeline.runner()
    steps = itertools.count()
    scheduler = Scheduler(
        loop, SLOTS, budget, lambda r: len(r.prompt) + (r.params.max_tokens or 0), lambda: 0.0
    )
    asked: dict[str, Request] = {}
    cancelled: set[str] = set()
    events: list[Event] = []
    last = max(visit.at for visit in load)
    for step in steps:
        for index, visit in enumerate(load):
            name = f"r{index}"
            if visit.at == step:
                parameters = {"temperature": visit.temperature, "max_tokens": visit.max_tokens}
                asked[name] = replace(request(name, visit.prompt, **parameters), seed=visit.seed)
                scheduler.add(asked[name])
            if visit.patience is not None and visit.at + visit.patience == step and name not in ends(events):
                cancelled.add(name)
                scheduler.cancel(name)
                scheduler.cancel(name)
        events += scheduler.step()
        assert scheduler.running <= SLOTS
        assert world.model.open_caches <= scheduler.running
        assert budget.reserved <= BUDGET
        if step > last and not scheduler.unfinished:
            break
        assert step < 1000, "somebody waits for ever"
    assert (scheduler.running, scheduler.waiting, budget.reserved, world.model.open_caches) == (0, 0, 0, 0)
    return asked, cancelled, events


def disagreements(world: World, load: Sequence[Visit]) -> list[str]:
    """Requests whose events differ from those of the same request on its own."""
    asked, cancelled, events = run(world, load)
    ended = ends(events)
    assert ended.keys() == asked.keys()
    wrong = []
    for name, mine in asked.items():
        said, expected, reason = tokens(events, name), world.expected(mine), ended[name].finish_reason
        assert ended[name].error is None
        if name in cancelled:
            right = reason == "abort" and said == expected[: len(said)]
        else:
            right = reason in ("length", "stop") and said == expected
        if not right:
            wrong.append(name)
    return wrong


relaxed = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(load=load, blocks=st.sampled_from((0, 6, 10**6)))
def test_the_text_is_the_one_that_a_request_has_alone(drafted: World, load: list[Visit], blocks: int) -> None:
    drafted.engine.share_prefixes(blocks * 64)
    assert disagreements(drafted, load) == []


BUSY = [Visit((*SYSTEM, end), 0.0, 0, 12, at, None) for at, end in ((0, 1), (9, 1), (18, 2), (27, 1))]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prefixes_are_used_under_load(target_file: Path, draft_file: Path, drafter: str) -> None:
    """Else the test above says less than it seems to."""
    mine = world(target_file, draft_file, drafter)
    prefixes = mine.engine.share_prefixes(10**6)
    assert disagreements(mine, BUSY) == []
    assert prefixes.hit_tokens > len(SYSTEM)


class Careless(PrefixCache):
    """The broken twin: it looks at the first token of a block only."""

    def _keys(self, tokens: Sequence[int] | IntArray) -> list[bytes]:
        return [key[:4] for key in super()._keys(tokens)]


def test_a_block_of_another_text_is_noticed(target_file: Path, draft_file: Path) -> None:
    mine = world(target_file, draft_file, "ngram")
    mine.engine.prefixes = Careless(mine.model, 10**6)
    other = Visit((20, 1, 1, 1, *SYSTEM[4:], 1), 0.0, 0, 12, 0, None)
    assert disagreements(mine, [other, *BUSY]) != []


def test_sampling_that_depends_on_other_requests_is_noticed(
    target_file: Path, draft_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin of seeds: one stream of random numbers for all who share the batch."""
    mine = world(target_file, draft_file, "none")
    crowd = [Visit((3, 4), 1.0, 0, 20, 0, None), Visit((5, 6), 1.0, 0, 20, 0, None)]
    assert disagreements(mine, crowd) == []
    counter = itertools.count()
    add = Scheduler.add
    monkeypatch.setattr(Scheduler, "add", lambda self, r: add(self, replace(r, seed=next(counter))))
    assert disagreements(mine, crowd) == ["r1"]
