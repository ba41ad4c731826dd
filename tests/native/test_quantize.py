"""Quantization at load: the encoded blocks, the chosen types, and the quantized models."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf import quants as ggml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outrider import memory
from outrider.cli.main import main
from outrider.config.engine import parse_engine
from outrider.config.speculative import AutoConfig, parse_speculative
from outrider.engines.native import NativeModel, _core
from outrider.engines.native.loading import encoded
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.open import open_model
from outrider.models.quantization import (
    EMBEDDING,
    OUTPUT,
    for_draft,
    loaded_bytes,
    loaded_type,
    quantized,
)
from outrider.models.source import ModelSource, Tensor
from tests.native.support import core, run, same_bits, usable_isas
from tests.support import three_bits
from tests.support.models import Dims, encode, tiny_gguf, tiny_hf
from tests.support.reference import Reference

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
PROMPT = [int(i) for i in np.random.default_rng(5).integers(3, 320, 24)]
WIDE = Dims(hidden=256, heads=4, kv_heads=2, ffn=512)
MIXED = Dims(hidden=256, heads=4, kv_heads=2, ffn=96)  # ffn_down has no whole blocks of 256

BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q3_0": 14, "Q4_K": 144, "Q6_K": 210}
KINDS = tuple(BLOCK_BYTES)
CORE = core()


def blocks(values: Floats, kind: str, *, model: _core.Model = CORE, stored: str = "F32") -> Bytes:
    """[rows, bytes] of a matrix quantized by the engine."""
    rows, columns = values.shape
    data = np.frombuffer(encode(values, stored), np.uint8)
    return model.quantize(stored, kind, rows, columns, data).reshape(rows, -1)


def through(values: Floats, kind: str) -> Floats:
    """The values that come back."""
    return read(blocks(values, kind), kind)


def read(packed: Bytes, kind: str) -> Floats:
    """float32[rows, columns] of uint8[rows, bytes], by the gguf package's reading where it has the type."""
    if kind == "Q3_0":
        return three_bits.from_blocks(packed)
    return np.asarray(ggml.dequantize(packed, GGMLQuantizationType[kind]), np.float32)


def error(values: Floats, back: Floats) -> float:
    return float(np.linalg.norm(values - back) / np.linalg.norm(values))


def samples(kind: str) -> Floats:
    rng = np.random.default_rng(11)
    size = (64, 1024)
    if kind == "normal":
        values = rng.standard_normal(size)
    else:
        values = rng.standard_t(3, size) if kind == "outliers" else rng.uniform(-1, 1, size)
    return np.asarray(0.02 * values, np.float32)


# --- The blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16"])
def test_q8_0_is_the_gguf_packages_bytes(stored: str) -> None:
    values = samples("outliers")
    values[3, :64] = 0
    values[4, :32] = np.linspace(-1, 1, 32)  # ties
    kind = GGMLQuantizationType.Q8_0
    held = {"F32": values, "F16": values.astype(np.float16).astype(np.float32)}.get(stored)
    if held is None:
        held = ggml.dequantize(ggml.quantize(values, GGMLQuantizationType.BF16), GGMLQuantizationType.BF16)
    assert (blocks(values, "Q8_0", stored=stored) == ggml.quantize(held, kind)).all()


@pytest.mark.parametrize("kind", ["normal", "outliers", "uniform"])
def test_the_search_beats_the_simple_formats(kind: str) -> None:
    """Q4_K takes 4.5 bits a weight and Q4_1 5; Q6_K 6.6 and Q5_1 6. A search that does not search would be
    worse than these."""
    values = samples(kind)

    def simple(name: str) -> float:
        packed = ggml.quantize(values, GGMLQuantizationType[name])
        return error(values, ggml.dequantize(packed, GGMLQuantizationType[name]))

    assert error(values, through(values, "Q4_K")) < 0.93 * simple("Q4_1")
    assert error(values, through(values, "Q6_K")) < 0.55 * simple("Q5_1")
    assert error(values, through(values, "Q4_0")) < 0.99 * simple("Q4_0")


@pytest.mark.parametrize(
    ("kind", "bound"), [("Q8_0", 0.006), ("Q6_K", 0.018), ("Q4_K", 0.072), ("Q4_0", 0.083), ("Q3_0", 0.17)]
)
def test_the_error_of_normal_weights(kind: str, bound: float) -> None:
    values = samples("normal")
    found = error(values, through(values, kind))
    assert 0.5 * bound < found < bound


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoilt_scale_would_be_seen(kind: str) -> None:
    """The twin of the bounds above: one unit more in the last place that counts breaks them."""
    values = samples("normal")
    packed = blocks(values, kind).copy().reshape(-1, BLOCK_BYTES[kind])
    packed[:, 209 if kind == "Q6_K" else 1] ^= 2  # a scale, times or by 1.5 or so
    assert error(values, read(packed.reshape(64, -1), kind)) > (0.2 if kind == "Q3_0" else 0.1)


FINITE = st.floats(-1000, 1000, width=32)


@settings(max_examples=300)
@given(values=hnp.arrays(np.float32, (1, 256), elements=FINITE))
def test_no_value_is_far_off(values: Floats) -> None:
    biggest = float(np.abs(values).max())
    for kind, part in (
        ("Q8_0", 1 / 200),
        ("Q6_K", 1 / 20),
        ("Q4_K", 1 / 5),
        ("Q4_0", 1 / 5),
        ("Q3_0", 1 / 2),
    ):
        back = through(values, kind)
        assert np.isfinite(back).all()
        assert np.abs(values - back).max() <= biggest * part + 4e-6  # binary16 has no finer scales


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 63.0])
def test_constants_come_back(kind: str, value: float) -> None:
    values = np.full((2, 512), value, np.float32)
    assert np.abs(through(values, kind) - value).max() <= abs(value) / 500


def test_what_the_format_holds_exactly_comes_back() -> None:
    """Integers 0 to 15 under integer scales and minimums that use the whole range."""
    rng = np.random.default_rng(2)
    q = rng.integers(0, 16, (16, 8, 32))
    q[..., :2] = 0, 15
    scale, minimum = rng.integers(20, 64, (16, 8, 1)), rng.integers(20, 64, (16, 8, 1))
    scale[:, 0] = minimum[:, 0] = 63
    values = (0.5 * scale * q - 2.0 * minimum).astype(np.float32).reshape(16, 256)
    assert error(values, through(values, "Q4_K")) < 1e-3
    q = rng.integers(-8, 8, (16, 8, 32))
    q[..., 0] = -8
    values = (q * np.where(np.arange(8) % 2, 0.5, -3.0)[:, None]).astype(np.float32).reshape(16, 256)
    assert error(values, through(values, "Q4_0")) < 1e-6
    q = rng.integers(-4, 4, (16, 8, 32))
    q[..., 0] = -4
    values = (q * np.where(np.arange(8) % 2, 0.5, -3.0)[:, None]).astype(np.float32).reshape(16, 256)
    assert error(values, through(values, "Q3_0")) < 1e-6
    q = rng.integers(-32, 32, (16, 16, 16))
    q[..., 0] = -32
    values = (q * np.where(np.arange(16) % 2, 127, -100)[:, None] * 0.25).astype(np.float32).reshape(16, 256)
    assert error(values, through(values, "Q6_K")) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_a_byte(kind: str) -> None:
    values = samples("outliers")[:50]
    wanted = blocks(values, kind)
    for threads in (2, 3):
        assert (blocks(values, kind, model=core(threads)) == wanted).all()


DIGESTS = {
    "Q8_0": "5765296d730bfa35",
    "Q4_0": "8d432e6fb36309af",
    "Q3_0": "d04c32f87ba571e6",
    "Q4_K": "061187641633b635",
    "Q6_K": "b3e38118aa030576",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_machine_makes_the_same_bytes(kind: str) -> None:
    words = np.arange(64 * 512, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(12345)
    values = ((words >> np.uint32(8)).astype(np.float32) - np.float32(2**23)) * np.float32(2**-28)
    digest = hashlib.sha256(blocks(values.reshape(64, 512), kind).tobytes()).hexdigest()
    assert digest[:16] == DIGESTS[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_no_block_can_hold_are_refused(kind: str, value: float) -> None:
    values = np.ones((4, 512), np.float32)
    values[2, 300] = value
    with pytest.raises(ValueError, match="not finite, or too large"):
        blocks(values, kind)
    tensor = Tensor("blk.0.ffn_up.weight", "F32", values.shape, values.view(np.uint8).ravel())
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.weight"):
        encoded(CORE, tensor, kind)


@pytest.mark.parametrize(
    ("kind", "largest"), [("Q8_0", 3e6), ("Q4_0", 4e5), ("Q3_0", 1.5e5), ("Q4_K", 3e6), ("Q6_K", 3e6)]
)
def test_the_largest_values_do_not_overflow_a_scale(kind: str, largest: float) -> None:
    rng = np.random.default_rng(4)
    values = (largest * rng.choice([-1.0, -0.9, 0.1, 0.9, 1.0], (64, 512))).astype(np.float32)
    back = through(values, kind)
    assert np.isfinite(back).all()
    assert error(values, back) < (0.2 if kind == "Q3_0" else 0.1)
    with pytest.raises(ValueError, match="too large"):
        blocks(1.01 * values, kind)


def test_what_cannot_be_quantized_is_refused() -> None:
    data = np.zeros(4 * 512, np.uint8)
    for stored, kind, columns in (("F32", "Q4_1", 512), ("F32", "Q4_K", 128), ("F32", "F16", 512)):
        with pytest.raises(ValueError, match="cannot quantize"):
            CORE.quantize(stored, kind, data.size // 4 // columns, columns, data)
    with pytest.raises(ValueError, match="do not make"):
        CORE.quantize("F32", "Q8_0", 2, 512, data)
    with pytest.raises(ValueError, match="do not make"):
        CORE.quantize("Q8_0", "Q4_0", 2, 32, np.zeros(34, np.uint8))


@pytest.mark.parametrize("stored", ["Q8_0", "Q5_0", "Q6_K"])
def test_what_is_quantized_already_is_quantized_from_its_values(stored: str) -> None:
    values = samples("normal")[:4]
    kind_stored = GGMLQuantizationType[stored]
    data = blocks(values, stored) if stored == "Q6_K" else ggml.quantize(values, kind_stored)
    held = np.asarray(ggml.dequantize(data, kind_stored), np.float32)
    rows, columns = values.shape
    for kind in KINDS:
        found = CORE.quantize(stored, kind, rows, columns, data.ravel())
        assert (found == blocks(held, kind).ravel()).all()


# --- The plan ------------------------------------------------------------------------------------------


def test_which_type_each_matrix_gets(tmp_path: Path) -> None:
    source = open_model(tiny_gguf(tmp_path / "m.gguf", types="F16", dims=MIXED, tied=False))
    assert quantized(source, None) is source
    eight, four = quantized(source, "q8_0"), quantized(source, "q4_k")
    kinds = {name: loaded_type(four, t) for name, t in four.tensors.items()}
    assert kinds[EMBEDDING] == kinds[OUTPUT] == "Q6_K"
    assert kinds["blk.1.attn_q.weight"] == "Q4_K"
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert {loaded_type(eight, t) for t in eight.tensors.values() if len(t.shape) == 2} == {"Q8_0"}
    assert source.display_name == "Tiny"
    assert eight.display_name == "Tiny (q8_0 at load)"
    assert four.display_name == "Tiny (q4_k at load; q8_0: ffn_down)"


def test_which_type_a_drafts_matrices_get(tmp_path: Path) -> None:
    """About three or four bits, from any file, where that saves a good part of the bytes."""

    def kinds(
        types: str | dict[str, str], dims: Dims, *, tied: bool = True, name: str = "q4"
    ) -> dict[str, str]:
        source = open_model(tiny_gguf(tmp_path / "m.gguf", types=types, dims=dims, tied=tied))
        light = quantized(source, name)
        held = {name: loaded_type(light, t) for name, t in light.tensors.items() if len(t.shape) == 2}
        assert loaded_bytes(light) <= source.weights_bytes
        assert light.display_name == ("Tiny" if light is source else f"Tiny ({name} at load)")
        return {name: kind for name, kind in held.items() if kind != source.tensors[name].type}

    found = kinds("F16", MIXED, tied=False)
    assert (found[EMBEDDING], found[OUTPUT]) == ("Q8_0", "Q4_0")
    assert found["blk.1.attn_q.weight"] == found["blk.0.ffn_down.weight"] == "Q4_0"
    assert set(kinds("Q8_0", MIXED, tied=False)) == set(found) - {EMBEDDING}
    assert kinds("F16", MIXED)[EMBEDDING] == "Q4_0"  # which is the output too
    found = kinds({"attn_q": "Q5_0", "ffn_up": "Q4_1", "ffn_gate": "Q4_0"}, Dims(hidden=64, ffn=72))
    assert found["blk.0.attn_q.weight"] == "Q4_0"
    assert not {"blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_down.weight"} & set(found)
    for light in ("Q4_0", "Q4_1"):  # 4.5 and 5 bits are light enough
        assert kinds(light, WIDE) == {}
    light_ffn = {name: "Q3_0" if ".ffn_" in name else kind for name, kind in kinds("F16", MIXED).items()}
    assert kinds("F16", MIXED, name="q3") == light_ffn
    found = kinds("Q4_0", WIDE, name="q3")
    assert {name.split(".")[-2] for name in found} == {"ffn_gate", "ffn_up", "ffn_down"}
    assert set(found.values()) == {"Q3_0"}


def test_a_draft_far_smaller_than_its_target_keeps_four_bits(tmp_path: Path) -> None:
    draft = open_model(tiny_gguf(tmp_path / "d.gguf", types="F16", dims=MIXED))
    four = loaded_bytes(quantized(draft, "q4"))

    def target(size: float) -> ModelSource:
        tensor = Tensor("token_embd.weight", "F32", (1, int(size) // 4), np.zeros(int(size), np.uint8))
        return replace(draft, tensors={tensor.name: tensor})

    assert for_draft("auto", draft, draft) == for_draft("auto", draft, target(11.9 * four)) == "q3"
    assert for_draft("auto", draft, target(12.1 * four)) == "q4"
    for name in ("q3", "q4", "q8_0", None):
        assert for_draft(name, draft, target(100 * four)) == name


def test_odd_columns_stay_as_they_are(tmp_path: Path) -> None:
    dims = Dims(hidden=64, heads=4, kv_heads=2, ffn=72)
    source = quantized(open_model(tiny_gguf(tmp_path / "m.gguf", dims=dims)), "q8_0")
    assert loaded_type(source, source.tensors["blk.0.ffn_down.weight"]) == "F32"
    assert source.display_name == "Tiny (q8_0 at load; f32: ffn_down)"
    model = NativeModel.load(source, threads=1)
    wanted = Reference(at_once(source), rounded=True).logits(PROMPT)
    got = run(model, model.new_cache(32), PROMPT)
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.02


def test_memory_is_estimated_for_what_is_held(tmp_path: Path) -> None:
    source = open_model(tiny_gguf(tmp_path / "m.gguf", dims=WIDE))
    matrix = sum(t.shape[0] * t.shape[1] for t in source.tensors.values() if len(t.shape) == 2)
    vectors = sum(t.nbytes for t in source.tensors.values() if len(t.shape) == 1)
    assert loaded_bytes(source) == source.weights_bytes == 4 * matrix + vectors
    assert loaded_bytes(quantized(source, "q8_0")) == matrix // 32 * 34 + vectors
    embedding = 320 * 256
    wanted = (matrix - embedding) // 256 * 148 + embedding // 256 * 210 + vectors
    chosen = quantized(source, "q4_k")
    assert loaded_bytes(chosen) == pytest.approx(wanted, abs=20)
    model = NativeModel.load(chosen, threads=1)
    rows = embedding // 256 * 210  # kept beside the output matrix that is packed from them
    assert memory.estimate(chosen, 10).weights == pytest.approx(model.weights_bytes + rows + vectors, abs=20)
    assert memory.estimate(source, 10).weights == source.weights_bytes


@pytest.mark.parametrize("name", ["q8_0", "q4_k"])
def test_a_quantized_file_is_refused(tmp_path: Path, name: str) -> None:
    source = open_model(tiny_gguf(tmp_path / "m.gguf", types={"attn_q": "Q5_0", "ffn_up": "Q5_0"}))
    with pytest.raises(ConfigError, match=r"m\.gguf: is quantized already \(Q5_0\)"):
        quantized(source, name)


def test_names_that_are_not_known() -> None:
    for name in ("q4_0", "Q8_0", "", 4):
        with pytest.raises(ConfigError, match="quantization="):
            parse_engine("m", quantization=name)
    with pytest.raises(ConfigError, match="did you mean 'q4_k'"):
        parse_speculative({"model": "d", "quantization": "q4k"})
    assert parse_engine("m", quantization="gguf").quantization is None
    assert parse_engine("m", quantization="q4_k").quantization == "q4_k"
    for name in ("gguf", "stored"):
        stored = parse_speculative({"model": "d", "quantization": name})
        assert stored == AutoConfig("d", quantization=None)
    for given_name in ("auto", None):
        assert parse_speculative({"model": "d", "quantization": given_name}) == AutoConfig("d")
    assert AutoConfig("d").quantization == "auto"
    assert parse_speculative({"model": "d", "quantization": "q4"}) == AutoConfig("d", quantization="q4")
    with pytest.raises(ConfigError, match=r"'stored' leaves it as it is"):
        parse_speculative({"model": "d", "quantization": "q5"})
    assert parse_speculative(speculative_model="d", speculative_model_quantization="q8_0") == AutoConfig(
        "d", quantization="q8_0"
    )


# --- Models --------------------------------------------------------------------------------------------


def at_once(source: ModelSource) -> ModelSource:
    """The model that `source` asks for, with its tensors quantized in place of the float ones."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in source.tensors.items():
        kind = loaded_type(source, tensor)
        tensors[name] = replace(tensor, type=kind, data=encoded(CORE, tensor, kind))
    return replace(source, tensors=tensors, quantization=None)


def logits(source: ModelSource, **options: Any) -> Floats:
    model = NativeModel.load(source, **options)
    return run(model, model.new_cache(32), PROMPT)


def test_q8_0_at_load_is_the_file_stored_as_q8_0(tmp_path: Path) -> None:
    for tied in (True, False):
        floats = open_model(tiny_gguf(tmp_path / "f.gguf", dims=WIDE, tied=tied))
        stored = open_model(tiny_gguf(tmp_path / "q.gguf", types="Q8_0", dims=WIDE, tied=tied))
        assert same_bits(logits(quantized(floats, "q8_0")), logits(stored))
        assert not same_bits(logits(floats), logits(stored))


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "q4", "q3"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_safetensors_quantized_at_load(tmp_path: Path, name: str, dtype: str) -> None:
    folder = tiny_hf(tmp_path / "hf", arch="qwen2", dtype=dtype, dims=MIXED, tied=False)
    source = quantized(open_model(folder), name)
    got = logits(source)
    assert same_bits(got, logits(at_once(source)))
    wanted = Reference(at_once(source), rounded=True).logits(PROMPT)
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.02
    floats = logits(open_model(folder))
    off = np.linalg.norm(got - floats) / np.linalg.norm(floats)
    assert 1e-4 < off < {"q8_0": 0.1, "q4_k": 0.5, "q4": 0.5, "q3": 0.8}[name]


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "q4", "q3"])
@pytest.mark.parametrize("isa", usable_isas())
def test_width_and_build_do_not_change_a_bit(tmp_path: Path, name: str, isa: str) -> None:
    source = quantized(open_model(tiny_gguf(tmp_path / "m.gguf", dims=MIXED)), name)
    wanted = logits(source, isa="portable", threads=1)
    assert same_bits(wanted, logits(source, isa=isa, threads=2))
    model = NativeModel.load(source, isa=isa, threads=1)
    cache = model.new_cache(32)
    assert same_bits(wanted, np.concatenate([run(model, cache, [token]) for token in PROMPT]))


def test_the_command_reports_what_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", dims=WIDE)
    command = ["run", "-m", str(path), "-p", "the fox", "-n", "4", "--temp", "0"]
    assert main([*command, "--quantization", "q4_k"]) == 0
    assert "target                  Tiny (q4_k at load)\n" in capsys.readouterr().err
    assert main([*command, "--quantization", "q8_0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == {"target": "Tiny (q8_0 at load)", "draft": None}
    assert main([*command, "--json"]) == 0
    assert "models" not in json.loads(capsys.readouterr().out)
    assert main([*command, "-md", str(path), "--draft", "2"]) == 0
    told = capsys.readouterr().err
    names = r"^target +Tiny\ndraft +Tiny \(q3 at load\), a pass takes \d+\.\d\d of the target's$"
    assert re.search(names, told, re.M)
    assert main([*command, "-md", str(path), "--draft-quantization", "stored", "--json"]) == 0
    assert "models" not in json.loads(capsys.readouterr().out)
    draft = {"model": str(path), "num_speculative_tokens": 2, "quantization": "q8_0"}
    assert main([*command, "--speculative-config", json.dumps(draft), "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert models == {"target": "Tiny", "draft": "Tiny (q8_0 at load)"}


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", types="Q8_0")
    for name, words in (("q4_k", "is quantized already (Q8_0)"), ("q4", "did you mean 'q4_k'")):
        assert main(["run", "-m", str(path), "-p", "x", "--quantization", name]) == 2
        error_line = capsys.readouterr().err
        assert words in error_line
        assert error_line.count("\n") == 1
