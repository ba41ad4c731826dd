"""Models that are written again with other values: what is new in them, and that all else is as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import UnsupportedModelError
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.gguf_file import read_gguf
from outrider.models.formats.rewriting import (
    Values,
    check_rewritable,
    encode,
    write_gguf,
    write_safetensors,
    written_type,
)
from outrider.models.formats.safetensors import read_weights
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.weight_types import BLOCKS, FLOAT_TYPES, SUPPORTED_TYPES
from tests.support.models import family_dims, tiny_gguf, tiny_hf
from tests.support.quantized import OF_TYPE, quantized_hf
from tests.support.split_gguf import split

FROZEN = ("token_embd.weight", "output.weight")


def changed(source: ModelSource) -> Values:
    """Other values for all but the embedding and the output."""
    rng = np.random.default_rng(5)
    return {
        name: dequantize(tensor) + 0.05 * rng.standard_normal(tensor.shape, np.float32)
        for name, tensor in source.tensors.items()
        if name not in FROZEN
    }


def rewritten(source: ModelSource, path: Path, values: Values) -> ModelSource:
    with open(path, "wb") as file:
        write_gguf(file, source, values, "New name")
    return open_model(path)


def check_same(found: ModelSource, wanted: ModelSource, values: Values, error: float = 0.0) -> None:
    """It has these values, and otherwise the tensors of `wanted`, bit for bit."""
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, tensor in found.tensors.items():
        if name in values:
            far = np.linalg.norm(dequantize(tensor) - values[name])
            assert far <= error * np.linalg.norm(values[name]), name
        else:
            assert tensor.type == wanted.tensors[name].type
            np.testing.assert_array_equal(tensor.data, wanted.tensors[name].data)


# --- Types ----------------------------------------------------------------------------------------


def test_no_type_becomes_one_of_fewer_bits() -> None:
    bits = {name: 8 * size / count for name, (count, size) in BLOCKS.items()}
    for kind in SUPPORTED_TYPES:
        new = written_type(kind)
        assert bits[new] >= bits[kind], kind
        encode(np.ones((2, 64), np.float32), new)
    found = {kind: written_type(kind) for kind in ("Q4_0", "Q5_1", "BF16", "Q4_K", "Q6_K", "IQ2_XXS")}
    assert list(found.values()) == ["Q4_0", "Q5_1", "BF16", "Q4_1", "Q8_0", "Q4_0"]


def test_no_value_is_infinite_in_16_bits() -> None:
    assert np.isfinite(np.frombuffer(encode(np.full((1, 2), 1e6, np.float32), "F16"), "<f2")).all()


# --- GGUF -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "phi3"])
def test_a_gguf_file_has_the_new_values(tmp_path: Path, family: str) -> None:
    source = open_model(tiny_gguf(tmp_path / "old.gguf", arch=family, dims=family_dims(family), tied=False))
    values = changed(source)
    check_same(rewritten(source, tmp_path / "new.gguf", values), source, values)


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("Q8_0", 0.01), ("Q4_0", 0.15), ("Q4_K", 0.12)])
def test_quantized_matrices_are_quantized_again(tmp_path: Path, kind: str, error: float) -> None:
    source = open_model(tiny_gguf(tmp_path / "old.gguf", types=kind))
    values = changed(source)
    found = rewritten(source, tmp_path / "new.gguf", values)
    check_same(found, source, values, error)
    assert found.tensors["blk.0.attn_q.weight"].type == written_type(kind)


def test_keys_and_tokenizer_are_the_files_own(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "old.gguf", keys={"general.alignment": 64, "general.author": "A"})
    rewritten(open_model(path), tmp_path / "new.gguf", {})
    old, new = read_gguf(path), read_gguf(tmp_path / "new.gguf")
    assert new.alignment == 64
    pairs = [{key: repr(value) for key, value in file.metadata.pairs.items()} for file in (old, new)]
    differing = {key for key in pairs[0] | pairs[1] if pairs[0].get(key) != pairs[1].get(key)}
    assert differing == {"general.name", "general.file_type"}
    assert new.metadata.text("general.name") == "New name"
    assert new.metadata.integer("general.file_type", 0, 2000) == 0


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    source = open_model(split(tmp_path)[0])
    values = changed(source)
    found = rewritten(source, tmp_path / "new.gguf", values)
    check_same(found, source, values)
    assert not found.parts


def test_values_under_a_wrong_name_change_nothing(tmp_path: Path) -> None:
    """The broken twin of the comparison: it notices values that did not arrive."""
    source = open_model(tiny_gguf(tmp_path / "old.gguf"))
    values = changed(source)
    lost = {name.replace("attn_q", "attn_x"): rows for name, rows in values.items()}
    found = rewritten(source, tmp_path / "new.gguf", lost)
    with pytest.raises(AssertionError, match="attn_q"):
        check_same(found, source, values)


# --- Hugging Face ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "dtype"), [("llama", "F32"), ("gemma3", "F32"), ("phi3", "BF16")])
def test_a_folder_has_the_new_values(tmp_path: Path, family: str, dtype: str) -> None:
    folder = tiny_hf(
        tmp_path / "old", arch=family, dtype=dtype, dims=family_dims(family), tied=False, shards=2
    )
    source = open_model(folder)
    values = changed(source)
    new = tmp_path / "new"
    new.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (new / name).write_bytes((folder / name).read_bytes())
    with open(new / "model.safetensors", "wb") as file:
        write_safetensors(file, source, values)
    check_same(open_model(new), source, values, 4e-3 if dtype == "BF16" else 1e-6)
    assert read_weights(new, FLOAT_TYPES).keys() == read_weights(folder, FLOAT_TYPES).keys()
    header = (new / "model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    assert json.loads(header[8 : 8 + length])["__metadata__"] == {"format": "pt"}


def test_quantized_folders_are_refused(tmp_path: Path) -> None:
    kind, dims = OF_TYPE["W4_128"]
    folder, _ = quantized_hf(tmp_path / "q", kind, dims=dims)
    with pytest.raises(UnsupportedModelError, match=r"quantized with awq; give its folder of floats"):
        check_rewritable(open_model(folder))
