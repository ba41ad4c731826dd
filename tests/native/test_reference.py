"""The default model against transformers, recorded by tests/scripts/record_logits_reference.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.engines.native import NativeModel
from outrider.models.formats.dequantize import dequantize
from outrider.models.open import open_model
from outrider.models.source import ModelSource, Tensor
from tests.native.support import item, load, run

pytestmark = pytest.mark.model
RECORD = Path(__file__).parent.parent / "data/reference/smollm2_logits.npz"
PROMPTS = range(10)


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, np.ndarray]]:
    with np.load(RECORD) as found:
        yield dict(found)


@pytest.fixture(scope="module")
def source(default_model: Path) -> ModelSource:
    return open_model(default_model)


@pytest.fixture(scope="module")
def quantized(source: ModelSource) -> NativeModel:
    return load(source, threads=2)


@pytest.fixture(scope="module")
def floats(source: ModelSource) -> NativeModel:
    """The same weights as float32: 540 MB, and no rounding but the floats' own."""

    def widen(tensor: Tensor) -> Tensor:
        values = np.ascontiguousarray(dequantize(tensor), np.float32)
        return Tensor(tensor.name, "F32", tensor.shape, values.reshape(-1).view(np.uint8))

    tensors = {name: widen(tensor) for name, tensor in source.tensors.items()}
    return load(replace(source, tensors=tensors), threads=2, kv_dtype="f32")


def relative_error(model: NativeModel, record: dict[str, np.ndarray]) -> float:
    """Over all positions of all prompts and the recorded sample of the vocabulary."""
    wrong = right = 0.0
    for i in PROMPTS:
        ids = record[f"prompt{i}"].tolist()
        got = run(model, model.new_cache(len(ids)), ids)[:, record["columns"]].astype(np.float64)
        wrong += np.sum((got - record[f"logits{i}"]) ** 2)
        right += np.sum(record[f"logits{i}"].astype(np.float64) ** 2)
    return float(np.sqrt(wrong / right))


def choices(model: NativeModel, prompt: list[int], text: list[int]) -> list[int]:
    """The likeliest token at each place of `text`, given all before it: where they are the text's, greedy
    decoding writes it, since the width of a pass changes no bit (test_bits.py)."""
    tokens = prompt + text[:-1]
    rows = list(range(len(prompt) - 1, len(tokens)))
    logits = model.forward([item(model.new_cache(len(tokens)), tokens, rows=rows)])[0]
    return [int(token) for token in logits.argmax(axis=1)]


def test_float_weights_agree_to_float_precision(floats: NativeModel, record: dict[str, np.ndarray]) -> None:
    assert relative_error(floats, record) < 1e-5


def test_int8_activations_stay_close(quantized: NativeModel, record: dict[str, np.ndarray]) -> None:
    assert relative_error(quantized, record) < 0.02


@pytest.mark.grid(4)
@pytest.mark.parametrize("i", PROMPTS)
def test_float_weights_write_the_same_64_tokens(
    floats: NativeModel, record: dict[str, np.ndarray], i: int
) -> None:
    wanted = record[f"greedy{i}"].tolist()
    assert len(wanted) == 64
    assert choices(floats, record[f"prompt{i}"].tolist(), wanted) == wanted


@pytest.mark.parametrize("i", PROMPTS)
def test_int8_activations_leave_the_text_only_at_a_near_tie(
    quantized: NativeModel, record: dict[str, np.ndarray], i: int
) -> None:
    wanted = record[f"greedy{i}"].tolist()
    got = choices(quantized, record[f"prompt{i}"].tolist(), wanted)
    apart = next((at for at, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b), None)
    if apart is not None:
        gap = float(record[f"gaps{i}"][apart])
        print(
            f"prompt {i}: the texts part at token {apart}, where the reference's top two are {gap:.3f} apart"
        )
        assert gap < 0.25
