"""The seam between requests and whatever generates their tokens.

A `Runner` takes requests and returns events. `StepLoop` is one: it drives a step engine token by token. An
engine that owns its loop (a *whole engine*, such as vLLM) implements the same five members itself, so that
everything that only needs tokens runs on either:

    runner = pipeline.runner()
    try:
        runner.add(request)                  # raises PromptError or ConfigError
        while runner.unfinished:
            for event in runner.step():      # TokenEvents, then one FinishEvent for each request
                ...
    finally:
        runner.close()
"""

from __future__ import annotations

from typing import Protocol

from outrider.decoding.events import Event
from outrider.decoding.request import Request
from outrider.metrics import DraftTotals


class Runner(Protocol):
    """Runs requests, as many at a time as it likes. Use it from one thread at a time.

    Every request that was added gets its TokenEvents in order and then one FinishEvent, also when it is
    aborted or fails. Requests do not wait for one another's ends.
    """

    @property
    def unfinished(self) -> bool:
        """Whether `step` has tokens to compute or events to return."""

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptError or ConfigError when it cannot be run here, ConfigError for an
        id in use."""

    def abort(self, request_id: str) -> None:
        """End a request; its FinishEvent ("abort") comes with a later step. An unknown id is ignored."""

    def step(self) -> list[Event]:
        """Go on by one step, and return what happened since the last; may be empty. An exception means that
        the runner itself failed and is closed; one request's error is in its FinishEvent."""

    def close(self) -> None:
        """Drop all requests, without events, and free what they hold. The runner can be used again."""


class WholeEngine(Protocol):
    """A loaded model with a loop of its own: it batches, caches and samples by itself."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding included."""

    @property
    def max_positions(self) -> int:
        """Most tokens of prompt and output."""

    def runner(self) -> Runner:
        """A runner without requests; runners of one engine must not run at once."""

    def draft_totals(self) -> DraftTotals | None:
        """What it has counted of its drafts since it was loaded; None where it does not count them. Raises
        OutriderError where it cannot be asked."""

    def close(self) -> None:
        """Free what it holds outside this process."""
