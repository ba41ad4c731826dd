"""A language model that keeps the logits of every text it has seen: thousands of short samples then cost one
pass for each different text among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, cast

import numpy as np

from outrider.decoding.types import FloatArray
from outrider.engines.base import Cache, EngineCaps, ForwardItem, HiddenStateModel, LanguageModel, roll_back
from outrider.verify.identity import first_difference

Text: TypeAlias = tuple[int, ...]
Taps: TypeAlias = tuple[int, ...]  # layers whose hidden states are wanted


class _TokenCache:
    """Implements Cache with the tokens alone."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot truncate {len(self.tokens)} positions to {length}")
        del self.tokens[length:]

    def keep(self, base: int, slots: Sequence[int]) -> None:
        self.tokens[base:] = [self.tokens[slot] for slot in slots]

    def close(self) -> None:
        self.tokens.clear()


class MemoizedModel:
    """Implements LanguageModel, and HiddenStateModel as far as `inner` does: passes everything on to `inner`,
    except inside `with model.memoizing()`, where caches hold tokens only and rows come from memory.

    This relies on what the claim `bits` checks: that logits depend on the text alone.
    """

    def __init__(self, inner: LanguageModel) -> None:
        self.inner = inner
        self._rows: dict[Text, FloatArray] = {}
        self._states: dict[tuple[Taps, Text], FloatArray] = {}  # after the last token
        self._cache: Cache | None = None  # of the inner model, holding the text _held
        self._held: Text = ()

    @property
    def caps(self) -> EngineCaps:
        return self.inner.caps

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def max_positions(self) -> int:
        return self.inner.max_positions

    @property
    def num_layers(self) -> int:
        return cast(HiddenStateModel, self.inner).num_layers

    @property
    def hidden_size(self) -> int:
        return cast(HiddenStateModel, self.inner).hidden_size

    @property
    def texts(self) -> int:
        """Different texts memoized; each cost one pass."""
        return len(self._rows)

    @contextmanager
    def memoizing(self) -> Iterator[None]:
        """Memoize inside the `with` block and drop everything at its end. No cache may be used across its
        borders."""
        self._cache = self.inner.new_cache(self.inner.max_positions)
        try:
            yield
        finally:
            self._cache.close()
            self._cache, self._held = None, ()
            self._rows.clear()
            self._states.clear()

    def new_cache(self, capacity: int) -> Cache:
        return self.inner.new_cache(capacity) if self._cache is None else _TokenCache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        return (
            self.inner.forward(items)
            if self._cache is None
            else [self._memoized_rows(item) for item in items]
        )

    def forward_hidden(
        self, items: Sequence[ForwardItem], taps: Sequence[int]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        if self._cache is None:
            return cast(HiddenStateModel, self.inner).forward_hidden(items, taps)
        logits, states = [], []
        for item in items:
            texts = self._append(item)
            states.append(np.stack([self._state(text, tuple(taps)) for text in texts]))
            logits.append(self._rows_of(item, texts))
        return logits, states

    def _memoized_rows(self, item: ForwardItem) -> FloatArray:
        return self._rows_of(item, self._append(item))

    def _append(self, item: ForwardItem) -> list[Text]:
        """Put an item's tokens into its cache. Returns the text that each one ends."""
        cache = item.cache
        assert isinstance(cache, _TokenCache)
        start = tuple(cache.tokens)
        texts: list[Text] = []
        for token, parent in zip(item.tokens.tolist(), item.parents.tolist(), strict=True):
            texts.append((*(texts[parent] if parent >= 0 else start), token))
        cache.tokens += item.tokens.tolist()
        return texts

    def _rows_of(self, item: ForwardItem, texts: Sequence[Text]) -> FloatArray:
        rows = [self.row(texts[node]) for node in item.rows.tolist()]
        return np.stack(rows) if rows else np.empty((0, self.vocab_size), np.float32)

    def row(self, text: Text) -> FloatArray:
        """float32[vocab]: the logits after a text of at least one token. Not to be written to."""
        if text not in self._rows:
            self._compute(text, None)
        return self._rows[text]

    def _state(self, text: Text, taps: Taps) -> FloatArray:
        """The hidden states of these layers after a text."""
        if (taps, text) not in self._states:
            self._compute(text, taps)
        return self._states[taps, text]

    def _compute(self, text: Text, taps: Taps | None) -> None:
        """Put a text's row into memory, and the hidden states of the tokens that the pass computes."""
        assert self._cache is not None, "only while memoizing"
        differs = first_difference(self._held, text)
        shared = min(len(text) - 1 if differs is None else differs, len(text) - 1)
        shared = roll_back(self._cache, shared)
        new = np.array(text[shared:], np.int32)
        parents = np.arange(-1, len(new) - 1, dtype=np.int32)
        last = np.array([len(new) - 1], np.int32)
        self._held = text[:shared]  # what is there should the pass fail
        item = ForwardItem(self._cache, new, parents, last)
        if taps is None:
            logits = self.inner.forward([item])
        else:
            logits, (states,) = cast(HiddenStateModel, self.inner).forward_hidden([item], taps)
            for i, row in enumerate(states, start=shared + 1):
                self._states[taps, text[:i]] = row.copy()
        self._rows[text] = logits[0][0].copy()
        self._held = text
