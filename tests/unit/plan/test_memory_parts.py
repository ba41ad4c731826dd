"""The memory of a pair by part."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import memory
from outrider.models.open import open_model
from outrider.models.quantization import with_kv_type
from outrider.models.source import ModelSource
from outrider.plan import memory_parts
from outrider.plan.shapes import shape_source
from tests.support.models import Dims, tiny_gguf


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return open_model(tiny_gguf(tmp_path_factory.mktemp("plan") / "target.gguf", dims=Dims(layers=3)))


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return open_model(tiny_gguf(tmp_path_factory.mktemp("plan") / "draft.gguf", dims=Dims(layers=1)))


def parts(source: ModelSource, context: int, slots: int = 1) -> dict[str, int]:
    return {part.name: part.bytes for part in memory_parts.needed(source, None, context, slots).parts}


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "phi3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("context", [100, 1000])
def test_parts_add_up_to_the_estimate(tmp_path: Path, arch: str, tied: bool, context: int) -> None:
    """That by which a pair is refused, for heads that are not hidden / heads, windows and tied embeddings."""
    dims = Dims(
        layers=6, head_dim=0 if arch == "phi3" else 32, window=16 if arch == "gemma3" else 0, context=2048
    )
    source = open_model(tiny_gguf(tmp_path / "a.gguf", arch=arch, dims=dims, tied=tied))
    for slots in (1, 3):
        found = parts(source, context, slots)
        estimate = memory.estimate(source, context, slots)
        texts = found.pop("texts and sampling")
        rows = min(memory.PASS_ROWS, 17 * slots)
        fewer = 4 * (memory.PASS_ROWS - rows) * source.architecture.vocab_size
        assert sum(found.values()) == estimate.total - fewer
        rows = memory.SAMPLER_ROWS * 4 * source.architecture.vocab_size
        assert texts == slots * (context * memory.TEXT_BYTES + rows)


def test_keys_and_values_in_8_bits_are_counted_and_offered(tmp_path: Path) -> None:
    """For both models of a pair, which hold them alike; not offered to those that have them."""
    dims = Dims(layers=3, head_dim=64, context=8192)
    source = open_model(tiny_gguf(tmp_path / "a.gguf", dims=dims))
    held = with_kv_type(source, "q8_0")
    usual, less = parts(source, 8192)["target keys and values"], parts(held, 8192)["target keys and values"]
    assert usual * 17 // 32 == less == memory.kv_bytes(held.architecture, 8192)
    most = memory_parts.needed(held, held, 8192, 1).most
    offered = memory_parts.changes(source, source, 8192, 1, most)
    assert [change.bytes for change in offered if change.flag == "--kv-quantization q8_0"] == [most]
    flags = [change.flag for change in memory_parts.changes(held, held, 8192, 1, most - 1)]
    assert "--kv-quantization q8_0" not in flags


def test_windows_are_told_apart(tmp_path: Path) -> None:
    dims = Dims(layers=6, window=16, context=8192)
    source = open_model(tiny_gguf(tmp_path / "a.gguf", arch="gemma3", dims=dims))
    short, long = parts(source, 512), parts(source, 8192)
    assert long["target keys and values"] == 16 * short["target keys and values"]
    assert long["target keys and values, window 16"] < 2 * short["target keys and values, window 16"]


def test_a_draft_has_parts_of_its_own(target: ModelSource, draft: ModelSource) -> None:
    pair = memory_parts.needed(target, draft, 256, 2)
    alone = memory_parts.needed(target, None, 256, 2)
    assert pair.total - alone.total == memory.estimate(draft, 256, 2, target=False).total
    assert {p.name for p in pair.parts} - {p.name for p in alone.parts} == {
        "draft weights",
        "draft vocabulary",
        "draft keys and values",
        "draft buffers and logits",
    }
    assert pair.loading_peak > alone.loading_peak


@given(st.integers(1, 8), st.integers(1, 64), st.floats(0.0, 1.5))
def test_changes_are_enough(
    target: ModelSource, draft: ModelSource, slots: int, blocks: int, share: float
) -> None:
    """Each change that is advised makes the pair fit, and the context is the longest that does."""
    context = 256 * blocks
    now = memory_parts.needed(target, draft, context, slots).most
    limit = int(share * now)
    found = memory_parts.largest_context(target, draft, context, slots, limit)
    if found is not None:
        assert memory_parts.needed(target, draft, found, slots).most <= limit
    longer = (found or 0) + memory_parts.LEAST_CONTEXT
    assert longer > context or memory_parts.needed(target, draft, longer, slots).most > limit
    if now > limit:
        for change in memory_parts.changes(target, draft, context, slots, limit):
            assert change.bytes <= limit
            assert change.flag or "file" in change.what


def test_what_does_not_help_at_the_peak_of_loading_is_not_advised() -> None:
    """The largest matrix is in memory twice while it is packed, however short the context is."""
    source = shape_source("gemma-3-27b:bf16")
    need = memory_parts.needed(source, None, 2048, 2)
    assert need.loading_peak > need.total
    limit = (need.loading_peak + need.total) // 2
    found = memory_parts.changes(source, None, 2048, 2, limit)
    assert [change.what for change in found] == ["weights as Q8_0"]
    assert all(change.bytes <= limit for change in found)


def test_no_change_is_advised_where_none_is_enough(target: ModelSource, draft: ModelSource) -> None:
    assert memory_parts.changes(target, draft, 1024, 1, 1000) == []


def test_two_changes_where_one_is_not_enough(target: ModelSource, draft: ModelSource) -> None:
    shortest = memory_parts.needed(target, None, 256, 1).total
    (change,) = memory_parts.changes(target, draft, 4096, 1, shortest)[:1]
    assert change.flag == "--spec suffix -c 256"
    assert change.bytes == shortest
