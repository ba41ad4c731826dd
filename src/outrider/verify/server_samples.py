"""Samples of two servers: drawn by requests like any user's, several at a time.

Each sample has a seed of its own, so that no cache of answers and no sharing of randomness between the
servers makes samples depend on each other. Log-probabilities are not asked for, since some servers draft
nothing for requests that want them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from outrider.engines.vllm.upstream import Upstream, UpstreamError
from outrider.plan import servers
from outrider.plan.servers import Drafted, Found
from outrider.verify.endpoint import Answer

MOST_CHARS = 1000  # of a text, should a server not heed the limit of tokens
CLIENTS = 8  # requests at a time, of both servers together
_T = TypeVar("_T")

Texts: TypeAlias = tuple[list[str], list[str]]
"""Of each server."""


class Server(Protocol):
    """What is asked of an `Endpoint`. Its str is its address."""

    chat: bool

    def sample(self, prompt: str, max_tokens: int, temperature: float, seed: int) -> Answer: ...


class Drafts(Protocol):
    """Counts what two servers draft meanwhile."""

    def begin(self) -> None: ...

    def add(self, server: int, answer: Answer) -> None: ...

    def words(self) -> str: ...


class CountedDrafts:
    """What the servers tell of it themselves, as far as they do."""

    def __init__(self, places: tuple[Upstream, Upstream]) -> None:
        self._servers = [_Counted(place) for place in places]

    def begin(self) -> None:
        for server in self._servers:
            server.begin()

    def add(self, server: int, answer: Answer) -> None:
        self._servers[server].add(answer)

    def words(self) -> str:
        one, other = (server.tokens() for server in self._servers)
        return f"drafted tokens: {_number(one)} and {_number(other)}"


class _Counted:
    """The drafted tokens of one server, from `begin` on."""

    def __init__(self, place: Upstream) -> None:
        self._place = place
        self._found: Found | None = None
        self._before = self._told = Drafted()

    def begin(self) -> None:
        with contextlib.suppress(UpstreamError):  # what it tells of itself may be out of reach
            found = asyncio.run(servers.find(self._place))
            self._before = asyncio.run(servers.drafted(self._place, found.kind))
            self._found = found

    def add(self, answer: Answer) -> None:
        if self._found is not None:
            self._told += servers.of_answer(self._found.kind, answer.told)

    def tokens(self) -> float | None:
        if self._found is None or not self._found.counts:
            return None
        try:
            now = asyncio.run(servers.drafted(self._place, self._found.kind))
        except UpstreamError:
            return None
        return (servers.since(self._found.kind, self._before, now) + self._told).tokens


def _number(tokens: float | None) -> str:
    return "an unknown number" if tokens is None else f"{tokens:.0f}"


class Drawing:
    """Draws texts of two servers.

    samples: texts of each for a prompt. drafts: counts what they draft for it.
    """

    def __init__(self, pair: tuple[Server, Server], samples: int, drafts: Drafts) -> None:
        self.pair, self.samples, self.drafts = pair, samples, drafts
        self._seeds = itertools.count()

    def draw(self, prompt: str, max_tokens: int, temperature: float, tick: Callable[[], object]) -> Texts:
        """The texts. tick: called after each answer. Raises what `Server.sample` raises."""
        order = [(at, next(self._seeds)) for _ in range(self.samples) for at in range(2)]
        jobs = [partial(self.pair[at].sample, prompt, max_tokens, temperature, seed) for at, seed in order]
        texts: Texts = ([], [])
        for (at, _), answer in zip(order, in_threads(jobs, CLIENTS, tick), strict=True):
            texts[at].append(answer.text[:MOST_CHARS])
            self.drafts.add(at, answer)
        return texts


def in_threads(jobs: Sequence[Callable[[], _T]], threads: int, tick: Callable[[], object]) -> list[_T]:
    """What the jobs return, in their order; the first exception is raised as it comes.

    The threads are daemons: whoever interrupts this need not wait for a server that hangs.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                at = waiting.get_nowait()
                try:
                    done.put((at, jobs[at](), None))
                except BaseException as error:
                    done.put((at, None, error))

    for at in range(len(jobs)):
        waiting.put(at)
    for _ in range(min(threads, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    found: dict[int, _T] = {}
    try:
        for _ in jobs:
            at, value, error = done.get()
            if error is not None:
                raise error
            found[at] = value  # type: ignore[assignment]
            tick()
    finally:
        with contextlib.suppress(queue.Empty):
            while True:  # so that nothing more is begun
                waiting.get_nowait()
    return [found[at] for at in range(len(jobs))]
