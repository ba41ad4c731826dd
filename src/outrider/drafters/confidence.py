"""How sure a draft model is of a token that it drew, as a number from 0 to 1 for a calibration to correct."""

from __future__ import annotations

import math

import numpy as np

from outrider.decoding.sampling.rng import GROUP
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import FloatArray
from outrider.errors import ConfigError, ModelError


class RunnersUp:
    """The tokens that would be drawn in the place of others, one after the other.

    allowed: the adjusted row, float32[vocab], which lacks them until `restore`; `row` is the model's own.
    """

    def __init__(self, sampler: Sampler, allowed: FloatArray, row: FloatArray, position: int) -> None:
        self._sampler, self._allowed, self._row, self._position = sampler, allowed, row, position
        self._taken: list[tuple[int, np.float32]] = []

    def after(self, token: int) -> int | None:
        """What would be drawn without this token and those before it; None when no other is left."""
        self._taken.append((token, self._allowed[token]))
        self._allowed[token] = -np.inf
        try:
            return self._sampler.draw(self._allowed, self._row, self._position)
        except (ConfigError, ModelError):
            return None

    def lead(self, other: int | None) -> float:
        """How far the first token is ahead of another, noise included, as a number 0..1. The target has the
        same noise, so this distance is what a difference between the models must overcome. The scale is about
        the chance that it does not, for a 0.5B and a 1.5B model of one family."""
        if other is None:
            return 1.0
        (low, a), (high, b) = sorted((self._taken[0], (other, self._allowed[other])))
        distance, sampler = float(a) - float(b), self._sampler
        if sampler.params.temperature > 0.0:
            noise = sampler.noise(self._position, np.array([low, high], np.int64))
            distance = distance / sampler.params.temperature + float(noise[0] - noise[1])
        return -math.expm1(-abs(distance) / 1.5 - 0.17)

    def restore(self) -> None:
        for token, value in self._taken:
            self._allowed[token] = value


def confidence(row: FloatArray, token: int, temperature: float) -> float:
    """About the probability of a token, 0..1, from logits float32[vocab]. Of each group of ids only the
    likeliest counts, which takes a tenth of the time; it is above the truth, as a calibration will find."""
    whole = len(row) // GROUP * GROUP
    tops = row[:whole].reshape(-1, GROUP).max(axis=1)
    if whole < len(row):
        tops = np.append(tops, row[whole:].max())
    scale = 1.0 / temperature if temperature > 0.0 else 1.0
    with np.errstate(over="ignore"):  # a tiny temperature: all or nothing
        mass = float(np.exp((tops - row[token]) * scale).sum())
    return min(1.0, 1.0 / mass) if mass > 0.0 else 0.0
