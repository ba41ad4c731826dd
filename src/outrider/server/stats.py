"""What the engine has done so far, in numbers that any thread may read."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.metrics import DraftCounts, RequestMetrics

FINISH_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Seconds and counts are totals since the start; drafting is counted when a request ends.

    running, waiting:   requests in the engine, and in the queue before it.
    max_running, max_waiting: most of each.
    cache_bytes, cache_limit: memory that running requests have reserved for keys and values, and its limit.
    prefix_bytes, prefix_limit: memory of the prefix cache, and its limit (0: there is none).
    prefix_hit_tokens, prefix_query_tokens: prompt tokens found in the prefix cache, of those looked up.
    finished:           requests by finish reason.
    prompt_tokens:      tokens of the prompts of finished requests.
    output_tokens:      tokens emitted; `by_kind` splits them into accepted, recovered and bonus.
    steps:              steps of the engine, and `step_seconds` their time.
    target_passes:      of finished requests: how often one of them was scored.
    drafts:             drafts, their tokens, the accepted ones and the time taken to draft them.
    by_drafter:         the same by drafter.
    accepted_per_pos:   accepted tokens by position in the draft, the first first.
    verify_seconds, other_seconds: of scoring, and of sampling and the rest.
    speculation:        why speculation was on or off for the request that ended last; "" before that.
    predicted_speedup, measured_speedup: over plain decoding, as the controller reckons it;
                        None if it does not.
    """

    running: int = 0
    waiting: int = 0
    max_running: int = 0
    max_waiting: int = 0
    cache_bytes: int = 0
    cache_limit: int = 0
    prefix_bytes: int = 0
    prefix_limit: int = 0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    step_seconds: float = 0.0
    target_passes: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    by_drafter: Mapping[str, DraftCounts] = field(default_factory=dict)
    accepted_per_pos: tuple[int, ...] = ()
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    speculation: str = ""
    predicted_speedup: float | None = None
    measured_speedup: float | None = None


class Totals:
    """Adds up events; `snapshot` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self._kinds: Counter[str] = Counter()
        self._accepted_at: Counter[int] = Counter()
        self._drafts = DraftCounts()
        self._by_drafter: dict[str, DraftCounts] = {}
        self._tokens = self._steps = self._passes = self._prompt_tokens = 0
        self._step_seconds = self._verify = self._other = 0.0
        self._speculation = ""

    def step(self, seconds: float) -> None:
        """One step of the engine."""
        with self._lock:
            self._steps += 1
            self._step_seconds += seconds

    def add(self, events: Iterable[Event], prompt_tokens: Mapping[str, int]) -> None:
        """What a step told. prompt_tokens: lengths of the prompts, by request."""
        with self._lock:
            for event in events:
                if isinstance(event, TokenEvent):
                    self._tokens += 1
                    self._kinds[event.kind] += 1
                else:
                    self._prompt_tokens += prompt_tokens.get(event.request_id, 0)
                    self._end(event)

    def _end(self, event: FinishEvent) -> None:
        self._finished[event.finish_reason] += 1
        metrics: RequestMetrics = event.metrics
        self._passes += metrics.num_passes
        self._verify += metrics.verify_seconds
        self._other += metrics.other_seconds
        self._accepted_at.update(metrics.accepted_at)
        _merge(self._drafts, metrics.drafts)
        for name, counts in metrics.by_drafter.items():
            _merge(self._by_drafter.setdefault(name, DraftCounts()), counts)
        self._speculation = metrics.speculation or self._speculation

    def snapshot(self, **now: int | float | None) -> EngineStats:
        """The totals, with what is known of this moment: other fields of EngineStats."""
        with self._lock:
            deepest = max(self._accepted_at, default=0)
            return EngineStats(
                finished=dict(self._finished),
                prompt_tokens=self._prompt_tokens,
                output_tokens=self._tokens,
                by_kind=dict(self._kinds),
                steps=self._steps,
                step_seconds=self._step_seconds,
                target_passes=self._passes,
                drafts=dataclasses.replace(self._drafts),
                by_drafter={name: dataclasses.replace(c) for name, c in self._by_drafter.items()},
                accepted_per_pos=tuple(self._accepted_at[depth] for depth in range(1, deepest + 1)),
                verify_seconds=self._verify,
                other_seconds=self._other,
                speculation=self._speculation,
                **now,  # type: ignore[arg-type]  # each field's own type
            )


def _merge(total: DraftCounts, more: DraftCounts) -> None:
    total.num_drafts += more.num_drafts
    total.num_draft_tokens += more.num_draft_tokens
    total.num_accepted_tokens += more.num_accepted_tokens
    total.draft_seconds += more.draft_seconds
