"""CUDA graphs on the CPU: a stand-in for the part of `torch.cuda` that `engines/torch/graphs.py` calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outrider.engines.torch import graphs

ON_THE_HOST = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _spoil(tensor: torch.Tensor) -> None:
    tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 0)


@dataclass(eq=False)
class FakeGraph:
    """What was called in a capture, and the memory that it was given."""

    cuda: FakeCuda
    pool: object = None
    calls: list[Callable[[], object]] = field(default_factory=list)
    made: list[torch.Tensor] = field(default_factory=list)

    def lose(self) -> None:
        """What is in its memory is no more what was computed."""
        for tensor in self.made:
            _spoil(tensor)

    def replay(self) -> None:
        self.cuda.happened.append("replay")
        for other in self.cuda.graphs:
            if other is not self and self.pool is not None and other.pool is self.pool:
                other.lose()
        self.lose()
        for call in self.calls:
            call()


class _Recording(TorchDispatchMode):  # type: ignore[misc]  # of torch, which mypy does not read
    """Notes PyTorch's operations in `graph`. As on a device, a capture computes nothing: results are memory
    without meaning, and tensors that are written to keep what they hold."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func._schema.name in ON_THE_HOST:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        if func._schema.is_mutable:
            self.graph.calls.append(lambda: func(*args, **given))
            return args[0]
        out = func(*args, **given)
        read = {_place(tensor) for tensor in _tensors((args, given))}
        new = [tensor for tensor in _tensors(out) if _place(tensor) not in read]
        if not new:  # a view
            return out

        def again() -> None:
            for held, found in zip(_tensors(out), _tensors(func(*args, **given)), strict=True):
                held.copy_(found)

        self.graph.calls.append(again)
        self.graph.made += new
        for tensor in new:
            _spoil(tensor)
        return out


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.happened.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """happened: what was done with streams and graphs, in order."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.graphs: list[FakeGraph] = []
        self.capturing: FakeGraph | None = None
        self._current = FakeStream(self, "current")

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802
        return FakeStream(self, "beside")

    def current_stream(self, device: torch.device) -> FakeStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.happened.append(f"on {stream.name}")
        yield
        self.happened.append(f"off {stream.name}")

    def graph_pool_handle(self) -> object:
        self.happened.append("pool")
        return object()

    def CUDAGraph(self) -> FakeGraph:  # noqa: N802
        return FakeGraph(self)

    @contextmanager
    def graph(self, graph: FakeGraph, pool: object = None) -> Iterator[None]:
        self.happened.append("capture")
        graph.pool = pool
        self.capturing = graph
        try:
            with _Recording(graph):
                yield
        finally:
            self.capturing = None
        self.graphs.append(graph)
        self.happened.append("captured")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """In the place of `torch.cuda`, for graphs alone."""

    class Torch:
        cuda = FakeCuda()

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    monkeypatch.setattr(graphs, "torch", Torch())
    return Torch.cuda


def with_kernels(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs with Triton's kernels, which its interpreter runs."""
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        if cuda.capturing is None:
            launch(self, *args, **kwargs)
        else:
            cuda.capturing.calls.append(lambda: launch(self, *args, **kwargs))

    monkeypatch.setattr(GridExecutor, "__call__", noted)
