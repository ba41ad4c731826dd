"""A draft model that computes no row of logits twice: a row depends only on the tokens up to it, bit for bit.

`MemoizedModel` takes the place of `replay.Timed`. Its passes take as long by the replay's clock, but it looks
up each row by the tokens that lead to it, and asks the real model only for rows that are not known; those
along a text at once. Replaying the same texts with another controller then takes a small part of the time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import Cache, ForwardItem, VocabSubsetModel
from replay import Clock, Timed

STORED = 48  # likeliest tokens of a row that are stored: more than the sampling parameters leave
STORED_DEEPER = 8192  # the same of rows whose likeliest tokens are outside the vocabulary subset
MIN_P_MARGIN = 2.2  # logits below the best that min_p (0.05) leaves at temperatures up to 0.7
CHOICES = 3  # tokens that are sampled from a row, each without the ones before
TOP_K = 40
MAX_TEXTS = 512  # texts whose caches of the real model are kept, so that none is processed twice
SPARE_POSITIONS = 64  # of these caches, beyond what the first pass needs: for drafts
ROWS_AT_ONCE = 64  # of a text

Mask = npt.NDArray[np.bool_]


class TokenCache:
    """Stands for a KV cache: the token of each slot, and a hash of all tokens on the path to it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: list[int] = []
        self.keys: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """The tokens of one pass; a parent is the index of one of them, or -1 for the end of the cache."""
        first = len(self.tokens)
        for token, parent in zip(tokens, parents, strict=True):
            above = first + parent if parent >= 0 else first - 1
            self.keys.append(hash((self.keys[above] if above >= 0 else 0, token)))
            self.tokens.append(token)

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that follow one another."""
        self.add(tokens, range(-1, len(tokens) - 1))

    def truncate(self, length: int) -> None:
        del self.tokens[length:], self.keys[length:]

    def keep(self, base: int, slots: Sequence[int]) -> None:
        self.tokens[base:] = [self.tokens[slot] for slot in slots]
        self.keys[base:] = [self.keys[slot] for slot in slots]

    def close(self) -> None:
        self.truncate(0)


def likeliest(row: FloatArray, count: int) -> IntArray:
    """The ids of the `count` greatest logits, followed by these logits' bits: int32[2 * count]."""
    count = min(count, len(row))
    ids = np.argpartition(row, len(row) - count)[len(row) - count :].astype(np.int32)
    return np.concatenate([ids, row[ids].astype(np.float32).view(np.int32)])


def complete(values: FloatArray, floor: float) -> bool:
    """Whether these logits are all that sampling can take from a row whose unknown logits are up to
    `floor`."""
    if len(values) >= TOP_K + CHOICES:
        return True
    if len(values) < CHOICES:
        return False
    last = np.partition(values, len(values) - CHOICES)[len(values) - CHOICES]
    return bool(last - MIN_P_MARGIN > floor)


@dataclass(slots=True, eq=False)
class _Computed:
    """A cache of the real model with `capacity` positions, and the tokens that it holds."""

    cache: Cache
    capacity: int
    tokens: list[int] = field(default_factory=list)


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


class RowStore:
    """Rows of logits by the tokens that lead to them.

    folder: where they are stored for the next process; None keeps them in memory only. Each process appends
            to a file of its own.
    computed, found: how many rows so far.
    """

    def __init__(self, inner: VocabSubsetModel, folder: Path | None = None) -> None:
        self.inner = inner
        self.computed = self.found = 0
        self._rows: dict[int, IntArray] = {}
        self._caches: dict[str, _Computed] = {}  # by text, the last used one at the end
        self._text = ""
        self._unsaved: list[IntArray] = []
        self._file: Path | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.rows")):
                self._read(np.fromfile(path, np.int32))
            self._file = folder / f"{os.getpid()}.rows"

    def _read(self, data: IntArray) -> None:
        at = 0
        while at + 3 <= len(data):
            count = int(data[at + 2])
            if at + 3 + 2 * count > len(data):  # the process was ended while it wrote
                return
            key = int(data[at : at + 2].copy().view(np.int64)[0])
            self._rows[key] = data[at + 3 : at + 3 + 2 * count]
            at += 3 + 2 * count

    def __len__(self) -> int:
        return len(self._rows)

    def save(self) -> None:
        """Write what was computed since the last call."""
        if self._file is not None and self._unsaved:
            with self._file.open("ab") as file:
                file.write(np.concatenate(self._unsaved).tobytes())
        self._unsaved.clear()

    def fill(self, out: FloatArray, key: int, mask: Mask | None) -> bool:
        """Write what is known of a row into `out`, which is -inf; False where that is not enough."""
        stored = self._rows.get(key)
        if stored is None:
            return False
        count = len(stored) // 2
        ids, values = stored[:count], stored[count:].view(np.float32)
        if mask is not None:
            inside = mask[ids // self.inner.vocab_block_size]
            if not inside.all():
                floor = float(values.min())
                ids, values = ids[inside], values[inside]
                if not complete(values, floor):
                    return False
        out[ids] = values
        self.found += 1
        return True

    def begin(self, name: str, prompt: Sequence[int], output: Sequence[int]) -> None:
        """What follows concerns this text. The rows of its output are computed together where they are not
        known: nearly all of them are asked for, and a pass over many tokens takes far less time for each."""
        self._text = name
        path = TokenCache(len(prompt) + len(output))
        path.extend([*prompt, *output[:-1]])
        first = len(prompt) - 1
        for start in range(first, len(path.tokens), ROWS_AT_ONCE):
            tokens, keys = (each[start : start + ROWS_AT_ONCE] for each in (path.tokens, path.keys))
            missing = [i for i, key in enumerate(keys) if key not in self._rows]
            if missing:
                parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
                item = ForwardItem(path, np.array(tokens, np.int32), parents, np.array(missing, np.int32))
                self.compute(path.tokens[:start], item, missing, [keys[i] for i in missing])

    def compute(
        self, before: Sequence[int], item: ForwardItem, nodes: Sequence[int], keys: Sequence[int]
    ) -> None:
        """Compute the rows of these nodes of an item whose cache holds the tokens `before`."""
        computed = self._cache_for(len(before) + len(item.tokens))
        common = _common_length(computed.tokens, before)
        computed.cache.truncate(common)
        missing = list(before[common:])
        tokens = np.array([*missing, *item.tokens.tolist()], np.int32)
        chain = range(-1, len(missing) - 1)
        parents = [parent + len(missing) for parent in item.parents.tolist()]
        rows = np.array([node + len(missing) for node in nodes], np.int32)
        above = np.array([*chain, *parents], np.int32)
        (logits,) = self.inner.forward([ForwardItem(computed.cache, tokens, above, rows)])
        straight = 0
        while straight < len(parents) and item.parents[straight] == straight - 1:
            straight += 1
        computed.tokens = [*before, *item.tokens.tolist()[:straight]]
        computed.cache.truncate(len(computed.tokens))
        for key, row in zip(keys, logits, strict=True):
            known = len(self._rows.get(key, ())) // 2  # not enough of it, if anything
            count = STORED if not known else STORED_DEEPER if known < STORED_DEEPER else len(row)
            self._store(key, likeliest(row, count))
        self.computed += len(nodes)

    def _cache_for(self, size: int) -> _Computed:
        """This text's cache, for `size` tokens."""
        computed = self._caches.pop(self._text, None)
        if computed is None or computed.capacity < size:
            if computed is not None:
                computed.cache.close()
            elif len(self._caches) >= MAX_TEXTS:
                self._caches.pop(next(iter(self._caches))).cache.close()
            capacity = size + SPARE_POSITIONS
            computed = _Computed(self.inner.new_cache(capacity), capacity)
        self._caches[self._text] = computed
        return computed

    def _store(self, key: int, row: IntArray) -> None:
        self._rows[key] = row
        if self._file is not None:
            header = np.array([key, len(row) // 2], np.int64).view(np.int32)[:3]
            self._unsaved.append(np.concatenate([header, row]))


class MemoizedModel(Timed):
    """A model whose passes take what they are said to cost, and whose rows come from a `RowStore`."""

    def __init__(self, store: RowStore, costs: Mapping[int, float], clock: Clock) -> None:
        super().__init__(store.inner, costs, clock)
        self._store = store

    def new_cache(self, capacity: int) -> TokenCache:
        return TokenCache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        self._clock.run(self.costs, items)
        return [self._rows(item, None) for item in items]

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        self._clock.run(self.costs, items)
        mask = np.zeros(-(-self.vocab_size // self.vocab_block_size), bool)
        mask[blocks] = True
        return [self._rows(item, mask) for item in items]

    def _rows(self, item: ForwardItem, mask: Mask | None) -> FloatArray:
        cache = item.cache
        assert isinstance(cache, TokenCache)
        first = cache.length
        cache.add(item.tokens.tolist(), item.parents.tolist())
        nodes = item.rows.tolist()
        out = np.full((len(nodes), self.vocab_size), -np.inf, np.float32)
        for _ in range(4):  # what is known, then more of each row, then all of it
            wanted = [
                i
                for i, node in enumerate(nodes)
                if not self._store.fill(out[i], cache.keys[first + node], mask)
            ]
            if not wanted:
                break
            missing = [nodes[i] for i in wanted]
            self._store.compute(cache.tokens[:first], item, missing, [cache.keys[first + n] for n in missing])
        return out
