"""The part of a model that stands for it in `outrider plan` loads, runs, and has its share of the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.engines.native import NativeModel, calibrate
from outrider.engines.pass_times import measure
from outrider.models.open import open_model
from outrider.models.quantization import loaded_bytes, quantized
from outrider.models.weight_types import SUPPORTED_TYPES
from outrider.plan import curves, slices
from outrider.plan.shapes import shape_source
from outrider.plan.slices import slice_of, with_random_weights
from tests.support.models import Dims, tiny_gguf


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_a_part_of_every_weight_type_runs(tmp_path: Path, kind: str) -> None:
    source = open_model(tiny_gguf(tmp_path / "a.gguf", types=kind, tied=False))
    part, share = slice_of(source, loaded_bytes(source) // 2)
    assert share == 0.5
    assert part.architecture.n_layers == 1
    assert loaded_bytes(part) / loaded_bytes(source) == pytest.approx(share, abs=0.02)
    model = NativeModel.load(part, threads=1, weights_cache=False)
    found = measure(model, 0.0, widths=(1, 4))
    assert min(found.values()) > 0.0


def test_a_small_model_is_measured_whole(tmp_path: Path) -> None:
    source = open_model(tiny_gguf(tmp_path / "a.gguf", types="Q4_0"))
    part, share = slice_of(source)
    assert share == 1.0
    assert loaded_bytes(part) == loaded_bytes(source)


def test_a_part_is_as_loaded(tmp_path: Path) -> None:
    """A draft model is quantized at load; its part has the types that it will have."""
    source = quantized(open_model(tiny_gguf(tmp_path / "a.gguf", dims=Dims(hidden=256, ffn=512))), "q3")
    part, share = slice_of(source)
    assert share == 1.0
    assert {t.type for t in part.tensors.values() if len(t.shape) == 2} == {"Q4_0", "Q3_0"}
    assert loaded_bytes(part) == loaded_bytes(source)


def test_curves_come_from_the_record_or_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    source = open_model(tiny_gguf(tmp_path / "a.gguf", types="Q4_0"))
    guessed = curves.curve_of(source, 1)
    assert guessed.how == "predicted"
    assert sorted(guessed.seconds)[0] == 1
    model = NativeModel.load(source, threads=1)
    place = calibrate.place_of([*source.fingerprint(), *calibrate.facts_of_kernels(model.isa, 1), None])
    known = {1: 0.25, 4: 0.5}
    calibrate.keep(place, known, 0.2)
    found = curves.curve_of(source, 1)
    assert found.spread == 0.2
    assert (found.how, found.seconds) == ("measured", known)
    assert found.at(2) == pytest.approx(0.25 + 0.25 / 3)
    assert found.at(8) == 1.0
    assert curves.curve_of(replace(source, quantization="q4"), 1).how == "predicted", "another model"


def test_what_the_engine_measures_is_found_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "measure", lambda *_, widths=(1,), **__: dict.fromkeys(widths, 0.125))
    source = open_model(tiny_gguf(tmp_path / "a.gguf", types="Q4_0"))
    model = NativeModel.load(source, threads=1)
    for blocks, drafts in ((None, False), (np.arange(4, dtype=np.int32), True)):
        calibrate.cost_model(model, blocks)
        monkeypatch.setattr(curves, "frequent_block_count", lambda *_: 4)
        found = curves.curve_of(source, 1, drafts=drafts)
        assert found.how == "measured"
        assert set(found.seconds.values()) == {0.125}
        assert found.spread == 0.0


def test_parts_are_as_large_as_the_caches_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cached, wanted in ((None, slices.LEAST_BYTES), (1 << 20, slices.LIMITS[0]), (32 << 20, 96 << 20)):
        monkeypatch.setattr(slices, "last_level_cache_bytes", lambda cached=cached: cached)
        assert slices.least_bytes() == wanted
    part, _ = slice_of(shape_source("llama-3.1-8b"))
    layer = loaded_bytes(slice_of(shape_source("llama-3.1-8b"), 0)[0])
    assert 96 << 20 <= loaded_bytes(part) < (96 << 20) + layer


def test_random_weights_share_their_memory() -> None:
    """The 8B takes no more than its largest matrix, and no two rows of a matrix, or layers, are the same."""
    part = with_random_weights(shape_source("llama-3.1-8b"), 3, 1024)
    buffers = {id(t.data.base): t.data.base.nbytes for t in part.tensors.values() if t.data.base is not None}
    assert sum(buffers.values()) < 8e6 + max(t.nbytes for t in part.tensors.values())
    query, other = (part.tensors[f"blk.{i}.attn_q.weight"] for i in (0, 1))
    rows = query.data.reshape(query.shape[0], -1)
    assert not (rows[0] == rows[1]).all()
    assert not np.array_equal(query.data, other.data)
