"""Quantized Hugging Face folders: their values, bit for bit, and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.config.quantization import STORED_METHODS
from outrider.errors import ConfigError, ModelFileError, UnsupportedModelError
from outrider.machine import available_processors
from outrider.models.formats import hf_quantized
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.hf_blocks import e4m3_values
from outrider.models.formats.hf_json import Section
from outrider.models.formats.hf_quantization import read_quantization
from outrider.models.formats.hf_quantized import DTYPES, unpack_modules
from outrider.models.formats.safetensors import read_safetensors
from outrider.models.open import open_model
from outrider.models.quantization import quantized
from outrider.models.source import ModelSource, Tensor
from outrider.models.weight_types import FLOAT_TYPES
from tests.support.models import Dims, hf_name, tiny_hf
from tests.support.quantized import (
    NARROW,
    OF_TYPE,
    WIDE,
    Array,
    Kind,
    Stored,
    e4m3,
    quantized_hf,
    write_stored,
)

RECORD = Path(__file__).parents[2] / "data/reference/quantized.npz"
# What the recorded matrices of other programs become.
RECORDED = {
    "w4 group": "Q4_0",
    "w4 zeros": "W4_128",
    "w8 channel": "Q8_0",
    "w8 zeros": "W8_32",
    "fp8 channel": "F8_128",
    "fp8 tensor": "F8_128",
    "fp8 blocks": "F8_128",
    "awq": "W4_32",
}
PACKED, FLOATS = "pack-quantized", "float-quantized"
KINDS = [
    *((kind, dims, name) for name, (kind, dims) in OF_TYPE.items()),
    (Kind("gptq", symmetric=True), NARROW, "Q4_0"),
    (Kind("gptq", symmetric=True, group=128, scale_dtype="F32"), WIDE, "W4_128"),
    (Kind("gptq", group=-1), WIDE, "W4_128"),
    (Kind("gptq", group=-1), NARROW, "W4_32"),
    (Kind("gptq", bits=8, symmetric=True, version="gptq_v2"), NARROW, "Q8_0"),
    (Kind("gptq", version="gptq_v2"), NARROW, "W4_32"),
    (Kind("awq", group=64), WIDE, "W4_32"),
    (Kind("awq", group=32, scale_dtype="BF16"), NARROW, "W4_32"),
    (Kind(PACKED, group=64, symmetric=True, scale_dtype="BF16"), WIDE, "Q4_0"),
    (Kind(PACKED, strategy="channel", symmetric=True, scale_dtype="BF16"), NARROW, "Q4_0"),
    (Kind(PACKED, bits=8, strategy="channel", scale_dtype="F32"), NARROW, "W8_32"),
    (Kind(FLOATS, bits=8, strategy="tensor"), WIDE, "F8_128"),
    (Kind(FLOATS, bits=8, strategy="block", block=(64, 32), scale_dtype="BF16"), WIDE, "F8_32"),
    (Kind("fp8", bits=8, strategy="tensor", scale_dtype="BF16"), WIDE, "F8_128"),
    (Kind("fp8", bits=8, block=(128, 128), scale_dtype="F32"), replace(WIDE, ffn=192), "F8_32 F8_128"),
]


def matrices(source: ModelSource, values: dict[str, Array], arch: str) -> dict[str, tuple[str, Array, Array]]:
    """Of every quantized matrix its type, what it holds here, and what it should hold."""
    return {
        name: (tensor.type, dequantize(tensor).astype(np.float64), values[hf_name(name, arch)])
        for name, tensor in source.tensors.items()
        if hf_name(name, arch) in values
    }


@pytest.mark.parametrize(("kind", "dims", "types"), KINDS, ids=str)
def test_values_are_those_of_the_file(tmp_path: Path, kind: Kind, dims: Any, types: str) -> None:
    folder, values = quantized_hf(tmp_path / "hf", kind, dims=dims)
    found = matrices(open_model(folder), values, "llama")
    assert len(found) == len(values) == 7 * dims.layers
    assert {each for each, _, _ in found.values()} == set(types.split())
    for name, (_, held, wanted) in found.items():
        assert np.array_equal(held, wanted.astype(np.float32)), name


@pytest.mark.parametrize("name", RECORDED)
def test_values_are_those_of_other_programs(tmp_path: Path, name: str) -> None:
    """As compressed-tensors and transformers decode them (tests/scripts/record_quantized_reference.py)."""
    with np.load(RECORD) as record:
        file, config, wanted = (record[f"{name}.{part}"] for part in ("file", "config", "values"))
    path = tmp_path / "m.safetensors"
    path.write_bytes(file.tobytes())
    how = read_quantization(Section(path, {"quantization_config": json.loads(config.tobytes())}))
    assert how is not None
    tensors = unpack_modules(path, how, read_safetensors(path, (*FLOAT_TYPES, *DTYPES)))
    assert list(tensors) == ["m.weight"]
    assert tensors["m.weight"].type == RECORDED[name]
    assert np.array_equal(dequantize(tensors["m.weight"]), wanted)


@pytest.mark.grid(4)
@pytest.mark.parametrize(("kind", "dims", "types"), KINDS)
@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_sizes_are_those_of_the_file(tmp_path: Path, kind: Kind, dims: Any, types: str, arch: str) -> None:
    """With scales, zero points and the like. (A fused matrix is divided by its rows.)"""
    folder, _ = quantized_hf(tmp_path / "m", kind, dims=dims, arch=arch)
    stored = read_safetensors(folder / "model.safetensors", (*FLOAT_TYPES, *DTYPES))
    opened = open_model(folder)
    total = sum(tensor.nbytes for tensor in stored.values())
    assert total - 5 * dims.layers < opened.weights_bytes <= total
    assert {*types.split()} <= {tensor.type for tensor in opened.tensors.values()}


@pytest.mark.grid(4)
@pytest.mark.parametrize(("kind", "dims", "types"), KINDS)
def test_pieces_change_nothing(
    tmp_path: Path, kind: Kind, dims: Any, types: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = quantized_hf(tmp_path / "m", kind, dims=dims)
    whole = {name: tensor.encoded().tobytes() for name, tensor in open_model(folder).tensors.items()}
    monkeypatch.setattr(hf_quantized, "PIECE", 1)
    found = open_model(folder).tensors
    assert {name: tensor.encoded().tobytes() for name, tensor in found.items()} == whole
    name = next(name for name, tensor in found.items() if tensor.recode is not None)
    tensor = found[name]
    size = len(whole[name]) // tensor.shape[0]
    assert tensor.recode is not None
    assert tensor.recode(8, 24).tobytes() == whole[name][8 * size : 24 * size]


@pytest.mark.parametrize("layout", ["awq", "gptq"])
def test_memory_between_is_bounded(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_quantized, "PIECE", 1 << 14)
    rows, columns = 2048, 512
    words = np.zeros(rows * columns // 8, "<u4").view(np.uint8)
    shape = {"awq": (columns, rows // 8), "gptq": (columns // 8, rows)}[layout]
    stored = {
        "m.qweight": Tensor("m.qweight", "I32", shape, words),
        "m.qzeros": Tensor("m.qzeros", "I32", (4, rows // 8), words[: 2 * rows]),
        "m.scales": Tensor("m.scales", "F16", (4, rows), words[: 8 * rows]),
    }
    settings = {"quant_method": layout, "bits": 4, "group_size": 128}
    how = read_quantization(Section(Path("c"), {"quantization_config": settings}))
    assert how is not None
    matrix = unpack_modules(Path("m"), how, stored)["m.weight"]
    tracemalloc.start()
    try:
        size = matrix.encoded().nbytes
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size < peak < size + available_processors() * 12 * (1 << 14) + (1 << 18)


def test_values_of_e4m3() -> None:
    values = e4m3_values()
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    others = [byte for byte in range(256) if byte & 127 != 127]
    assert values[others].tolist() == [e4m3(byte) for byte in others]
    assert values[[0x00, 0x01, 0x08, 0x7E, 0x81]].tolist() == [0.0, 2.0**-9, 2.0**-6, 448.0, -(2.0**-9)]


@pytest.mark.parametrize("kind", [Kind("awq", group=128), Kind("gptq"), OF_TYPE["F8_128"][0]], ids=str)
def test_fused_matrices_are_split(tmp_path: Path, kind: Kind) -> None:
    folder, values = quantized_hf(tmp_path / "hf", kind, arch="phi3")
    tensors = open_model(folder).tensors
    for fused, parts in (
        ("self_attn.qkv", ("attn_q", "attn_k", "attn_v")),
        ("mlp.gate_up", ("ffn_gate", "ffn_up")),
    ):
        found = np.concatenate([dequantize(tensors[f"blk.1.{part}.weight"]) for part in parts])
        assert np.array_equal(found, values[f"model.layers.1.{fused}_proj.weight"].astype(np.float32))


def order_of(folder: Path, module: str) -> npt.NDArray[np.int64]:
    """The columns of a matrix as the blocks have them, by the g_idx in its file."""
    names = [name for name in stored_tensors(folder) if name.startswith(module) and name.endswith("g_idx")]
    return np.argsort(np.frombuffer(stored_tensors(folder)[names[0]][2], "<i4"), kind="stable")


ORDERED = [
    (Kind("gptq", act_order="each"), NARROW),
    (Kind("gptq", bits=8, group=128, symmetric=True, act_order="each"), WIDE),
    (Kind(PACKED, group=64, act_order="same", scale_dtype="BF16"), WIDE),
    (Kind("gptq", group=128, act_order="same", output=True), WIDE),
]


@pytest.mark.parametrize(("kind", "dims"), ORDERED, ids=str)
def test_columns_in_another_order(tmp_path: Path, kind: Kind, dims: Dims) -> None:
    """They are sorted by group. What is sorted so in ffn_down becomes the order of the rows before it."""
    folder, values = quantized_hf(tmp_path / "hf", kind, dims=dims)
    source = open_model(folder)
    held = matrices(source, values, "llama")
    assert len(held) == 7 * dims.layers + kind.output
    for name, (_, found, wanted) in held.items():
        module = hf_name(name).removesuffix(".weight")
        order, kept = order_of(folder, module), source.tensors[name].column_order
        down = order_of(folder, f"{module.partition('.mlp')[0]}.mlp.down_proj") if ".mlp." in module else None
        if name.endswith("ffn_down.weight"):
            assert kept is None
            expected = wanted[:, order]
        else:
            assert np.array_equal(order, np.arange(wanted.shape[1]) if kept is None else kept)
            expected = wanted if down is None else wanted[down]
        assert np.array_equal(found, expected.astype(np.float32)), name


def stored_tensors(folder: Path) -> dict[str, Stored]:
    found = read_safetensors(folder / "model.safetensors", (*FLOAT_TYPES, *DTYPES))
    return {name: (t.type, t.shape, t.data.tobytes()) for name, t in found.items()}


def changed(folder: Path, tensors: Mapping[str, Stored | None]) -> Path:
    """The folder with some tensors replaced or (None) left out."""
    everything: dict[str, Stored | None] = {**stored_tensors(folder), **tensors}
    write_stored(folder / "model.safetensors", {n: t for n, t in everything.items() if t is not None})
    return folder


def with_settings(folder: Path, settings: dict[str, Any]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(settings)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


UP = "model.layers.1.mlp.up_proj"


def test_zero_points_of_nought_in_gptqs_first_version(tmp_path: Path) -> None:
    """They are stored less one, in whole words: a zero point of 0 borrows from the next."""
    folder, _ = quantized_hf(tmp_path / "hf", Kind("gptq"), dims=NARROW)
    rows = NARROW.ffn
    zeros = np.random.default_rng(3).integers(0, 16, (3, rows)) * np.random.default_rng(4).integers(
        0, 2, (3, rows)
    )
    words = (zeros.reshape(3, -1, 8) << 4 * np.arange(8)).sum(axis=2)
    raw = ((words - 0x11111111) % 2**32).astype("<u4")
    opened = open_model(changed(folder, {f"{UP}.qzeros": ("I32", raw.shape, raw.tobytes())}))
    blocks = opened.tensors["blk.1.ffn_up.weight"].encoded().reshape(rows, 3, -1)
    assert np.array_equal(blocks[..., 4], zeros.T)


@pytest.mark.parametrize("method", ["awq", "gptq", PACKED])
def test_a_quantized_output_matrix(tmp_path: Path, method: str) -> None:
    folder, values = quantized_hf(tmp_path / "hf", Kind(method, group=64, output=True))
    output = open_model(folder).tensors["output.weight"]
    assert (output.type, output.shape) == ("W4_32", (320, 128))
    assert np.array_equal(dequantize(output), values["lm_head.weight"].astype(np.float32))


def test_matrices_that_are_not_quantized(tmp_path: Path) -> None:
    """Those that are stored as floats, such as those of an ignore list, stay so."""
    folder, values = quantized_hf(tmp_path / "hf", Kind("awq", group=128))
    names = [name for name in stored_tensors(folder) if name.startswith(UP)]
    plain = ("F32", (256, 128), values[f"{UP}.weight"].astype("<f4").tobytes())
    opened = open_model(changed(folder, {**dict.fromkeys(names), f"{UP}.weight": plain}))
    assert opened.tensors["blk.1.ffn_up.weight"].type == "F32"
    assert opened.tensors["blk.0.ffn_up.weight"].type == "W4_128"


def test_several_config_groups(tmp_path: Path) -> None:
    """The tensors of a matrix say which group it belongs to."""
    kinds = [Kind(PACKED, group=64, symmetric=True), Kind(PACKED, bits=8, strategy="channel")]
    kinds += [Kind(FLOATS, bits=8, strategy="channel")]
    folders = [quantized_hf(tmp_path / str(i), kind) for i, kind in enumerate(kinds)]
    groups: dict[str, Any] = {}
    mixed: dict[str, Stored] = {}
    for i, (folder, _) in enumerate(folders):
        config = json.loads((folder / "config.json").read_text())["quantization_config"]
        groups[f"group_{i}"] = {**config["config_groups"]["group_0"], "targets": [f"re:.*{i}"]}
        parts = (("self_attn",), ("gate_proj", "up_proj"), ("down_proj",))[i]
        mixed |= {
            n: t
            for n, t in stored_tensors(folder).items()
            if any(f"{p}." in n or f".{p}" in n for p in parts)
        }
    base = {n: t for n, t in stored_tensors(folders[0][0]).items() if "_proj." not in n}
    write_stored(folders[0][0] / "model.safetensors", {**base, **mixed})
    opened = open_model(with_settings(folders[0][0], {"config_groups": groups, "format": "mixed-precision"}))
    types = {part: opened.tensors[f"blk.0.{part}.weight"].type for part in ("attn_q", "ffn_up", "ffn_down")}
    assert types == {"attn_q": "Q4_0", "ffn_up": "W8_128", "ffn_down": "F8_128"}
    for (_, values), part in zip(folders, ("attn_q", "ffn_up", "ffn_down"), strict=True):
        name = f"blk.1.{part}.weight"
        assert np.array_equal(dequantize(opened.tensors[name]), values[hf_name(name)].astype(np.float32))


def test_biases_of_zeros_are_left_out(tmp_path: Path) -> None:
    """The first programs of GPTQ gave one to every matrix."""
    folder, _ = quantized_hf(tmp_path / "hf", OF_TYPE["W4_32"][0], arch="qwen3", dims=NARROW)
    zeros = {f"{UP}.bias": halves((160,), 0.0), "model.layers.0.self_attn.q_proj.bias": halves((96,), 0.0)}
    assert open_model(changed(folder, zeros)).tensors.keys() == open_model(folder).tensors.keys()
    with pytest.raises(UnsupportedModelError, match=r"up_proj\.bias' is not part of a qwen3 model"):
        open_model(changed(folder, {f"{UP}.bias": halves((160,))}))


def test_scales_of_activations_and_of_the_cache_are_left_out(tmp_path: Path) -> None:
    folder, _ = quantized_hf(tmp_path / "hf", OF_TYPE["F8_128"][0])
    one = ("F32", (), np.ones(1, "<f4").tobytes())
    more: dict[str, Stored | None] = {
        f"{UP}.input_scale": one,
        f"{UP}.activation_scale": one,
        "model.layers.0.self_attn.k_scale": one,
        "model.layers.0.self_attn.v_scale": one,
    }
    assert open_model(changed(folder, more)).tensors.keys() == open_model(folder).tensors.keys()


def test_zero_points_that_are_not_packed(tmp_path: Path) -> None:
    """As the first versions of compressed-tensors stored them."""
    kind = Kind(PACKED, bits=8)
    folder, values = quantized_hf(tmp_path / "hf", kind, dims=NARROW)
    found = open_model(folder).tensors["blk.1.ffn_up.weight"].encoded().reshape(NARROW.ffn, 3, -1)
    signed = (found[..., 4].astype(int) - 128).astype(np.int8)
    opened = open_model(changed(folder, {f"{UP}.weight_zero_point": ("I8", signed.shape, signed.tobytes())}))
    assert np.array_equal(
        dequantize(opened.tensors["blk.1.ffn_up.weight"]), values[f"{UP}.weight"].astype("f4")
    )


def test_scales_that_binary16_does_not_hold(tmp_path: Path) -> None:
    """A symmetric matrix with them becomes a wider type, and keeps its values."""
    folder, _ = quantized_hf(tmp_path / "hf", Kind(PACKED, symmetric=True, scale_dtype="BF16"), dims=NARROW)
    scales = np.full((NARROW.ffn, 3), 0x3583, "<u2")  # 131 * 2^-27: no multiple of 2^-24
    opened = open_model(changed(folder, {f"{UP}.weight_scale": ("BF16", scales.shape, scales.tobytes())}))
    assert opened.tensors["blk.1.ffn_up.weight"].type == "W4_32"
    assert opened.tensors["blk.0.ffn_up.weight"].type == "Q4_0"
    scale = np.array([0x35830000], "<u4").view("<f4")[0]
    steps = dequantize(opened.tensors["blk.1.ffn_up.weight"]) / scale
    assert set(np.unique(steps)) <= set(range(-8, 8))


def ints(shape: tuple[int, ...], value: int = 0) -> Stored:
    return "I32", shape, np.full(shape, value, "<u4").tobytes()


def halves(shape: tuple[int, ...], value: float = 0.5) -> Stored:
    return "F16", shape, np.full(shape, value, "<f2").tobytes()


AWQ, GPTQ = OF_TYPE["W4_128"], OF_TYPE["W4_32"]
COMPRESSED, FP8, CHANNEL = OF_TYPE["W8_128"], OF_TYPE["F8_128"], OF_TYPE["F8_32"]
BROKEN: list[tuple[tuple[Kind, Any], dict[str, Stored | None], str]] = [
    (AWQ, {"qzeros": None}, "qzeros' is missing"),
    (AWQ, {"scales": None}, "scales' is missing"),
    (AWQ, {"qweight": None}, "qweight' is missing"),
    (AWQ, {"qzeros": ints((1, 31))}, "qzeros' is 1 x 31, not 1 x 32"),
    (AWQ, {"scales": halves((2, 256))}, "scales' is 2 x 256, not 1 x 256"),
    (AWQ, {"scales": ints((1, 256))}, "scales' has dtype I32, not F32 or F16 or BF16"),
    (AWQ, {"qweight": halves((128, 32))}, "qweight' has dtype F16, not I32"),
    (AWQ, {"qweight": ints((4096,))}, "qweight' is not a matrix"),
    (AWQ, {"qweight": ints((100, 32))}, "has 100 columns, not a multiple of 32"),
    (AWQ, {"scales": halves((1, 256), np.inf)}, "scales' holds infinities or NaN"),
    (AWQ, {"scales": halves((1, 256), np.nan)}, "scales' holds infinities or NaN"),
    (AWQ, {"weight": halves((256, 128))}, "holds 'model.layers.1.mlp.up_proj.weight' beside tensors of its"),
    (AWQ, {"g_idx": ints((128,))}, "up_proj.g_idx' is not one that is known here|has dtype I32"),
    (AWQ, {"weight_packed": ints((8, 8))}, "weight_packed' has dtype I32, which the settings"),
    (GPTQ, {"g_idx": ints((96,), 3)}, "g_idx' names a group beyond 3"),
    (GPTQ, {"g_idx": ints((96,), 2**31)}, "g_idx' names a group beyond 3"),
    (GPTQ, {"g_idx": ints((96,))}, "g_idx' does not give every group 32 columns"),
    (GPTQ, {"g_idx": ints((95,))}, "g_idx' is 95, not 96"),
    (GPTQ, {"g_idx": halves((96,))}, "g_idx' has dtype F16, not I32"),
    (GPTQ, {"qweight": ints((24, 160))}, "scales' is 3 x 160, not 6 x 160"),
    (GPTQ, {"qzeros": ints((3, 21))}, "qzeros' is 3 x 21, not 3 x 20"),
    (COMPRESSED, {"weight_shape": None}, "weight_shape' is missing"),
    (COMPRESSED, {"weight_scale": None}, "weight_scale' is missing"),
    (COMPRESSED, {"weight_packed": None}, "weight_packed' is missing"),
    (COMPRESSED, {"weight_shape": ints((2,), 128)}, "does not hold 128 x 128 integers of 4 or 8 bits, as"),
    (COMPRESSED, {"weight_shape": ints((2,), 2**31)}, "does not hold -2147483648 x -2147483648 integers"),
    (COMPRESSED, {"weight_zero_point": None}, "1 scales, which fits nothing that quantization_config says"),
    (COMPRESSED, {"weight_zero_point": ints((64, 2))}, "weight_zero_point' is 64 x 2, not 64 x 1"),
    (COMPRESSED, {"weight_scale": halves((256, 2))}, "weight_scale' has 256 x 2 scales, which fits nothing"),
    (COMPRESSED, {"weight_g_idx": ints((128,), 1)}, "weight_g_idx' names a group beyond 1"),
    (CHANNEL, {"weight_scale": None}, "weight_scale' is missing"),
    (CHANNEL, {"weight_scale": halves((159, 1))}, "weight_scale' has 159 x 1 scales, which fits nothing"),
    (CHANNEL, {"weight_scale": halves((160, 1), np.inf)}, "weight_scale' holds infinities or NaN"),
    (FP8, {"weight_scale_inv": None}, "weight_scale_inv' is missing"),
    (FP8, {"weight_scale_inv": halves((3, 1))}, "weight_scale_inv' has 3 x 1 scales, which fits nothing"),
    (FP8, {"weight": None}, "weight' is missing"),
    (FP8, {"weight": ("F8_E4M3", (256, 64), bytes(256 * 64))}, "weight is 256 x 64, not 256 x 128"),
    (FP8, {"weight": ("I8", (256, 128), bytes(256 * 128))}, "weight' has dtype I8"),
]


@pytest.mark.grid(4)
@pytest.mark.parametrize(("form", "parts", "words"), BROKEN, ids=lambda x: x if isinstance(x, str) else "")
def test_tensors_that_do_not_fit(
    tmp_path: Path, form: tuple[Kind, Any], parts: dict[str, Stored | None], words: str
) -> None:
    kind, dims = form
    folder, _ = quantized_hf(tmp_path / "hf", kind, dims=dims)
    changed(folder, {f"{UP}.{part}": tensor for part, tensor in parts.items()})
    with pytest.raises((ModelFileError, UnsupportedModelError), match=words) as caught:
        open_model(folder)
    assert "up_proj" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_numbers(tmp_path: Path) -> None:
    """NaN among 8-bit floats is found when the weights are read."""
    folder, _ = quantized_hf(tmp_path / "hf", CHANNEL[0], dims=CHANNEL[1])
    raw = bytearray(stored_tensors(folder)[f"{UP}.weight"][2])
    raw[77] = 0xFF
    opened = open_model(changed(folder, {f"{UP}.weight": ("F8_E4M3", (160, 96), bytes(raw))}))
    with pytest.raises(ModelFileError, match=r"up_proj.weight' holds NaN"):
        opened.tensors["blk.1.ffn_up.weight"].encoded()


def group(**changes: Any) -> dict[str, Any]:
    usual = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {**usual, **changes}}}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("awq", {"bits": 8}, "has 8 bits, which is not supported"),
    ("awq", {"version": "gemv"}, "has the version 'gemv'"),
    ("awq", {"version": "GEMM", "group_size": 24}, "has groups of 24 columns, not a multiple of 32"),
    ("awq", {"group_size": 0}, "has groups of 0 columns"),
    ("awq", {"group_size": "128"}, "group_size is not an integer"),
    ("awq", {"backend": "llm-awq"}, "has the backend 'llm-awq'"),
    ("gptq", {"bits": 3}, "has 3 bits"),
    ("gptq", {"bits": None}, "bits is missing"),
    ("gptq", {"checkpoint_format": "marlin"}, "has the checkpoint_format 'marlin'"),
    ("gptq", {"checkpoint_format": None, "format": "bitblas"}, "has the format 'bitblas'"),
    ("gptq", {"is_marlin_format": True}, "has is_marlin_format"),
    ("gptq", {"pack_dtype": "int16"}, "has the pack_dtype 'int16'"),
    ("gptq", {"dynamic": {"+:.*down": {"bits": 8}}}, "has settings of single modules"),
    (PACKED, {"format": "nvfp4-pack-quantized"}, "has the format 'nvfp4-pack-quantized'"),
    (PACKED, {"format": "marlin-24"}, "has the format 'marlin-24'"),
    (PACKED, {"format": "int-quantized"}, "has the format 'int-quantized'"),
    (PACKED, {"sparsity_config": {"format": "sparse-24-bitmask"}}, "has sparsity_config"),
    (PACKED, {"transform_config": {"config_groups": {}}}, "has transform_config"),
    (PACKED, {"config_groups": {}}, "has no config_groups"),
    (PACKED, {"config_groups": {"a": {"weights": None}}}, r"a config group without weights \('a'\)"),
    (PACKED, {"config_groups": dict.fromkeys(map(str, range(65)))}, "has 65 config_groups"),
    (PACKED, group(num_bits=2), "has 2 bits"),
    (PACKED, group(type="float", num_bits=4), "has 4 bits"),
    (PACKED, group(type="float", num_bits=8, strategy="group"), "has the strategy 'group'"),
    (PACKED, group(strategy="tensor_group"), "has the strategy 'tensor_group'"),
    (PACKED, group(dynamic=True), "quantized anew in every pass"),
    (PACKED, group(type="float", num_bits=8, strategy="channel", symmetric=False), "floats with zero points"),
    (PACKED, group(type="float", num_bits=8, strategy="block", block_structure=[128]), "is not two integers"),
    ("fp8", {"weight_block_size": [128, 100]}, "blocks whose columns are not a multiple of 32"),
    ("fp8", {"weight_block_size": 128}, "is not two integers"),
    ("fp8", {"fmt": "e5m2"}, "has the fmt 'e5m2'"),
    ("fp8", {"quant_method": "bitsandbytes"}, "quantized with BITSANDBYTES .*use the model's GGUF file"),
    ("fp8", {"quant_method": ["fp8"]}, "is quantized .quantization_config"),
]


@pytest.mark.grid(4)
@pytest.mark.parametrize(("method", "settings", "words"), REFUSED)
def test_settings_that_are_not_supported(
    tmp_path: Path, method: str, settings: dict[str, Any], words: str
) -> None:
    folder, _ = quantized_hf(
        tmp_path / "hf", Kind(method, group=128, block=(128, 128), bits=8 if method == "fp8" else 4)
    )
    with pytest.raises((ModelFileError, UnsupportedModelError), match=words) as caught:
        open_model(with_settings(folder, settings))
    assert "\n" not in str(caught.value)


def test_integers_with_quantized_activations_are_refused(tmp_path: Path) -> None:
    folder, _ = quantized_hf(tmp_path / "hf", Kind(PACKED))
    settings = group()
    settings["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    with pytest.raises(UnsupportedModelError, match="activations quantized beside integer weights"):
        open_model(with_settings(folder, settings))


def test_settings_without_tensors_that_fit_them(tmp_path: Path) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    folder = tiny_hf(tmp_path / "hf", config={"quantization_config": settings})
    with pytest.raises(ModelFileError, match="says that gptq quantized it, but it has none of its tensors"):
        open_model(folder)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("W4_128", ("awq", "awq_marlin")), ("W8_32", ("gptq", "gptq_marlin")), ("F8_128", ("fp8",))],
)
def test_vllms_names_of_how_a_folder_is_stored(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    """They ask for nothing where the folder is stored so, and are refused where it is not."""
    how, dims = OF_TYPE[kind]
    folder, _ = quantized_hf(tmp_path / "m", how, dims=dims)
    source = open_model(folder)
    for name in STORED_METHODS:
        if name in names:
            assert quantized(source, name) is source
        else:
            with pytest.raises(ConfigError, match=f"'{name}'.*is stored with {names[0]}: leave it out"):
                quantized(source, name)
    with pytest.raises(ConfigError, match="is stored in another way"):
        quantized(open_model(tiny_hf(tmp_path / "floats")), "awq")
