"""Medians, ratios and their intervals. Pure functions on small arrays of float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CONFIDENCE = 0.95


def median(values: Iterable[float]) -> float:
    """The median; NaN when there is no value."""
    array = np.fromiter(values, dtype=np.float64)
    return float(np.median(array)) if array.size else float("nan")


def geomean(values: Iterable[float]) -> float:
    """The geometric mean of positive values; NaN when there is no value."""
    array = np.fromiter(values, dtype=np.float64)
    return float(np.exp(np.mean(np.log(array)))) if array.size else float("nan")


def speedup(ratios_by_prompt: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, tuple[float, float]]:
    """The speed-up of a workload and its 95% interval (low, high).

    ratios_by_prompt: for each prompt, plain seconds / speculative seconds of each interleaved pair of
        runs. The estimate is the geometric mean over prompts of the median over runs. The interval is a
        percentile bootstrap (Efron 1979) that resamples prompts, and runs within them, with replacement.

    All are NaN without a prompt.
    """
    if not ratios_by_prompt:
        return float("nan"), (float("nan"), float("nan"))
    estimate = geomean(median(r) for r in ratios_by_prompt)
    rng = np.random.default_rng(seed)
    resampled = np.stack([_medians(np.log(r), rng) for r in ratios_by_prompt])  # [prompt, resample]
    prompts = rng.integers(len(resampled), size=resampled.shape)
    means = np.take_along_axis(resampled, prompts, axis=0).mean(axis=0)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(means, [tail, 1 - tail]))
    return estimate, (float(low), float(high))


def _medians(values: npt.ArrayLike, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The medians of RESAMPLES resamples of `values`, float64[RESAMPLES]."""
    array = np.asarray(values, dtype=np.float64)
    samples = rng.choice(array, size=(RESAMPLES, array.size))
    return np.asarray(np.median(samples, axis=1), dtype=np.float64)
