"""The part of a model that stands for it in `outrider plan` loads, runs, and has its share of the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.engines.native import NativeModel, calibrate
from outrider.models.open import open_model
from outrider.models.quantization import loaded_bytes, quantized
from outrider.models.weight_types import SUPPORTED_TYPES
from outrider.plan import curves
from outrider.plan.slices import slice_of
from tests.support.models import Dims, tiny_gguf


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_a_part_of_every_weight_type_runs(tmp_path: Path, kind: str) -> None:
    source = open_model(tiny_gguf(tmp_path / "a.gguf", types=kind, tied=False))
    part, share = slice_of(source, loaded_bytes(source) // 2)
    assert share == 0.5
    assert part.architecture.n_layers == 1
    assert loaded_bytes(part) / loaded_bytes(source) == pytest.approx(share, abs=0.02)
    model = NativeModel.load(part, threads=1, weights_cache=False)
    found = calibrate.measure(model, 0.0, widths=(1, 4))
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
