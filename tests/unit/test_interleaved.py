"""Interleaved runs: which one steps next, what their clocks count, and that other load slows all alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.interleaved import ColdMethod, Stopwatch, TimedMethod, interleave, run_interleaved
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NgramConfig, NoneConfig, SpeculativeConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError
from outrider.pipeline import build_all


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine(Clock):
    """A machine whose speed changes: each of `speeds` in turn lasts `period` seconds of its clock."""

    def __init__(self, speeds: list[float], period: float) -> None:
        super().__init__()
        self._speeds, self._period = speeds, period

    def work(self, seconds: float) -> None:
        place = int(self.now / self._period) % len(self._speeds)
        self.now += seconds / self._speeds[place]


class FakeRun:
    """Each step takes `cost` seconds of work and emits the next of `gains` tokens, up to `length` in all."""

    def __init__(self, machine: Machine, cost: float, gains: list[int], length: int) -> None:
        self.tokens, self.steps = 0, 0
        self._machine, self._cost, self._gains, self._length = machine, cost, gains, length
        self.watch = Stopwatch(machine)

    def step(self) -> bool:
        if self.tokens >= self._length:
            return False
        with self.watch.running():
            self._machine.work(self._cost)
        self.tokens += self._gains[self.steps % len(self._gains)]
        self.steps += 1
        return True


def test_a_stopwatch_counts_only_while_it_is_running() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now = 5.0
    assert watch() == 0.0
    with watch.running():
        clock.now = 7.0
        assert watch() == 2.0
    clock.now = 20.0
    assert watch() == 2.0
    with watch.running():
        clock.now = 21.0
    assert watch() == 3.0


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(0, 60),
)
def test_the_shortest_text_steps_next(gains: list[list[int]], length: int) -> None:
    runs = [FakeRun(Machine([1.0], 1.0), 1.0, own, length) for own in gains]
    most = max(gain for own in gains for gain in own)

    class Watched:
        def __init__(self, run: FakeRun) -> None:
            self._run = run

        @property
        def tokens(self) -> int:
            return self._run.tokens

        def step(self) -> bool:
            going = [r.tokens for r in runs if r.tokens < length]
            assert not going or self.tokens == min(going) or self.tokens >= length
            assert not going or max(going) - min(going) <= most
            return self._run.step()

    interleave([Watched(run) for run in runs])
    assert all(run.tokens >= length for run in runs)


@pytest.mark.parametrize(
    ("turn", "steps"),
    [(1, "01000010000"), (6, "000000110000001"), (100, "0" * 13 + "1" * 4)],
)
def test_a_turn_is_as_many_steps_as_give_its_tokens(turn: int, steps: str) -> None:
    runs = [FakeRun(Machine([1.0], 1.0), 1.0, own, 12) for own in ([1], [4])]
    order = ""

    class Watched:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def tokens(self) -> int:
            return runs[self.number].tokens

        def step(self) -> bool:
            nonlocal order
            order += str(self.number)
            return runs[self.number].step()

    interleave([Watched(0), Watched(1)], turn=turn)
    assert [run.tokens for run in runs] == [12, 12]
    assert order.startswith(steps)


# A speed lasts at least as long as both runs take for six tokens (9 s of work, 30 s at the lowest speed).
# Shorter phases could fall on the steps of one run only.
@given(st.lists(st.floats(0.3, 1.0), min_size=2, max_size=8), st.floats(30.0, 200.0))
def test_other_load_slows_all_runs_alike(speeds: list[float], period: float) -> None:
    machine = Machine(speeds, period)
    plain, fast = FakeRun(machine, 1.0, [1], 400), FakeRun(machine, 1.5, [4, 2], 400)
    interleave([plain, fast])
    assert plain.watch() / fast.watch() == pytest.approx(2.0, rel=0.15)


def test_runs_that_are_not_interleaved_compare_the_load() -> None:
    """The broken twin: when the machine slows down between whole runs, the faster method looks slower."""
    machine = Machine([1.0, 0.4], 400.0)
    plain, fast = FakeRun(machine, 1.0, [1], 400), FakeRun(machine, 1.5, [4, 2], 400)
    for run in (plain, fast):
        interleave([run])
    assert plain.watch() / fast.watch() < 1.0


@pytest.mark.usefixtures("toy_engine")
def test_interleaving_does_not_change_the_texts(target_file: Path) -> None:
    choices: list[SpeculativeConfig] = [
        NoneConfig(),
        NgramConfig(3, prompt_lookup_max=2, prompt_lookup_min=1),
        AutoConfig(),
    ]
    pipelines = build_all(EngineConfig(str(target_file), max_num_seqs=3), choices)
    methods = {p.speculative.method: TimedMethod(p) for p in pipelines}
    params = SamplingParams(temperature=0.7, max_tokens=40, seed=3)
    alone = {name: method.run("the quick brown fox the quick", params) for name, method in methods.items()}
    together = run_interleaved(methods, "the quick brown fox the quick", params)
    assert list(together) == list(methods)
    for name, run in together.items():
        assert run.token_ids == alone[name].token_ids
        assert run.token_ids == together["none"].token_ids
        metrics = run.output.outputs[0].metrics
        assert metrics.first_token is not None
        assert metrics.last_token is not None
        assert run.seconds > 0.0
        # The last token is emitted before the run's own clock stops.
        assert metrics.last_token - metrics.first_token <= run.seconds


def test_what_is_called_before_a_step_hears_of_the_slowest_runs_tokens() -> None:
    heard: list[int] = []
    machine = Machine([1.0], 1.0)
    interleave([FakeRun(machine, 1.0, [1], 6), FakeRun(machine, 1.0, [3], 6)], heard.append)
    assert heard == [0, 0, 1, 2, 3, 3, 4, 5, 6, 6]


@pytest.mark.usefixtures("toy_engine")
def test_a_cold_method_learns_nothing_from_run_to_run(target_file: Path) -> None:
    (pipeline,) = build_all(EngineConfig(str(target_file)), [AutoConfig()])
    params = SamplingParams(temperature=0.0, max_tokens=30)
    cold = ColdMethod(pipeline)
    texts = [cold.run("the quick brown fox the quick", params).token_ids for _ in range(2)]
    assert (
        texts[0] == texts[1] == TimedMethod(pipeline).run("the quick brown fox the quick", params).token_ids
    )
    fresh = [pipeline.fresh() for _ in range(2)]
    assert len({id(each.drafting.controller) for each in (pipeline, *fresh)}) == 3
    assert len({id(each.drafting.drafter) for each in (pipeline, *fresh)}) == 3
    assert len({id(each.engine) for each in (pipeline, *fresh)}) == 1
    assert cold.take_account() is None
    account = TimedMethod(pipeline).take_account()
    assert account is not None
    assert account.steps, "of the warm run alone"
    with pytest.raises(ConfigError, match="made anew"):
        replace(pipeline, remake=None).fresh()
