"""`outrider bench --endpoint`: how fast a running server answers under load, and another one in turn with it.

Two kinds of load: in a closed loop each of N clients sends its next prompt when its last answer has ended; or
requests arrive at random, R a second on average (a Poisson process), however many are running. Each load is
put on the servers one after the other, in the other order in every second round, so that what changes on
their machine meets both. Every round's prompts begin with a number of its own: no server finds the text in
its prefix cache, beyond what all conversations begin with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outrider.bench import stats
from outrider.bench.endpoint_report import load_words
from outrider.bench.workloads import Item
from outrider.engines.vllm.upstream import Upstream, UpstreamError
from outrider.plan import servers
from outrider.plan.endpoint import LEAST_TOKENS, Answer, Measured, ask, first_model
from outrider.plan.servers import Drafted


@dataclass(frozen=True, slots=True)
class Load:
    """clients: of a closed loop; or, where that is 0, rate: requests that arrive in a second."""

    clients: int = 0
    rate: float = 0.0

    def __str__(self) -> str:
        return load_words(self.clients, self.rate)


@dataclass(frozen=True, slots=True)
class Settings:
    """model: its name; None asks each server for its first. seconds: for one answer. runs: rounds of each
    load."""

    items: Sequence[Item]
    loads: Sequence[Load]
    model: str | None
    max_tokens: int
    runs: int
    seconds: float


@dataclass(slots=True)
class Round:
    """The answers to one round of prompts, by the prompt's id, and the seconds until the last had ended."""

    answers: dict[str, Answer]
    seconds: float
    drafted: Drafted


async def measure(
    places: Sequence[Upstream], settings: Settings, progress: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """The document of `outrider bench --endpoint --json`.

    places: the server, and perhaps one that it is compared with. Raises UpstreamError.
    """
    known = []
    for place in places:
        found = await servers.find(place)
        known.append(Measured(str(place), settings.model or await first_model(place), found))
        await ask(place, known[-1], settings.items[0].prompt, settings.max_tokens, settings.seconds)
    loads = []
    number = 0
    for load in settings.loads:
        rounds: list[list[Round]] = [[] for _ in places]
        for run in range(settings.runs):
            number += 1
            items = [replace(item, prompt=f"({number}) {item.prompt}") for item in settings.items]
            for at in range(len(places))[:: -1 if run % 2 else 1]:
                progress(f"{load}, {places[at]}, round {run + 1}")
                server = places[at], known[at]
                rounds[at].append(await _round(server, items, load, settings, number))
        loads.append(_load(load, rounds))
    return {
        "servers": [
            {"url": k.url, "server": str(k.found), "model": k.model, "speculation": dict(k.found.settings)}
            for k in known
        ],
        "max_tokens": settings.max_tokens,
        "runs": settings.runs,
        "prompts": len(settings.items),
        "loads": loads,
    }


async def _round(
    server: tuple[Upstream, Measured], items: Sequence[Item], load: Load, settings: Settings, seed: int
) -> Round:
    """The prompts once. seed: of the times at which requests arrive."""
    place, one = server
    answers: dict[str, Answer] = {}
    waiting = iter(items)

    async def answered(item: Item) -> None:
        answers[item.id] = await ask(place, one, item.prompt, settings.max_tokens, settings.seconds)

    async def client() -> None:
        for item in waiting:
            await answered(item)

    async def arriving(item: Item, after: float) -> None:
        await asyncio.sleep(after)
        await answered(item)

    kind = one.found.kind
    before = await servers.drafted(place, kind)
    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(load.clients):
                group.create_task(client())
            if not load.clients:
                gaps = np.random.default_rng(seed).exponential(1.0 / load.rate, len(items))
                for item, after in zip(items, np.cumsum(gaps).tolist(), strict=True):
                    group.create_task(arriving(item, after))
    except* UpstreamError as errors:
        raise UpstreamError(str(errors.exceptions[0])) from None
    seconds = time.perf_counter() - began
    drafted = servers.since(kind, before, await servers.drafted(place, kind))
    for answer in answers.values():
        drafted += answer.drafted
    return Round(answers, seconds, drafted)


def _load(load: Load, rounds: Sequence[Sequence[Round]]) -> dict[str, Any]:
    """What is told of one load. rounds: of each server."""
    found: dict[str, Any] = {
        "clients": load.clients or None,
        "rate": load.rate or None,
        "servers": [_figures(each) for each in rounds],
    }
    if len(rounds) > 1:
        found |= compared(*rounds)
        one, other = found["servers"]
        found["throughput_ratio"] = one["tokens_per_s"] / other["tokens_per_s"]
    return found


def _figures(rounds: Sequence[Round]) -> dict[str, Any]:
    answers = [answer for each in rounds for answer in each.answers.values()]
    tokens, seconds = sum(a.tokens for a in answers), sum(each.seconds for each in rounds)
    drafted = Drafted()
    for each in rounds:
        drafted += each.drafted
    return {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "ttft_ms": _quantiles([a.ttft_s for a in answers]),
        "tpot_ms": _quantiles([a.tpot_s for a in answers if a.tpot_s is not None]),
        "itl_ms": _quantiles([gap for a in answers for gap in a.gaps_s]),
        "acceptance_rate": drafted.acceptance_rate,
        "mean_acceptance_length": drafted.mean_length,
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Milliseconds; None without a value."""
    if not seconds:
        return None
    shares = (0.5, 0.95, 0.99)
    values = 1e3 * np.quantile(np.asarray(seconds), shares)
    return {f"p{round(100 * share)}": float(v) for share, v in zip(shares, values, strict=True)}


def compared(rounds: Sequence[Round], others: Sequence[Round]) -> dict[str, Any]:
    """The speed-up over the other server: the ratio of the other's seconds for each token after the first,
    in pairs of answers to the same prompt in the same round (`stats.speedup`). identical: answers with the
    other's text; of `pairs`."""
    ratios: dict[str, list[float]] = {}
    same = pairs = 0
    for mine, its in zip(rounds, others, strict=True):
        for prompt, answer in mine.answers.items():
            other = its.answers[prompt]
            pairs += 1
            same += answer.text == other.text
            if answer.tpot_s is not None and other.tpot_s is not None:
                ratios.setdefault(prompt, []).append(other.tpot_s / answer.tpot_s)
    if not ratios:
        raise UpstreamError(f"no prompt was answered with {LEAST_TOKENS} tokens by both servers")
    speedup, interval = stats.speedup(list(ratios.values()))
    return {"speedup": speedup, "speedup_ci": list(interval), "identical": same, "pairs": pairs}
