"""CUDA graphs, with a stand-in for CUDA that replays operations on the CPU: passes have the bits of passes
without graphs, and what a graph may not do is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider.engines.base import ForwardItem  # noqa: E402
from outrider.engines.torch import runner  # noqa: E402
from outrider.engines.torch.graphs import Graphs  # noqa: E402
from outrider.engines.torch.model import TorchModel  # noqa: E402
from outrider.engines.torch.module import Module  # noqa: E402
from outrider.errors import InsufficientMemoryError  # noqa: E402
from tests.torch.graph_support import FakeCuda, cuda  # noqa: E402
from tests.torch.support import CPU, item, load, same_bits, source  # noqa: E402

__all__ = ["cuda"]  # the fixture

SLOTS = 1024
TAPS = (0, 2)


def model(folder: Path, family: str = "llama", *, graphs: bool = True) -> TorchModel:
    """Strict, as then bits are the same in every pass."""
    return load(source(folder, family), strict=True, graphs=graphs, slots=lambda _: SLOTS)


def tree(cache: Any, tokens: list[int], parents: list[int]) -> ForwardItem:
    n = len(tokens)
    return ForwardItem(
        cache, np.array(tokens, np.int32), np.array(parents, np.int32), np.arange(n, dtype=np.int32)
    )


def rounds(on: TorchModel) -> list[Any]:
    """Logits and hidden states of prompts, steps of two sequences, trees, rollbacks, and positions beyond
    the first span."""
    one, two = on.new_cache(400), on.new_cache(64)
    found = on.forward([item(one, range(4, 24)), item(two, [9, 8, 7])])
    found += on.forward([item(one, [3, 4]), item(two, [5])])
    one.truncate(20)
    found += on.forward([tree(one, [3, 4, 5, 6], [-1, -1, 0, 2]), item(two, [6, 2])])
    one.keep(20, [20, 22])
    logits, states = on.forward_hidden([item(one, [9, 1]), item(two, [4])], TAPS)
    found += [*logits, *states]
    long = tree(one, [7] * 240, list(range(-1, 239)))
    on.forward([replace(long, rows=np.empty(0, np.int32))])
    found += on.forward([item(one, [1, 2])])
    found += on.forward([item(two, [3])])
    return found


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_passes_have_the_bits_of_those_without(tmp_path: Path, cuda: FakeCuda, family: str) -> None:
    wanted = rounds(model(tmp_path, family, graphs=False))
    assert not cuda.happened
    found = rounds(model(tmp_path, family))
    assert all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))
    shapes = cuda.happened.count("captured")  # spans of 256 and 512 keys, with and without logits, and taps
    assert 4 <= shapes <= 6
    assert cuda.happened.count("replay") > 2 * shapes
    assert cuda.happened.count("pool") == 1


def differs(folder: Path) -> bool:
    wanted, found = rounds(model(folder, graphs=False)), rounds(model(folder))
    return not all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))


def test_inputs_that_stay_as_they_were_are_seen(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken twin: what was staged in the capture is what every replay reads."""
    staged = runner.Runner._staged
    monkeypatch.setattr(runner.Runner, "_staged", lambda self, made: staged(self, made).clone())
    assert not differs(tmp_path)
    unpacked = runner.unpacked
    monkeypatch.setattr(runner, "unpacked", lambda given, *rest: unpacked(given.clone(), *rest))
    assert not differs(tmp_path), "a copy within the graph is computed again"
    once: dict[Any, Any] = {}

    def kept(given: Any, *rest: Any) -> Any:
        return unpacked(once.setdefault((tuple(given.shape), rest[2]), given.clone()), *rest)

    monkeypatch.setattr(runner, "unpacked", kept)
    assert differs(tmp_path)


def test_spans_that_are_too_short_are_seen(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken twin: one graph for any number of keys."""
    span = runner.Runner._span
    monkeypatch.setattr(
        runner.Runner, "_span", lambda self, made, *, graph: 256 if graph else span(self, made, graph=graph)
    )
    assert differs(tmp_path)


def test_what_was_not_replayed_is_seen(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken twin: a capture computes nothing by itself."""
    monkeypatch.setattr("outrider.engines.torch.graphs.Graph.replay", lambda graph: graph.result)
    on = model(tmp_path)
    assert np.isnan(on.forward([item(on.new_cache(8), [1, 2])])[0]).all()


def test_the_order_of_a_capture(cuda: FakeCuda) -> None:
    """Two runs on a stream beside, and the capture when these are done; one pool for all."""
    graphs, x = Graphs(CPU, shared=True), torch.zeros(2)

    def double() -> Any:
        cuda.happened.append("compute")
        return x * 2

    before = ["beside waits for current", "on beside", "first", "compute", "compute", "off beside"]
    after = ["current waits for beside", "pool", "capture", "compute", "captured"]
    one = graphs.capture(double, first=lambda: cuda.happened.append("first"))
    assert cuda.happened == before + after
    x += 3
    assert one.replay().tolist() == [6, 6]
    x += 1
    assert one.result.tolist() == [6, 6]
    assert one.replay().tolist() == [8, 8]
    cuda.happened.clear()
    other = graphs.capture(double)
    assert cuda.happened == [name for name in before + after if name not in ("first", "pool")]
    other.replay()
    assert not (one.result == 8).any(), "its memory is the other's now"
    alone = Graphs(CPU, shared=False)
    one, other = alone.capture(double), alone.capture(double)
    one.replay()
    other.replay()
    assert one.result.tolist() == [8, 8]
    assert "pool" not in cuda.happened


def test_what_cannot_be_captured_runs_without(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logits = Module.logits

    def asks_the_host(self: Module, x: Any) -> Any:
        found = logits(self, x)
        assert cuda.capturing is None or found[0, 0].item() is not None
        return found

    monkeypatch.setattr(Module, "logits", asks_the_host)
    assert not differs(tmp_path)
    (message,) = [m for m in caplog.messages if "CUDA graphs" in m]
    assert message.startswith("passes run without CUDA graphs, slower: operation not permitted")
    assert not cuda.graphs


def test_memory_that_is_used_up_in_a_capture_ends_the_request(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = model(tmp_path)
    cache = on.new_cache(8)

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cuda, "CUDAGraph", full)
    with pytest.raises(InsufficientMemoryError, match="used up"):
        on.forward([item(cache, [1, 2])])
    monkeypatch.undo()
    assert cache.length == 0
