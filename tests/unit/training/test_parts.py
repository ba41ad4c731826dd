"""A run's folder, the records of texts, the choice of the vocabulary, and what is said of progress."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.engine import parse_engine
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel
from outrider.errors import ConfigError, ModelFileError
from outrider.models.open import open_model
from outrider.pipeline import build
from outrider.training.progress import Acceptance, accepted, gain, pays
from outrider.training.settings import RunFolder, Settings, digest_of, identity
from outrider.training.states import Layout, StateStore, capture
from outrider.training.texts import Text
from outrider.training.vocabulary import MOST, STEP, chosen, counted, coverage
from tests.support.models import Dims, tiny_gguf

DIMS = Dims(layers=4)
TARGET = {"name": "Tiny", "weights": "1"}


# --- The folder -----------------------------------------------------------------------------------


def test_a_run_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    folder, first = RunFolder(tmp_path / "run"), Settings(data="self", tokens=100, seed=3)
    assert folder.begin(TARGET, first, frozenset()) == first
    again = RunFolder(tmp_path / "run")
    assert again.begin(TARGET, Settings(data="self", tokens=7), frozenset({"data"})) == first
    assert again.begin(TARGET, first, frozenset({"data", "seed", "temperatures"})) == first


def test_another_run_is_refused_naming_what_differs(tmp_path: Path) -> None:
    folder, first = RunFolder(tmp_path), Settings(data="self", tokens=100)
    folder.begin(TARGET, first, frozenset())
    with pytest.raises(ConfigError, match=r"another target, 'Tiny'"):
        folder.begin({**TARGET, "weights": "2"}, first, frozenset())
    with pytest.raises(ConfigError, match=r"seed 0, not 1, tokens 100, not 5"):
        folder.begin(TARGET, replace(first, seed=1, tokens=5), frozenset({"seed", "tokens"}))
    with pytest.raises(ConfigError, match=r"data 'self', not"):
        folder.begin(TARGET, replace(first, data=digest_of(["a"])), frozenset({"data"}))


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="other files"):
        RunFolder(tmp_path).begin(TARGET, Settings(data="self", tokens=1), frozenset())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "target": 3, "settings": {}}']
)
def test_a_damaged_run_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(ModelFileError, match="another folder"):
        RunFolder(tmp_path).known()


def test_settings_that_are_missing_are_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(TARGET, Settings(data="self", tokens=1), frozenset())
    path = folder.run / "run.json"
    path.write_text(path.read_text().replace('"temperatures"', '"heat"'))
    with pytest.raises(ModelFileError, match="settings are missing"):
        folder.begin(TARGET, Settings(data="self", tokens=1), frozenset())


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0}, {"epochs": 0}, {"rate": 0.0}, {"rate": float("nan")}, {"steps": 17}, {"vocab": -1},
        {"rank": -1},
        {"seed": -1}, {"seed": 2**32}, {"temperatures": ()}, {"temperatures": (float("nan"),)},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**{"data": "self", "tokens": 1, **wrong})


def test_targets_are_told_apart_by_their_weights(tmp_path: Path) -> None:
    one, other = (open_model(tiny_gguf(tmp_path / f"{i}.gguf", seed=i)) for i in range(2))
    assert identity(one) == identity(open_model(tiny_gguf(tmp_path / "copy.gguf", seed=0)))
    assert identity(one) != identity(other)


# --- Hidden states --------------------------------------------------------------------------------


def text(*ids: int) -> Text:
    return Text(0, ids[:2], ids[2:], 0.0, False)


def test_records_are_what_the_target_computes(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "t.gguf", dims=DIMS)
    engine = build(parse_engine(str(path), {"method": "none"}, threads=1)).engine
    ids = np.random.default_rng(0).integers(0, 300, 200)
    found = capture(engine, ids.tolist(), Layout((1, 4), DIMS.hidden))
    model = NativeModel.load(open_model(path), threads=1)
    everything = np.arange(len(ids), dtype=np.int32)
    item = ForwardItem(model.new_cache(256), ids.astype(np.int32), everything - 1, everything)
    (logits,), (hidden,) = model.forward_hidden([item], (1, 4))
    np.testing.assert_array_equal(found["likeliest"], logits[:-1].argmax(axis=1))
    np.testing.assert_array_equal(found["states"].reshape(199, -1), hidden[:-1].astype(np.float16))


def test_a_store_goes_on_after_the_last_whole_text(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "t.gguf", dims=DIMS)
    engine = build(parse_engine(str(path), {"method": "none"}, threads=1)).engine
    layout, texts = Layout((2, 4), DIMS.hidden), [text(1, 2, 3, 4), text(5, 6, 7), text(8, 9, 10, 11, 12)]
    whole = StateStore(tmp_path / "whole", layout, texts)
    whole.fill(engine, lambda: False, lambda _: None)
    parts = StateStore(tmp_path / "parts", layout, texts)
    parts.fill(engine, lambda: parts.done == 2, lambda _: None)
    with open(tmp_path / "parts", "ab") as file:
        file.write(b"x" * (layout.record.itemsize + 1))
    parts = StateStore(tmp_path / "parts", layout, texts)
    assert (parts.done, parts.missing_bytes) == (2, 4 * layout.record.itemsize)
    told: list[int] = []
    parts.fill(engine, lambda: False, told.append)
    assert told == [4]
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
    np.testing.assert_array_equal(parts.of(1), capture(engine, texts[1].ids, layout))


# --- The vocabulary -------------------------------------------------------------------------------


def test_the_most_frequent_tokens_are_taken() -> None:
    counts = counted([[5, 5, 5, 2], [2, 9]], 12)
    assert counts[5] == 3
    assert chosen(counts, 2, 0.5, counts).tolist() == [2, 5]
    assert chosen(counts, 4, 0.5, counts).tolist() == [0, 2, 5, 9], "lower ids first among equals"
    assert chosen(counts, 50, 0.5, counts).tolist() == list(range(12))
    assert coverage(counts, np.array([2, 5])) == pytest.approx(5 / 6)


@given(st.lists(st.integers(0, 4999), max_size=300), st.floats(0.01, 1.0))
def test_by_coverage_it_covers_enough(ids: list[int], part: float) -> None:
    counts = counted([ids], 5000)
    found = chosen(counts, 0, part, counts)
    assert len(found) in (min(5000, k * STEP) for k in range(1, MOST // STEP))
    assert (np.diff(found) > 0).all()
    assert not ids or coverage(counts, found) >= part - 1e-9


def test_the_size_is_that_which_covers_other_texts() -> None:
    """The texts to learn from would be content with the first 1,024 ids."""
    counts, tested = counted([range(1000)], 5000), counted([range(0, 4000, 2)], 5000)
    assert len(chosen(counts, 0, 0.95, counts)) == STEP
    assert len(chosen(counts, 0, 0.95, tested)) == 4 * STEP


# --- Progress -------------------------------------------------------------------------------------


def test_a_token_counts_if_all_before_it_were_right() -> None:
    yes, no = True, False
    right = [np.array([yes, yes, no, yes]), np.array([yes, no, yes, yes]), np.array([yes, yes, yes, no])]
    possible = [np.array([yes, yes, yes, yes])] * 2 + [np.array([yes, yes, yes, no])]
    found = accepted(right, possible)
    assert found == Acceptance(3, (2, 1, 1))
    assert found.by_position == (2 / 3, 1 / 2, 1.0)
    assert found.tokens_per_pass == pytest.approx(1 + 4 / 3)
    assert found + found == Acceptance(6, (4, 2, 2))
    assert Acceptance(0, (0, 0)).tokens_per_pass == 1.0


def test_when_more_training_does_not_pay() -> None:
    rising = [(k / 10, 1 + k / 10) for k in range(5)]
    assert gain(rising[:3]) is None
    assert pays(rising[:3])
    assert gain(rising) == pytest.approx(0.1)
    assert pays(rising)
    assert pays([(k / 10, 1.0) for k in range(4)]), "it has hardly begun"
    assert not pays([*rising, *[(k / 10, 1.4) for k in range(5, 9)]])
