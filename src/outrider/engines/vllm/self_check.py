"""The self-check at start-up: a few texts at temperature 0 and above, written with speculation and then
scored by the target without. A version whose sampling with speculation is broken is found before a client
meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from outrider.engines.vllm.metrics import counts
from outrider.engines.vllm.sampling_test import MOST_GAPS, Position, greedy_problem, sampling_problem
from outrider.engines.vllm.upstream import Upstream, UpstreamError
from outrider.errors import OutriderError

State: TypeAlias = Literal["passed", "sampling is broken", "broken", "not checked", "off", "no speculation"]

LIKELIEST = 20  # of each position; vLLM's own limit, unless it was started with another
TOKENS = (
    8  # of each text: what lookups draft for is the beginning, which goes on as the prompt repeats itself
)
REQUEST_SECONDS = 300.0
AT_ONCE = 16  # requests
# Each is said three times and then begun again, so that every kind of drafter has something to propose.
PASSAGES = (
    "The old clock in the hall struck nine, and nobody in the house was awake to hear it. ",
    "Water boils at one hundred degrees and freezes at zero degrees on the scale of Celsius. ",
    "for row in table:\n    for cell in row:\n        total = total + cell\n        count = count + 1\n",
    "Name: Ada. City: London. Work: mathematics. Name: Alan. City: Manchester. Work: machines. ",
)
PROMPTS = tuple(3 * text + text[: len(text) * part // 4] for text in PASSAGES for part in (1, 2, 3))
_PLAIN: dict[str, Any] = {
    **{"top_p": 1.0, "top_k": -1},
    **{"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1.0},
}
# Requests of a round run at the same time, as in a server: what one leaves behind must not be another's.
_GREEDY = ({"temperature": 0},)
# "seed" is the first prompt's; each has its own, as draws of the same seed are alike, where the test takes
# them for independent.
_DRAWN = ({"temperature": 1}, {"temperature": 0.5}, {"temperature": 0}, {"temperature": 1, "seed": 7})
_FILTERED = ({"temperature": 0.8, "top_k": LIKELIEST, "top_p": 0.95}, {"temperature": 0.8, "top_k": 5})


@dataclass(frozen=True, slots=True)
class Outcome:
    """state: of the check. detail: what was seen, or why it was not checked; one line. died: whether the
    server may have ended of it."""

    state: State
    detail: str = ""
    died: bool = False

    @property
    def refuses_sampling(self) -> bool:
        return self.state == "sampling is broken"

    def document(self) -> dict[str, str]:
        return {"state": self.state, "detail": self.detail}

    def __str__(self) -> str:
        return f"self-check: {self.state}{f': {self.detail}' if self.detail else ''}"


class CheckError(OutriderError):
    """The check cannot be made: a request that it needs is refused or answered in another form."""


async def self_check(upstream: Upstream, model: str) -> Outcome:
    """Check a server that speculates. model: its name. Raises UpstreamError when it cannot be asked at
    all."""
    checker = _Checker(upstream, model)
    try:
        prompts = await asyncio.gather(*(checker.ids(text) for text in PROMPTS))
        before = await checker.drafts()
        for what, ways, broken in (
            ("at temperature 0", _GREEDY, "broken"),
            ("above temperature 0", _DRAWN, "sampling is broken"),
            (f"with top_k {LIKELIEST}", _FILTERED, "sampling is broken"),
        ):
            state = cast("State", broken)
            try:
                found = await checker.written(prompts, ways)
            except (UpstreamError, _FailedError) as error:
                return Outcome(state, f"{what} the engine failed: {error}", died=True)
            if problem := _problem(found, filtered=ways is _FILTERED):
                return Outcome(state, f"{what} {problem}")
        drafts = await checker.drafts() - before
    except (CheckError, _FailedError) as error:
        return Outcome("not checked", str(error))
    if not drafts:
        return Outcome("not checked", "no draft was made for the texts of the check")
    return Outcome("passed", f"{checker.tokens} tokens, {drafts} drafts")


def _problem(found: Sequence[Position], *, filtered: bool) -> str | None:
    """What is wrong with the tokens of a round. filtered: only the likeliest may be drawn."""
    if filtered:
        outside = sum(not p.inside for p in found)
        return f"{outside} of {len(found)} tokens are others than these" if outside > MOST_GAPS else None
    drawn = [p for p in found if p.temperature > 0]
    return sampling_problem(drawn) or greedy_problem([p for p in found if not p.temperature])


class _FailedError(OutriderError):
    """The server answered a request with an error of its own (5xx)."""


class _Checker:
    def __init__(self, upstream: Upstream, model: str) -> None:
        self._upstream, self._model = upstream, model
        self.tokens = 0  # that were looked at
        self._places = asyncio.Semaphore(AT_ONCE)

    async def drafts(self) -> int:
        _, page = await self._upstream.read("GET", "/metrics", seconds=REQUEST_SECONDS)
        return counts(page.decode("utf-8", "replace")).num_drafts

    async def ids(self, text: str) -> list[int]:
        """The token ids of a prompt."""
        return _ids((await self._ask("/tokenize", {"prompt": text})).get("tokens"))

    async def written(self, prompts: Sequence[list[int]], ways: Sequence[dict[str, Any]]) -> list[Position]:
        """What the target says of the texts after the prompts, written in several ways at the same time; all
        together."""
        jobs = [
            (prompt, _PLAIN | way | ({"seed": way["seed"] + at} if "seed" in way else {}))
            for at, prompt in enumerate(prompts)
            for way in ways
        ]
        texts = await asyncio.gather(*(self._text(prompt, sampling) for prompt, sampling in jobs))
        scored = await asyncio.gather(
            *(self._scores(job[0], text, job[1]) for job, text in zip(jobs, texts, strict=True))
        )
        found = [position for positions in scored for position in positions]
        self.tokens += len(found)
        return found

    async def _text(self, prompt: list[int], sampling: dict[str, Any]) -> list[int]:
        """Token ids that are written after a prompt."""
        asked = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1, "return_tokens_as_token_ids": True}
        choice = _choice(await self._ask("/v1/completions", {"prompt": prompt, **asked, **sampling}))
        tokens = (choice.get("logprobs") or {}).get("tokens")
        if not isinstance(tokens, list):
            raise CheckError("answers have no log-probabilities")
        return _ids([str(token).removeprefix("token_id:") for token in tokens])

    async def _scores(self, prompt: list[int], text: list[int], sampling: dict[str, Any]) -> list[Position]:
        """What the target says of each token of a text, as a prompt."""
        asked = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": LIKELIEST}
        choice = _choice(await self._ask("/v1/completions", {"prompt": prompt + text, **asked}))
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(prompt) + len(text):
            raise CheckError("answers have no log-probabilities of the prompt")
        temperature = sampling["temperature"]
        written = zip(entries[len(prompt) :], text, strict=True)
        return [_position(entry, token, temperature) for entry, token in written]

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._places:
            status, document = await self._upstream.document(
                "POST", path, {"model": self._model, **body}, seconds=REQUEST_SECONDS
            )
        if status != 200 or not isinstance(document, dict):
            error = document.get("error") if isinstance(document, dict) else None
            said = error.get("message") if isinstance(error, dict) else None
            kind = _FailedError if status >= 500 else CheckError
            raise kind(f"{path} answered {status}: {' '.join(str(said or document).split())[:200]}")
        return document


def _choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise CheckError("an answer has no choices")
    return dict(choices[0])


def _ids(values: Any) -> list[int]:
    try:
        found = [int(value) for value in values]
    except (TypeError, ValueError):
        raise CheckError("an answer has no token ids") from None
    if not found:
        raise CheckError("an answer has no tokens")
    return found


def _position(entry: Any, token: int, temperature: float) -> Position:
    """One position of `prompt_logprobs`: by token id, the log-probability and the rank from 1."""
    try:
        own = entry[str(token)]
        ranked = sorted((int(e["rank"]), float(e["logprob"])) for e in entry.values())
        likeliest = tuple(logprob for rank, logprob in ranked if rank <= LIKELIEST)
        inside = int(own["rank"]) <= LIKELIEST
        return Position(float(own["logprob"]), likeliest or (0.0,), inside, temperature)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise CheckError("log-probabilities of the prompt have another form") from None
