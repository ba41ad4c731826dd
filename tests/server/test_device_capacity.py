"""Servers whose sequences lie in a pool of a device's memory: toy models that say that they have one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider import device_memory, memory
from outrider.config.engine import parse_engine
from outrider.engines.base import Cache
from outrider.errors import InsufficientMemoryError
from outrider.models.source import ModelSource
from outrider.pipeline import PLANNED_POSITIONS, Pipeline, build
from outrider.server.engine import capacity
from outrider.server.engine.async_engine import ServerEngine
from outrider.server.engine.capacity import Capacity
from tests.server.engine_support import read, reasons, request, serve
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyModel

ITEM_BYTES = 2  # as bfloat16 has


class Pooled(ToyModel):
    """Has room for so many positions, and keeps account of them."""

    def __init__(self, source: ModelSource, positions: int | None) -> None:
        super().__init__(source.architecture.vocab_size, source.architecture.max_positions)
        self.pool_positions = positions
        self.slot_bytes = device_memory.slot_bytes(source.architecture, ITEM_BYTES)
        self.capacities: list[int] = []

    def new_cache(self, capacity: int) -> Cache:
        self.capacities.append(capacity)
        return super().new_cache(capacity)


def pooled(target: Path, positions: int | None, draft: Path | None = None, **arguments: object) -> Pipeline:
    speculative = "ngram" if draft is None else {"model": str(draft), "num_speculative_tokens": 2}
    config = parse_engine(str(target), speculative, **{"max_num_seqs": 4, **arguments})
    return build(config, lambda source, threads: Pooled(source, positions))


def position_bytes(pipeline: Pipeline) -> int:
    sources = [source for source in (pipeline.source, pipeline.draft) if source is not None]
    return sum(device_memory.slot_bytes(source.architecture, ITEM_BYTES) for source in sources)


@pytest.mark.parametrize("with_draft", [False, True])
def test_the_budget_is_the_pool(target_file: Path, draft_file: Path, with_draft: bool) -> None:
    """Not main memory, of which next to nothing is needed; in bytes of all models' pools."""
    pipeline = pooled(target_file, 1000, draft_file if with_draft else None)
    found = Capacity(pipeline, limit=None, prefix_bytes=0)
    each = position_bytes(pipeline)
    assert found.budget.limit == 1000 * each
    assert found.context == pipeline.context == 256
    assert found.need(request("a", max_tokens=20)) == 23 * each
    assert found.need(request("a", max_tokens=None)) == 256 * each


def test_a_pool_that_grows_is_counted_in_main_memory(target_file: Path) -> None:
    pipeline = pooled(target_file, None)
    found = Capacity(pipeline, 10**9, 0)
    assert found.budget.limit < 10**9
    assert found.need(request("a", max_tokens=20)) > 23 * position_bytes(pipeline)


def test_weights_need_no_main_memory(target_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with less main memory than the model has weights."""
    monkeypatch.setattr(memory, "usable_bytes", lambda weights=0: 10_000)
    found = Capacity(pooled(target_file, 1000), None, None)
    assert found.budget.limit > 10_000
    assert found.stats()["prefix_limit"] <= 10_000 // memory.PREFIX_SHARE
    with pytest.raises(InsufficientMemoryError, match="--prefix-cache"):
        Capacity(pooled(target_file, 1000), None, 20_000)


def test_the_context_is_lowered_to_what_the_device_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tiny_gguf(tmp_path / "long.gguf", dims=Dims(context=2 * PLANNED_POSITIONS))
    found = Capacity(pooled(target, PLANNED_POSITIONS + 100), None, 0)
    assert found.context == PLANNED_POSITIONS + 100
    assert f"a context of {found.context} tokens, not {2 * PLANNED_POSITIONS}" in caplog.text
    for positions, wanted in (
        (PLANNED_POSITIONS - 1, None),
        (PLANNED_POSITIONS + 100, PLANNED_POSITIONS + 101),
    ):
        with pytest.raises(InsufficientMemoryError, match=r"on the device.*--gpu-memory-utilization"):
            Capacity(pooled(target, positions, max_model_len=wanted), None, 0)


def test_requests_wait_for_the_pool(target_file: Path) -> None:
    """Two of three fit at a time; all end as they should, and none asks for more than was set aside."""
    pipeline = pooled(target_file, 60)
    engine = ServerEngine(replace(pipeline, context=60), prefix_bytes=0)
    model = pipeline.engine._model  # type: ignore[attr-defined]
    at_once: list[int] = []

    async def client(engine: ServerEngine) -> list[dict[str, str]]:
        streams = [engine.submit([request(name, max_tokens=20)]) for name in "abc"]
        at_once.append(engine.stats.cache_bytes)
        return [reasons(await read(stream)) for stream in streams]

    assert serve(engine, client) == [{name: "length"} for name in "abc"]
    assert model.capacities == [23, 23, 23]
    assert engine.stats.cache_limit == 60 * position_bytes(pipeline)
    assert capacity.pooled_bytes(model, [pipeline.source.architecture]) == position_bytes(pipeline)
