"""Gemma 3 270M against llama.cpp and transformers on the same file, as recorded by
tests/scripts/record_greedy_reference.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engines.native import NativeModel
from outrider.models.open import open_model
from outrider.models.text.tokenizer import Tokenizer
from tests.native.support import item, run
from tests.support.real import real_model

RECORD = Path(__file__).parent.parent / "data/reference/gemma3_greedy.json"
ENTRIES: list[dict[str, Any]] = json.loads(RECORD.read_text("utf-8"))
# Both round activations, in different ways: where the two best tokens are no further apart than this, they
# may come out in another order.
MOST = 0.25

pytestmark = pytest.mark.skipif(
    real_model("gemma-3-270m") is None, reason="needs `outrider pull gemma-3-270m`"
)


@pytest.fixture(scope="module")
def model() -> NativeModel:
    path = real_model("gemma-3-270m")
    assert path is not None
    return NativeModel.load(open_model(path), threads=2, kv_dtype="f32")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    path = real_model("gemma-3-270m")
    assert path is not None
    return Tokenizer.from_data(open_model(path).tokenizer)


@pytest.mark.grid(4)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["prompt"].split()[0])
def test_greedy_text_is_llama_cpps_up_to_a_near_tie(
    model: NativeModel, tokenizer: Tokenizer, entry: dict[str, Any]
) -> None:
    """64 tokens, or until one where llama.cpp's own two best are less than MOST apart; there ours is the
    second of them, and the two are as near to each other in exact arithmetic."""
    ids, wanted = entry["ids"], entry["tokens"]
    assert tokenizer.encode(entry["prompt"]) == ids
    cache = model.new_cache(len(ids) + len(wanted))
    logits = model.forward([item(cache, ids, rows=[len(ids) - 1])])[0][0]
    for token, second, gap, exact in zip(wanted, entry["second"], entry["gaps"], entry["exact"], strict=True):
        best = int(logits.argmax())
        if best != token:
            assert best == second
            assert max(gap, abs(exact)) < MOST
            assert logits[best] - logits[token] < MOST
            return
        assert gap > -1e-3
        logits = run(model, cache, [best])[0]


def test_nearer_to_exact_activations_than_llama_cpp(model: NativeModel) -> None:
    """Gaps between the two best tokens differ from those with float32 activations less than llama.cpp's do:
    its K-quants take one scale for 256 activations."""
    ours, theirs = [], []
    for entry in ENTRIES:
        text = entry["ids"] + entry["tokens"][:-1]
        rows = list(range(len(entry["ids"]) - 1, len(text)))
        logits = model.forward([item(model.new_cache(len(text)), text, rows=rows)])[0]
        each = np.arange(len(rows))
        gaps = logits[each, entry["tokens"]] - logits[each, entry["second"]]
        ours.append(gaps - np.array(entry["exact"]))
        theirs.append(np.array(entry["gaps"]) - np.array(entry["exact"]))
    mine, other = (float(np.sqrt(np.mean(np.square(errors)))) for errors in (ours, theirs))
    assert mine < 0.14
    assert other > 1.3 * mine


def test_the_record_is_what_it_says() -> None:
    assert len({entry["prompt"] for entry in ENTRIES}) == 10
    for entry in ENTRIES:
        assert len(entry["tokens"]) == len(entry["second"]) == len(entry["gaps"]) == 64
        assert (np.array(entry["tokens"]) != entry["second"]).all()
