"""Keys and values of all sequences of a model: one pool of slots, of which each sequence owns a range.

A slot holds the keys and values of one position in all layers. Rolling back moves a length; keeping the path
of a tree copies its slots together. Slot 0 belongs to the padding of passes.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from outrider.engines.base import Cache, CacheBlocks
from outrider.errors import InsufficientMemoryError
from outrider.memory import size

Result = TypeVar("Result")

FIRST_SLOTS = 1024  # of a pool that may grow
MOVED = 256  # positions that are moved at once, through a copy
SHARE_UNIT = 16  # positions of the smallest block that caches share
USED_UP = (
    "the device's memory is used up: fewer sequences at a time (--max-num-seqs), a shorter context "
    "(-c / max_model_len), or a lower --gpu-memory-utilization (more is left for passes)"
)


class SlotPool:
    """The slots of one model's sequences.

    keys, values: [layers, slots, kv_heads, head_dim].
    most: slots that are there from the beginning and never move, as CUDA graphs need; None: it grows, by
          copying everything.
    """

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, most: int | None = None
    ) -> None:
        self._shape, self._dtype, self._device = shape, dtype, device
        self.fixed = most is not None
        self._owners: dict[int, TorchCache] = {}  # by their first slot
        self.keys = self._empty(most or FIRST_SLOTS)
        self.values = self._empty(most or FIRST_SLOTS)
        self._free: list[tuple[int, int]] = [(1, self.slots - 1)]  # (first, count), in order
        self._taken: dict[int, int] = {}

    def _empty(self, slots: int) -> torch.Tensor:
        layers, kv_heads, head_dim = self._shape
        # Zeros, because what is masked is multiplied by 0, and memory as it was found may hold NaNs.
        return torch.zeros(layers, slots, kv_heads, head_dim, dtype=self._dtype, device=self._device)

    @property
    def slots(self) -> int:
        return int(self.keys.shape[1])

    @property
    def slot_bytes(self) -> int:
        return 2 * math.prod(self._shape) * int(self.keys.element_size())

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def take(self, count: int, owner: TorchCache | None = None) -> int:
        """The first of `count` slots in a row, which are the caller's until `give`. Those of an owner may be
        moved later, with its `start`, to make room for others. Raises InsufficientMemoryError when a pool
        that does not grow has no such row."""
        count = max(1, count)
        found = self._row(count)
        if found is None and self.fixed and sum(free for _, free in self._free) >= count:
            self._close_gaps()
            found = self._row(count)
        if found is not None:
            if owner is not None:
                self._owners[found] = owner
            return found
        if self.fixed:
            left = max((free for _, free in self._free), default=0)
            raise InsufficientMemoryError(
                f"no {count} positions in a row are free on the device, at most {left} of {self.slots} "
                f"({size(self.nbytes)}): fewer sequences at a time (--max-num-seqs), a shorter context "
                "(-c / max_model_len), or a higher --gpu-memory-utilization"
            )
        self._grow(count)
        return self.take(count, owner)

    def _row(self, count: int) -> int | None:
        """The first of `count` free slots in a row, taken; None where there is no such row."""
        for i, (first, free) in enumerate(self._free):
            if free >= count:
                self._free[i : i + 1] = [(first + count, free - count)] if free > count else []
                self._taken[first] = count
                return first
        return None

    def _close_gaps(self) -> None:
        """Move the slots of owners to the front, so that what is free is in a row behind them."""
        taken, owners = self._taken, self._owners
        self._taken, self._owners, self._free = {}, {}, []
        end = 1
        for first in sorted(taken):
            owner, count = owners.get(first), taken[first]
            place = first if owner is None else end
            if place > end:
                self._free.append((end, place - end))
            if owner is not None:
                for done in range(0, owner.length if place < first else 0, MOVED):
                    rows = slice(first + done, min(first + done + MOVED, first + owner.length))
                    for held in (self.keys, self.values):  # the two places may overlap
                        held[:, place + done : place + rows.stop - first] = held[:, rows].clone()
                self._owners[place], owner.start = owner, place
            self._taken[place] = count
            end = place + count
        if end < self.slots:
            self._free.append((end, self.slots - end))

    def give(self, first: int) -> None:
        """Slots from `first` on, as they were taken, are free again."""
        self._owners.pop(first, None)
        insort(self._free, (first, self._taken.pop(first)))
        merged: list[tuple[int, int]] = []
        for start, count in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + count)
            else:
                merged.append((start, count))
        self._free = merged

    def _grow(self, count: int) -> None:
        before = self.slots
        more = max(before, count)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._empty(before + more)
            new[:, :before] = old
            setattr(self, name, new)
        self._taken[before] = more
        self.give(before)

    def move(self, sources: Sequence[int], target: int) -> None:
        """Copy these slots to `target` and those that follow it."""
        index = torch.tensor(sources, dtype=torch.int64)
        if self._device.type == "cuda":
            index = index.pin_memory().to(self._device, non_blocking=True)
        else:
            index = index.to(self._device)
        stop = target + len(sources)
        for held in (self.keys, self.values):
            held[:, target:stop] = held.index_select(1, index)


@dataclass(frozen=True, slots=True, eq=False)
class SharedSlots:
    """Keys and values of positions from `start` on, [layers, positions, kv_heads, head_dim], in main memory:
    a prefix cache is as large as that allows, whatever the device has left."""

    start: int
    keys: torch.Tensor
    values: torch.Tensor
    whole: bool = True  # layers with a sliding window hold everything, too

    @property
    def nbytes(self) -> int:
        return 2 * int(self.keys.numel() * self.keys.element_size())


class CheckedCache:
    """What every cache here refuses before it changes anything. Errors are ValueErrors."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._open = True

    def check_open(self) -> None:
        """Refuse a closed cache."""
        if not self._open:
            raise ValueError("the cache is closed")

    def truncate(self, length: int) -> None:
        self.check_open()
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} positions cannot be cut to {length}")
        self.length = length

    def checked_slots(self, base: int, slots: Sequence[int]) -> list[int]:
        """The slots that `keep` is to keep after the first `base`."""
        self.check_open()
        wanted = [int(slot) for slot in slots]
        ascending = all(a < b for a, b in zip([base - 1, *wanted], [*wanted, self.length], strict=True))
        if not 0 <= base <= self.length or not ascending:
            raise ValueError(f"a cache of {self.length} positions cannot keep {base} and {wanted}")
        return wanted

    def check_shared(self, start: int, stop: int) -> None:
        """Refuse positions that `share` cannot give."""
        self.check_open()
        if start % SHARE_UNIT or stop % SHARE_UNIT or not 0 <= start < stop <= self.length:
            raise ValueError(f"a cache of {self.length} positions cannot share {start} to {stop}")


class TorchCache(CheckedCache):
    """Implements `SharingCache`: positions 0 .. length-1 of a sequence are slots start .. start+length-1."""

    def __init__(self, pool: SlotPool, capacity: int) -> None:
        super().__init__(capacity)
        self.pool = pool
        self.start = pool.take(capacity, self)

    def pad(self, count: int) -> None:
        """See `PaddedCache.pad`. They hold what their slots held."""
        self.check_open()
        if not 0 <= count <= self.capacity - self.length:
            raise ValueError(f"{count} positions do not fit after {self.length} of {self.capacity}")
        self.length += count

    def keep(self, base: int, slots: Sequence[int]) -> None:
        wanted = self.checked_slots(base, slots)
        moved = next((i for i, slot in enumerate(wanted) if slot != base + i), len(wanted))
        if moved < len(wanted):
            self.pool.move([self.start + slot for slot in wanted[moved:]], self.start + base + moved)
        self.length = base + len(wanted)

    def share(self, start: int, stop: int) -> SharedSlots:
        self.check_shared(start, stop)
        rows = slice(self.start + start, self.start + stop)
        keys, values = (held[:, rows].to("cpu", copy=True) for held in (self.pool.keys, self.pool.values))
        return SharedSlots(start, keys, values)

    def adopt(self, blocks: CacheBlocks) -> None:
        self.check_open()
        if not isinstance(blocks, SharedSlots):
            raise TypeError("the torch engine takes blocks of its own caches only")
        stop = blocks.start + blocks.keys.shape[1]
        fits = (
            blocks.keys.shape[0] == self.pool.keys.shape[0]
            and blocks.keys.shape[2:] == self.pool.keys.shape[2:]
        )
        if blocks.start != self.length or stop > self.capacity or not fits:
            raise ValueError(
                f"positions {blocks.start} to {stop} do not follow {self.length} of {self.capacity}"
            )
        rows = slice(self.start + blocks.start, self.start + stop)
        self.pool.keys[:, rows] = blocks.keys.to(self.pool.keys.device)
        self.pool.values[:, rows] = blocks.values.to(self.pool.values.device)
        self.length = stop

    def close(self) -> None:
        if self._open:
            self._open = False
            self.pool.give(self.start)


def own(cache: Cache, pool: SlotPool | None) -> TorchCache:
    """The cache, as one of `pool`. Raises TypeError for any other, ValueError for a closed one."""
    if not isinstance(cache, TorchCache) or cache.pool is not pool:
        raise TypeError("the torch engine needs a cache made by the model's own new_cache()")
    cache.check_open()
    return cache


def guarded(
    caches: Sequence[TorchCache],
    counts: Sequence[int],
    reach: int,
    compute: Callable[[Sequence[TorchCache]], Result],
) -> Result:
    """What `compute` gives for the caches, which then hold so many positions more. Raises ValueError where a
    position would lie beyond `reach`, InsufficientMemoryError when the device's memory is used up."""
    for cache, count in zip(caches, counts, strict=True):
        if cache.length + count > reach:
            raise ValueError(f"no position beyond {reach} can be computed")
    try:
        with torch.no_grad():
            results = compute(caches)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        raise InsufficientMemoryError(USED_UP) from None
    for cache, count in zip(caches, counts, strict=True):
        cache.length += count
    return results
