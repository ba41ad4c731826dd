"""Follows a sequence that copies an earlier part of itself with small edits.

A lookup of the last tokens loses a copy at each edit: after a replaced word nothing matches, and then only a
token or two, as at many other places. The tracker works like a diff: it keeps the position in the source,
and skips what is replaced, inserted or deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from outrider.drafters._lookup import MAX_MATCH, Matches
from outrider.policy.tuning import DEFAULT

MIN_COPY, MAX_GAP, GAP_DECAY = DEFAULT.copy_min_match, DEFAULT.copy_max_gap, DEFAULT.copy_gap_decay
SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, 5, 6, 7, 8)  # source tokens that a gap may skip more than it wrote


class Copy(NamedTuple):
    """How a copy should continue.

    start:  index of its next token in the source.
    path:   the expected next tokens, 1 .. MAX_MATCH of them.
    length: matching tokens that support it, discounted for gaps, 1 .. MAX_MATCH.
    """

    start: int
    path: list[int]
    length: int


class CopyTracker:
    """Follows the tokens of one sequence, which only grows."""

    def __init__(self) -> None:
        self._size = 0  # tokens of the sequence that were taken in
        self._at = -1  # index of the source's next token (of the first that differs, in a gap); -1: no copy
        self._gap = -1  # index of the first differing token; -1 outside a gap
        self._began = 0  # index of the first token since the last gap, or of the copy
        self._length = 0.0  # matching tokens, discounted for gaps
        self._length_before = 0.0  # `_length` before the gap

    @property
    def copied(self) -> int:
        """How many of the last tokens are copied without a change; 0 without a copy."""
        return self._size - self._began if self._at >= 0 and self._gap < 0 else 0

    def update(self, tokens: list[int], matches: Matches, stop_ids: Collection[int] = ()) -> Copy | None:
        """Take in the new tokens of the sequence `tokens`. Returns how its copy should continue, if any.

        matches:  earlier places in `tokens` that match its end.
        stop_ids: a source ends at one of these, as a prompt's messages do: when the sequence continues
                  there, the copy was complete.
        """
        end = len(tokens)
        for i in range(self._size, end):
            if 0 <= self._at < i and not self._source_ended(tokens, i, stop_ids):
                self._take(tokens, i)
            else:
                self._at = -1
        self._size = end
        self._choose_source(matches)
        if self._at < 0 or self._length < 1.0:
            return None
        start = self._at if self._gap < 0 else self._likely_continuation(tokens)
        if start >= end:
            return None
        return Copy(start, self._path(tokens, start), int(self._length))

    def _against(self, i: int) -> int:
        """Index of the source token that corresponds to token i, the next one."""
        return self._at + (i - self._gap if self._gap >= 0 else 0)

    def _source_ended(self, tokens: list[int], i: int, stop_ids: Collection[int]) -> bool:
        """Whether the sequence continues with token i where the source ends."""
        expected = tokens[self._against(i)]
        return expected in stop_ids and tokens[i] != expected

    def _choose_source(self, matches: Matches) -> None:
        """Switch to the longest match when there is no copy, or a shorter one."""
        start, length = matches.longest()
        longer = self._at < 0 or self._length < length
        if length >= MIN_COPY and longer and (self._gap >= 0 or start != self._at):
            self._at, self._gap, self._length = start, -1, float(length)
            self._began = self._size - length

    def _take(self, tokens: list[int], i: int) -> None:
        """The next token of the sequence is token i."""
        at = self._at
        if self._gap < 0:
            if tokens[at] == tokens[i]:
                self._at += 1
                self._length = min(float(MAX_MATCH), self._length + 1.0)
                return
            self._gap, self._length_before = i, self._length
        self._length *= GAP_DECAY
        if not self._end_gap(tokens, i) and i - self._gap >= MAX_GAP:
            self._at = self._gap = -1

    def _end_gap(self, tokens: list[int], i: int) -> bool:
        """End the gap if the two tokens up to i match the source again."""
        if i == self._gap:
            return False
        expected = self._against(i)
        for shift in SHIFTS:
            place = expected + shift
            if self._at < place < self._gap and tokens[place - 1 : place + 1] == tokens[i - 1 : i + 1]:
                self._at, self._gap, self._began = place + 1, -1, i - 1
                self._length = max(2.0, GAP_DECAY * self._length_before)
                return True
        return False

    def _likely_continuation(self, tokens: list[int]) -> int:
        """Index where the source continues, inside a gap: after the sequence's last token, if the source has
        it nearby; else as many source tokens further as the gap has tokens."""
        expected = self._against(len(tokens))
        for shift in SHIFTS:
            place = expected + shift
            if self._at < place <= self._gap and tokens[place - 1] == tokens[-1]:
                return place
        return expected

    def _path(self, tokens: list[int], at: int) -> list[int]:
        """The next tokens if the source is copied from `at` on. A source that reaches the end of `tokens`
        continues with the path itself: the sequence loops."""
        path = tokens[at : at + MAX_MATCH]
        for i in range(MAX_MATCH - len(path)):
            path.append(path[i])
        return path
