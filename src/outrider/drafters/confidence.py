"""The draft model's confidence in a token that it drew, 0..1, before calibration (`policy`)."""

from __future__ import annotations

import math

import numpy as np

from outrider.decoding.sampling.rng import GROUP
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import FloatArray
from outrider.errors import ConfigError, ModelError


class SiblingDraws:
    """The tokens that coupled drawing takes next when those before are excluded: the siblings by rank.

    adjusted: the adjusted row, float32[vocab]; excluded tokens are masked in it until `restore`.
    row:      the draft model's own row.
    """

    def __init__(self, sampler: Sampler, adjusted: FloatArray, row: FloatArray, position: int) -> None:
        self._sampler, self._adjusted, self._row, self._position = sampler, adjusted, row, position
        self._excluded: list[tuple[int, np.float32]] = []

    def after(self, token: int) -> int | None:
        """Exclude `token`; the token that is drawn without it and those before, or None if none is left."""
        self._excluded.append((token, self._adjusted[token]))
        self._adjusted[token] = -np.inf
        try:
            return self._sampler.draw(self._adjusted, self._row, self._position)
        except (ConfigError, ModelError):
            return None

    def confidence(self, other: int | None) -> float:
        """Confidence that the target draws the first excluded token and not `other`, 0..1; 1 for None.

        It grows with the margin between the two, noise included: target and draft share the noise, so the
        difference between the models has to exceed the margin to change the token.
        """
        if other is None:
            return 1.0
        (low, a), (high, b) = sorted((self._excluded[0], (other, self._adjusted[other])))
        margin, sampler = float(a) - float(b), self._sampler
        if sampler.params.temperature > 0.0:
            noise = sampler.noise(self._position, np.array([low, high], np.int64))
            margin = margin / sampler.params.temperature + float(noise[0] - noise[1])
        return margin_confidence(abs(margin))

    def restore(self) -> None:
        """Undo the masking."""
        for token, value in self._excluded:
            self._adjusted[token] = value


def margin_confidence(margin: float) -> float:
    """Confidence, 0..1, in a token whose score with noise exceeds that of every other by `margin` >= 0:
    1 - exp(-margin). What it means for a pair of models, calibration learns (`AcceptanceRates`)."""
    return -math.expm1(-margin)


def approximate_probability(row: FloatArray, token: int, temperature: float) -> float:
    """The approximate probability of a token, 0..1, from logits float32[vocab].

    Only the greatest logit in each group of 256 ids is summed, which takes a tenth of the time; so the result
    is too high, which calibration corrects.
    """
    whole = len(row) // GROUP * GROUP
    tops = row[:whole].reshape(-1, GROUP).max(axis=1)
    if whole < len(row):
        tops = np.append(tops, row[whole:].max())
    scale = 1.0 / temperature if temperature > 0.0 else 1.0
    with np.errstate(over="ignore"):  # with a tiny temperature the sum may be inf
        mass = float(np.exp((tops - row[token]) * scale).sum())
    return min(1.0, 1.0 / mass) if mass > 0.0 else 0.0
