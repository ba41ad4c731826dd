"""Texts of many kinds on many machines, for tests of the controller with the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from tests.support.controllers import make_auto
from tests.support.simulator import FixedPolicy, Outcome, Policy, Trace, World, simulate
from tests.support.traces import Machine, machine, text

LENGTH, TEXTS = 150, 3
SHORT_TEXTS = 6

FAMILIES: dict[str, dict[str, Any]] = {
    "useless drafters": {"model": [0.02], "copies": [0.02]},
    "a good model": {"model": [0.6, 0.75, 0.9]},
    "a bad model": {"model": [0.05, 0.2]},
    "an even chance": {"model": [0.5]},
    "copies and none": {"copies": [0.97, 0.05, 0.97]},
    "poor copies": {"copies": [0.02, 0.15]},
    "both drafters": {"model": [0.4, 0.7, 0.9], "copies": [0.97, 0.1, 0.1]},
    "good second choices": {"model": [0.4, 0.6, 0.9], "second": [0.4, 0.8], "copies": [0.97, 0.1, 0.1]},
    "useless second choices": {"model": [0.5, 0.7, 0.9], "second": [0.02]},
    "collapses": {"model": [0.95, 0.05], "copies": [0.95, 0.05], "stay": 100.0},
}


@dataclass
class Case:
    """Texts on a machine."""

    machine: Machine
    texts: list[Trace]
    world: World
    confident: bool

    @cached_property
    def plain(self) -> float:
        """Seconds of plain decoding."""
        return self.run(FixedPolicy()).seconds

    @cached_property
    def plain_each(self) -> list[float]:
        """The same of each text."""
        return self.each(FixedPolicy)

    @property
    def step(self) -> float:
        return self.plain / sum(len(t.truth) for t in self.texts)

    def auto(self, cap: int = 16, **twins: Any) -> AutoController:
        """`auto` as it is built for a `num_speculative_tokens` of `cap`, in a new process."""
        if self.texts[0].model is not None:
            twins |= {"model": CostModel(self.machine.measured_draft()), "confident": self.confident}
            twins["max_depth"] = min(8, cap)
        return make_auto(CostModel(self.machine.measured()), max_nodes=cap, **twins)

    def run(self, policy: Policy, width: int = 1) -> Outcome:
        return simulate(policy, self.texts, self.world, width=width)

    def each(self, policies: Callable[[], Policy]) -> list[float]:
        """The seconds of each text, each with a new policy: as the first of its process."""
        return [simulate(policies(), [text], self.world).seconds for text in self.texts]

    def fixed(self, cap: int = 16) -> list[FixedPolicy]:
        """Fixed settings of at most `cap` tokens."""
        lookups = [(n, 0) for n in (1, 3, 6, 16)] if self.texts[0].lookups is not None else []
        models = [(0, k) for k in (1, 2, 4, 8)] if self.texts[0].model is not None else []
        both = [(8, 3)] if lookups and models else []
        combs = [FixedPolicy(0, k, siblings=True) for k in (1, 2, 4) if self.texts[0].second is not None]
        settings = {(min(n, cap), min(k, cap)) for n, k in lookups + models + both}
        return [*(combs if cap >= 8 else []), *(FixedPolicy(*setting) for setting in sorted(settings))]


def case(family: str, seed: int, change: Callable[[int, int], float] = lambda n, step: 1.0) -> Case:
    random = np.random.default_rng([seed, 7])
    made = machine(random)
    confident = str(random.choice(["honest", "vain", "blind", "none"]))
    texts = [text(random, LENGTH, confident=confident, **FAMILIES[family]) for _ in range(TEXTS)]
    return Case(made, texts, made.world(seed, change), confident != "none")


def short_case(family: str, seed: int) -> Case:
    """Texts of 8 to 48 tokens, of prompts of 20 to 2000. There always is a lookup drafter, as under
    `auto`."""
    random = np.random.default_rng([seed, 8])
    made = machine(random)
    confident = str(random.choice(["honest", "vain", "blind", "none"]))
    texts = []
    for _ in range(SHORT_TEXTS):
        prompt = int(np.exp(random.uniform(np.log(20), np.log(2000))))
        size = int(random.integers(8, 49))
        kind = {"copies": [0.02]} | FAMILIES[family]
        texts.append(text(random, size, confident=confident, prompt=prompt, **kind))
    return Case(made, texts, made.world(seed), confident != "none")


def loaded(made: Case, load: Callable[[int], float], period: int) -> Case:
    """The case with other load that comes and goes, each for `period` plain passes. `load(n)` is its
    factor on a pass over n tokens."""

    def factor(n: int, at: float) -> float:
        return load(n) if at / made.machine.first // period % 2 == 1 else 1.0

    return replace(made, world=replace(made.world, load=factor))
