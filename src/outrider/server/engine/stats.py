"""Counts of what the engine has done, readable from any thread."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.decoding.controller import DraftLimits, RequestState
from outrider.decoding.events import Event, TokenEvent
from outrider.decoding.metrics import DraftCounts, RequestMetrics
from outrider.decoding.types import StepRecord
from outrider.policy.report import Account, Reporting

FINISH_REASONS = ("stop", "length", "abort", "error")
RECENT = 64  # steps


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Seconds and counts are totals since the start.

    running, waiting:   requests in the engine, and in the queue.
    max_running, max_waiting: limits of these.
    cache_bytes, cache_limit: memory reserved by running requests for keys and values, and its limit.
    prefix_bytes, prefix_limit: memory of the prefix cache, and its limit (0: there is none).
    prefix_hit_tokens, prefix_query_tokens: prompt tokens found in the prefix cache, and looked up in it.
    lookup_bytes, lookup_limit: memory of the recent outputs for lookups, and its limit.
    finished:           requests by finish reason.
    prompt_tokens:      prompt tokens of finished requests.
    output_tokens:      tokens generated; `by_kind` splits them into accepted, recovered and bonus.
    steps:              steps of the engine; `step_seconds` is their time.
    target_passes:      how often a request was scored.
    drafts:             drafts, their tokens, accepted tokens and drafting time.
    by_drafter:         the same for each drafter.
    earlier_outputs:    the same of tokens that lookups found in other requests' outputs alone; no time.
    accepted_per_pos:   accepted tokens by position in the draft.
    verify_seconds, other_seconds: time of scoring, and of everything but drafting and scoring.
    speculation:        why speculation was on or off for the request that ended last; "" before that.
    predicted_speedup, measured_speedup: over plain decoding, as the controller estimates;
                        None without an estimate.
    reckoned_seconds, plain_seconds: time of the steps so far, and the controller's estimate of the time that
                        plain decoding would have taken for their tokens; 0 without an estimate. The speed-up
                        over any span is the quotient of their increases.
    recent:             (drafted, accepted) tokens, by request, of the last RECENT steps; the latest is last.
    pass_seconds:       the controller's cost curve: seconds of a pass over 1, 2, … tokens of sequences with
                        about `pass_context` tokens; () if it has none.
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
    lookup_bytes: int = 0
    lookup_limit: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    step_seconds: float = 0.0
    target_passes: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    by_drafter: Mapping[str, DraftCounts] = field(default_factory=dict)
    earlier_outputs: DraftCounts = field(default_factory=DraftCounts)
    accepted_per_pos: tuple[int, ...] = ()
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    speculation: str = ""
    predicted_speedup: float | None = None
    measured_speedup: float | None = None
    reckoned_seconds: float = 0.0
    plain_seconds: float = 0.0
    recent: tuple[tuple[int, int], ...] = ()
    pass_seconds: tuple[float, ...] = ()
    pass_context: int = 0


class Totals:
    """Sums over steps and events. The engine's thread adds to them; `snapshot` may be called from any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sum = RequestMetrics()
        self._finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self._kinds: Counter[str] = Counter()
        self._steps = self._prompt_tokens = 0
        self._seconds = 0.0
        self._speculation = ""
        self._reckoned = Account()
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self._curve: tuple[int, tuple[float, ...]] = (0, ())

    def record(self, step: StepRecord) -> None:
        """Count one request's part of a step."""
        with self._lock:
            self._sum.record(step, 0.0)
            self._recent.append((step.drafted, step.accepted))

    def step(self, seconds: float) -> None:
        """Count one step of the engine."""
        with self._lock:
            self._steps += 1
            self._seconds += seconds

    def add(self, events: Iterable[Event], prompt_tokens: Mapping[str, int]) -> None:
        """Count events. prompt_tokens: the number of prompt tokens by request id."""
        with self._lock:
            for event in events:
                if isinstance(event, TokenEvent):
                    self._kinds[event.kind] += 1
                else:
                    self._finished[event.finish_reason] += 1
                    self._prompt_tokens += prompt_tokens.get(event.request_id, 0)
                    self._speculation = event.metrics.speculation or self._speculation

    def reckon(self, account: Account) -> None:
        """Set the controller's estimates so far. The account must not change any more."""
        self._reckoned = account

    def curve(self, context: int, seconds: tuple[float, ...]) -> None:
        """Set the cost curve: seconds of passes over 1, 2, … tokens at a context length."""
        self._curve = context, seconds

    def snapshot(self, **now: int) -> EngineStats:
        """The totals. now: the fields of EngineStats that describe the present."""
        with self._lock:
            total, reckoned = self._sum, self._reckoned
            deepest = max(total.accepted_at, default=0)
            return EngineStats(
                finished=dict(self._finished),
                prompt_tokens=self._prompt_tokens,
                output_tokens=self._kinds.total(),
                by_kind=dict(self._kinds),
                steps=self._steps,
                step_seconds=self._seconds,
                target_passes=total.num_passes,
                drafts=dataclasses.replace(total.drafts),
                by_drafter={name: dataclasses.replace(counts) for name, counts in total.by_drafter.items()},
                earlier_outputs=dataclasses.replace(total.earlier_outputs),
                accepted_per_pos=tuple(total.accepted_at[depth] for depth in range(1, deepest + 1)),
                verify_seconds=total.verify_seconds,
                other_seconds=total.other_seconds,
                speculation=self._speculation,
                predicted_speedup=reckoned.predicted,
                measured_speedup=reckoned.measured,
                reckoned_seconds=reckoned.seconds,
                plain_seconds=reckoned.plain_seconds,
                recent=tuple(self._recent),
                pass_context=self._curve[0],
                pass_seconds=self._curve[1],
                **now,
            )


class CountingController:
    """A controller that forwards all calls to another one, and adds step records to `totals`."""

    def __init__(self, inner: Reporting, totals: Totals) -> None:
        self._inner, self._totals = inner, totals

    def begin(self) -> RequestState:
        return self._inner.begin()

    def prefill_budget(self, decoding: int, joining: int = 0) -> int:
        return self._inner.prefill_budget(decoding, joining)

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        return self._inner.choose(batch, prompt_tokens)

    def confidence_rows_wanted(self, state: RequestState) -> int:
        return self._inner.confidence_rows_wanted(state)

    def record(self, state: RequestState, step: StepRecord) -> None:
        self._totals.record(step)
        self._inner.record(state, step)

    def explain(self, state: RequestState) -> str:
        return self._inner.explain(state)

    def release(self, state: RequestState) -> None:
        self._inner.release(state)

    def account(self) -> Account | None:
        return self._inner.account()

    def take_account(self) -> Account | None:
        return self._inner.take_account()

    def pass_seconds(self) -> tuple[int, tuple[float, ...]] | None:
        return self._inner.pass_seconds()
