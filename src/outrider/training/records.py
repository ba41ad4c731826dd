"""What the target computes over the texts, on disk: records of some of a text's tokens, text after text."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.engines.base import StepEngine
from outrider.training.texts import Text

CHUNK = 256  # tokens of a pass
Records: TypeAlias = npt.NDArray[Any]


class RecordStore:
    """The records of the texts, in their order, in one file. Those of a text that is not whole are lost.

    rows:    how many records a text has.
    capture: computes them.
    """

    def __init__(
        self,
        path: Path,
        record: np.dtype[Any],
        texts: Sequence[Text],
        *,
        rows: Callable[[Text], int],
        capture: Callable[[StepEngine, Text], Records],
    ) -> None:
        self._path, self.record, self._texts, self._capture = path, record, texts, capture
        self._ends = list(accumulate(map(rows, texts), initial=0))
        there = path.stat().st_size // record.itemsize if path.exists() else 0
        self.done = max(i for i, end in enumerate(self._ends) if end <= there)
        if path.exists():
            os.truncate(path, self._ends[self.done] * record.itemsize)

    @property
    def whole(self) -> bool:
        """Whether all texts have their records."""
        return self.done == len(self._texts)

    @property
    def rows(self) -> int:
        """Of all texts."""
        return self._ends[-1]

    @property
    def done_rows(self) -> int:
        """Of those that have their records."""
        return self._ends[self.done]

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to be written."""
        return (self.rows - self.done_rows) * self.record.itemsize

    def fill(self, engine: StepEngine, stop: Callable[[], bool], shown: Callable[[int], object]) -> None:
        """Compute what is missing, until `stop` says so. shown: told the rows that each text adds."""
        with open(self._path, "ab") as file:
            while not self.whole and not stop():
                records = self._capture(engine, self._texts[self.done])
                file.write(records.tobytes())
                file.flush()
                self.done += 1
                shown(len(records))

    def of(self, text: int) -> Records:
        """The records of a text, by its number, mapped."""
        start, stop = self._ends[text : text + 2]
        size = self.record.itemsize
        return np.memmap(self._path, self.record, "r", offset=start * size, shape=(stop - start,))
