"""`outrider plan --endpoint`: what a running server does, and what its speculation is worth.

Its speed is measured with one client. A step with a draft takes TPOT times the tokens that it gives; where a
server of the same model without speculation is measured beside it (in pairs, in turn), the ratio of such a
step and a plain one is known, and with it the acceptance from which drafts of this length pay.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.bench import stats
from outrider.bench.workloads import Item
from outrider.engines.vllm.upstream import (
    MOST_EVENT,
    Upstream,
    UpstreamError,
    events,
    text_of,
    tokens_of,
    whole,
)
from outrider.plan import servers
from outrider.plan.servers import Drafted, Found, Kind
from outrider.plan.speed import ACCEPTANCES

LEAST_TOKENS = 8  # of an answer, for its speed to be seen


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer. tokens: by its usage, or else the events with text. drafted: what it tells itself.
    text: all of it, thoughts too. gaps_s: between two events with text, of which each may have several
    tokens."""

    ttft_s: float
    decode_s: float
    tokens: int
    drafted: Drafted
    text: str = ""
    gaps_s: tuple[float, ...] = ()

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first."""
        enough = self.tokens >= LEAST_TOKENS and self.decode_s > 0
        return self.decode_s / (self.tokens - 1) if enough else None


@dataclass(slots=True)
class Measured:
    """A server and its answers, by prompt. drafted: of all of them together."""

    url: str
    model: str
    found: Found
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    drafted: Drafted = field(default_factory=Drafted)

    def tpots(self, prompt: str) -> list[float]:
        return [a.tpot_s for a in self.answers.get(prompt, ()) if a.tpot_s is not None]

    def document(self) -> dict[str, Any]:
        every = [answer for answers in self.answers.values() for answer in answers]
        tpot = stats.median(a.tpot_s for a in every if a.tpot_s is not None)
        return {
            "url": self.url,
            "server": str(self.found),
            "model": self.model,
            "speculation": dict(self.found.settings) or None,
            "prompts": len(self.answers),
            "tokens": sum(a.tokens for a in every),
            "ttft_ms": 1e3 * stats.median(a.ttft_s for a in every),
            "tpot_ms": 1e3 * tpot,
            "tokens_per_s": 1 / tpot,
            "drafts": self.drafted.drafts or None,
            "draft_tokens": self.drafted.tokens or None,
            "acceptance_rate": self.drafted.acceptance_rate,
            "mean_acceptance_length": self.drafted.mean_length,
            "acceptance_from": self.found.tells or None,
        }


async def survey(
    server: Upstream,
    plain: Upstream | None,
    items: Sequence[Item],
    *,
    model: str | None,
    max_tokens: int,
    rounds: int,
    seconds: float,
    progress: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Measure a server, and one without speculation beside it in turn; the document of the plan.

    model: its name; None asks each server for its first. seconds: for one answer.
    Raises UpstreamError, also where answers are too short to see their speed.
    """
    places = [server, *([plain] if plain is not None else [])]
    measured = []
    for place in places:
        progress(f"{place}")
        found = await servers.find(place)
        measured.append(Measured(str(place), model or await first_model(place), found))
    order = list(zip(places, measured, strict=True))
    for place, one in order:
        progress(f"warming up {place}")
        await ask(place, one, items[0].prompt, max_tokens, seconds)
    before = [await servers.drafted(place, one.found.kind) for place, one in order]
    for round_ in range(rounds):
        for item in items:
            for place, one in order if round_ % 2 else order[::-1]:
                progress(f"{item.id}, {place}")
                answer = await ask(place, one, item.prompt, max_tokens, seconds)
                one.answers.setdefault(item.id, []).append(answer)
    for place, one, start in zip(places, measured, before, strict=True):
        kind = one.found.kind
        total = servers.since(kind, start, await servers.drafted(place, kind))
        for answers in one.answers.values():
            for answer in answers:
                total += answer.drafted
        one.drafted = total
    return document(measured[0], measured[1] if plain is not None else None)


def document(one: Measured, plain: Measured | None) -> dict[str, Any]:
    """What is printed. Raises UpstreamError where no answer was long enough."""
    for each in (one, *([plain] if plain is not None else [])):
        if not any(each.tpots(prompt) for prompt in each.answers):
            raise UpstreamError(f"{each.url} wrote fewer than {LEAST_TOKENS} tokens to every prompt")
    found: dict[str, Any] = {"endpoint": one.document(), "against": None, "speed": None, "advice": []}
    if plain is not None:
        found["against"] = plain.document()
        pairs = [
            [b / a for a, b in zip(one.tpots(prompt), plain.tpots(prompt), strict=False)]
            for prompt in one.answers
        ]
        speedup, interval = stats.speedup([ratios for ratios in pairs if ratios])
        tokens = sum(answer.tokens for answers in one.answers.values() for answer in answers)
        found["speed"] = speed(speedup, interval, one.drafted, tokens)
    found["advice"] = advice(found)
    return found


def speed(speedup: float, interval: tuple[float, float], drafted: Drafted, tokens: float) -> dict[str, Any]:
    """What follows from a measured speed-up and the drafts that it was measured with.

    tokens: written by the server that drafts.
    Of all its steps a share f has a draft, of k tokens, of which a share a is accepted. A step gives
    1 + f k a tokens, and with the speed-up s it takes c = (1 + f k a) / s plain ones. A step with a draft
    then takes 1 + (c - 1) / f, and drafts as long pay from a = (c - 1) / (f k).
    """
    found: dict[str, Any] = {"speedup": speedup, "speedup_ci": list(interval), "step_cost_ratio": None}
    found |= {"break_even_acceptance": None, "speedup_by_acceptance": {}}
    length, k = drafted.mean_length, drafted.draft_length
    if not drafted.drafts or not k:
        if length is not None:  # of a server that drafts in every step, and tells no more
            found["step_cost_ratio"] = length / speedup
        return found
    steps = max(tokens - drafted.accepted, drafted.drafts)
    share = drafted.drafts / steps
    cost = max(tokens / steps, 1.0) / speedup
    found["step_cost_ratio"] = 1 + (cost - 1) / share
    needed = (cost - 1) / (share * k)
    found["break_even_acceptance"] = max(0.0, needed) if needed <= 1 else None
    found["speedup_by_acceptance"] = {f"{a:g}": (1 + share * k * a) / cost for a in ACCEPTANCES}
    return found


def advice(found: Mapping[str, Any]) -> list[str]:
    """What to do, in sentences."""
    one, speeds = found["endpoint"], found["speed"]
    said = []
    if one["mean_acceptance_length"] is None:
        said.append(
            f"{one['server']} tells nothing of drafts: either it makes none, or it does not count them."
        )
    if speeds is None:
        said.append(
            "What speculation is worth takes the same model without it: start one on equal hardware and give "
            "its address as --against."
        )
    elif speeds["speedup_ci"][1] < 1:
        said.append("Turn speculation off, or draft fewer tokens: it is slower than plain decoding here.")
    elif speeds["speedup_ci"][0] > 1:
        said.append("Keep speculation: it is faster than plain decoding here.")
    else:
        said.append("These prompts do not tell whether it is faster; ask more of them (--rounds).")
    counted = speeds is not None and speeds["step_cost_ratio"] and one["drafts"]
    if counted and speeds["break_even_acceptance"] is None:
        said.append("Drafts of this length cannot pay here, even if every token is accepted.")
    said.append("One client was measured; under load drafts are worth less.")
    return said


async def ask(place: Upstream, one: Measured, prompt: str, max_tokens: int, seconds: float) -> Answer:
    """One streamed answer at temperature 0. Raises UpstreamError."""
    body = {
        "model": one.model,
        "messages": [{"role": "user", "content": prompt}],
        **{"max_tokens": max_tokens, "temperature": 0, "stream": True},
        "stream_options": {"include_usage": True},
    }
    headers = [(b"content-type", b"application/json")]
    path = "/api/v0/chat/completions" if one.found.kind == "LM Studio" else "/v1/chat/completions"
    try:
        async with asyncio.timeout(seconds):
            return await _read_answer(place, path, json.dumps(body).encode(), headers, one.found.kind)
    except TimeoutError:
        raise UpstreamError(f"{place} did not answer in {seconds:g} s (--timeout)") from None


async def _read_answer(
    place: Upstream, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]], kind: Kind
) -> Answer:
    began = time.perf_counter()
    written: list[str] = []
    times: list[float] = []
    tokens = 0
    drafted = Drafted()
    async with place.ask("POST", path, body, headers) as answer:
        if answer.status != 200:
            said = " ".join((await whole(answer, MOST_EVENT)).decode("utf-8", "replace").split())
            raise UpstreamError(f"{place} answered {answer.status}: {said[:200]}")
        async for now, event in events(answer, place):
            if text := text_of(event):
                written.append(text)
                times.append(now)
            tokens = tokens_of(event) or tokens
            told = servers.of_answer(kind, event)
            drafted = told if told.tokens else drafted
    if not times:
        raise UpstreamError(f"{place} wrote nothing")
    gaps = tuple(after - before for before, after in itertools.pairwise(times))
    return Answer(
        times[0] - began, times[-1] - times[0], tokens or len(times), drafted, "".join(written), gaps
    )


async def first_model(place: Upstream) -> str:
    """The name of the server's first model. Raises UpstreamError."""
    status, found = await place.document("GET", "/v1/models", seconds=servers.SECONDS)
    try:
        name = found["data"][0]["id"]
    except (LookupError, TypeError):
        name = None
    if status == 401:
        raise UpstreamError(
            f"{place} asks for a key: set OUTRIDER_API_KEY, or name its variable (--api-key-env)"
        )
    if not isinstance(name, str) or not name:
        raise UpstreamError(f"{place} lists no model (status {status}); name one with -m")
    return name


def text(found: Mapping[str, Any]) -> str:
    """The document for a reader."""
    one, plain, speeds = found["endpoint"], found["against"], found["speed"]
    lines = [_server(one)]
    if plain is not None:
        lines.append(f"against {_server(plain)}")
    if speeds is not None:
        low, high = speeds["speedup_ci"]
        lines.append(
            f"speed-up of decoding {speeds['speedup']:.2f} ({low:.2f} to {high:.2f}, 95%), measured in pairs"
        )
        if speeds["step_cost_ratio"]:
            lines.append(f"a step with a draft takes {speeds['step_cost_ratio']:.2f} plain ones")
        if speeds["break_even_acceptance"] is not None:
            lines.append(f"break-even acceptance of drafts as long: {speeds['break_even_acceptance']:.0%}")
        if speeds["speedup_by_acceptance"]:
            each = ", ".join(f"{float(a):.0%} {s:.2f}" for a, s in speeds["speedup_by_acceptance"].items())
            lines.append(f"speed-up by acceptance, predicted from this: {each}")
    return "\n".join([*lines, *(f"- {line}" for line in found["advice"])])


def _server(one: Mapping[str, Any]) -> str:
    lines = [f"{one['url']}: {one['server']}, model {one['model']}"]
    if one["speculation"]:
        lines.append("  speculation: " + ", ".join(f"{k} {v}" for k, v in one["speculation"].items()))
    lines.append(
        f"  one client: TTFT {one['ttft_ms']:.0f} ms, TPOT {one['tpot_ms']:.2f} ms, "
        f"{one['tokens_per_s']:.1f} tokens/s ({one['prompts']} prompts, {one['tokens']} tokens)"
    )
    if one["mean_acceptance_length"] is not None:
        rate = "" if one["acceptance_rate"] is None else f"{one['acceptance_rate']:.0%} accepted, "
        lines.append(
            f"  drafts: {rate}{one['mean_acceptance_length']:.2f} tokens a step, by {one['acceptance_from']}"
        )
    elif one["acceptance_rate"] is not None:
        lines.append(f"  drafts: {one['acceptance_rate']:.0%} accepted, by {one['acceptance_from']}")
    return "\n".join(lines)
