"""What a head reads of its target: hidden states of the texts' tokens, and which token is likeliest next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.decoding.types import FloatArray
from outrider.engines.base import StepEngine
from outrider.training.records import CHUNK, Records, RecordStore
from outrider.training.texts import Text

_MOST = 65504.0  # of float16


@dataclass(frozen=True, slots=True)
class Layout:
    """What is kept of a token.

    taps: the target's layers whose inputs are kept, ascending; the last is the output of its last layer, from
          which its logits can be computed again.
    """

    taps: tuple[int, ...]
    hidden_size: int

    @property
    def record(self) -> np.dtype[Any]:
        """likeliest: the id that the target finds likeliest after the token; states: of each tap."""
        return np.dtype([("likeliest", "<i4"), ("states", "<f2", (len(self.taps), self.hidden_size))])


def rows_of(text: Text) -> int:
    """Tokens of a text that something follows: all but the last."""
    return len(text.ids) - 1


class StateStore(RecordStore):
    """The hidden states of all texts."""

    def __init__(self, path: Path, layout: Layout, texts: Sequence[Text]) -> None:
        super().__init__(
            path,
            layout.record,
            texts,
            rows=rows_of,
            capture=lambda engine, text: capture(engine, text.ids, layout),
        )
        self.layout = layout


def capture(engine: StepEngine, ids: Sequence[int], layout: Layout) -> Records:
    """The records of all tokens but the last, from the target's passes over a text."""
    seq = engine.open(ids, len(ids), None, layout.taps)
    found = np.empty(len(ids) - 1, layout.record)
    at = 0
    try:
        while len(seq.pending):
            logits = engine.prefill_scores(seq, CHUNK)
            found["likeliest"][at : at + len(logits)] = logits.argmax(axis=1)
            at += len(logits)
        assert seq.hidden is not None, "opened with taps"
        for start, rows in seq.hidden.take_prompt():
            kept: FloatArray = np.clip(rows, -_MOST, _MOST).reshape(len(rows), len(layout.taps), -1)
            found["states"][start : start + len(rows)] = kept
    finally:
        engine.close(seq)
    return found
