"""Quantized Hugging Face folders on the engine, against the same values as floats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from outrider.engines.native import NativeModel
from outrider.errors import UnsupportedModelError
from outrider.models.formats.dequantize import dequantize
from outrider.models.open import open_model
from outrider.models.quantization import loaded_type, quantized
from outrider.models.source import ModelSource, Tensor
from tests.native.support import item, load, run, same_bits, usable_isas
from tests.support.models import VOCAB_SIZE, Dims
from tests.support.quantized import NARROW, OF_TYPE, WIDE, Kind, quantized_hf

TOKENS = [int(i) for i in np.random.default_rng(5).integers(3, VOCAB_SIZE, 40)]
PACKED = "pack-quantized"
ORDERED = [
    (Kind("gptq", act_order="each"), NARROW),
    (Kind("gptq", bits=8, group=64, act_order="each", output=True), WIDE),
    (Kind(PACKED, group=64, symmetric=True, act_order="same"), WIDE),
]
KINDS = [
    *((kind, dims, "llama") for kind, dims in OF_TYPE.values()),
    (Kind("gptq", symmetric=True), NARROW, "llama"),
    (Kind("gptq", bits=8, group=-1, symmetric=True), NARROW, "llama"),
    (Kind(PACKED, strategy="channel", scale_dtype="BF16"), WIDE, "qwen3"),
    (Kind("awq", group=64), WIDE, "qwen2"),
    (Kind("awq", group=128), WIDE, "phi3"),
    (Kind("fp8", bits=8, strategy="tensor", scale_dtype="BF16"), WIDE, "mistral3"),
    *((kind, dims, "llama") for kind, dims in ORDERED),
    (ORDERED[1][0], WIDE, "qwen2"),
    (ORDERED[1][0], WIDE, "phi3"),
]


def as_floats(source: ModelSource) -> ModelSource:
    """The same model with every matrix stored as F32."""
    tensors = {
        name: Tensor(name, "F32", tensor.shape, dequantize(tensor).reshape(-1).view(np.uint8))
        for name, tensor in source.tensors.items()
    }
    return replace(source, tensors=tensors)


def logits(model: NativeModel) -> npt.NDArray[np.float32]:
    return run(model, model.new_cache(len(TOKENS)), TOKENS)


def relative_error(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> float:
    exact = wanted.astype(np.float64)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(("kind", "dims", "arch"), KINDS, ids=str)
def test_logits_are_near_those_of_the_values_as_floats(
    tmp_path: Path, kind: Kind, dims: Dims, arch: str
) -> None:
    """What remains is the rounding of activations, and of 8-bit floats nothing."""
    source = open_model(quantized_hf(tmp_path / "hf", kind, arch=arch, dims=dims)[0])
    wanted = logits(load(as_floats(source), kv_dtype="f32"))
    is_float = any(tensor.type.startswith("F8") for tensor in source.tensors.values())
    assert relative_error(logits(load(source, kv_dtype="f32")), wanted) < (1e-5 if is_float else 0.02)


@pytest.mark.parametrize(("kind", "dims"), ORDERED, ids=str)
def test_columns_in_another_order_keep_bits(tmp_path: Path, kind: Kind, dims: Dims) -> None:
    """Inputs that are copied in another order: no width, thread count or instruction set changes a bit."""
    source = open_model(quantized_hf(tmp_path / "hf", kind, dims=dims)[0])
    portable = load(source, "portable")
    cache = portable.new_cache(40)
    alone = np.concatenate([run(portable, cache, [t]) for t in TOKENS])
    for isa in usable_isas():
        for threads, width in ((1, 40), (2, 1), (2, 3), (3, 9), (2, 17)):
            model = load(source, isa, threads)
            cache = model.new_cache(40)
            parts = [run(model, cache, TOKENS[i : i + width]) for i in range(0, 40, width)]
            assert same_bits(np.concatenate(parts), alone), f"{isa}, {threads} threads, {width} tokens"
    prompt = item(portable.new_cache(40), TOKENS, rows=[39, 5])  # the last layer computes these rows only
    assert same_bits(portable.forward([prompt])[0], alone[[39, 5]])


def test_an_order_of_some_matrices_only(tmp_path: Path) -> None:
    """Of those that read one input, some as it is; one is held as floats."""
    kind, dims = ORDERED[1]
    source = open_model(quantized_hf(tmp_path / "hf", kind, dims=dims)[0])
    floats = as_floats(source).tensors
    plain = {name: floats[name] for name in floats if name.endswith(("attn_v.weight", "ffn_gate.weight"))}
    twin = open_model(quantized_hf(tmp_path / "plain", replace(kind, act_order=""), dims=dims)[0])
    plain |= {name: twin.tensors[name] for name in twin.tensors if name.endswith("attn_k.weight")}
    mixed = replace(source, tensors={**source.tensors, **plain})
    assert relative_error(logits(load(mixed)), logits(load(as_floats(mixed), kv_dtype="f32"))) < 0.02


def test_orders_that_are_none(tmp_path: Path) -> None:
    kind, dims = ORDERED[0]
    source = open_model(quantized_hf(tmp_path / "hf", kind, dims=dims)[0])
    for order in (np.zeros(96), np.arange(95), np.arange(96) - 1, np.arange(96) + 1):
        name = "blk.0.attn_q.weight"
        wrong = replace(source.tensors[name], column_order=order.astype(np.int32))
        with pytest.raises(UnsupportedModelError, match=rf"{name}: its columns do not have such an order"):
            load(replace(source, tensors={**source.tensors, name: wrong}))
    down = "blk.1.ffn_down.weight"
    ordered = replace(source.tensors[down], column_order=np.arange(160, dtype=np.int32))
    with pytest.raises(UnsupportedModelError, match=rf"{down}: its columns must be in order"):
        load(replace(source, tensors={**source.tensors, down: ordered}))


@pytest.mark.parametrize(
    ("kind", "dims", "held"),
    [
        (*OF_TYPE["W4_128"], "W4_128"),
        (*OF_TYPE["W8_32"], "Q4_0"),
        (*OF_TYPE["F8_128"], "Q4_0"),
        (*ORDERED[1], "Q4_0"),
    ],
    ids=str,
)
def test_a_draft_model_is_held_in_fewer_bits(tmp_path: Path, kind: Kind, dims: Dims, held: str) -> None:
    source = open_model(quantized_hf(tmp_path / "hf", kind, dims=dims)[0])
    draft = quantized(source, "q4")
    assert loaded_type(draft, draft.tensors["blk.0.ffn_up.weight"]) == held
    assert relative_error(logits(load(draft)), logits(load(as_floats(source)))) < 0.3


@pytest.mark.parametrize(("kind", "dims"), [OF_TYPE["W4_32"], ORDERED[1]], ids=str)
def test_packed_weights_are_kept(tmp_path: Path, kind: Kind, dims: Dims) -> None:
    source = open_model(quantized_hf(tmp_path / "hf", kind, dims=dims)[0])
    plain = logits(load(source))
    for _ in range(2):  # written, then read
        assert same_bits(logits(NativeModel.load(source, weights_cache=tmp_path / "kept")), plain)
    assert list((tmp_path / "kept").glob("*.packed"))


@pytest.mark.parametrize("kind", [ORDERED[1][0], Kind("awq", group=128, output=True)], ids=str)
def test_a_part_of_the_vocabulary(tmp_path: Path, kind: Kind) -> None:
    """Of a quantized output matrix, with its columns in another order and without."""
    model = load(open_model(quantized_hf(tmp_path / "hf", kind)[0]))
    every = logits(model)
    work = item(model.new_cache(len(TOKENS)), TOKENS)
    (some,) = model.forward_subset([work], np.array([2, 3, 7], np.int32))
    columns = np.concatenate([np.arange(16 * block, 16 * block + 16) for block in (2, 3, 7)])
    assert same_bits(some[:, columns], every[:, columns])
    assert np.isneginf(np.delete(some, columns, axis=1)).all()
