"""A minimal greedy loop with speculation, for engines whose Python binding gives passes only.

It is deliberately plain: a chain of k tokens, verified in one pass. A peer measured with it shows what its
passes allow. In its favour, the draft model's prefill is left out of the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

CHUNK = 256  # prompt tokens of a pass


class Session(Protocol):
    """A model with the cache of one sequence."""

    def decode(self, tokens: Sequence[int], start: int, rows: int) -> list[int]:
        """Put tokens at positions start, start + 1, …; the likeliest token after each of the last `rows`."""

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""

    def ends(self, token: int) -> bool:
        """Whether the token ends the text."""


class Drafter(Protocol):
    def propose(self, text: Sequence[int]) -> list[int]:
        """Tokens that may follow the text."""

    def keep(self, length: int) -> None:
        """Only so many tokens of what was seen stay as they are."""


class Plain:
    """No drafts."""

    def propose(self, text: Sequence[int]) -> list[int]:
        return []

    def keep(self, length: int) -> None:
        pass


class Lookup(Plain):
    """What followed the last occurrence of the text's last tokens (prompt lookup): 3 of them, else 2."""

    def __init__(self, count: int) -> None:
        self._count = count

    def propose(self, text: Sequence[int]) -> list[int]:
        for size in (3, 2):
            end = list(text[-size:])
            for at in range(len(text) - size - 1, -1, -1):
                if text[at] == end[0] and list(text[at : at + size]) == end:
                    return list(text[at + size : at + size + self._count])
        return []


class DraftModel:
    """The likeliest tokens of a smaller model."""

    def __init__(self, model: Session, count: int, prompt: Sequence[int]) -> None:
        self._model, self._count = model, count
        prefill(model, prompt)
        self._length = len(prompt) - 1

    def propose(self, text: Sequence[int]) -> list[int]:
        drafted = self._model.decode(text[self._length :], self._length, 1)
        self._length = len(text)
        while len(drafted) < self._count:
            drafted += self._model.decode(drafted[-1:], self._length, 1)
            self._length += 1
        return drafted

    def keep(self, length: int) -> None:
        if length < self._length:
            self._model.truncate(length)
            self._length = length


def prefill(model: Session, prompt: Sequence[int]) -> None:
    """Start anew with all tokens of a prompt but the last."""
    model.truncate(0)
    body = prompt[:-1]
    for start in range(0, len(body), CHUNK):
        model.decode(body[start : start + CHUNK], start, 0)


def generate(
    target: Session, prompt: Sequence[int], most: int, drafter: Drafter
) -> tuple[list[int], float, int, int]:
    """(the likeliest tokens after a prompt, seconds after its prefill, drafted, accepted)."""
    prefill(target, prompt)
    text, drafted, accepted = list(prompt), 0, 0
    start = time.perf_counter()
    while len(text) - len(prompt) < most:
        known = len(text)
        draft = drafter.propose(text)[: most - (known - len(prompt)) - 1]
        drafted += len(draft)
        for i, token in enumerate(target.decode([text[-1], *draft], known - 1, 1 + len(draft))):
            text.append(token)
            if target.ends(token):
                return text[len(prompt) :], time.perf_counter() - start, drafted, accepted
            if i == len(draft) or token != draft[i]:
                break
            accepted += 1
        target.truncate(len(text) - 1)
        drafter.keep(len(text) - 1)
    return text[len(prompt) :], time.perf_counter() - start, drafted, accepted
