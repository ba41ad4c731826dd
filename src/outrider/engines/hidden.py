"""Hidden states of a sequence on their way from the target's passes to a drafter and to the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from outrider.decoding.types import FloatArray


def check_taps(taps: Sequence[int], num_layers: int) -> None:
    """Raise ValueError unless `taps` are layer indices, ascending, at least one of 0 .. num_layers."""
    inside = len(taps) > 0 and taps[0] >= 0 and taps[-1] <= num_layers
    if not inside or any(a >= b for a, b in pairwise(taps)):
        raise ValueError(f"taps must be ascending layer indices from 0 to {num_layers}, not {list(taps)}")


class HiddenStates:
    """The hidden states of one sequence, float32[positions, len(taps) * hidden size], until they are used.

    taps:   the layers, see `HiddenStateModel`.
    scored: those of the anchor and the draft of the last pass, of which `commit` keeps the accepted path.

    Prompt tokens' rows wait for `take_prompt`. With `for_prefixes`, every committed position's row is also
    held until the prefix cache has its block, see `rows` and `release`.
    """

    def __init__(self, taps: tuple[int, ...], *, for_prefixes: bool) -> None:
        self.taps = taps
        self.scored: FloatArray | None = None
        self._prompt: list[tuple[int, FloatArray]] = []
        self._for_prefixes = for_prefixes
        self._held: list[FloatArray] = []  # of the positions _start .. _stop - 1
        self._start = self._stop = 0

    @property
    def held(self) -> int:
        """Positions held for the prefix cache."""
        return self._stop - self._start

    def add_prompt(self, start: int, rows: FloatArray) -> None:
        """The prompt tokens from position `start` on were computed."""
        self._prompt.append((start, rows))
        self._hold(start, rows)

    def add_cached(self, start: int, rows: FloatArray) -> None:
        """The prompt tokens from position `start` on came from the prefix cache."""
        self._prompt.append((start, rows))
        self.release(start + len(rows))

    def take_prompt(self) -> list[tuple[int, FloatArray]]:
        """(first position, rows) of the prompt tokens since the last call, in order."""
        rows, self._prompt = self._prompt, []
        return rows

    def commit(self, start: int, path: Sequence[int]) -> None:
        """The anchor, at position `start`, and the draft nodes of `path` were committed."""
        assert self.scored is not None, "only what was scored can be committed"
        if self._for_prefixes:
            self._hold(start, self.scored[[0, *(node + 1 for node in path)]])
        self.scored = None

    def rows(self, start: int, stop: int) -> FloatArray | None:
        """A copy of the rows of positions start .. stop - 1; None when they are not held."""
        if not self._start <= start <= stop <= self._stop:
            return None
        if len(self._held) > 1:
            self._held = [np.concatenate(self._held)]
        return self._held[0][start - self._start : stop - self._start].copy()

    def release(self, stop: int) -> None:
        """Hold no positions below `stop` any longer."""
        kept = self.rows(max(stop, self._start), self._stop) if self._start < stop < self._stop else None
        if kept is not None:
            self._held, self._start = [kept], stop
        elif stop >= self._stop:
            self._held, self._start, self._stop = [], stop, stop

    def _hold(self, start: int, rows: FloatArray) -> None:
        if not self._for_prefixes:
            return
        if start != self._stop:  # positions in between came without hidden states
            self._held, self._start = [], start
        self._held.append(rows)
        self._stop = start + len(rows)
