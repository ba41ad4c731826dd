"""Generates texts and machines for the simulator: acceptance of the drafters, and times of passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from outrider.policy.tree import Lookup
from tests.support.simulator import Trace, World

Random = np.random.Generator


def regimes(random: Random, size: int, chances: list[float], mean_length: float) -> np.ndarray:
    """float64[size]: a probability that stays the same for a while and then changes to another of
    `chances`."""
    out = np.empty(size)
    at = 0
    while at < size:
        length = 1 + int(random.geometric(1.0 / mean_length))
        out[at : at + length] = random.choice(chances)
        at += length
    return out


def lookups(random: Random, hits: np.ndarray, offers: np.ndarray, *, honest: bool) -> list[Lookup]:
    """Lookup drafts, as chains: at each position one is offered with probability `offers`. Its tokens are
    right while `hits` is."""
    found: list[Lookup] = []
    size = len(hits)
    for at in range(size):
        if random.random() >= offers[at]:
            found.append(Lookup())
            continue
        long = bool(hits[at : at + 4].mean() > 0.7) if honest else bool(random.random() < 0.5)
        count = int(random.integers(4, 17) if long else random.integers(1, 4))
        out = Lookup(length=count)
        path, right = 1.0, True
        for depth in range(count):
            wanted = at + depth
            right = right and wanted < size and bool(hits[wanted])
            confidence = 0.9 if long else 0.35
            path *= confidence
            out.tokens.append(wanted if right else 10**6 + wanted)
            out.parents.append(depth - 1)
            out.confidence.append(confidence)
            out.paths.append(path)
        found.append(out)
    return found


def text(
    random: Random,
    size: int,
    *,
    model: list[float] | None = None,
    copies: list[float] | None = None,
    offered: float = 0.5,
    confident: str = "honest",
    stay: float = 60.0,
    prompt: int = 40,
    second: list[float] | None = None,
) -> Trace:
    """A text whose token at each position is the position itself.

    model:     probabilities, one of them at a time, that the draft model is right; None for no model.
    copies:    the same for lookups; None for no lookup.
    confident: the confidence: "honest" (the probability itself), "vain" (too high), "blind" (random), "none".
    stay:      mean number of tokens for which a probability stays the same.
    second:    probabilities that the draft model's second choice is right where its first is wrong.
    """
    truth = list(range(size))
    drawn: list[int] | None = None
    confidence: list[float] | None = None
    if model is not None:
        means = regimes(random, size, model, stay)
        chance = np.clip(random.beta(4 * means + 0.05, 4 * (1 - means) + 0.05), 0.001, 0.999)
        right = random.random(size) < chance
        drawn = [at if ok else 10**7 + at for at, ok in enumerate(right)]
        if confident == "honest":
            confidence = chance.tolist()
        elif confident == "vain":
            confidence = (chance**0.3).tolist()
        elif confident == "blind":
            confidence = random.random(size).tolist()
    looked: list[Lookup] | None = None
    if copies is not None:
        means = regimes(random, size, copies, stay)
        looked = lookups(
            random, random.random(size) < means, np.full(size, offered), honest=confident != "blind"
        )
    made = Trace(prompt, truth, looked, drawn, confidence)
    if second is None or drawn is None or confidence is None:
        return made
    means = regimes(random, size, second, stay)
    chance = np.clip(random.beta(4 * means + 0.05, 4 * (1 - means) + 0.05), 0.001, 0.999)
    right = random.random(size) < chance
    others = [at if ok and drawn[at] != at else 2 * 10**7 + at for at, ok in enumerate(right)]
    if confident == "vain":
        chance = chance**0.3
    elif confident == "blind":
        chance = random.random(size)
    left = 1.0 - np.array(confidence)
    return replace(made, second=others, second_confidence=(left * chance).tolist())


@dataclass(frozen=True)
class Machine:
    """The times of passes.

    first: seconds of a pass over one token.
    slope: what each further token adds, as a share of `first`, from `knee` tokens on; before, a tenth of
    that.
    ratio: time of the draft model's pass / time of the target's.
    noise: standard deviation of log seconds.
    """

    first: float
    slope: float
    knee: int
    ratio: float
    noise: float

    def seconds(self, n: int) -> float:
        early = min(n, self.knee) - 1
        late = max(0, n - self.knee)
        return self.first * (1.0 + self.slope * (0.1 * early + late))

    def draft_seconds(self, n: int) -> float:
        return self.ratio * self.seconds(n)

    def measured(self) -> dict[int, float]:
        return {n: self.seconds(n) for n in (1, 2, 3, 4, 6, 8, 12, 16)}

    def measured_draft(self) -> dict[int, float]:
        return {n: self.draft_seconds(n) for n in (1, 2, 3, 4, 6, 8, 12, 16)}

    def world(self, seed: int = 0, change: Callable[[int, int], float] = lambda n, step: 1.0) -> World:
        """The machine's passes with noise. `change(n, step)` multiplies the time of a pass over n tokens."""
        noise = np.exp(np.random.default_rng(seed).normal(0.0, self.noise, 4096))
        return World(
            lambda n, step: self.seconds(n) * float(noise[step % 4096]) * change(n, step),
            self.draft_seconds,
            overhead=0.0002,
            looking=0.0001,
        )


def machine(random: Random) -> Machine:
    """A random machine: tiny to large models, flat to steep cost curves, cheap to expensive draft models."""
    return Machine(
        first=float(np.exp(random.uniform(np.log(0.007), np.log(0.2)))),
        slope=float(random.choice([0.02, 0.06, 0.12, 0.3, 1.0])),
        knee=int(random.choice([1, 4, 8])),
        ratio=float(random.choice([0.05, 0.15, 0.35, 0.6, 1.0])),
        noise=float(random.choice([0.0, 0.05, 0.12])),
    )
