"""A drafter that needs hidden states and records them; another drafter makes its proposals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.drafters.base import Drafter
from outrider.engines.base import ForwardItem, HiddenStateModel


class HiddenRecorder:
    """Implements HiddenStateDrafter.

    recorded: by request, the hidden states of every position, float32[taps * hidden size] each.
    starts:   by request, the first position of each call of `prefilled`.
    accepted: draft tokens, of all requests.
    """

    name = "recorder"

    def __init__(self, inner: Drafter, taps: tuple[int, ...]) -> None:
        self._inner, self.taps = inner, taps
        self.needs = inner.needs
        self.recorded: dict[str, list[FloatArray]] = {}
        self.starts: dict[str, list[int]] = {}
        self.accepted = 0

    def begin(self, request: Request) -> None:
        self.recorded[request.request_id], self.starts[request.request_id] = [], []
        self._inner.begin(request)

    def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
        mine = self.recorded[request_id]
        assert start == len(mine), "in order and without gaps"
        self.starts[request_id].append(start)
        mine += [row.copy() for row in hidden]

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        for job in jobs:
            assert len(self.recorded[job.request_id]) == len(job.context.tokens) - 1, "all but the anchor"
        return self._inner.propose(jobs)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        assert scores.hidden is not None
        assert len(scores.hidden) == len(scores.logits) == len(draft) + 1
        self.recorded[request_id] += [scores.hidden[node + 1].copy() for node in (-1, *verdict.path)]
        self.accepted += len(verdict.path)
        self._inner.observe(request_id, draft, verdict, scores)

    def end(self, request_id: str) -> None:
        self._inner.end(request_id)


def hidden_of(model: HiddenStateModel, text: Sequence[int], taps: tuple[int, ...]) -> FloatArray:
    """float32[len(text), len(taps) * hidden size]: the hidden states of a single pass over the whole text."""
    tokens, cache = np.array(text, np.int32), model.new_cache(len(text))
    parents = np.arange(-1, len(text) - 1, dtype=np.int32)
    item = ForwardItem(cache, tokens, parents, np.empty(0, np.int32))
    _, (hidden,) = model.forward_hidden([item], taps)
    cache.close()
    return hidden
