"""Texts that copy an earlier part of themselves with changes: where in it they stand, and what they change.

A lookup of the last tokens loses a copy where the copy differs: behind a replaced word nothing matches, and
then only a word or two, as in many other places. An editor's diff would know better. This one goes on line by
line with the text: it keeps the place in the source, steps over what is replaced, inserted or left out, and
expects the same source to be replaced in the same way again, as when a name is changed throughout.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from outrider.drafters._lookup import MAX_MATCH, Matches

LEAST = 12  # tokens of agreement that make a copy: what new text repeats is seldom as long
GAP = 8  # tokens of the text that may differ in a row
CHANGED = 4  # tokens of the source that are remembered as changed together
CHANGES = 64  # changes that are remembered
KEPT = 0.5  # of the trust, for each token that differs, and again where both go on together
SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, 5, 6, 7, 8)  # tokens by which the source may be ahead behind a gap


class Copy(NamedTuple):
    """How a copy goes on: `start` is the index of its next token in the source, `path` what should follow in
    the text, 1 .. MAX_MATCH tokens, and `sure` the tokens of agreement that speak for it, 1 .. MAX_MATCH."""

    start: int
    path: list[int]
    sure: int


class CopyTracker:
    """Follows one text, which only grows."""

    def __init__(self) -> None:
        self._read_to = 0  # tokens of the text that are known
        self._at = -1  # index of the source's next token (of the first that differs, in a gap); -1: no copy
        self._gap = -1  # index of the first token that differs, until both go on together; -1: they do
        self._began = 0  # index of the first token since both go on together
        self._sure = 0.0
        self._before = 0.0  # `_sure` before the gap
        self._changes: dict[tuple[int, ...], list[int]] = {}  # what stands for which tokens of the source

    @property
    def copied(self) -> int:
        """How many of the text's last tokens are as in the source; 0 without one."""
        return self._read_to - self._began if self._at >= 0 and self._gap < 0 else 0

    def follow(self, tokens: list[int], matches: Matches, stop_ids: Collection[int] = ()) -> Copy | None:
        """Take in the text's new tokens; `matches` are places in it that agree with its end. A source ends
        with one of `stop_ids`, as a prompt's messages do: who goes on there has copied all of it."""
        end = len(tokens)
        for i in range(self._read_to, end):
            if 0 <= self._at < i and not self._over(tokens, i, stop_ids):
                self._read(tokens, i)
            else:
                self._at = -1
        self._read_to = end
        self._choose(matches)
        if self._at < 0 or self._sure < 1.0:
            return None
        start, rest = (self._at, []) if self._gap < 0 else self._likely(tokens)
        if start >= end:
            return None
        return Copy(start, self._path(tokens, start, rest), int(self._sure))

    def _against(self, i: int) -> int:
        """Index of the source's token that stands where the text has its token i, the next one."""
        return self._at + (i - self._gap if self._gap >= 0 else 0)

    def _over(self, tokens: list[int], i: int, stop_ids: Collection[int]) -> bool:
        """Whether the text goes on with token i where the source ends."""
        expected = tokens[self._against(i)]
        return expected in stop_ids and tokens[i] != expected

    def _choose(self, matches: Matches) -> None:
        """Leave this source for one that agrees with more of the text."""
        start, length = matches.longest()
        lost = self._at < 0 or self._sure < length
        if length >= LEAST and lost and (self._gap >= 0 or start != self._at):
            self._at, self._gap, self._sure = start, -1, float(length)
            self._began = self._read_to - length

    def _read(self, tokens: list[int], i: int) -> None:
        """The text goes on with token i."""
        at = self._at
        if self._gap < 0:
            if tokens[at] == tokens[i]:
                if change := self._change(tokens, at):
                    source, target = change
                    if target[0] != tokens[i]:  # it is not changed here
                        del self._changes[source]
                self._at += 1
                self._sure = min(float(MAX_MATCH), self._sure + 1.0)
                return
            self._gap, self._before = i, self._sure
        if (known := self._known(tokens, i + 1)) is not None:
            behind, rest = known
            if not rest:
                self._at, self._gap, self._began = behind, -1, i + 1
            return
        self._sure *= KEPT
        if not self._meet(tokens, i) and i - self._gap >= GAP:
            self._at = self._gap = -1

    def _meet(self, tokens: list[int], i: int) -> bool:
        """Whether text and source agree again, in the two tokens up to i. Remembers what was changed."""
        at, gap = self._at, self._gap
        if i == gap:
            return False
        behind = self._against(i)
        for shift in SHIFTS:
            place = behind + shift
            if at < place < gap and tokens[place - 1 : place + 1] == tokens[i - 1 : i + 1]:
                source, target = tuple(tokens[at : place - 1]), tokens[gap : i - 1]
                if 1 <= len(source) <= CHANGED and target:
                    self._changes.pop(source, None)
                    self._changes[source] = target
                    if len(self._changes) > CHANGES:
                        del self._changes[next(iter(self._changes))]
                self._at, self._gap, self._began = place + 1, -1, i - 1
                self._sure = max(2.0, KEPT * self._before)
                return True
        return False

    def _likely(self, tokens: list[int]) -> tuple[int, list[int]]:
        """(where the source goes on, what comes before) in a gap: behind the rest of a known change; behind
        the text's last token, if that is near; else as many tokens on as the text has written."""
        if (known := self._known(tokens, len(tokens))) is not None:
            return known
        behind = self._against(len(tokens))
        for shift in SHIFTS:
            place = behind + shift
            if self._at < place <= self._gap and tokens[place - 1] == tokens[-1]:
                return place, []
        return behind, []

    def _known(self, tokens: list[int], end: int) -> tuple[int, list[int]] | None:
        """(where the source goes on, what is yet to be written), if the gap up to `end` begins like a known
        change."""
        written = tokens[self._gap : end]
        change = self._change(tokens, self._at)
        if change is None or change[1][: len(written)] != written:
            return None
        return self._at + len(change[0]), change[1][len(written) :]

    def _change(self, tokens: list[int], at: int) -> tuple[tuple[int, ...], list[int]] | None:
        """(tokens of the source from `at` on, what stands for them), if that is known."""
        if self._changes:
            for size in range(CHANGED, 0, -1):
                source = tuple(tokens[at : at + size])
                if (target := self._changes.get(source)) is not None:
                    return source, target
        return None

    def _path(self, tokens: list[int], at: int, first: list[int]) -> list[int]:
        """What follows if after `first` the source is copied from `at` on, with the changes that are known.
        From the text's end on the source is what is expected there: the text goes round in a loop."""
        path = first[:]
        end = len(tokens)
        while len(path) < MAX_MATCH:
            change = self._change(tokens, at) if at < end else None
            if change is not None:
                path += change[1]
                at += len(change[0])
            else:
                path.append(tokens[at] if at < end else path[at - end])
                at += 1
        return path[:MAX_MATCH]
