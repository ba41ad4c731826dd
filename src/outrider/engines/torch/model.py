"""`LanguageModel` on PyTorch: a `ModelSpec`'s modules, a pool of slots, and passes over any items."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from outrider.decoding.drawing import RowDraws
from outrider.decoding.types import DrawnRows, FloatArray
from outrider.device_memory import PATH, slot_bytes
from outrider.engines.base import EngineCaps, ForwardItem
from outrider.engines.chains import Chains
from outrider.engines.hidden import check_taps
from outrider.engines.torch.module import Module, Weights
from outrider.engines.torch.ops import Ops, TorchOps
from outrider.engines.torch.passes import Part, Pass, are_trees, check, lay_out, split
from outrider.engines.torch.pool import SHARE_UNIT, Result, SlotPool, TorchCache, guarded, own
from outrider.engines.torch.runner import SHARED_WIDTH, Runner, to_host
from outrider.models.spec import ModelSpec

STRICT_WIDTH = 16  # tokens of every pass where bits depend on the width
WIDEST = 512  # most tokens of a pass
WIDEST_CPU = 256  # of a prompt: 512 take 1.03 times as long for each (SmolLM2 135M, 2048 tokens, Zen 5)
LEAST_DRAWN = 2  # rows: one is drawn by the host in 0.15 ms less (benchmarks/gpu.py, plain decoding of an 8B)

Slots = Callable[["TorchModel"], int | None]
"""How many slots a model's pool has; None for one that grows. Asked once, before the first cache."""


class TorchModel:
    """A decoder-only transformer on a device of PyTorch.

    strict: a token's logits have the same bits whatever shares its passes. Where the operations' bits depend
            on the width of a pass, all passes are padded to STRICT_WIDTH tokens, those of prompts too.
    positions: most positions of a sequence; None for all of the model's.
    slots: of the pool, see `Slots`.
    graphs: capture CUDA graphs; None: on CUDA devices.
    draws:  draw tokens on the device, see `DrawingModel`; None: on CUDA devices, with Triton.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        ops: Ops | None = None,
        strict: bool = False,
        positions: int | None = None,
        slots: Slots = lambda model: None,
        graphs: bool | None = None,
        draws: bool | None = None,
    ) -> None:
        self.spec, self.weights = spec, weights
        self.device: torch.device = weights.embedding.device
        self.dtype: torch.dtype = weights.embedding.dtype
        self.ops = TorchOps() if ops is None else ops
        self.strict = strict
        reach = min(spec.max_positions, positions or spec.max_positions) + PATH
        self._module = Module(spec, weights, self.ops, reach)
        self._reach = reach
        self._slots = slots
        self._graphs = self.device.type == "cuda" if graphs is None else graphs
        self._draws = self._has_kernels() if draws is None else draws
        self._drawer: Any = None
        self._runner: Runner | None = None
        self._pool: SlotPool | None = None

    @property
    def caps(self) -> EngineCaps:
        return EngineCaps(
            tree_attention=True,
            exact_bits=self.strict,
            hidden_states=True,
            draws_rows=self._draws,
            whole_prompts=WIDEST if self.device.type == "cuda" else WIDEST_CPU,
        )

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def max_positions(self) -> int:
        return self.spec.max_positions

    @property
    def share_unit(self) -> int:
        """See `SharingModel`."""
        return SHARE_UNIT

    @property
    def share_window(self) -> int:
        """See `SharingModel`."""
        return max(layer.window or 0 for layer in self.spec.layers)

    @property
    def num_layers(self) -> int:
        return self.spec.n_layers

    @property
    def hidden_size(self) -> int:
        return self.spec.hidden_size

    @property
    def fixed_width(self) -> int | None:
        """Tokens of every pass, where bits need that; None where passes are as wide as they must be."""
        invariant = self.ops.invariant and not self.weights.packed  # products of those are the libraries'
        return STRICT_WIDTH if self.strict and not invariant else None

    @property
    def slot_bytes(self) -> int:
        """Bytes of the keys and values of one position."""
        return slot_bytes(self.spec, int(self.dtype.itemsize))

    @property
    def pool_positions(self) -> int | None:
        """See `PooledModel`. The first slot is that of padding."""
        return self.pool.slots - 1 if self.pool.fixed else None

    @property
    def pool(self) -> SlotPool:
        """The slots of all caches."""
        return self._ready()[1]

    def new_cache(self, capacity: int) -> TorchCache:
        """Raises InsufficientMemoryError when the pool has no room for `capacity` positions."""
        return TorchCache(self.pool, capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        """See `LanguageModel.forward`. Raises InsufficientMemoryError when the device's memory is used up."""
        return self._forward(items, ())[0]

    def forward_hidden(
        self, items: Sequence[ForwardItem], taps: Sequence[int]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """See `HiddenStateModel.forward_hidden`."""
        check_taps(tuple(taps), self.num_layers)
        return self._forward(items, tuple(taps))

    def chains(self, common_size: int) -> Chains | None:
        """See `ChainModel`: on CUDA devices, with Triton."""
        if not self._has_kernels():
            return None
        module = importlib.import_module("outrider.engines.torch.device_draft")
        return cast(Chains, module.DeviceDraft(self, common_size))

    def _has_kernels(self) -> bool:
        return self.device.type == "cuda" and importlib.util.find_spec("triton") is not None

    def _ready(self) -> tuple[Runner, SlotPool]:
        if self._runner is None or self._pool is None:
            spec = self.spec
            shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim)
            self._pool = SlotPool(shape, self.dtype, self.device, self._slots(self))
            # Rows of a sequence that are computed together have bits that depend on how many they are.
            dense = not self.strict and isinstance(self.ops, TorchOps)
            self._runner = Runner(self._module, self._pool, self.device, graphs=self._graphs, dense=dense)
        return self._runner, self._pool

    def forward_drawn(
        self, items: Sequence[ForwardItem], draws: Sequence[RowDraws | None]
    ) -> list[tuple[FloatArray | Callable[[], FloatArray], DrawnRows | None]]:
        """See `DrawingModel.forward_drawn`. Draws where one pass computes all items, and LEAST_DRAWN rows."""
        if sum(len(item.rows) for item in items) < LEAST_DRAWN:
            return [(rows, None) for rows in self.forward(items)]
        runner, _ = self._ready()
        if self._drawer is None:
            self._drawer = importlib.import_module("outrider.engines.torch.drawn").RowDrawer(self.device)
        drawer = self._drawer

        def compute(
            caches: Sequence[TorchCache],
        ) -> list[tuple[FloatArray | Callable[[], FloatArray], DrawnRows | None]]:
            trees = are_trees(items)
            passes = self._split(items, trees)
            if len(passes) > 1:
                return [(rows, None) for rows in self._passes(items, caches, ())[0]]
            made = self._laid_out(items, caches, passes[0], trees)
            logits, _ = runner.run(made, (), all_rows=self.fixed_width is not None)
            counts = [len(item.rows) for item in items]
            if logits is None:
                logits = torch.empty(0, self.vocab_size, device=self.device)
            drawn = drawer.draw(logits, runner.last, made.wanted, counts, draws)
            number = runner.passes

            def fetch(first: int, last: int) -> FloatArray:
                if runner.passes != number:
                    raise RuntimeError("the logits of a pass are gone with the next one")
                rows: FloatArray = logits[first:last].to("cpu", copy=True).numpy()
                return rows

            ends = np.cumsum(counts).tolist()
            return [
                (partial(fetch, end - count, end), tokens)
                for end, count, tokens in zip(ends, counts, drawn, strict=True)
            ]

        return self._guarded(items, compute)

    def _forward(
        self, items: Sequence[ForwardItem], taps: tuple[int, ...]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        return self._guarded(items, lambda caches: self._passes(items, caches, taps))

    def _guarded(
        self, items: Sequence[ForwardItem], compute: Callable[[Sequence[TorchCache]], Result]
    ) -> Result:
        """See `guarded`."""
        caches = [own(item.cache, self._pool) for item in items]
        check(items, self.vocab_size)
        return guarded(caches, [len(item.tokens) for item in items], self._reach, compute)

    def _split(self, items: Sequence[ForwardItem], trees: Sequence[bool]) -> list[list[Part]]:
        fixed = self.fixed_width
        return split(items, fixed or WIDEST, whole_trees=fixed is None, trees=trees)

    def _run(
        self,
        items: Sequence[ForwardItem],
        caches: Sequence[TorchCache],
        parts: Sequence[Part],
        taps: tuple[int, ...],
        trees: Sequence[bool],
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """One pass: see `Runner.run`."""
        runner, _ = self._ready()
        made = self._laid_out(items, caches, parts, trees)
        return runner.run(made, taps, all_rows=self.fixed_width is not None)

    def _laid_out(
        self,
        items: Sequence[ForwardItem],
        caches: Sequence[TorchCache],
        parts: Sequence[Part],
        trees: Sequence[bool],
    ) -> Pass:
        runner, _ = self._ready()
        width = self._width(sum(part.count for part in parts))
        shared = runner.graphs and width <= SHARED_WIDTH
        return lay_out(items, caches, parts, width=width, always_path=shared, trees=trees)

    def _passes(
        self, items: Sequence[ForwardItem], caches: Sequence[TorchCache], taps: tuple[int, ...]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        found: list[tuple[Sequence[Part], torch.Tensor | None, torch.Tensor | None]] = []
        trees = are_trees(items)
        for parts in self._split(items, trees):
            logits, hidden = self._run(items, caches, parts, taps, trees)
            found.append(
                (
                    parts,
                    None if logits is None else to_host(logits, self.device),
                    None if hidden is None else to_host(hidden, self.device),
                )
            )
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self._collect(items, taps, found)

    def _collect(
        self,
        items: Sequence[ForwardItem],
        taps: tuple[int, ...],
        found: Sequence[tuple[Sequence[Part], torch.Tensor | None, torch.Tensor | None]],
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """The results of passes by item: views of one pass's, or put together from those of several."""
        columns = len(taps) * self.hidden_size
        logits: list[FloatArray | None] = [None] * len(items)
        hidden: list[FloatArray | None] = [None] * len(items)
        for parts, rows, states in found:
            row, state = 0, 0
            for part in parts:
                item = items[part.item]
                if len(parts) == 1 and part.count == len(item.tokens):  # the usual pass of one sequence
                    logits[part.item] = None if rows is None else rows.numpy()
                    hidden[part.item] = None if states is None else states.numpy()
                    continue
                inside = np.flatnonzero((item.rows >= part.first) & (item.rows < part.first + part.count))
                if rows is not None and len(inside):
                    piece = rows[row : row + len(inside)].numpy()
                    row += len(inside)
                    logits[part.item] = _placed(logits[part.item], piece, inside, len(item.rows))
                if states is not None:
                    piece = states[state : state + part.count].numpy()
                    state += part.count
                    where = np.arange(part.first, part.first + part.count)
                    hidden[part.item] = _placed(hidden[part.item], piece, where, len(item.tokens))
        nothing = np.empty((0, self.vocab_size), np.float32)
        none = np.empty((0, columns), np.float32)
        return (
            [nothing if rows is None else rows for rows in logits],
            [none if states is None else states for states in hidden] if taps else [],
        )

    def _width(self, total: int) -> int:
        """Tokens that a pass over `total` is padded to."""
        if self.fixed_width is not None:
            return self.fixed_width
        return total if self.device.type != "cuda" else 1 << (total - 1).bit_length()


def _placed(whole: FloatArray | None, piece: FloatArray, where: np.ndarray, size: int) -> FloatArray:
    """`piece` as rows `where` of `whole`, float32[size, …]; itself when it is all of it, in order."""
    if whole is None:
        if len(where) == size:
            return piece
        whole = np.empty((size, piece.shape[1]), np.float32)
    whole[where] = piece
    return whole
