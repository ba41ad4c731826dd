"""What the target computes over the texts, on disk: hidden states, and which token it finds likeliest."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import FloatArray
from outrider.engines.base import StepEngine
from outrider.training.texts import Text

CHUNK = 256  # tokens of a pass, whose logits are all wanted
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


class StateStore:
    """The records of the texts, in their order, in one file. Those of a text that is not whole are lost."""

    def __init__(self, path: Path, layout: Layout, texts: Sequence[Text]) -> None:
        self._path, self.layout, self._texts = path, layout, texts
        self._ends = list(accumulate((rows_of(text) for text in texts), initial=0))
        rows = path.stat().st_size // layout.record.itemsize if path.exists() else 0
        self.done = max(i for i, end in enumerate(self._ends) if end <= rows)
        if path.exists():
            os.truncate(path, self._ends[self.done] * layout.record.itemsize)

    @property
    def rows(self) -> int:
        """Of all texts."""
        return self._ends[-1]

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to be written."""
        return (self._ends[-1] - self._ends[self.done]) * self.layout.record.itemsize

    def fill(self, engine: StepEngine, stop: Callable[[], bool], shown: Callable[[int], object]) -> None:
        """Compute what is missing, until `stop` says so. shown: told the rows that each text adds."""
        with open(self._path, "ab") as file:
            while self.done < len(self._texts) and not stop():
                records = capture(engine, self._texts[self.done].ids, self.layout)
                file.write(records.tobytes())
                file.flush()
                self.done += 1
                shown(len(records))

    def of(self, text: int) -> npt.NDArray[Any]:
        """The records of a text, by its number, mapped."""
        start, stop = self._ends[text : text + 2]
        record = self.layout.record
        return np.memmap(self._path, record, "r", offset=start * record.itemsize, shape=(stop - start,))


def capture(engine: StepEngine, ids: Sequence[int], layout: Layout) -> npt.NDArray[Any]:
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
