"""Log-probabilities for reports, under the model's own logits (vLLM's `raw_logprobs`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.decoding.sampling.logits import Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import Floats, Ids
from outrider.decoding.types import TargetScores
from outrider.errors import ModelError


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs:
    """One token's log-probability, and those of the likeliest tokens at its position, or of chosen ones.

    rank:         1 for the likeliest token; of equally likely tokens the lower id ranks first.
    top_ids:      int64[k], the k likeliest tokens by rank, from 1 on; or the chosen ones and the token
                  itself, by rank.
    top_logprobs: float64[k].
    top_ranks:    int64[k].
    """

    token: int
    logprob: float
    rank: int
    top_ids: Ids
    top_logprobs: Floats
    top_ranks: Ids


def token_logprobs(logits: Row, token: int, count: int, chosen: Sequence[int] = ()) -> TokenLogprobs:
    """The log-softmax in float64 of a row of the model's logits (float32[vocab]), at `token` and at the
    `count` greatest values (-1: all), or, if there are any, at the `chosen` ids in their place. Raises
    ModelError for logits with NaN or +inf, or that are all -inf."""
    values = logits.astype(np.float64)
    best = float(values.max())
    if not math.isfinite(best):
        raise ModelError(f"the model's logits have {best} as their maximum")
    values -= best
    values -= np.log(np.exp(values).sum())
    if chosen:
        ranked = sorted((_rank(values, i), i) for i in {*chosen, token})
        ranks, top = (np.array(column, np.int64) for column in zip(*ranked, strict=True))
    else:
        top = _top(values, len(values) if count < 0 else min(count, len(values)))
        ranks = np.arange(1, len(top) + 1)
    return TokenLogprobs(token, float(values[token]), _rank(values, token), top, values[top], ranks)


def token_reports(
    params: SamplingParams, scores: TargetScores, path: Sequence[int], tokens: Sequence[int], vocab_size: int
) -> Iterator[TokenLogprobs | None]:
    """The log-probabilities of each token of a verdict, whose accepted nodes are `path`, computed when it is
    asked for; None where they are not wanted. vocab_size: ids from here on are padding."""
    count, chosen = params.num_logprobs, tuple(params.logprob_token_ids or ())
    for node, token in zip((-1, *path), tokens, strict=True):
        if count is None:
            yield None
        else:
            yield token_logprobs(scores.logits[node + 1][:vocab_size], token, count, chosen)


def _rank(values: Floats, token: int) -> int:
    own = values[token]
    return int(1 + np.count_nonzero(values > own) + np.count_nonzero(values[:token] == own))


def _top(values: Floats, count: int) -> npt.NDArray[np.int64]:
    """The ids of the `count` greatest values, the greatest first, lower ids first on ties."""
    if count == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
