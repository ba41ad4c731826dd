"""The cost curve is measured once, stored on disk, and never read from a damaged file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.decoding.types import FloatArray
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel, _core, calibrate
from outrider.engines.pass_times import CONTEXT, LONGER_WIDTHS, longer_of, measure, measure_longer
from outrider.models.open import open_model
from tests.support.models import Dims, tiny_gguf
from tests.support.passes import PositionTimer
from tests.support.toy_model import ToyModel


class Clock:
    """Every reading is a millisecond after the one before."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def test_every_width_is_measured_as_far_as_the_context_reaches() -> None:
    curve = measure(ToyModel(40, 100, seed=1), widths=calibrate.WIDTHS, clock=Clock())
    assert curve == {n: pytest.approx(1e-3) for n in calibrate.WIDTHS}
    assert set(measure(ToyModel(40, 7, seed=1), widths=calibrate.WIDTHS, clock=Clock())) == {1}


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of a tiny model are too short to be steady."""
    monkeypatch.setattr(calibrate, "UNSTEADY", 1e9)


@pytest.fixture
def model(tmp_path: Path) -> NativeModel:
    return NativeModel.load(open_model(tiny_gguf(tmp_path / "tiny.gguf")), threads=1)


def test_draft_prefill_is_measured_without_logits() -> None:
    wanted: dict[int, set[int]] = {}

    class Watched(ToyModel):
        def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
            wanted.setdefault(len(items[0].tokens), set()).add(len(items[0].rows))
            return super().forward(items)

    measure(Watched(40, 200, seed=1), widths=calibrate.WIDTHS, clock=Clock(), most_rows=8)
    assert {n: rows for n, rows in wanted.items() if n != CONTEXT} == {
        n: {n if n <= 8 else 1} for n in calibrate.WIDTHS
    }


def test_it_is_measured_once(model: NativeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = calibrate.cost_model(model, None, tmp_path)
    measured: list[Sequence[int]] = []

    def measure(model: object, seconds: float = 1.0, *, widths: Sequence[int], **_: int) -> dict[int, float]:
        measured.append(widths)
        return dict.fromkeys(widths, 1e-3)

    monkeypatch.setattr(calibrate, "measure", measure)
    again = calibrate.cost_model(model, None, tmp_path)
    assert [again.at(32).seconds(n) for n in (1, 2, 8)] == [first.at(32).seconds(n) for n in (1, 2, 8)]
    assert measured == [(1,)], "a single token, to see whether the record still holds"


@pytest.fixture
def long_model(tmp_path: Path) -> NativeModel:
    """Of a context that is long enough to be measured further on in it."""
    keys = {"llama.context_length": 512}
    return NativeModel.load(open_model(tiny_gguf(tmp_path / "long.gguf", keys=keys)), threads=1)


def test_a_longer_context_adds_the_difference_of_both(
    long_model: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = {1: 100.0, 4: 110.0, 8: 120.0, 16: 150.0}
    found = measure_longer(long_model, curve, 332, clock=PositionTimer(NativeModel, monkeypatch))
    assert found == {n: curve[n] + (332 - CONTEXT) * n for n in LONGER_WIDTHS}


def test_a_longer_context_is_on_record_too(
    long_model: NativeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = calibrate.cost_model(long_model, None, tmp_path / "curves")
    (record,) = (tmp_path / "curves").glob("*.json")
    assert set(json.loads(record.read_text())["seconds_longer"]) == {"1", "4", "16"}

    def not_again(*_: object, **__: object) -> dict[int, float]:
        raise AssertionError

    monkeypatch.setattr(calibrate, "measure_longer", not_again)
    again = calibrate.cost_model(long_model, None, tmp_path / "curves")
    assert [again.at(400).seconds(n) for n in (1, 4, 8)] == [first.at(400).seconds(n) for n in (1, 4, 8)]
    assert first.at(500).seconds(16) > first.at(32).seconds(16)


def test_a_model_of_little_context_is_measured_in_none_longer(model: NativeModel, tmp_path: Path) -> None:
    assert longer_of(model.source.architecture.layers, model.max_positions) is None
    found = calibrate.cost_model(model, None, tmp_path)
    assert found.at(100).seconds(4) == found.at(32).seconds(4)


def test_windows_are_those_of_the_layers(tmp_path: Path) -> None:
    path = tiny_gguf(
        tmp_path / "gemma.gguf", arch="gemma3", dims=replace(Dims(), layers=6, window=64, context=512)
    )
    model = NativeModel.load(open_model(path), threads=1)
    longer = longer_of(model.source.architecture.layers, model.max_positions)
    assert longer is not None
    assert sorted(longer.windows, key=str) == [(64, 5), (None, 1)]


@pytest.mark.parametrize(
    "damage", ['{"1": 2.0, "3": 2.0}', '{"4": 2.0}', '{"1": -1}', "[]", "null", '{"1": "x"}']
)
def test_a_damaged_longer_context_is_measured_again(
    long_model: NativeModel, tmp_path: Path, damage: str
) -> None:
    calibrate.cost_model(long_model, None, tmp_path / "curves")
    (record,) = (tmp_path / "curves").glob("*.json")
    whole = json.loads(record.read_text())
    record.write_text(json.dumps({**whole, "seconds_longer": json.loads(damage)}))
    assert calibrate.cost_model(long_model, None, tmp_path / "curves").at(400).seconds(4) > 0
    assert set(json.loads(record.read_text())["seconds_longer"]) == {"1", "4", "16"}


@pytest.mark.parametrize(("now", "kept"), [(0.9e-3, True), (3e-3, True), (0.2e-3, False)])
def test_what_was_recorded_under_other_load_is_measured_again(
    model: NativeModel, tmp_path: Path, now: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is slower now says nothing of the record; one that is faster does."""
    monkeypatch.setattr(calibrate, "UNSTEADY", 1.4)
    speed = 1e-3

    def measure(model: object, seconds: float = 1.0, *, widths: Sequence[int], **_: int) -> dict[int, float]:
        return {n: speed * n for n in widths}

    monkeypatch.setattr(calibrate, "measure", measure)
    calibrate.cost_model(model, None, tmp_path)
    speed = now
    assert calibrate.cost_model(model, None, tmp_path).at(32).seconds(1) == pytest.approx(
        1e-3 if kept else now
    )
    (record,) = tmp_path.glob("*.json")
    assert json.loads(record.read_text())["seconds"]["1"] == pytest.approx(1e-3 if kept else now)


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", '{"seconds": 3}', '{"seconds": {}}', '{"seconds": {"1": "x"}}'),
        *('{"seconds": {"1": -1.0}}', '{"seconds": {"1": NaN}}', '{"seconds": {"1": 1, "77": 1}}'),
        '{"seconds": {"1": 1e400}}',
    ],
)
def test_a_damaged_record_is_measured_again(
    model: NativeModel, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate.cost_model(model, None, tmp_path)
    (record,) = tmp_path.glob("*.json")
    record.write_text(damage)
    monkeypatch.setattr(calibrate, "measure", lambda model, seconds=0.0, **_: {1: 0.5, 2: 0.75})
    assert calibrate.cost_model(model, None, tmp_path).at(32).seconds(1) == pytest.approx(0.5)
    assert json.loads(record.read_text()) == {"seconds": {"1": 0.5, "2": 0.75}, "spread": 0.0}


def test_a_folder_that_cannot_be_written_changes_nothing(model: NativeModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert calibrate.cost_model(model, None, tmp_path / "file").at(32).seconds(1) > 0


def test_another_thread_count_is_another_record(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    for threads in (1, 2):
        calibrate.cost_model(NativeModel.load(open_model(path), threads=threads), None, tmp_path / "curves")
    assert len(list((tmp_path / "curves").glob("*.json"))) == 2


def test_another_build_is_another_record(
    model: NativeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"kernels")
    calibrate.cost_model(model, None, tmp_path / "curves")
    monkeypatch.setattr(_core, "__file__", str(other))
    calibrate.cost_model(model, None, tmp_path / "curves")
    assert len(list((tmp_path / "curves").glob("*.json"))) == 2


@pytest.mark.parametrize(("again", "kept"), [(1.1e-3, True), (2.5e-3, False), (0.5e-3, False)])
def test_what_was_measured_under_other_load_is_not_kept(
    model: NativeModel, tmp_path: Path, again: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "UNSTEADY", 1.4)
    monkeypatch.setattr(calibrate, "measure", lambda model, seconds=1.0, **_: {1: 1e-3 if seconds else again})
    assert calibrate.cost_model(model, None, tmp_path).at(32).seconds(1) == pytest.approx(1e-3)
    assert bool(list(tmp_path.glob("*.json"))) == kept


def test_widths_follow_the_kernels_token_tiles(model: NativeModel) -> None:
    assert calibrate.pass_widths(10, 8) == (1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 17, 20)
    assert calibrate.pass_widths(4, 4) == (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
    assert _core.token_tiles(model.isa) == (model.token_tile, model.usual_token_tile)
