"""EAGLE-3 heads on the engine: hidden states and logits against float64, and bit for bit over passes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.engines.heads import HeadItem, HeadModel
from outrider.engines.native import _core
from outrider.engines.native.head import NativeHead
from outrider.engines.native.loading import encoded
from outrider.engines.native.model import NativeModel
from outrider.errors import UnsupportedModelError
from outrider.models.eagle3.head import Eagle3Head
from outrider.models.eagle3.open import open_head
from outrider.models.formats.dequantize import dequantize
from outrider.models.open import open_model
from outrider.models.quantization import loaded_type, quantized
from outrider.models.source import ModelSource
from tests.native.support import core, item, usable_isas
from tests.support.heads import (
    RECORDED,
    RECORDED_GGUF,
    HeadDims,
    ReferenceHead,
    TinyHead,
    gguf_head,
    head_inputs,
    original_folder,
    speculators_folder,
    tiny_head,
)
from tests.support.models import Dims, tiny_gguf
from tests.support.three_bits import values

N, TRUE = 40, 24  # tokens, and those of them that come with the target's hidden states
TARGET = Dims(layers=6)
REFERENCE = Path(__file__).parent.parent / "data/reference"

CASES: dict[str, tuple[str, HeadDims]] = {
    "original": ("original", HeadDims()),
    "original, whole vocabulary": ("original", HeadDims(rows=0)),
    "original, target's embedding": ("original", HeadDims(embedding=False)),
    "original, other width": ("original", HeadDims(hidden=96, heads=6, kv_heads=3)),
    "original, rows that fill no panel": ("original", HeadDims(rows=101, taps=(1, 4, 6))),
    "speculators": ("speculators", HeadDims()),
    "speculators, norm before residual": ("speculators", HeadDims(norm_before_residual=True)),
    "speculators, one norm before fc": ("speculators", HeadDims(joint_norm=True)),
    "speculators, norms of each state": ("speculators", HeadDims(state_norms=True, norm_output=True)),
    "speculators, three layers of qwen3": (
        "speculators",
        HeadDims(layers=3, qk_norms=True, norm_before_residual=True, state_norms=True, norm_output=True),
    ),
    "speculators, four states": ("speculators", HeadDims(states=4, taps=(0, 2, 5, 6))),
    "gguf": ("gguf", HeadDims(taps=(2, 3, 4))),
    "gguf, all switches": ("gguf", HeadDims(taps=(2, 3, 3), norm_before_residual=True, joint_norm=True)),
    "gguf, target's embedding": ("gguf", HeadDims(taps=(1, 2, 5), embedding=False)),
}


def write(folder: Path, dialect: str, head: TinyHead) -> Path:
    if dialect == "gguf":
        return gguf_head(folder / "head.gguf", head)
    return {"original": original_folder, "speculators": speculators_folder}[dialect](folder / "head", head)


def target(folder: Path) -> ModelSource:
    return open_model(tiny_gguf(folder / "target.gguf", dims=TARGET, tied=False))


def opened(folder: Path, dialect: str, head: TinyHead) -> Eagle3Head:
    found = open_head(write(folder, dialect, head))
    assert found is not None
    return found.for_target(target(folder))


def inputs(dims: HeadDims) -> tuple[list[int], npt.NDArray[np.float32]]:
    return head_inputs(dims, N)


def run(
    head: HeadModel, tokens: Sequence[int], states: npt.NDArray[np.float32], passes: Sequence[int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(logits, states) after each token: those with the target's states in passes of so many tokens, then the
    others one by one with what was fed back."""
    cache = head.new_cache(N)
    logits: list[npt.NDArray[np.float32]] = []
    given: list[npt.NDArray[np.float32]] = []
    at = 0
    for count in [*passes, *[1] * (len(tokens) - sum(passes))]:
        fed_back = at >= sum(passes)
        comes_with = given[-1][-1:] if fed_back else states[at : at + count]
        ids = np.array(tokens[at : at + count], np.int32)
        item = HeadItem(cache, ids, comes_with, np.arange(count, dtype=np.int32))
        (rows,), (more,) = head.forward_head([item], fed_back=fed_back)
        logits.append(rows.copy())
        given.append(more.copy())
        at += count
    cache.close()
    return np.concatenate(logits), np.concatenate(given)


def error(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def embedding_of(folder: Path, dims: HeadDims) -> npt.NDArray[np.float32] | None:
    return None if dims.embedding else dequantize(target(folder).tensors["token_embd.weight"])


@pytest.mark.parametrize("case", CASES)
def test_float_weights_agree_with_float64(tmp_path: Path, case: str) -> None:
    dialect, dims = CASES[case]
    made = tiny_head(dims)
    head = opened(tmp_path, dialect, made)
    tokens, states = inputs(dims)
    wanted = ReferenceHead(made, embedding=embedding_of(tmp_path, dims)).run(tokens, states[:TRUE])
    found = run(NativeHead.load(head.source, threads=2, kv_dtype="f32"), tokens, states, [7, 1, 16])
    assert error(found[0], wanted[0]) < 1e-4
    assert error(found[1], wanted[1]) < 1e-4
    ids = np.arange(dims.vocab) if head.target_ids is None else head.target_ids
    np.testing.assert_array_equal(ids, made.ids)


@pytest.mark.parametrize("name", RECORDED)
def test_the_package_speculators_gives_the_same(tmp_path: Path, name: str) -> None:
    """With the configuration as it writes it: logits of all positions, then of one and two drafted tokens."""
    dims = RECORDED[name]
    config = json.loads((REFERENCE / "heads.json").read_text())[name]
    found = open_head(speculators_folder(tmp_path / "head", tiny_head(dims), config=config))
    assert found is not None
    head = NativeHead.load(found.for_target(target(tmp_path)).source, kv_dtype="f32")
    with np.load(REFERENCE / "heads.npz") as recorded:
        wanted = [recorded[f"{name}.{step}"] for step in range(3)]
    count = len(wanted[0])
    tokens, states = head_inputs(dims, count)
    rows, _ = run(head, tokens, states, [count])
    assert error(rows, wanted[0]) < 1e-5
    for known in range(1, count - 2):
        rows, _ = run(head, tokens[: known + 2], states, [known])
        assert error(rows[-2:], np.stack([wanted[1][known - 1], wanted[2][known - 1]])) < 1e-5


@pytest.mark.parametrize("case", RECORDED_GGUF)
def test_llama_cpp_gives_the_same(tmp_path: Path, case: str) -> None:
    """With the target's states, and with what was fed back."""
    dims = RECORDED_GGUF[case]
    head = opened(tmp_path, "gguf", tiny_head(dims))
    with np.load(REFERENCE / "heads_llama_cpp.npz") as recorded:
        logits, given = recorded[f"{case}.logits"], recorded[f"{case}.states"]
    tokens, states = head_inputs(dims, len(logits))
    found = run(NativeHead.load(head.source, kv_dtype="f32"), tokens, states, [7])
    assert error(found[0], logits) < 1e-5
    assert error(found[1], given) < 1e-5


def test_the_states_that_heads_read_are_llama_cpps(tmp_path: Path) -> None:
    dims = RECORDED_GGUF["plain"]
    with np.load(REFERENCE / "heads_llama_cpp.npz") as recorded:
        wanted = recorded["taps"]
    tokens, _ = head_inputs(dims, wanted.shape[1])
    model = NativeModel.load(target(tmp_path), threads=1, kv_dtype="f32")
    assert dims.taps is not None
    _, (rows,) = model.forward_hidden([item(model.new_cache(64), tokens)], dims.taps)
    for k, layer in enumerate(np.split(rows, len(dims.taps), axis=1)):
        assert error(layer, wanted[k]) < 1e-3
        assert error(layer, wanted[k - 1]) > 0.1


@pytest.mark.parametrize("case", ["original", "speculators, three layers of qwen3", "gguf, all switches"])
def test_the_comparison_would_see_a_wrong_switch(tmp_path: Path, case: str) -> None:
    """Each of these is a mistake that readers of other programs have made."""
    dialect, dims = CASES[case]
    made = tiny_head(dims)
    head = NativeHead.load(opened(tmp_path, dialect, made).source, kv_dtype="f32")
    tokens, states = inputs(dims)
    found, _ = run(head, tokens, states, [TRUE])
    wrong = [
        replace(dims, norm_before_residual=not dims.norm_before_residual),
        replace(dims, norm_output=not dims.norm_output),
        replace(dims, theta=500.0),
        replace(dims, eps=0.1),
    ]
    for other in wrong:
        wanted, _ = ReferenceHead(replace(made, dims=other)).run(tokens, states[:TRUE])
        assert error(found, wanted) > 0.01


@pytest.mark.parametrize("quantization", ["q4", "q3", "q8_0"])
@pytest.mark.parametrize(
    "case", ["original, target's embedding", "speculators, three layers of qwen3", "original, other width"]
)
def test_quantized_weights_agree_with_their_values(tmp_path: Path, case: str, quantization: str) -> None:
    dialect, dims = CASES[case]
    made = tiny_head(dims)
    head = opened(tmp_path, dialect, made)
    source = quantized(head.source, quantization)
    loaded = NativeHead.load(source, threads=2)
    tokens, states = inputs(dims)
    weights = values_as_loaded(source, core(), made)
    wanted = ReferenceHead(made, weights=weights, embedding=embedding_of(tmp_path, dims)).run(
        tokens, states[:TRUE]
    )
    found = run(loaded, tokens, states, [TRUE])
    assert error(found[0][:TRUE], wanted[0][:TRUE]) < 0.02
    assert error(found[1][:TRUE], wanted[1][:TRUE]) < 0.02
    assert loaded_type(source, source.tensors["fc.weight"]) in ("Q4_0", "Q8_0")
    plain, _ = ReferenceHead(made, embedding=embedding_of(tmp_path, dims)).run(tokens, states[:TRUE])
    if quantization != "q8_0":
        assert error(found[0][:TRUE], plain[:TRUE]) > 0.03, "the weights are quantized"


def values_as_loaded(
    source: ModelSource, model: _core.Model, made: TinyHead
) -> dict[str, npt.NDArray[np.float32]]:
    """What the engine holds of a folder's weights, by the original's names."""
    found = dict(made.weights)
    for tensor in source.tensors.values():
        kind = loaded_type(source, tensor)
        if kind == tensor.type:
            continue
        held = replace(tensor, type=kind, data=encoded(model, tensor, kind))
        theirs = next(key for key in found if np.array_equal(found[key], dequantize(tensor)))
        found[theirs] = np.asarray(values(held), np.float32)
    return found


@pytest.mark.parametrize("quantization", [None, "q4"])
def test_passes_threads_and_instruction_sets_change_no_bit(tmp_path: Path, quantization: str | None) -> None:
    dialect, dims = CASES["speculators, three layers of qwen3"]
    source = quantized(opened(tmp_path, dialect, tiny_head(dims)).source, quantization)
    tokens, states = inputs(dims)
    wanted = run(NativeHead.load(source, threads=1), tokens, states, [1] * TRUE)
    for isa in usable_isas():
        for threads, passes in ((1, [TRUE]), (3, [5, 1, 2, 9, 7])):
            found = run(NativeHead.load(source, threads=threads, isa=isa), tokens, states, passes)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def test_sequences_share_a_pass_and_prefill_gives_no_logits(tmp_path: Path) -> None:
    made = tiny_head()
    head = NativeHead.load(opened(tmp_path, "original", made).source)
    tokens, states = inputs(made.dims)
    wanted, fed = run(head, tokens[:12], states, [12])
    caches = [head.new_cache(N), head.new_cache(N)]
    nothing = np.empty(0, np.int32)
    first = [HeadItem(cache, np.array(tokens[:5], np.int32), states[:5], nothing) for cache in caches]
    logits, given = head.forward_head(first, fed_back=False)
    assert [rows.shape for rows in (*logits, *given)] == [(0, 96), (0, 96), (0, 64), (0, 64)]
    last = [
        HeadItem(cache, np.array(tokens[5:12], np.int32), states[5:12], np.array(rows, np.int32))
        for cache, rows in zip(caches, ([6], [0, 3]), strict=True)
    ]
    logits, given = head.forward_head(last, fed_back=False)
    np.testing.assert_array_equal(np.concatenate(logits), wanted[[11, 5, 8]])
    np.testing.assert_array_equal(np.concatenate(given), fed[[11, 5, 8]])


def test_wrong_inputs_are_refused_before_a_cache_changes(tmp_path: Path) -> None:
    head = NativeHead.load(opened(tmp_path, "original", tiny_head()).source)
    cache = head.new_cache(4)
    rows = np.array([0], np.int32)

    def forward(token: int, columns: int, *, fed_back: bool = False, count: int = 1) -> None:
        states = np.zeros((count, columns), np.float32)
        head.forward_head([HeadItem(cache, np.full(count, token, np.int32), states, rows)], fed_back=fed_back)

    for arguments in (
        {"token": -1, "columns": 192},
        {"token": 320, "columns": 192},
        {"token": 0, "columns": 64},
        {"token": 0, "columns": 192, "fed_back": True},
        {"token": 0, "columns": 192, "count": 5},
    ):
        with pytest.raises(ValueError, match=r".+"):
            forward(**arguments)  # type: ignore[arg-type]
        assert cache.length == 0
    forward(319, 192)
    forward(319, 64, fed_back=True)
    assert cache.length == 2


def test_a_head_is_no_model_and_a_model_is_no_head(tmp_path: Path) -> None:
    head = NativeHead.load(opened(tmp_path, "original", tiny_head()).source)
    tokens, nothing = np.zeros(1, np.int32), np.empty(0, np.int32)
    with pytest.raises(ValueError, match="a head needs hidden states"):
        head._core.forward([(head.new_cache(2).core, tokens, tokens - 1, nothing)])
    model = NativeHead.load(target(tmp_path))
    with pytest.raises(ValueError, match=r"rows of 0 columns|not a head"):
        model.forward_head(
            [HeadItem(model.new_cache(2), tokens, np.zeros((1, 64), np.float32), nothing)], fed_back=True
        )


def test_widths_that_the_engine_does_not_divide_are_refused(tmp_path: Path) -> None:
    dims = HeadDims(hidden=72, heads=3, kv_heads=3)
    head = opened(tmp_path, "original", tiny_head(dims))
    with pytest.raises(UnsupportedModelError, match="16"):
        NativeHead.load(head.source)
