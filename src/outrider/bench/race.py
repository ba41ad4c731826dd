"""Several methods on one prompt, side by side: the machine's moods fall on all of them alike.

Other load on a machine comes and goes within seconds. Where whole runs are compared, one of them has it and
the other has not. Here all runs of a prompt are under way at once and take turns, step by step: it is always
the turn of the one whose text is the shortest so far, so that all write the same part of it at the same time.
A run's clock goes only while it is its turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from outrider.bench.summary import Run
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.engines.base import EngineCaps, SeqHandle, StepEngine
from outrider.llm import LLM
from outrider.outputs import RequestOutput
from outrider.pipeline import Pipeline
from outrider.policy.report import Account


class Stopwatch:
    """A clock that goes only within `running`; seconds, as `clock` has them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None
        self._sum = 0.0

    def __call__(self) -> float:
        return self._sum + (0.0 if self._since is None else self._clock() - self._since)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Not within itself."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._sum, self._since = self(), None


class PrefillClock:
    """A StepEngine that passes everything on, with a watch that goes while it prefills."""

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
        return self._inner.open(prompt, capacity, namespace, taps)

    def prefill(self, seq: SeqHandle, max_tokens: int) -> int:
        with self.watch.running():
            return self._inner.prefill(seq, max_tokens)

    def prefill_scores(self, seq: SeqHandle, max_tokens: int) -> FloatArray:
        with self.watch.running():
            return self._inner.prefill_scores(seq, max_tokens)

    def score(
        self, batch: Sequence[tuple[SeqHandle, Draft]], prefill: Sequence[tuple[SeqHandle, int]] = ()
    ) -> list[TargetScores]:
        return self._inner.score(batch, prefill)

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        self._inner.commit(seq, verdict)

    def close(self, seq: SeqHandle) -> None:
        self._inner.close(seq)


class Racer(Protocol):
    """A run under way."""

    @property
    def tokens(self) -> int:
        """The length of its text so far."""

    def step(self) -> bool:
        """Go on by one step; False when the text has ended."""


class _Course:
    """One method's run of one prompt."""

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

    def ended(self) -> Run:
        """Its output and the seconds of decoding, those of prefill left out."""
        assert self._output is not None
        return Run(self._output, self._watch() - self._prefill() - self._start)

    def close(self) -> None:
        self._steps.close()


class Contestant:
    """One method's pipeline, timed."""

    def __init__(self, pipeline: Pipeline) -> None:
        engine = PrefillClock(pipeline.engine)
        self._watch, self._prefill = Stopwatch(), engine.watch
        self._controller = pipeline.drafting.controller
        self._llm = LLM.from_pipeline(replace(pipeline, engine=engine, clock=self._watch), shared=False)

    def start(self, prompt: Any, params: SamplingParams) -> _Course:
        return _Course(self._llm, self._watch, self._prefill, prompt, params)

    def run(self, prompt: Any, params: SamplingParams) -> Run:
        """Without others beside it."""
        return race({"": self}, prompt, params)[""]

    def account(self) -> Account | None:
        """What the controller did since the last call, by its own account; None if it keeps none."""
        return self._controller.take_account()


def race(contestants: Mapping[str, Contestant], prompt: Any, params: SamplingParams) -> dict[str, Run]:
    """All on one prompt, side by side; the runs by name. Holds a sequence for each."""
    with contextlib.ExitStack() as stack:
        courses = {
            name: stack.enter_context(contextlib.closing(contestant.start(prompt, params)))
            for name, contestant in contestants.items()
        }
        side_by_side(list(courses.values()))
        return {name: course.ended() for name, course in courses.items()}


def side_by_side(racers: Sequence[Racer]) -> None:
    """Run all to their end; the first of those whose text is the shortest has its turn."""
    under_way = list(racers)
    while under_way:
        racer = min(under_way, key=lambda r: r.tokens)
        if not racer.step():
            under_way.remove(racer)
