"""Tokens of a pass's rows, drawn on the device: one small transfer a step, in place of the logits.

The tokens are those of the request's sampler on the CPU (`kernels.sampling`); rows that are too close to call
have none, and the sampler gets their logits. After a pass that is a CUDA graph the draw is one too: launched
one by one, its kernels would take a tenth of the time of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.decoding.drawing import UNDRAWN, RowDraws
from outrider.decoding.types import DrawnRows, IntArray
from outrider.engines.torch.graphs import Graph, Graphs
from outrider.engines.torch.kernels.row_settings import RowSettings, filters, shape_of, stage
from outrider.engines.torch.kernels.sampling import SAMPLED, sample
from outrider.engines.torch.runner import GraphRun, Shape, pinned

_FIELDS = 6  # that `stage` writes


@dataclass(slots=True, eq=False)
class _Graph:
    """A captured draw, and what it reads beside the logits.

    host: pinned memory for what is staged; free again once the draw has been waited for.
    """

    host: torch.Tensor
    staged: torch.Tensor
    graph: Graph[torch.Tensor]


class RowDrawer:
    """Draws after the passes of one runner."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[tuple[Shape, int, bool, int], _Graph] = {}
        self._graphs = Graphs(device, shared=True)

    def draw(
        self,
        logits: torch.Tensor,
        run: GraphRun | None,
        wanted: IntArray,
        counts: Sequence[int],
        draws: Sequence[RowDraws | None],
    ) -> list[DrawnRows | None]:
        """The tokens of each item with `draws`, None for one without. Waits for the pass.

        logits: float32[rows, vocab] on the device, of items with `counts` rows each.
        run:    the graph that computed them, as rows `wanted` of all that it computes; None if none did.
        """
        found: list[DrawnRows | None] = [None] * len(counts)
        ends = np.cumsum(counts).tolist()
        asked = [
            (i, draw, range(end - count, end))
            for i, (draw, count, end) in enumerate(zip(draws, counts, ends, strict=True))
            if draw is not None and count
        ]
        if not asked:
            return found
        (size,) = {draw.vocab_size for _, draw, _ in asked}
        filtered, most = shape_of([filters(draw.params, size) for _, draw, _ in asked], size)
        if run is None:
            rows, at = logits[:, :size], np.arange(len(logits))
        else:
            rows, at = run.logits[:, :size], wanted.astype(np.int64)
        graph = None if run is None else self._graph((run.shape, size, filtered, most), rows)
        host = torch.zeros(_FIELDS, len(rows), dtype=torch.int64) if graph is None else graph.host
        settings = host.numpy()
        settings.fill(0)  # rows that nobody asks for give the likeliest token
        for _, draw, own in asked:
            stage(settings, at[own.start : own.stop], draw.params, draw.seed, size, draw.positions)
        if graph is None:
            staged = pinned(host, self._device).to(self._device, non_blocking=True)
            packed = _packed(rows, staged, filtered, most)
        else:
            graph.staged.copy_(host, non_blocking=True)
            packed = graph.graph.replay()
        drawn = packed.to("cpu")  # waits
        ids, shares = drawn[0].tolist(), drawn[1].view(torch.float32).tolist()
        for i, _, own in asked:
            places = at[own.start : own.stop].tolist()
            found[i] = DrawnRows([ids[row] for row in places], [shares[row] for row in places])
        return found

    def _graph(self, key: tuple[Shape, int, bool, int], rows: torch.Tensor) -> _Graph:
        """key: the shape of the pass that gives the rows, the vocabulary's size, `filtered`, `most`."""
        if key not in self._made:
            self._made[key] = self._capture(rows, key[2], key[3])
        return self._made[key]

    def _capture(self, rows: torch.Tensor, filtered: bool, most: int) -> _Graph:
        host = pinned(torch.zeros(_FIELDS, len(rows), dtype=torch.int64), self._device)
        staged = torch.zeros(_FIELDS, len(rows), dtype=torch.int64, device=self._device)
        return _Graph(host, staged, self._graphs.capture(lambda: _packed(rows, staged, filtered, most)))


def _packed(rows: torch.Tensor, staged: torch.Tensor, filtered: bool, most: int) -> torch.Tensor:
    """int32[2, rows]: tokens, and the bits of the likeliest ones' probabilities."""
    drawn = sample(rows, RowSettings.of_staged(staged, filtered, most), staged[1], likeliest=True)
    assert drawn.likeliest is not None, "as asked for"
    tokens = torch.where(drawn.status == SAMPLED, drawn.tokens, UNDRAWN)
    return torch.stack([tokens, drawn.likeliest.view(torch.int32)])
