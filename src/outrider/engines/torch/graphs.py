"""CUDA graphs: what is computed again and again is captured once and replayed, without launching its kernels
one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

WARM_UPS = 2  # runs before the capture, in which kernels are compiled and chosen


@dataclass(slots=True, eq=False)
class Graph(Generic[Result]):
    """A captured computation. result: what it returned; the tensors hold the values of the last replay."""

    _graph: Any
    result: Result

    def replay(self) -> Result:
        """Compute `result` again, from what the tensors that were read in the capture hold now."""
        self._graph.replay()
        return self.result


class Graphs:
    """Captures computations on one CUDA device.

    shared: their memory comes from one pool, so that the results of one are valid until the next one is
            replayed; else each has memory of its own.
    """

    def __init__(self, device: torch.device, *, shared: bool) -> None:
        self._device, self._shared = device, shared
        self._memory: Any = None

    def capture(
        self, compute: Callable[[], Result], first: Callable[[], object] = lambda: None
    ) -> Graph[Result]:
        """A graph of `compute`, whose shapes are static and which never waits for the device. After `first`,
        it is run on a stream beside and then captured. Raises RuntimeError for what cannot be captured."""
        device = self._device
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            first()
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream(device).wait_stream(beside)
        if self._shared and self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            result = compute()
        return Graph(graph, result)
