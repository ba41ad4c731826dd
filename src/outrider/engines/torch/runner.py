"""Runs passes on a device: arrays in, a CUDA graph for each shape where there are graphs, results out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from outrider.decoding.types import IntArray
from outrider.engines.torch.graphs import Graph, Graphs
from outrider.engines.torch.module import Module
from outrider.engines.torch.ops import KEYS, Group, Layout
from outrider.engines.torch.passes import FIELDS, Pass
from outrider.engines.torch.pool import SlotPool

SHARED_WIDTH = 64  # passes up to here have the same graph for chains and trees
GRAPH_WIDTH = 256  # the widest pass that gets a graph; wider ones take long enough to hide their launches
SPANS = 256  # keys: graphs whose attention reads the span are made for this many, twice as many, and so on

logger = logging.getLogger("outrider")

Computed: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]
"""Logits and hidden states of all rows of a pass."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is made for.

    head: whether logits are computed, of all rows.
    """

    width: int
    columns: int
    span: int
    head: bool
    taps: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Graph:
    """A captured pass, and what it reads."""

    staged: torch.Tensor
    graph: Graph[Computed]


@dataclass(frozen=True, slots=True, eq=False)
class GraphRun:
    """The last pass, if it was a graph: its logits, of all `shape.width` rows, until the next pass."""

    shape: Shape
    logits: torch.Tensor


class Runner:
    """Runs passes of one module.

    graphs: whether to capture CUDA graphs; turned off, with a warning, if one cannot be captured.
    passes: how many it has run.
    dense:  whether passes without a graph may compute a sequence's rows together (`Layout.groups`).
    """

    def __init__(
        self, module: Module, pool: SlotPool, device: torch.device, *, graphs: bool, dense: bool
    ) -> None:
        self._module, self._pool, self._device = module, pool, device
        self.graphs, self._dense = graphs, dense
        self.passes = 0
        self.last: GraphRun | None = None
        self._made: dict[Shape, _Graph] = {}
        self._graphs = Graphs(device, shared=True)

    def run(self, made: Pass, taps: tuple[int, ...], *, all_rows: bool) -> tuple[Any, Any]:
        """Compute a pass. Returns (logits, hidden) on the device: float32[wanted, vocab] or None when no row
        is wanted, and float32[tokens, taps * hidden] or None without taps. Valid until the next pass.

        all_rows: compute the logits of all rows if any are wanted, so that the shape does not depend on how
                  many are.
        """
        self.passes += 1
        self.last = None
        wanted = made.wanted
        widest = SHARED_WIDTH if self._module.ops.spans else GRAPH_WIDTH
        if self.graphs and made.width <= widest:
            shape = Shape(made.width, made.columns, self._span(made, graph=True), bool(len(wanted)), taps)
            graph = self._graph(shape, made)
            if graph is not None:
                graph.staged.copy_(self._staged(made), non_blocking=True)
                logits, hidden = graph.graph.replay()
                if logits is not None:
                    self.last = GraphRun(shape, logits)
                return self._rows(logits, wanted), None if hidden is None else hidden[: made.tokens]
        staged = self._staged(made).to(self._device, non_blocking=True)
        span = self._span(made, graph=False)
        x, states = self._forward(
            staged, made.width, made.columns, span, taps=taps, groups=self._groups(made)
        )
        hidden = _together(states)
        logits = None
        if len(wanted) and (all_rows or len(wanted) == made.width):
            logits = self._rows(self._module.logits(x), wanted)
        elif len(wanted):
            logits = self._module.logits(x.index_select(0, self._index(wanted)))
        return logits, None if hidden is None else hidden[: made.tokens]

    def _forward(
        self,
        staged: torch.Tensor,
        width: int,
        columns: int,
        span: int,
        *,
        taps: tuple[int, ...],
        groups: tuple[Group, ...] | None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        tokens, slots, layout = unpacked(staged, width, columns, span, groups)
        pool = self._pool
        return self._module.forward(tokens, slots, layout, keys=pool.keys, values=pool.values, taps=taps)

    def _graph(self, shape: Shape, made: Pass) -> _Graph | None:
        """The graph for passes of this shape, captured with `made` if there is none; None if it cannot be."""
        found = self._made.get(shape)
        if found is None:
            try:
                found = self._made[shape] = self._capture(shape, made)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                logger.warning("passes run without CUDA graphs, slower: %s", str(error).splitlines()[0])
                self.graphs = False
        return found

    def _capture(self, shape: Shape, made: Pass) -> _Graph:
        staged = self._staged(made).to(self._device)

        def compute() -> Computed:
            x, states = self._forward(
                staged, shape.width, shape.columns, shape.span, taps=shape.taps, groups=None
            )
            return self._module.logits(x) if shape.head else None, _together(states)

        return _Graph(staged, self._graphs.capture(compute))

    def _span(self, made: Pass, *, graph: bool) -> int:
        """Keys that attention goes through: all tokens' and as few more as the shape allows."""
        if not self._module.ops.spans:
            return 0 if graph else made.keys
        if graph:
            return SPANS << max(0, (made.keys - 1).bit_length() - (SPANS - 1).bit_length())
        return whole_blocks(made.keys)

    def _groups(self, made: Pass) -> tuple[Group, ...] | None:
        return groups_of(made, self._device) if self._dense else None

    def _rows(self, logits: torch.Tensor | None, wanted: IntArray) -> torch.Tensor | None:
        """The wanted rows of the logits of all."""
        if logits is None or not len(wanted):
            return None
        if int(wanted[-1]) == len(wanted) - 1 and bool((wanted[1:] > wanted[:-1]).all()):
            return logits[: len(wanted)]
        return logits.index_select(0, self._index(wanted))

    def _index(self, rows: IntArray) -> torch.Tensor:
        return pinned(torch.from_numpy(rows), self._device).to(self._device, non_blocking=True)

    def _staged(self, made: Pass) -> torch.Tensor:
        return pinned(torch.from_numpy(made.staged), self._device)


def unpacked(
    staged: torch.Tensor, width: int, columns: int, span: int, groups: tuple[Group, ...] | None
) -> tuple[torch.Tensor, torch.Tensor, Layout]:
    """(tokens, slots, layout) of a pass whose `Pass.staged` is on the device."""
    tokens, slots, position, start, committed = staged[: FIELDS * width].view(FIELDS, width)
    path = staged[FIELDS * width :].view(width, columns) if columns else None
    return tokens, slots.long(), Layout(start, committed, position, path, span, groups)


def groups_of(made: Pass, device: torch.device) -> tuple[Group, ...]:
    """See `Layout.groups`."""
    return tuple(
        Group(
            *(rows.begin, rows.end, rows.start, rows.committed),
            None if rows.seen is None else torch.from_numpy(rows.seen).to(device),
        )
        for rows in made.rows
    )


def whole_blocks(keys: int) -> int:
    """The keys that attention goes through for so many."""
    return -(-keys // KEYS) * KEYS


def to_host(found: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of float32 `found` on the host; on a CUDA device valid after the stream has been waited for."""
    if device.type != "cuda":
        return found.to("cpu", copy=True)
    host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    return host.copy_(found, non_blocking=True)


def pinned(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`values` where a device can copy them from without waiting; PyTorch keeps the memory until it has."""
    return values.pin_memory() if device.type == "cuda" else values


def _together(states: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return torch.cat([state.float() for state in states], 1) if states else None
