"""How a training goes along: the learning rate of each update, and after which ones it is evaluated."""

from __future__ import annotations

import math

WARM_UP = 0.05  # of the updates
LAST_RATE = 0.1  # of the highest learning rate, at the end
EVALUATIONS = 20  # most, in a whole training
LEAST_EVALUATIONS = 5  # so that it can be told when more training stops paying
EVALUATING = 0.1  # of the time of training that evaluations may take beyond these
BACKWARD = 3  # times as long as an evaluation, training takes for a token


def rate(update: int, updates: int, highest: float) -> float:
    """The learning rate of an update, counted from 0: it rises to the highest, then falls along a cosine."""
    warm = max(1, int(WARM_UP * updates))
    if update < warm:
        return highest * (update + 1) / warm
    part = (update - warm) / max(1, updates - warm)
    return highest * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * part)) / 2)


def evaluations(trained: int, tested: int) -> int:
    """How often to evaluate, so that it takes little of the time.

    trained, tested: tokens that are trained on, epochs counted, and tokens of an evaluation.
    """
    affordable = int(EVALUATING * BACKWARD * trained / max(1, tested))
    return min(EVALUATIONS, max(LEAST_EVALUATIONS, affordable))
