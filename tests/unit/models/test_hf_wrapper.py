"""Hugging Face folders of models that also read images: their text part is run."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.formats.safetensors import read_safetensors
from outrider.models.open import open_model
from tests.support.models import Dims, tiny_hf, write_safetensors
from tests.support.quantized import Kind, quantized_hf
from tests.support.wrapped import WRAPPED, spelled, wrapped_hf

DIMS = Dims(head_dim=32, window=16)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("arch", WRAPPED)
def test_the_text_part_is_read_in_both_spellings(
    tmp_path: Path, arch: str, old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plain = open_model(tiny_hf(tmp_path / "plain", arch=arch, dims=DIMS, tied=arch == "gemma3"))
    assert not caplog.records
    found = open_model(wrapped_hf(tmp_path / "wrapped", arch, old=old, dims=DIMS))
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.message.endswith("the part for images is left out: images are not supported")
    ours, theirs = found.architecture, plain.architecture
    for one, other in zip(ours.ropes, theirs.ropes, strict=True):
        assert one.inv_freq.tobytes() == other.inv_freq.tobytes()
    assert repr(replace(ours, ropes=())) == repr(replace(theirs, ropes=()))
    assert found.tensors.keys() == plain.tensors.keys()
    for name, tensor in found.tensors.items():
        assert tensor.name == name
        assert tensor.data.tobytes() == plain.tensors[name].data.tobytes()
    assert found.tokenizer.eos_ids == plain.tokenizer.eos_ids  # eos_token_id is at the top


def test_sizes_that_a_gemma_leaves_out(tmp_path: Path) -> None:
    """google/gemma-3-4b-it gives six sizes only; the others are transformers' defaults."""
    left_out = ("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")
    text: dict[str, Any] = dict.fromkeys((*left_out, "query_pre_attn_scalar", "rms_norm_eps", "rope_theta"))
    dims = Dims(layers=1, heads=8, kv_heads=4, head_dim=256, window=16)
    folder = wrapped_hf(tmp_path / "m", "gemma3", old=True, dims=dims, text=text)
    arch = open_model(folder).architecture
    assert (arch.n_heads, arch.n_kv_heads, arch.head_dim, arch.max_positions) == (8, 4, 256, 131072)
    assert (arch.rms_eps, arch.layers[0].attention_scale) == (1e-6, 1 / 16)
    edit(folder, text={"vocab_size": None})
    with pytest.raises(ModelFileError, match=r"embed_tokens\.weight is 320 x 64, not 262208 x 64"):
        open_model(folder)


def edit(folder: Path, *, text: dict[str, Any] | None = None, **top: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **top}
    if text:
        config["text_config"] |= text
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("arch", ["gemma3", "mistral3"])
def test_model_type_alone_says_the_class(tmp_path: Path, arch: str) -> None:
    folder = wrapped_hf(tmp_path / "m", arch, old=False, dims=DIMS, config={"architectures": None})
    assert open_model(folder).architecture.name == arch


Damaged, Unsupported = ModelFileError, UnsupportedModelError


@pytest.mark.parametrize(
    ("config", "text", "error", "words"),
    [
        ({"text_config": None}, None, Damaged, "a Gemma3ForConditionalGeneration without a text_config"),
        ({"text_config": 3}, None, Damaged, "text_config is not an object"),
        (
            {},
            {"model_type": "llama"},
            UnsupportedModelError,
            "has the text part 'llama' in a Gemma3.*gemma3_text",
        ),
        ({}, {"model_type": 5}, Damaged, "model_type is not a string"),
        ({"tie_word_embeddings": "yes"}, None, Damaged, "tie_word_embeddings is not true or false"),
        ({"tie_word_embeddings": False}, None, Damaged, r"lm_head\.weight is missing"),
        (
            {},
            {"use_bidirectional_attention": True},
            UnsupportedModelError,
            "sets use_bidirectional_attention",
        ),
        ({}, {"hidden_size": 1 << 40}, Damaged, "hidden_size is not between 1 and"),
        ({}, {"sliding_window": -1}, Damaged, "sliding_window is not between 1 and"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            None,
            UnsupportedModelError,
            "bitsandbytes",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, config: dict[str, Any], text: dict[str, Any] | None, error: type, words: str
) -> None:
    folder = wrapped_hf(tmp_path / "m", "gemma3", old=False, dims=DIMS, config=config, text=text)
    with pytest.raises(error, match=f"(?i){words}") as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)


def rewrite(folder: Path, *, without: str = "", twice: tuple[str, str] | None = None) -> None:
    found = list(read_safetensors(folder / "model.safetensors").values())
    kept = [(t.name, t.shape, t.data.tobytes()) for t in found if t.name != without]
    if twice:
        kept += [(twice[1], t.shape, t.data.tobytes()) for t in found if t.name == twice[0]]
    write_safetensors(folder / "model.safetensors", "F32", kept)


@pytest.mark.parametrize("old", [True, False])
def test_errors_have_the_names_of_the_folder(tmp_path: Path, old: bool) -> None:
    folder = wrapped_hf(tmp_path / "m", "gemma3", old=old, dims=DIMS)
    name = spelled("model.layers.1.mlp.up_proj.weight", old=old)
    rewrite(folder, without=name)
    with pytest.raises(ModelFileError, match=rf"the tensor {name} is missing".replace(".", r"\.")):
        open_model(folder)


def test_a_tensor_in_both_spellings(tmp_path: Path) -> None:
    folder = wrapped_hf(tmp_path / "m", "gemma3", old=True, dims=DIMS)
    names = [spelled("model.norm.weight", old=old) for old in (True, False)]
    rewrite(folder, twice=(names[0], names[1]))
    with pytest.raises(ModelFileError, match="is there under another name, too"):
        open_model(folder)


def test_a_quantized_text_part(tmp_path: Path) -> None:
    """The settings are at the top, the tensors of a matrix have the prefix."""
    folder, _ = quantized_hf(tmp_path / "m", Kind("awq", group=32), dims=DIMS)
    plain = {n: (t.type, t.encoded().tobytes()) for n, t in open_model(folder).tensors.items()}
    config = json.loads((folder / "config.json").read_text())
    top = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    top |= {key: config.pop(key) for key in ("quantization_config", "tie_word_embeddings")}
    text = {**config, "model_type": "mistral", "sliding_window": None}
    (folder / "config.json").write_text(json.dumps({**top, "text_config": text}))
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    renamed = {n if n[0] == "_" else spelled(n, old=True): entry for n, entry in header.items()}
    text_header = json.dumps(renamed).encode()
    weights.write_bytes(len(text_header).to_bytes(8, "little") + text_header + raw[8 + size :])
    found = open_model(folder).tensors
    assert {n: (t.type, t.encoded().tobytes()) for n, t in found.items()} == plain
