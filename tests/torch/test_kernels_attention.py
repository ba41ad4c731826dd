"""Attention: right to float64, and a token's bits the same in every pass, in trees and in chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.torch.kernel_support import DEVICE, Random, ints, same_bits, torch

from outrider.engines.torch.kernels import attention as kernel  # isort: skip
from outrider.engines.torch.ops import Layout  # isort: skip

pytestmark = pytest.mark.grid(4, whole_file=True)  # slow in the interpreter
MOST = 1024  # keys


@dataclass
class Row:
    """A token: its sequence's first slot, keys in the cache before the pass, and the slots of the new keys
    that it sees, its own last."""

    start: int
    committed: int
    path: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.committed + len(self.path) - 1

    def slots(self) -> list[int]:
        return [*range(self.start, self.start + self.committed), *self.path]


def layout(rows: list[Row], paths: bool = True) -> Layout:
    columns = max(len(row.path) for row in rows)
    padded = [row.path + [0] * (columns - len(row.path)) for row in rows]
    start, committed = ints([row.start for row in rows]), ints([row.committed for row in rows])
    return Layout(start, committed, ints([row.position for row in rows]), ints(padded) if paths else None, 0)


def chain(start: int, first: int, count: int) -> list[Row]:
    """Tokens from position `first` on, in the slots of their positions."""
    new = [start + first + i for i in range(count)]
    return [Row(start, first, new[: i + 1]) for i in range(count)]


def attend(
    q: Any, k: Any, v: Any, at: Layout, *, window: int | None = None, softcap: float | None = None
) -> Any:
    scale = float(q.shape[-1] ** -0.5)
    return kernel.attention(q, k, v, at, scale=scale, window=window, softcap=softcap, most=MOST)


def exact(
    q: Any, k: Any, v: Any, rows: list[Row], *, window: int | None = None, softcap: float | None = None
) -> Any:
    out = []
    for row, query in zip(rows, q.double(), strict=True):
        seen = row.slots()[-(window or 10**9) :]
        keys, values = (x[seen].double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("hd,thd->ht", query, keys) * q.shape[-1] ** -0.5
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        out.append(torch.einsum("ht,thd->hd", scores.softmax(-1), values))
    return torch.stack(out)


TREE = [-1, 0, 0, 1, 2, 2, 3]


def tree(start: int, committed: int, parents: list[int]) -> list[Row]:
    rows: list[Row] = []
    for node, parent in enumerate(parents):
        before = rows[parent].path if parent >= 0 else []
        rows.append(Row(start, committed, [*before, start + committed + node]))
    return rows


@pytest.mark.parametrize("spread", [64, 0])
@pytest.mark.parametrize(
    ("shape", "window", "softcap"),
    [
        ((4, 1, 16), None, None),
        ((6, 2, 48), 40, None),
        ((2, 2, 80), 257, 3.0),
        ((20, 1, 8), 1, None),
        ((3, 1, 64), None, 30.0),
    ],
)
def test_is_right(
    monkeypatch: pytest.MonkeyPatch,
    spread: int,
    shape: tuple[int, int, int],
    window: int | None,
    softcap: float | None,
) -> None:
    monkeypatch.setattr(kernel, "SPREAD", spread)
    heads, kv_heads, d = shape
    random = Random(heads)
    k, v = random.normal(700, kv_heads, d), random.normal(700, kv_heads, d)
    rows = [*tree(20, 311, TREE), *chain(400, 0, 3), *tree(480, 60, TREE[:5]), Row(0, 0, [0])]
    q = random.normal(len(rows), heads, d) * 3
    found = attend(q, k, v, layout(rows), window=window, softcap=softcap)
    expected = exact(q, k, v, rows, window=window, softcap=softcap)
    assert float((found - expected).abs().max()) < 5e-6


def test_half_precision_and_strides() -> None:
    random = Random(3)
    cache = random.normal(300, 2, 2, 32, dtype=torch.float16)
    k, v = cache[:, 0], cache[:, 1]
    qkv = random.normal(4, 8, 32, dtype=torch.float16)
    rows = chain(5, 200, 4)
    found = attend(qkv[:, :4], k, v, layout(rows))
    assert found.dtype == torch.float16
    assert float((found - exact(qkv[:, :4], k, v, rows)).abs().max()) < 2e-3


def test_unseen_slots_are_not_read() -> None:
    random = Random(4)
    k, v = random.normal(200, 1, 16), random.normal(200, 1, 16)
    rows = tree(10, 70, [-1, 0, 0])
    q = random.normal(3, 2, 16)
    for at in (layout(rows[:1]), layout(rows[:1], paths=False), layout(rows)):
        n = len(at.start)
        expected = attend(q[:n], k, v, at)
        spoiled = [x.clone() for x in (k, v)]
        for x in spoiled:
            x[:10], x[80 + n :] = torch.nan, torch.nan
        assert same_bits(attend(q[:n], spoiled[0], spoiled[1], at), expected)


Attend = Callable[[Any, Any, Any, Layout], Any]


def differing(run: Attend) -> list[str]:
    """In which passes a token has other bits than in one chain from the beginning."""
    random, size, start = Random(7), 330, 40
    k, v = random.normal(800, 2, 16), random.normal(800, 2, 16)
    q = random.normal(size, 4, 16)
    whole = run(q, k, v, layout(chain(start, 0, size), paths=False))
    found = []

    def check(name: str, part: Any, expected: Any) -> None:
        if not same_bits(part, expected):
            found.append(name)

    for i in (0, 63, 64, 255, 256, 300):
        check("alone", run(q[i : i + 1], k, v, layout(chain(start, i, 1))), whole[i : i + 1])
    for first, count in ((200, 70), (250, 9), (0, 5)):
        rows, part = chain(start, first, count), slice(first, first + count)
        check("chunk", run(q[part], k, v, layout(rows, paths=False)), whole[part])
        check("chunk with paths", run(q[part], k, v, layout(rows)), whole[part])
    other = chain(600, 90, 3)
    rows, part = chain(start, 254, 5), slice(254, 259)
    beside = run(torch.cat([q[:2], q[part], q[:1]]), k, v, layout([*other[:2], *rows, *other[2:]]))
    check("beside another sequence", beside[2:7], whole[part])
    # Nodes of trees, a sibling before each: every second slot, across the ends of a tile and a chunk.
    for first in (60, 253, 316):
        slots = [start + first + 2 * i + 1 for i in range(6)]
        keys, values = k.clone(), v.clone()
        keys[slots], values[slots] = k[start + first :][:6], v[start + first :][:6]
        rows = []
        for i in range(6):
            rows += [
                Row(start, first, [*slots[:i], slots[i] - 1]),
                Row(start, first, slots[: i + 1]),
            ]
            keys[slots[i] - 1] = random.normal(2, 16)
        part = run(q[first : first + 6].repeat_interleave(2, 0), keys, values, layout(rows))
        check("tree", part[1::2], whole[first : first + 6])
    return found


@pytest.mark.parametrize("spread", [64, 0])
def test_bits_depend_on_the_token_alone(monkeypatch: pytest.MonkeyPatch, spread: int) -> None:
    monkeypatch.setattr(kernel, "SPREAD", spread)
    assert differing(attend) == []


def merge_parts(q: Any, k: Any, v: Any, at: Layout, *, parts: int, by_slot: bool) -> Any:
    """Attention in float32 with each token's keys in `parts` parts, merged at the end."""
    out = torch.empty_like(q)
    for i in range(len(q)):
        start, old, position = (int(x[i]) for x in (at.start, at.committed, at.position))
        slots = list(range(start, start + position + 1))
        if at.path is not None:
            slots = slots[:old] + at.path[i, : position + 1 - old].tolist()
        number = torch.arange(len(slots))
        if by_slot:  # blocks of 64 slots, whichever of them the token sees
            blocks = [number[(torch.tensor(slots) - start) // 64 == b] for b in range(12)]
        else:
            blocks = list(number.tensor_split(parts))
        keys, values = (x[slots].repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("hd,thd->ht", q[i], keys) * q.shape[-1] ** -0.5
        weights = torch.exp(scores - scores.amax(1, keepdim=True))
        total, sums = torch.zeros_like(q[i, :, :1]), torch.zeros_like(q[i])
        for block in (b for b in blocks if len(b)):
            total = total + weights[:, block].sum(1, keepdim=True)
            sums = sums + (weights[:, block].t()[:, :, None] * values[block]).sum(0)
        out[i] = sums / total
    return out


def test_a_split_by_width_is_caught() -> None:
    found = differing(lambda q, k, v, at: merge_parts(q, k, v, at, parts=max(1, 8 // len(q)), by_slot=False))
    assert "alone" in found


def test_keys_by_slot_are_caught() -> None:
    assert set(differing(lambda q, k, v, at: merge_parts(q, k, v, at, parts=1, by_slot=True))) == {"tree"}


def test_the_window_follows_the_token_in_a_tree() -> None:
    random = Random(9)
    k, v = random.normal(400, 1, 16), random.normal(400, 1, 16)
    rows = tree(8, 290, TREE)
    q = random.normal(len(rows), 2, 16)
    together = attend(q, k, v, layout(rows), window=37)
    for i, row in enumerate(rows):
        assert same_bits(attend(q[i : i + 1], k, v, layout([row]), window=37), together[i : i + 1])
    assert DEVICE in str(together.device)
