"""Runs several methods on one prompt with their steps interleaved, so that other load slows all of them
alike.

Load from other processes comes and goes within seconds. If whole runs were timed one after the other, it
could slow one of them and not the other. Here all runs of a prompt are in progress at once and take turns,
step by step or a few tokens at a time: the run with the fewest tokens so far goes next, so that all generate
the same part of the text at about the same time. A run's clock is stopped while another run takes its turn.

With turns of one step, each step finds the processor's caches full of what the others read and did, and a
method that has more to read or to do of its own pays more for that than when it runs alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from outrider.bench.summary import Run
from outrider.decoding.drawing import RowDraws
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.engines.base import EngineCaps, SeqHandle, StepEngine
from outrider.llm import LLM
from outrider.outputs import RequestOutput
from outrider.pipeline import Pipeline
from outrider.policy.report import Account


class Stopwatch:
    """Sums the time spent within `running`, in seconds of `clock`. Calling it gives the sum so far."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None
        self._sum = 0.0

    def __call__(self) -> float:
        return self._sum + (0.0 if self._since is None else self._clock() - self._since)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Time the body of the `with` statement. Must not be nested."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._sum, self._since = self(), None


PROMPTS = "prompts"  # the namespace of runs without one


class PrefillClock:
    """A StepEngine that forwards every call to `inner` and times prefill; `watch` has the sum. All runs are
    in one namespace of the engine's prefix cache, if it has one: a prompt is then computed once for all."""

    def __init__(self, inner: StepEngine) -> None:
        self._inner = inner
        self.watch = Stopwatch()

    @property
    def caps(self) -> EngineCaps:
        return self._inner.caps

    @property
    def vocab_size(self) -> int:
        return self._inner.vocab_size

    @property
    def max_positions(self) -> int:
        return self._inner.max_positions

    def open(
        self,
        prompt: Sequence[int],
        capacity: int,
        namespace: str | None = None,
        taps: tuple[int, ...] = (),
    ) -> SeqHandle:
        return self._inner.open(prompt, capacity, namespace or PROMPTS, taps)

    def prefill(self, seq: SeqHandle, max_tokens: int) -> int:
        with self.watch.running():
            return self._inner.prefill(seq, max_tokens)

    def prefill_scores(self, seq: SeqHandle, max_tokens: int) -> FloatArray:
        with self.watch.running():
            return self._inner.prefill_scores(seq, max_tokens)

    def score(
        self,
        batch: Sequence[tuple[SeqHandle, Draft]],
        prefill: Sequence[tuple[SeqHandle, int]] = (),
        draws: Sequence[RowDraws | None] = (),
    ) -> list[TargetScores]:
        return self._inner.score(batch, prefill, draws)

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        self._inner.commit(seq, verdict)

    def close(self, seq: SeqHandle) -> None:
        self._inner.close(seq)


class SteppedRun(Protocol):
    """A run that is executed one decoding step at a time."""

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""

    def step(self) -> bool:
        """Execute one step; False when the run had ended before."""


class _RunInProgress:
    """One method's run on one prompt: a `SteppedRun` with a clock that counts decoding only."""

    def __init__(
        self, llm: LLM, watch: Stopwatch, prefill: Stopwatch, prompt: Any, params: SamplingParams
    ) -> None:
        self.tokens = 0
        self._watch, self._prefill = watch, prefill
        self._start = watch() - prefill()
        self._steps = llm.stream(prompt, params)
        self._output: RequestOutput | None = None

    def step(self) -> bool:
        with self._watch.running():
            chunks = next(self._steps, None)
        if chunks is None:
            return False
        self.tokens += sum([chunk.token_id is not None for chunk in chunks])
        self._output = chunks[-1].output or self._output
        return True

    def result(self) -> Run:
        """The output and the seconds of decoding, without prefill. To be called once `step` has returned
        False."""
        assert self._output is not None
        return Run(self._output, self._watch() - self._prefill() - self._start)

    def close(self) -> None:
        self._steps.close()


class TimedMethod:
    """The pipeline of one method, with a clock for decoding and one for prefill.

    shared: look drafts up in the outputs of earlier runs too.
    """

    def __init__(self, pipeline: Pipeline, *, shared: bool = False) -> None:
        self.pipeline = pipeline
        engine = PrefillClock(pipeline.engine)
        self._watch, self._prefill = Stopwatch(), engine.watch
        self._controller = pipeline.drafting.controller
        self._llm = LLM.from_pipeline(replace(pipeline, engine=engine, clock=self._watch), shared=shared)

    def start(self, prompt: Any, params: SamplingParams) -> _RunInProgress:
        """Begin a run; its steps are executed by the caller."""
        return _RunInProgress(self._llm, self._watch, self._prefill, prompt, params)

    def run(self, prompt: Any, params: SamplingParams) -> Run:
        """One whole run, not interleaved with others."""
        return run_interleaved({"": self}, prompt, params)[""]

    def take_account(self) -> Account | None:
        """The controller's counts and predictions since the last call; None if it keeps none."""
        return self._controller.take_account()


class ColdMethod(TimedMethod):
    """A method of which each run is the first one of its process: nothing is learned from another run."""

    def start(self, prompt: Any, params: SamplingParams) -> _RunInProgress:
        return TimedMethod(self.pipeline.fresh()).start(prompt, params)

    def take_account(self) -> Account | None:
        """None: each run has an account of its own."""
        return None


def run_interleaved(
    methods: Mapping[str, TimedMethod],
    prompt: Any,
    params: SamplingParams,
    before_step: Callable[[int], object] = lambda tokens: None,
    turn: int = 1,
) -> dict[str, Run]:
    """Run all methods on one prompt with their steps interleaved; the results by the methods' names.

    The engine holds one sequence for each method meanwhile. `before_step` and `turn` are as in `interleave`.
    """
    with contextlib.ExitStack() as stack:
        runs = {
            name: stack.enter_context(contextlib.closing(method.start(prompt, params)))
            for name, method in methods.items()
        }
        interleave(list(runs.values()), before_step, turn)
        return {name: run.result() for name, run in runs.items()}


def interleave(
    runs: Sequence[SteppedRun],
    before_step: Callable[[int], object] = lambda tokens: None,
    turn: int = 1,
) -> None:
    """Execute all runs to their end. The run with the fewest tokens takes the next turn; among equals, the
    first one. A turn is as many steps as give `turn` tokens. `before_step` is called before each step, while
    all clocks stand, with the tokens so far of the run that takes it."""
    unfinished = list(runs)
    while unfinished:
        run = min(unfinished, key=lambda r: r.tokens)
        end = run.tokens + turn
        while run.tokens < end:
            before_step(run.tokens)
            if not run.step():
                unfinished.remove(run)
                break
