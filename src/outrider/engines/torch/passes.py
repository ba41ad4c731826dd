"""From the items of a `forward` to passes of static shapes: what is computed together, and where it lies.

NumPy only; nothing here knows a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import IntArray
from outrider.device_memory import PATH  # columns of a pass's paths, unless a tree has more nodes
from outrider.engines.base import ForwardItem

_COUNT = np.arange(1024, dtype=np.int32)
_CHAINS = [list(range(-1, n - 1)) for n in range(33)]
FIELDS = 5  # numbers of a token before its path: token, slot, position, start, committed


class Held(Protocol):
    """Where a sequence lies in the pool of slots."""

    start: int

    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens first .. first+count-1 of item number `item`, in one pass."""

    item: int
    first: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one sequence in a pass, see `ops.Group`. seen: bool[rows, rows], or None for a chain."""

    begin: int
    end: int
    start: int
    committed: int
    seen: npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One pass, padded to `width` tokens.

    staged: int32[FIELDS * width + width * columns], the fields one after the other, then the paths.
    columns: of the paths; 0 when every sequence's new tokens are a chain and no path is needed.
    tokens: how many of the width are real.
    keys:   no token has more keys.
    wanted: int32[m], the rows whose logits are wanted, in the order of the items and their `rows`.
    parts:  what the tokens are.
    rows:   by sequence.
    """

    width: int
    columns: int
    staged: IntArray
    tokens: int
    keys: int
    wanted: IntArray
    parts: tuple[Part, ...]
    rows: tuple[Rows, ...]


def is_chain(parents: IntArray) -> bool:
    """Whether each new token follows the one before it."""
    n = len(parents)
    if n <= 32:
        return bool(parents.tolist() == _CHAINS[n])
    return bool((parents == (_COUNT[:n] if n <= len(_COUNT) else np.arange(n)) - 1).all())


def are_trees(items: Sequence[ForwardItem]) -> list[bool]:
    """Whether the new tokens of each item are a tree, and no chain."""
    return [not is_chain(item.parents) for item in items]


def check(items: Sequence[ForwardItem], vocab_size: int) -> None:
    """Raise ValueError for what no pass can compute, before anything is changed."""
    if len({id(item.cache) for item in items}) < len(items):
        raise ValueError("a cache may appear once in a pass")
    for item in items:
        tokens, parents, rows, n = item.tokens, item.parents, item.rows, len(item.tokens)
        if len(parents) != n:
            raise ValueError(f"{n} tokens have {len(parents)} parents")
        low, high = _ends(tokens)
        if low < 0 or high >= vocab_size:
            raise ValueError(f"token ids must be from 0 to {vocab_size - 1}")
        if not is_chain(parents) and (bool((parents >= np.arange(n)).any()) or int(parents.min()) < -1):
            raise ValueError("a token's parent must be -1 or a new token before it")
        low, high = _ends(rows)
        if len(rows) and (low < 0 or high >= n):
            raise ValueError(f"rows must be from 0 to {n - 1}")
        if item.cache.length + n > item.cache.capacity:
            raise ValueError(
                f"{item.cache.length} + {n} tokens do not fit in a cache of {item.cache.capacity} positions"
            )


def _ends(values: IntArray) -> tuple[int, int]:
    """The least and the greatest value; zeros when there are none. Python is the faster one for a few."""
    if len(values) > 64:
        return int(values.min()), int(values.max())
    found = values.tolist()
    return (min(found), max(found)) if found else (0, 0)


def split(
    items: Sequence[ForwardItem], width: int, *, whole_trees: bool, trees: Sequence[bool] | None = None
) -> list[list[Part]]:
    """The items' tokens in passes of at most `width`. With `whole_trees` a tree is not split, and may make
    its pass wider. trees: whether each item is one, if that is known."""
    trees = are_trees(items) if trees is None else trees
    passes: list[list[Part]] = []
    room = 0
    for number, item in enumerate(items):
        size, done = len(item.tokens), 0
        whole = whole_trees and trees[number]
        while done < size:
            if room < (min(size, width) if whole else 1):
                passes.append([])
                room = width
            count = size if whole else min(size - done, room)
            passes[-1].append(Part(number, done, count))
            done, room = done + count, room - count
    return passes


def lay_out(
    items: Sequence[ForwardItem],
    held: Sequence[Held],
    parts: Sequence[Part],
    *,
    width: int,
    always_path: bool,
    trees: Sequence[bool] | None = None,
) -> Pass:
    """The pass over `parts`, padded to `width` tokens (or as many as there are, if these are more).

    held, trees: of each item; see `split`.
    always_path: give paths also where all are chains, as graphs for both need.
    """
    trees = are_trees(items) if trees is None else trees
    total = sum(part.count for part in parts)
    width = max(width, total)
    columns = 0
    if always_path or any(trees[part.item] for part in parts):
        longest = max(len(items[part.item].tokens) if trees[part.item] else part.count for part in parts)
        columns = PATH if longest <= PATH else max(width, longest)  # few different ones
    staged = np.zeros(FIELDS * width + width * columns, np.int32)
    fields = staged[: FIELDS * width].reshape(FIELDS, width)
    paths = staged[FIELDS * width :].reshape(width, columns)
    rows, wanted, keys, begin = [], [], 1, 0
    for part in parts:
        item, place, tree = items[part.item], held[part.item], trees[part.item]
        end, tokens = begin + part.count, slice(part.first, part.first + part.count)
        first_slot = place.start + place.length
        committed = place.length if tree else place.length + part.first
        fields[0, begin:end] = item.tokens[tokens]
        fields[1, begin:end] = counted(part.count, first_slot + part.first)
        fields[3, begin:end] = place.start
        fields[4, begin:end] = committed
        ancestors = None
        if tree:
            depths, ancestors = _tree(item.parents)
            fields[2, begin:end] = committed + depths[tokens]
            for row, path in zip(range(begin, end), ancestors[tokens], strict=True):
                paths[row, : len(path)] = path
            paths[begin:end] += first_slot
            keys = max(keys, committed + int(depths[tokens].max()) + 1)
        else:
            fields[2, begin:end] = counted(part.count, committed)
            if columns:
                paths[begin:end] = counted(columns, place.start + committed)
            keys = max(keys, committed + part.count)
        seen = None
        if ancestors is not None:
            seen = np.zeros((part.count, len(item.tokens)), bool)
            for row, path in enumerate(ancestors[tokens]):
                seen[row, path] = True
        rows.append(Rows(begin, end, place.start, committed, seen))
        chosen = item.rows
        if part.count < len(item.tokens):
            chosen = chosen[(chosen >= part.first) & (chosen < part.first + part.count)]
        wanted.append(chosen + (begin - part.first))
        begin = end
    rows_wanted = np.concatenate(wanted).astype(np.int32) if wanted else np.empty(0, np.int32)
    return Pass(width, columns, staged, total, keys, rows_wanted, tuple(parts), tuple(rows))


def counted(count: int, first: int) -> IntArray:
    """int32[count]: first, first + 1 and so on."""
    if count <= len(_COUNT):
        return _COUNT[:count] + np.int32(first)
    return np.arange(first, first + count, dtype=np.int32)


def _tree(parents: IntArray) -> tuple[npt.NDArray[np.int64], list[list[int]]]:
    """(depth of each node, from 0; its ancestors in order, the node itself last)."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents.tolist()):
        paths.append([*(paths[parent] if parent >= 0 else ()), node])
    return np.array([len(path) - 1 for path in paths], np.int64), paths
