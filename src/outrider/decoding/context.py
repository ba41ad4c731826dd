"""The tokens that the next one depends on: a sequence, and views of it along a draft path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Counts: TypeAlias = npt.NDArray[np.int64]


class TokenCounts:
    """Distinct tokens of a sequence with how often each is in its output. Adding one costs O(1)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._slot = {token: i for i, token in enumerate(dict.fromkeys(prompt))}
        self._ids = np.fromiter(self._slot, np.int64, len(self._slot))
        self._counts = np.zeros(len(self._slot), np.int64)

    def add(self, token: int) -> None:
        slot = self._slot.setdefault(token, len(self._slot))
        if slot == len(self._ids):  # full: double the capacity
            more = max(64, slot)
            self._ids = np.concatenate((self._ids, np.zeros(more, np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(more, np.int64)))
        self._ids[slot] = token
        self._counts[slot] += 1

    def arrays(self, path: Sequence[int] = ()) -> tuple[Counts, Counts]:
        """(ids, times in the output), int64[k] each, as they would be with `path` added to the output."""
        size = len(self._slot)
        ids, counts = self._ids[:size].copy(), self._counts[:size].copy()
        new: dict[int, int] = {}
        for token in path:
            if token in self._slot:
                counts[self._slot[token]] += 1
            else:
                new[token] = new.get(token, 0) + 1
        return (
            np.concatenate((ids, np.fromiter(new.keys(), np.int64, len(new)))),
            np.concatenate((counts, np.fromiter(new.values(), np.int64, len(new)))),
        )


class TokenContext:
    """A request's tokens, growing by `append`, and views of it along a draft path by `then`.

    tokens: prompt and emitted output, the anchor last. Shared by all views; only `append` changes it.
    path:   tokens of a draft that would follow. The view with an empty path is the sequence itself.
    """

    __slots__ = ("_base", "_counts", "path", "prompt_length", "tokens")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens: list[int] = list(prompt)
        self.prompt_length = len(self.tokens)
        self.path: tuple[int, ...] = ()
        self._base = self
        self._counts: TokenCounts | None = None  # made when a penalty first asks

    @property
    def position(self) -> int:
        """Index in the sequence of the token to be chosen next."""
        return len(self.tokens) + len(self.path)

    @property
    def output_length(self) -> int:
        """Tokens of output before the one to be chosen next."""
        return self.position - self.prompt_length

    @property
    def prompt(self) -> list[int]:
        """The prompt's tokens, a new list."""
        return self.tokens[: self.prompt_length]

    @property
    def output(self) -> list[int]:
        """The tokens of output before the one to be chosen next, the path's last; a new list."""
        return [*self.tokens[self.prompt_length :], *self.path]

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether the output ends with these tokens, the path counted."""
        size = len(tokens)
        if size > self.output_length:
            return False
        outside = max(0, size - len(self.path))  # of them before the path
        before = self.tokens[len(self.tokens) - outside :]
        return [*before, *self.path[len(self.path) - (size - outside) :]] == list(tokens)

    def append(self, token: int) -> None:
        """Emit one token. Raises ValueError on a view."""
        if self._base is not self:
            raise ValueError("only the sequence itself can grow, not a view along a draft path")
        self.tokens.append(token)
        if self._counts is not None:
            self._counts.add(token)

    def then(self, token: int) -> TokenContext:
        """A view in which `token` follows; the sequence is left alone."""
        view = TokenContext.__new__(TokenContext)
        view.tokens, view.prompt_length, view._base = self.tokens, self.prompt_length, self._base
        view.path = (*self.path, token)
        return view

    def along(self, tokens: Iterable[int]) -> TokenContext:
        """The view in which all of these follow; this very context if there are none."""
        context = self
        for token in tokens:
            context = context.then(token)
        return context

    def counts(self) -> tuple[Counts, Counts]:
        """(ids, times in the output) of the distinct tokens in prompt, output and path."""
        base = self._base
        if base._counts is None:
            base._counts = TokenCounts(self.tokens[: self.prompt_length])
            for token in self.tokens[self.prompt_length :]:
                base._counts.add(token)
        return base._counts.arrays(self.path)
