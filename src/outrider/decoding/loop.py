"""The step loop: propose, score, verify, commit, emit, for a batch of sequences at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Controller, Room
from outrider.decoding.events import Event, FinishEvent, FinishReason, TokenEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampler import Sampler
from outrider.decoding.stops import Emitter
from outrider.decoding.types import Draft, StepRecord, TargetScores, TokenKind
from outrider.decoding.verify import Verifier, check_draft
from outrider.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from outrider.drafters.base import Drafter
    from outrider.engines.base import SeqHandle, StepEngine

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request in the loop. `handle` is None until it is its turn."""

    request: Request
    context: TokenContext
    sampler: Sampler
    emitter: Emitter
    metrics: RequestMetrics
    handle: SeqHandle | None = None


class StepLoop:
    """Drives a step engine. One thread at a time; a request that fails ends alone, with an error event.

    drafter:       None decodes plainly, through the same code.
    clock:         seconds, for metrics and the controller only; the output never depends on it.
    max_num_seqs:  most sequences in one pass; further requests wait their turn.
    prefill_chunk: most prompt tokens computed per step, all sequences together.
    max_context:   most tokens of prompt and output; never more than the engine's own limit.
    vocab_size:    ids from here on are padding without a token, and are never drawn.

    Raises ConfigError when the engine lacks what the drafter or the verifier needs.
    """

    def __init__(
        self,
        engine: StepEngine,
        drafter: Drafter | None,
        verifier: Verifier,
        controller: Controller,
        *,
        clock: Callable[[], float],
        max_num_seqs: int = 8,
        prefill_chunk: int = 256,
        max_context: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        for part in (drafter, verifier):
            for need in sorted(part.needs) if part is not None else ():
                if not getattr(engine.caps, need, False):
                    raise ConfigError(f"{part.name} needs {need}, which this engine does not have")
        for name, value in (("max_num_seqs", max_num_seqs), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self._engine, self._drafter, self._verifier, self._controller = engine, drafter, verifier, controller
        self._clock = clock
        self._max_num_seqs = max_num_seqs
        self._prefill_chunk = prefill_chunk
        self._max_context = min(engine.max_positions, max_context or engine.max_positions)
        self._vocab_size = min(engine.vocab_size, vocab_size or engine.vocab_size)
        self._live: dict[str, _Sequence] = {}  # in order of arrival; the first max_num_seqs are in work
        self._outbox: list[Event] = []

    @property
    def unfinished(self) -> bool:
        """Whether `step` has more to do or to tell."""
        return bool(self._live or self._outbox)

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptError or ConfigError when it cannot be run here."""
        if request.request_id in self._live:
            raise ConfigError(f"request id {request.request_id!r} is already in use")
        size, limit = len(request.prompt), self._max_context
        if size >= limit:
            raise PromptError(f"the prompt has {size} tokens; a context of {limit} has room for {limit - 1}")
        for token in request.prompt:
            if not 0 <= token < self._engine.vocab_size:
                raise PromptError(
                    f"the prompt has the token id {token}; the vocabulary ends at {self._engine.vocab_size - 1}"
                )
        self._live[request.request_id] = _Sequence(
            request,
            TokenContext(request.prompt),
            Sampler(request.params, self._vocab_size, request.eos_ids, request.seed),
            Emitter(request, limit),
            RequestMetrics(arrived=self._clock()),
        )

    def abort(self, request_id: str) -> None:
        """End a request now; its FinishEvent comes with the next step. An unknown id is ignored."""
        if request_id in self._live:
            seq = self._live[request_id]
            self._finish(seq, "abort", text_tail=seq.emitter.drain())

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests to their ends. Leaving the iterator early gives every cache back."""
        try:
            for request in requests:
                self.add(request)
            while self.unfinished:
                yield from self.step()
        finally:
            self.close()

    def close(self) -> None:
        """Drop all requests and give their caches back, without events."""
        for seq in list(self._live.values()):
            self._release(seq)
        self._outbox.clear()

    def step(self) -> list[Event]:
        """One step of every sequence in work. An exception of the engine closes the loop and is raised."""
        try:
            ready = self._prefill([seq for seq, _ in zip(self._live.values(), range(self._max_num_seqs))])
            if ready:
                self._decode(ready)
        except BaseException:
            self.close()
            raise
        events, self._outbox = self._outbox, []
        return events

    def _prefill(self, batch: Sequence[_Sequence]) -> list[_Sequence]:
        """Open new sequences and compute a chunk of prompts. Returns those ready to decode."""
        left = self._prefill_chunk
        ready = []
        for seq in batch:
            with self._guard(seq):
                if seq.handle is None:
                    if self._drafter is not None:
                        self._drafter.begin(seq.request)
                    size = len(seq.request.prompt)
                    seq.handle = self._engine.open(seq.request.prompt, size + seq.emitter.remaining)
                if (waiting := len(seq.handle.pending)) and left:
                    left -= waiting - self._engine.prefill(seq.handle, left)
                if not len(seq.handle.pending):
                    ready.append(seq)
        return ready

    def _decode(self, batch: Sequence[_Sequence]) -> None:
        """Propose, score, then verify, emit and commit each sequence on its own."""
        start = self._clock()
        drafts, draft_share = self._propose(batch), 0.0
        batch = [seq for seq in batch if seq.request.request_id in self._live]
        ...

    @contextmanager
    def _guard(self, seq: _Sequence) -> Iterator[None]:
        """Let an exception end this request only."""
        try:
            yield
        except Exception as error:
            self._finish(seq, "error", error=error)

    def _finish(
        self,
        seq: _Sequence,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        text_tail: str = "",
        error: Exception | None = None,
    ) -> None: ...

    def _release(self, seq: _Sequence) -> None: ...
