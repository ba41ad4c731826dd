"""A minimal greedy loop with speculation, for engines whose Python binding offers forward passes only.

It is deliberately simple: a chain of k tokens, verified in one pass. It shows what the peer's passes would
allow. In the peer's favour, the draft model's prefill is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

CHUNK = 256  # prompt tokens of a pass


class Session(Protocol):
    """A model with the cache of one sequence."""

    def decode(self, tokens: Sequence[int], start: int, rows: int) -> list[int]:
        """Process tokens at positions start, start + 1, …; returns the likeliest token after each of the last
        `rows` of them."""

    def truncate(self, length: int) -> None:
        """Remove all positions from `length` on from the cache."""

    def ends(self, token: int) -> bool:
        """Whether the token ends the text."""


class Drafter(Protocol):
    def propose(self, text: Sequence[int]) -> list[int]:
        """Tokens that may follow the text."""

    def keep(self, length: int) -> None:
        """Called after verification: the text up to `length` is unchanged, later tokens were rejected."""


class Plain:
    """No drafts."""

    def propose(self, text: Sequence[int]) -> list[int]:
        return []

    def keep(self, length: int) -> None:
        pass


class Lookup(Plain):
    """Prompt lookup: the tokens that followed the previous occurrence of the text's last 3 (else 2)
    tokens."""

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
    """The greedy continuation of a draft model."""

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
    """Clear the cache and process all tokens of a prompt but the last."""
    model.truncate(0)
    body = prompt[:-1]
    for start in range(0, len(body), CHUNK):
        model.decode(body[start : start + CHUNK], start, 0)


def generate(
    target: Session, prompt: Sequence[int], most: int, drafter: Drafter
) -> tuple[list[int], float, int, int]:
    """(greedy tokens after the prompt, seconds without prefill, draft tokens, accepted draft tokens)."""
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
