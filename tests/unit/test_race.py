"""Runs side by side: whose turn it is, what their clocks say, and that other load falls on all alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.race import Contestant, Stopwatch, race, side_by_side
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NgramConfig, NoneConfig, SpeculativeConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.pipeline import build_all


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine(Clock):
    """Its speed changes now and then: `speeds`, one for each so many seconds of its clock."""

    def __init__(self, speeds: list[float], period: float) -> None:
        super().__init__()
        self._speeds, self._period = speeds, period

    def work(self, seconds: float) -> None:
        place = int(self.now / self._period) % len(self._speeds)
        self.now += seconds / self._speeds[place]


class Runner:
    """Emits `gains` in turn, so many tokens a step that takes `cost`; `length` tokens in all."""

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


def test_a_stopwatch_goes_only_while_it_is_its_turn() -> None:
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
def test_the_shortest_text_goes_on(gains: list[list[int]], length: int) -> None:
    runners = [Runner(Machine([1.0], 1.0), 1.0, own, length) for own in gains]
    most = max(gain for own in gains for gain in own)

    class Watched:
        def __init__(self, runner: Runner) -> None:
            self._runner = runner

        @property
        def tokens(self) -> int:
            return self._runner.tokens

        def step(self) -> bool:
            going = [r.tokens for r in runners if r.tokens < length]
            assert not going or self.tokens == min(going) or self.tokens >= length
            assert not going or max(going) - min(going) <= most
            return self._runner.step()

    side_by_side([Watched(runner) for runner in runners])
    assert all(runner.tokens >= length for runner in runners)


# A speed lasts for a round of both at least (six tokens, 9 s of work, 30 s at the lowest): within one, whose
# step it falls on is chance.
@given(st.lists(st.floats(0.3, 1.0), min_size=2, max_size=8), st.floats(30.0, 200.0))
def test_other_load_falls_on_all_alike(speeds: list[float], period: float) -> None:
    machine = Machine(speeds, period)
    plain, fast = Runner(machine, 1.0, [1], 400), Runner(machine, 1.5, [4, 2], 400)
    side_by_side([plain, fast])
    assert plain.watch() / fast.watch() == pytest.approx(2.0, rel=0.15)


def test_one_after_the_other_would_not_do() -> None:
    """The broken twin: on a machine that slows down, whole runs compare its moods."""
    machine = Machine([1.0, 0.4], 400.0)
    plain, fast = Runner(machine, 1.0, [1], 400), Runner(machine, 1.5, [4, 2], 400)
    for runner in (plain, fast):
        side_by_side([runner])
    assert plain.watch() / fast.watch() < 1.0


@pytest.mark.usefixtures("toy_engine")
def test_texts_are_those_of_runs_alone(target_file: Path) -> None:
    choices: list[SpeculativeConfig] = [
        NoneConfig(),
        NgramConfig(3, prompt_lookup_max=2, prompt_lookup_min=1),
        AutoConfig(),
    ]
    pipelines = build_all(EngineConfig(str(target_file), max_num_seqs=3), choices)
    contestants = {p.speculative.method: Contestant(p) for p in pipelines}
    params = SamplingParams(temperature=0.7, max_tokens=40, seed=3)
    alone = {name: c.run("the quick brown fox the quick", params) for name, c in contestants.items()}
    together = race(contestants, "the quick brown fox the quick", params)
    assert list(together) == list(contestants)
    for name, run in together.items():
        assert run.token_ids == alone[name].token_ids
        assert run.token_ids == together["none"].token_ids
        metrics = run.output.outputs[0].metrics
        assert metrics.first_token is not None
        assert metrics.last_token is not None
        assert run.seconds > 0.0
        # By its own clock a run's last token comes when its decoding is over.
        assert metrics.last_token - metrics.first_token <= run.seconds
