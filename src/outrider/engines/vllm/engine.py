"""vLLM as a whole engine: a child server, and a runner that asks it for token ids.

vLLM batches, caches, drafts and samples; texts, stop strings and ends are made here, from the ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request, check_prompt
from outrider.decoding.stops import Emitter
from outrider.engines.vllm.fields import completion_fields
from outrider.engines.vllm.launch import Launch, Launcher
from outrider.engines.vllm.metrics import DRAFTS, counts
from outrider.engines.vllm.process import VllmError
from outrider.engines.vllm.self_check import Outcome
from outrider.engines.vllm.upstream import Upstream, UpstreamError, finished, whole
from outrider.errors import ConfigError
from outrider.metrics import DraftTotals

WAIT_SECONDS = 0.1  # of a step, for something to happen
_MOST_EVENT = 1 << 20


@dataclass(eq=False)
class VllmEngine:
    """A child server that is ready. model: its name in the API. vocab_size: of the model. before: what it had
    counted then, of its self-check."""

    launcher: Launcher
    launch: Launch
    outcome: Outcome
    model: str
    vocab_size: int
    max_positions: int
    before: DraftTotals = field(default_factory=DraftTotals)

    def runner(self) -> VllmRunner:
        return VllmRunner(self)

    def draft_totals(self) -> DraftTotals | None:
        """By its page of metrics. Raises VllmError where it has ended or does not answer."""
        now = self.counts()
        return None if now is None else now - self.before

    def counts(self) -> DraftTotals | None:
        """What it has counted since it started; None where its page says nothing of drafts, as without
        speculation. Raises VllmError."""
        child = self.launch.child
        try:
            status, page = finished(Upstream(child.url, child.key).read("GET", "/metrics"))
        except UpstreamError as error:
            why = child.death("after its last answer") if child.ends_within(0.5) else str(error)
            raise VllmError(f"vLLM cannot be asked for its metrics: {why}") from None
        text = page.decode("utf-8", "replace")
        if status != 200 or DRAFTS not in text:
            return None
        found = counts(text)
        return DraftTotals(
            found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens, found.per_position
        )

    def close(self) -> None:
        """End the child. To call it again does nothing."""
        self.launch.child.stop()

    def sampling_refusal(self) -> str | None:
        """Why requests above temperature 0 are refused; None when they are not."""
        if not self.outcome.refuses_sampling:
            return None
        return (
            f"temperature above 0 is refused: {self.launcher.version} samples wrongly with speculation "
            f"({self.outcome.detail}); use temperature=0, the method 'none', or self_check='off'"
        )


@dataclass(eq=False)
class _Running:
    """A request that runs. task: is None until the loop has it."""

    request: Request
    emitter: Emitter
    metrics: RequestMetrics
    task: asyncio.Future[None] | None = None
    ended: bool = False


@dataclass(eq=False)
class VllmRunner:
    """A `Runner` over a child server. Requests run at the same time, each on a connection of its own, in the
    event loop of a thread."""

    engine: VllmEngine
    _open: dict[str, _Running] = field(default_factory=dict, init=False)
    _events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    @property
    def unfinished(self) -> bool:
        return bool(self._open) or not self._events.empty()

    def add(self, request: Request) -> None:
        """Send a request to the server. Raises PromptError, and ConfigError for what it cannot do."""
        engine = self.engine
        if request.request_id in self._open:
            raise ConfigError(f"request id {request.request_id!r} is already in use")
        check_prompt(request.prompt, engine.vocab_size, engine.max_positions)
        if request.params.temperature > 0 and (why := engine.sampling_refusal()):
            raise ConfigError(why)
        emitter = Emitter(request, engine.max_positions)
        known = engine.launcher.version.request_fields
        body = completion_fields(request, engine.model, emitter.remaining, known)
        running = _Running(request, emitter, RequestMetrics(arrived=time.perf_counter()))
        self._open[request.request_id] = running
        running.task = self._submit(self._run(running, body))

    def abort(self, request_id: str) -> None:
        running = self._open.get(request_id)
        if running is not None and not running.ended:
            self._end(running, FinishEvent(request_id, "abort", None, "", running.metrics))
            if running.task is not None:
                running.task.cancel()

    def step(self) -> list[Event]:
        """What happened since the last step; waits a moment for something."""
        found: list[Event] = []
        if self._open or not self._events.empty():
            with contextlib.suppress(queue.Empty):
                found.append(self._events.get(timeout=WAIT_SECONDS))
                while True:
                    found.append(self._events.get_nowait())
        for event in found:
            if isinstance(event, FinishEvent):
                self._open.pop(event.request_id, None)
        return found

    def close(self) -> None:
        """Drop all requests: their connections close, by which vLLM ends them."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        self._open.clear()
        self._events = queue.SimpleQueue()

    def _submit(self, work: Coroutine[Any, Any, None]) -> Any:
        """Run a coroutine in the loop's thread, which is started with the first."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="vllm-requests", daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _run(self, running: _Running, body: dict[str, Any]) -> None:
        """Ask for the tokens of a request, and queue its events."""
        request_id = running.request.request_id
        child = self.engine.launch.child
        try:
            finish = await self._tokens(running, Upstream(child.url, child.key), body)
        except (UpstreamError, VllmError) as error:
            shown = VllmError(child.death("while it wrote")) if child.ends_within(0.5) else error
            finish = FinishEvent(request_id, "error", None, "", running.metrics, shown)
        self._end(running, finish)

    async def _tokens(self, running: _Running, server: Upstream, body: dict[str, Any]) -> FinishEvent:
        request_id, metrics = running.request.request_id, running.metrics
        headers = [(b"content-type", b"application/json")]
        reason: str | None = None
        async with server.ask("POST", "/v1/completions", json.dumps(body).encode(), headers) as answer:
            if answer.status != 200:
                raise VllmError(_said(await whole(answer), answer.status))
            rest = b""
            async for part in answer.body:
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > _MOST_EVENT:
                    raise VllmError(f"vLLM sends events of more than {_MOST_EVENT >> 20} MB")
                for tokens, ended in map(_event, lines):
                    reason = ended or reason
                    for token in tokens:
                        if running.ended:
                            break
                        now = time.perf_counter()
                        metrics.first_token = metrics.first_token or now
                        metrics.last_token = now
                        metrics.num_tokens += 1
                        text, finish = running.emitter.push(token)
                        self._events.put(TokenEvent(request_id, token, text, "bonus"))
                        if finish is not None:
                            return FinishEvent(request_id, finish.reason, finish.stop_reason, "", metrics)
        if reason not in ("stop", "length"):
            raise VllmError("vLLM ended its answer without a reason")
        kind = "stop" if reason == "stop" else "length"
        return FinishEvent(request_id, kind, None, running.emitter.drain(), metrics)  # type: ignore[arg-type]

    def _end(self, running: _Running, event: FinishEvent) -> None:
        """Queue a request's end, once."""
        if not running.ended:
            running.ended = True
            self._events.put(event)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, then end what still runs in it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _event(line: bytes) -> tuple[list[int], str | None]:
    """(token ids, finish reason) of a line of the stream. Raises VllmError for an error or another form."""
    if not line.startswith(b"data: {"):
        return [], None
    try:
        document = json.loads(line[6:])
        if "error" in document:
            raise VllmError(_said(line[6:], 500))
        choices = document.get("choices") or [{}]
        tokens = [int(token) for token in choices[0].get("token_ids") or ()]
        reason = choices[0].get("finish_reason")
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        raise VllmError("vLLM's stream has another form") from None
    return tokens, reason if isinstance(reason, str) else None


def _said(raw: bytes, status: int) -> str:
    """The error of an answer, in a line."""
    try:
        error = json.loads(raw)["error"]
        words = error["message"] if isinstance(error, dict) else error
    except (ValueError, RecursionError, LookupError, TypeError):
        words = raw[:200].decode("utf-8", "replace")
    return f"vLLM answered {status}: {' '.join(str(words).split())[:300]}"
