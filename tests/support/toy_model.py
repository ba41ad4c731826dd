"""A small, fast language model in NumPy for tests, whose logits expose any error in its cache.

Logits are a hash of every (token, position) that the new token can see, read from the cache through
the tree mask, so that a wrong rollback, gather, mask or position changes them. So are the hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import FloatArray, IntArray, TargetScores
from outrider.engines.base import Cache, CacheBlocks, EngineCaps, ForwardItem
from outrider.engines.hidden import check_taps

UNSCORED = TargetScores(np.zeros((1, 1), np.float32))  # for drafters that do not read scores
SHARE_UNIT = 4  # positions; small, so that short texts have several cache blocks


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014): 64 well-mixed bits from 64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@lru_cache(4096)
def _normal(vocab_size: int, seed: int, state: int) -> npt.NDArray[np.float64]:
    """float64[vocab], nearly normal with variance 1: sums of four 16-bit numbers from hashed bits."""
    key = _mix(np.array([seed], np.uint64) + _mix(np.array([state], np.uint64)))
    bits = _mix(_mix(np.arange(vocab_size, dtype=np.uint64) + np.uint64(1)) ^ key)
    parts = [((bits >> np.uint64(s)) & np.uint64(0xFFFF)).astype(np.float64) for s in (0, 16, 32, 48)]
    total: npt.NDArray[np.float64] = np.sum(parts, axis=0)
    normal: npt.NDArray[np.float64] = (total / 65536.0 - 2.0) * 3.0**0.5
    normal.flags.writeable = False
    return normal


class ToyBlocks(NamedTuple):
    """Implements CacheBlocks, as a copy."""

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.positions.nbytes

    @property
    def whole(self) -> bool:
        return True


class ToyCache:
    """Implements Cache: the token and the position of each slot."""

    def __init__(self, capacity: int) -> None:
        self._tokens: npt.NDArray[np.int64] | None = np.zeros(capacity, np.int64)
        self._positions = np.zeros(capacity, np.int64)
        self.capacity = capacity
        self.length = 0

    @property
    def slots(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(tokens, positions), int64[capacity], views. Raises ValueError when closed."""
        if self._tokens is None:
            raise ValueError("the cache is closed")
        return self._tokens, self._positions

    def truncate(self, length: int) -> None:
        self.slots  # noqa: B018 (raises when closed)
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        self.length = length

    def keep(self, base: int, slots: Sequence[int]) -> None:
        tokens, positions = self.slots
        order = [base - 1, *slots]
        if base < 0 or order[-1] >= self.length or any(a >= b for a, b in pairwise(order)):
            raise ValueError(f"cannot keep slots {list(slots)} after {base} of {self.length} positions")
        chosen = list(slots)
        tokens[base : base + len(chosen)] = tokens[chosen]
        positions[base : base + len(chosen)] = positions[chosen]
        self.length = base + len(chosen)

    def share(self, start: int, stop: int) -> ToyBlocks:
        tokens, positions = self.slots
        if not 0 <= start <= stop <= self.length or start % SHARE_UNIT or stop % SHARE_UNIT:
            raise ValueError(f"cannot share {start}..{stop} of {self.length} positions")
        return ToyBlocks(tokens[start:stop].copy(), positions[start:stop].copy())

    def adopt(self, blocks: CacheBlocks) -> None:
        tokens, positions = self.slots
        assert isinstance(blocks, ToyBlocks)
        end = self.length + len(blocks.tokens)
        if self.length % SHARE_UNIT or end > self.capacity:
            raise ValueError(
                f"cannot adopt {len(blocks.tokens)} positions at {self.length} of {self.capacity}"
            )
        tokens[self.length : end] = blocks.tokens
        positions[self.length : end] = blocks.positions
        self.length = end

    def close(self) -> None:
        self._tokens = None


class ToyModel:
    """Implements LanguageModel.

    Logits are sharpness * (bigram + whole): `bigram` depends on the last visible token only, so that texts
    repeat themselves; `whole` is a hash of all visible tokens.

    seed:       models with different seeds are different.
    sharpness:  scale of the logits; texts of larger ones are more predictable.
    memory:     weight of `whole` against `bigram`, 0..1.
    like:       another model that this one resembles.
    similarity: how much, 0..1; at 1 the two are equal (given the same sharpness and memory).
    """

    caps = EngineCaps(tree_attention=True, exact_bits=True, hidden_states=True)
    share_unit = SHARE_UNIT
    share_window = 0
    vocab_block_size = 4
    num_layers = 2
    hidden_size = 3

    def __init__(
        self,
        vocab_size: int = 64,
        max_positions: int = 256,
        *,
        seed: int = 0,
        sharpness: float = 2.0,
        memory: float = 0.5,
        like: ToyModel | None = None,
        similarity: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self._sharpness, self._memory = sharpness, memory
        self._components = [(1.0, seed)]
        if like is not None:
            own = (1.0 - similarity**2) ** 0.5
            self._components = [(own, seed), *((similarity * weight, s) for weight, s in like._components)]

    def new_cache(self, capacity: int) -> Cache:
        return ToyCache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        for item in items:
            self._check(item)
        return [self._run(item) for item in items]

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        if len(blocks) and (
            blocks[0] < 0
            or blocks[-1] * self.vocab_block_size >= self.vocab_size
            or (np.diff(blocks) < 1).any()
        ):
            raise ValueError("blocks of the vocabulary must be ascending and inside it")
        found = self.forward(items)
        outside = ~np.isin(np.arange(self.vocab_size) // self.vocab_block_size, blocks)
        for rows in found:
            rows[:, outside] = -np.inf
        return found

    def forward_hidden(
        self, items: Sequence[ForwardItem], taps: Sequence[int]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        check_taps(taps, self.num_layers)
        bases = [item.cache.length for item in items]
        logits = self.forward(items)
        return logits, [self._hidden(item, base, taps) for item, base in zip(items, bases, strict=True)]

    def _hidden(self, item: ForwardItem, base: int, taps: Sequence[int]) -> FloatArray:
        """The input of layer 0 is a hash of the token, the others of all visible tokens."""
        cache = item.cache
        assert isinstance(cache, ToyCache)
        count, rows = base + len(item.tokens), []
        tokens, positions = (slots[:count].astype(np.uint64) for slots in cache.slots)
        pairs = _mix(((tokens << np.uint64(32)) | positions) + np.uint64(2))
        for node, visible in enumerate(self._visible(base, item.parents)):
            states = [int(item.tokens[node]), *[int(pairs[visible].sum(dtype=np.uint64))] * self.num_layers]
            rows.append(np.concatenate([_normal(self.hidden_size, 1000 + t, states[t]) for t in taps]))
        return np.array(rows, np.float32).reshape(len(rows), len(taps) * self.hidden_size)

    def _check(self, item: ForwardItem) -> None:
        tokens, parents, cache = item.tokens, item.parents, item.cache
        assert isinstance(cache, ToyCache)
        cache.slots  # noqa: B018 (raises when closed)
        if ((tokens < 0) | (tokens >= self.vocab_size)).any():
            raise ValueError(f"token ids must be in 0..{self.vocab_size - 1}")
        if tokens.shape != parents.shape or ((parents < -1) | (parents >= np.arange(len(tokens)))).any():
            raise ValueError("a new token's parent must be -1 or an earlier new token")
        if cache.length + len(tokens) > cache.capacity:
            raise ValueError(f"{len(tokens)} tokens more do not fit: {cache.length} of {cache.capacity}")

    def _run(self, item: ForwardItem) -> FloatArray:
        cache = item.cache
        assert isinstance(cache, ToyCache)
        base, count = cache.length, len(item.tokens)
        tokens, positions = cache.slots
        visible = self._visible(base, item.parents)
        tokens[base : base + count] = item.tokens
        positions[base : base + count] = self._positions(base, visible)
        cache.length = base + count
        rows = [
            self._logits(*(a[: base + count][visible[row]] for a in (tokens, positions))) for row in item.rows
        ]
        return np.array(rows, np.float32).reshape(len(rows), self.vocab_size)

    def _visible(self, base: int, parents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """bool[n, base + n]: which slots each new token sees: the cache, its ancestors, itself."""
        seen = np.zeros((len(parents), base + len(parents)), bool)
        seen[:, :base] = True
        for node, parent in enumerate(parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, base + node] = True
        return seen

    def _positions(self, base: int, visible: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """int64[n]: cache length + depth; the depth is the number of new tokens that each one sees before
        it."""
        depths: npt.NDArray[np.int64] = visible[:, base:].sum(axis=1) - 1
        return base + depths

    def bigram(self, token: int) -> npt.NDArray[np.float64]:
        """float64[vocab]: the part of the logits after a token that depends on it alone."""
        parts = [weight * _normal(self.vocab_size, seed, token) for weight, seed in self._components]
        return np.asarray(self._sharpness * (1.0 - self._memory) * np.sum(parts, axis=0))

    def _logits(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> FloatArray:
        last = int(tokens[positions.argmax()])
        pairs = (tokens.astype(np.uint64) << np.uint64(32)) | positions.astype(np.uint64)
        everything = int(_mix(pairs + np.uint64(1)).sum(dtype=np.uint64))  # modulo 2^64: exact in any order
        logits = np.zeros(self.vocab_size)
        for weight, seed in self._components:
            bigram = (1.0 - self._memory) * _normal(self.vocab_size, seed, last)
            whole = self._memory * _normal(self.vocab_size, seed + 1, everything)
            logits += weight * (bigram + whole)
        return (self._sharpness * logits).astype(np.float32)
