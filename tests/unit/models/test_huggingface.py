"""Hugging Face folders: what their files mean, and which are refused."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.formats import hf_tokenizer
from outrider.models.formats.dequantize import dequantize, same_values
from outrider.models.formats.rope import base_frequencies, scale_linear, scale_llama3, scale_yarn
from outrider.models.formats.safetensors import read_safetensors
from outrider.models.open import open_model
from outrider.models.source import Tensor
from tests.support.models import (
    CHAT_TEMPLATE,
    OWN_CONFIG,
    Dims,
    encode,
    tiny_gguf,
    tiny_hf,
    tiny_tokenizer,
    tiny_weights,
    write_safetensors,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 100,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_hf(tmp_path / "tiny")


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_llama(folder: Path) -> None:
    model = open_model(folder)
    arch = model.architecture
    assert (model.format, model.display_name, model.chat_template) == ("safetensors", "tiny", CHAT_TEMPLATE)
    assert (arch.name, arch.n_layers, arch.hidden_size, arch.ffn_size) == ("llama", 2, 64, 96)
    assert (arch.n_heads, arch.n_kv_heads, arch.head_dim, arch.ropes[0].dim) == (4, 2, 16, 16)
    assert (arch.vocab_size, arch.max_positions, arch.ropes[0].interleaved) == (320, 256, False)
    assert arch.rms_eps == 1e-5
    assert "output.weight" not in model.tensors
    assert model.tokenizer.kind == "json"
    assert model.tokenizer.tokenizer_json == tiny_tokenizer().to_str()
    assert (model.tokenizer.bos_id, model.tokenizer.eos_ids) == (1, (2, 0))


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "olmo2", "phi3"])
def test_same_tensors_as_the_gguf_of_the_same_model(tmp_path: Path, arch: str) -> None:
    ours = open_model(tiny_hf(tmp_path / "hf", arch=arch, tied=False))
    theirs = open_model(tiny_gguf(tmp_path / "a.gguf", arch=arch, tied=False))
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert tensor.name == name
        assert tensor.shape == theirs.tensors[name].shape
        if arch != "llama" or ("attn_q" not in name and "attn_k" not in name):  # permuted in llama's GGUF
            assert tensor.data.tobytes() == theirs.tensors[name].data.tobytes()


@pytest.mark.parametrize(("dtype", "error"), [("F32", 0.0), ("F16", 1e-3), ("BF16", 4e-3)])
@pytest.mark.parametrize("shards", [1, 3])
def test_dtypes_and_shards(tmp_path: Path, dtype: str, error: float, shards: int) -> None:
    model = open_model(tiny_hf(tmp_path / "hf", dtype=dtype, shards=shards, tied=False))
    for name, expected in tiny_weights(tied=False).items():
        tensor = model.tensors[name]
        assert tensor.type == dtype
        assert not tensor.data.flags.owndata
        assert np.abs(dequantize(tensor) - expected).max() <= error * np.abs(expected).max()


def test_head_dim_of_its_own(tmp_path: Path) -> None:
    assert open_model(tiny_hf(tmp_path / "hf", dims=Dims(head_dim=32))).architecture.head_dim == 32


def test_qwen3_has_a_head_size_of_its_own(tmp_path: Path) -> None:
    dims = Dims(head_dim=128)
    folder = tiny_hf(tmp_path / "hf", arch="qwen3", dims=dims, config={"head_dim": None})
    arch = open_model(folder).architecture  # the default of Qwen3Config
    assert (arch.name, arch.head_dim, arch.hidden_size) == ("qwen3", 128, 64)
    tiny_hf(tmp_path / "missing", arch="qwen3")
    edit_json(tmp_path / "missing" / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelFileError, match=r"model\.layers\.2\.input_layernorm\.weight is missing"):
        open_model(tmp_path / "missing")


def add_tensor(folder: Path, name: str, values: Any, dtype: str = "F32", *, without: str = "") -> None:
    """Write the folder's weights again with one more tensor, and without the one of another name."""
    found = [
        (t.name, t.shape, t.data.tobytes())
        for t in read_safetensors(folder / "model.safetensors").values()
        if t.name not in (name, without)
    ]
    added = (name, values.shape, encode(values, dtype))
    write_safetensors(folder / "model.safetensors", dtype, [*found, added])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_tied_model_drops_an_equal_lm_head(
    tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_hf(tmp_path / "hf", dtype=dtype, config={"tie_word_embeddings": True})
    add_tensor(folder, "lm_head.weight", tiny_weights()["token_embd.weight"], dtype)
    assert "output.weight" not in open_model(folder).tensors
    assert not caplog.records


def test_a_tied_model_keeps_another_lm_head_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_hf(tmp_path / "hf", tied=False, config={"tie_word_embeddings": True})
    expected = tiny_weights(tied=False)["output.weight"]
    assert np.array_equal(dequantize(open_model(folder).tensors["output.weight"]), expected)
    assert "sets tie_word_embeddings, but there is an lm_head of its own, which is used" in caplog.text
    caplog.clear()
    nearly = tiny_weights()["token_embd.weight"].copy()
    nearly[-1, -1] += 1
    add_tensor(folder, "lm_head.weight", nearly)
    assert np.array_equal(dequantize(open_model(folder).tensors["output.weight"]), nearly)
    assert "lm_head of its own" in caplog.text


def test_a_tied_model_saved_with_its_lm_head_only(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf", config={"tie_word_embeddings": True})
    embedding = tiny_weights()["token_embd.weight"]
    add_tensor(folder, "lm_head.weight", embedding, without="model.embed_tokens.weight")
    tensors = open_model(folder).tensors
    assert "output.weight" not in tensors
    assert np.array_equal(dequantize(tensors["token_embd.weight"]), embedding)
    edit_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelFileError, match=r"model\.embed_tokens\.weight is missing"):
        open_model(folder)


def test_values_are_compared_across_types() -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(-64, 64, (50, 8)).astype(np.float32)
    made = {
        dtype: Tensor("t", dtype, values.shape, np.frombuffer(encode(values, dtype), np.uint8))
        for dtype in ("F32", "F16", "BF16")
    }
    assert all(same_values(one, other) for one in made.values() for other in made.values())
    other = Tensor("t", "F32", values.shape, np.frombuffer(encode(values + 1, "F32"), np.uint8))
    assert not same_values(made["BF16"], other)
    assert not same_values(made["F32"], replace(made["F32"], shape=(8, 50)))


@pytest.mark.parametrize("piece", [1, 64, 100, 1 << 20])
def test_values_are_compared_to_the_last_row(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr("outrider.models.formats.dequantize.PIECE", piece)
    values = np.arange(70, dtype=np.float32).reshape(7, 10)
    one = Tensor("t", "F32", values.shape, np.frombuffer(encode(values, "F32"), np.uint8))
    assert same_values(one, one)
    for place in (0, 35, 69):
        changed = values.copy()
        changed.flat[place] = -1
        other = Tensor("t", "F32", values.shape, np.frombuffer(encode(changed, "F32"), np.uint8))
        assert not same_values(one, other)


def test_missing_lm_head_without_tying(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf", tied=True, config={"tie_word_embeddings": False})
    with pytest.raises(ModelFileError, match=r"lm_head\.weight is missing"):
        open_model(folder)


@pytest.mark.parametrize(
    ("arch", "config", "expected"),
    [
        ("mistral", {"sliding_window": 100}, [100, 100]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("mistral", {}, [4096, 4096]),  # the default of MistralConfig
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False}, [None, None]),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True}, [None, None]),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, [None, 9]),
        ("llama", {"sliding_window": 100}, [None, None]),
        ("phi3", {"sliding_window": 100}, [100, 100]),
        ("phi3", {"sliding_window": None}, [None, None]),
        ("phi3", {}, [None, None]),
        ("gemma3", {"sliding_window": 9}, [9, 9]),
        ("gemma3", {"sliding_window": 9, "sliding_window_pattern": 2}, [9, None]),
        ("gemma3", {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"]}, [None, 9]),
    ],
)
def test_windows_of_layers(
    tmp_path: Path, arch: str, config: dict[str, Any], expected: list[int | None]
) -> None:
    spec = open_model(tiny_hf(tmp_path / "hf", arch=arch, config=config)).architecture
    assert [layer.window for layer in spec.layers] == expected
    assert spec.max_positions == 256
    assert spec.name == ("llama" if arch == "mistral" else arch)


def test_both_rotary_tables_of_gemma(tmp_path: Path) -> None:
    """Nested as transformers 5 writes them, or flat as its files on the hub have them."""
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    nested = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    flat: dict[str, Any] = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {**full}}
    configs: tuple[dict[str, Any], ...] = ({"rope_parameters": nested}, flat)
    found = [
        open_model(tiny_hf(tmp_path / str(i), arch="gemma3", config=config)).architecture.ropes
        for i, config in enumerate(configs)
    ]
    for ropes in found:
        for rope, theta, factor in zip(ropes, (1e6, 1e4), (8, 1), strict=True):
            wanted = theta ** -(np.arange(0, 16, 2) / 16) / factor
            assert np.allclose(rope.inv_freq, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sliding_window": 0}, "sliding_window is not between"),
        ({"sliding_window": "9"}, "sliding_window is not an integer"),
        ({"layer_types": ["full_attention"]}, "names the kinds of 1 layers, but has 2"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern is not between"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is not between"),
        ({"rope_local_base_freq": 0.1}, "the rotary base is 0.1"),
        ({"final_logit_softcapping": -1.0}, "the softcap is -1.0"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": {}}}}, "rotary parameters"),
        ({"hidden_activation": "silu"}, "hidden_activation is not gelu_pytorch_tanh"),
        ({"use_bidirectional_attention": True}, "sets use_bidirectional_attention"),
    ],
)
def test_hostile_configurations_of_gemma(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_model(tiny_hf(tmp_path / "hf", arch="gemma3", config={"sliding_window": 9, **config}))


def test_multipliers_of_granite(tmp_path: Path) -> None:
    arch = open_model(tiny_hf(tmp_path / "hf", arch="granite")).architecture
    assert (arch.embedding_scale, arch.residual_scale, arch.logit_scale) == (3.0, 0.5, 0.5)
    unset = dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"))
    config = {**unset, "attention_multiplier": None}
    arch = open_model(tiny_hf(tmp_path / "unset", arch="granite", config=config)).architecture
    assert (arch.embedding_scale, arch.residual_scale, arch.logit_scale) == (1.0, 1.0, 1.0)
    assert arch.layers[0].attention_scale == 1.0  # not 1 / sqrt(head_dim): the default of GraniteConfig
    arch = open_model(tiny_hf(tmp_path / "llama", config={"logits_scaling": 2.0})).architecture
    assert arch.logit_scale == 1.0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"embedding_multiplier": -1}, "the scale of embeddings is -1"),
        ({"embedding_multiplier": "12"}, "embedding_multiplier is not a number"),
        ({"residual_multiplier": 1e9}, "the scale of what layers add is"),
        ({"attention_multiplier": 0}, "the scale of attention is 0"),
        ({"logits_scaling": 0}, "the scale of logits is 0"),
        ({"logits_scaling": 10**400}, "logits_scaling is too large"),
        ({"mlp_bias": True}, "sets mlp_bias"),
    ],
)
def test_hostile_configurations_of_granite(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_model(tiny_hf(tmp_path / "hf", arch="granite", config=config))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [0, 0, 0, None, 0]),
        ({"no_rope_layer_interval": 2}, [0, None, 0, None, 0]),
        ({"no_rope_layers": [0, 1, 1, 0, 1], "no_rope_layer_interval": 2}, [None, 0, 0, None, 0]),
        ({"no_rope_layers": [0, 1, 1, 0, 1, 0, 0]}, [None, 0, 0, None, 0]),  # more than layers: not used
        ({"no_rope_layers": None, "use_sliding_window": False, "sliding_window": 9}, [0, 0, 0, None, 0]),
    ],
)
def test_layers_of_smollm3_without_rotation(
    tmp_path: Path, config: dict[str, Any], expected: list[int | None]
) -> None:
    folder = tiny_hf(tmp_path / "hf", arch="smollm3", dims=Dims(layers=5), config=config)
    assert [layer.rope for layer in open_model(folder).architecture.layers] == expected


def test_defaults_of_smollm3(tmp_path: Path) -> None:
    config = {"rope_theta": None, "tie_word_embeddings": None, "num_key_value_heads": None}
    folder = tiny_hf(tmp_path / "hf", arch="smollm3", dims=Dims(kv_heads=4), config=config)
    arch = open_model(folder).architecture
    np.testing.assert_array_equal(arch.ropes[0].inv_freq, base_frequencies(16, 2e6).astype(np.float32))
    assert arch.n_kv_heads == 4


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"no_rope_layers": [1]}, "names the kinds of 1 layers, but has 2"),
        ({"no_rope_layers": []}, "no_rope_layers is not a list of 0 and 1"),
        ({"no_rope_layers": [1, 2]}, "no_rope_layers is not a list of 0 and 1"),
        ({"no_rope_layers": [1, [0]]}, "no_rope_layers is not a list of 0 and 1"),
        ({"no_rope_layers": "10"}, "no_rope_layers is not a list of 0 and 1"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval is not between 1 and"),
        ({"use_sliding_window": True}, "sets use_sliding_window"),
    ],
)
def test_hostile_configurations_of_smollm3(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_model(tiny_hf(tmp_path / "hf", arch="smollm3", config=config))


def test_olmo2(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf", arch="olmo2", config={"rms_norm_eps": None})
    assert open_model(folder).architecture.rms_eps == 1e-5  # the default of Olmo2Config
    edit_json(folder / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelFileError, match=r"layers\.2\.self_attn\.q_norm\.weight is missing"):
        open_model(folder)
    edit_json(folder / "config.json", num_hidden_layers=2, attention_bias=True)
    with pytest.raises(UnsupportedModelError, match="sets attention_bias"):
        open_model(folder)
    add_tensor(folder, "model.layers.0.input_layernorm.weight", np.ones(64, np.float32))
    edit_json(folder / "config.json", attention_bias=False)
    with pytest.raises(UnsupportedModelError, match=r"'model\.layers\.0\.input_layernorm\.weight' is not"):
        open_model(folder)


def test_the_rotation_of_phi3(tmp_path: Path) -> None:
    long = {"short_factor": [1.5] * 6, "long_factor": [2.0] * 6, "original_max_position_embeddings": 7}
    base = base_frequencies(12, 10000.0)  # three quarters of 16 columns
    for i, name in enumerate(("longrope", "su", "yarn")):
        config = {"max_position_embeddings": 512, "rope_scaling": {**long, "type": name}}
        arch = open_model(tiny_hf(tmp_path / str(i), arch="phi3", config=config)).architecture
        np.testing.assert_array_equal(arch.ropes[0].inv_freq, (base / 1.5).astype(np.float32))
        assert arch.ropes[0].scale == pytest.approx(np.sqrt(1 + 1 / 8))  # twice the 256 beside the section
        assert arch.max_positions == 256
    config = {"partial_rotary_factor": None, "original_max_position_embeddings": None}
    arch = open_model(tiny_hf(tmp_path / "plain", arch="phi3", config=config)).architecture
    assert (arch.ropes[0].dim, arch.max_positions) == (16, 256)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0.0, not between 0 and 1"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5, not between 0 and 1"),
        ({"partial_rotary_factor": 0.01}, "rope_dim is 0, not between 1"),
        ({"partial_rotary_factor": "1"}, "partial_rotary_factor is not a number"),
        ({"original_max_position_embeddings": -1}, "original_max_position_embeddings is not between"),
        ({"rope_scaling": {**LONG, "type": "su"}}, "short_factor is not a list of 6 numbers"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear' rotary .* default, longrope"),
        ({"sliding_window": 0}, "sliding_window is not between"),
        ({"num_key_value_heads": 4}, r"self_attn\.qkv_proj\.weight is 128 x 64, not 192 x 64"),
        ({"intermediate_size": 32}, r"mlp\.gate_up_proj\.weight is 192 x 64, not 64 x 64"),
        ({"num_hidden_layers": 3}, r"layers\.2\.self_attn\.qkv_proj\.weight is missing"),
        ({"attention_bias": True}, "sets attention_bias"),
    ],
)
def test_hostile_configurations_of_phi3(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_model(tiny_hf(tmp_path / "hf", arch="phi3", config=config))


def ministral(**changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {**OWN_CONFIG["mistral3"]["rope_parameters"], **changes}}


def test_ministral(tmp_path: Path) -> None:
    config = {"sliding_window": None, "rms_norm_eps": None}
    folder = tiny_hf(tmp_path / "hf", arch="mistral3", dims=Dims(head_dim=128), config=config)
    arch = open_model(folder).architecture
    assert (arch.name, arch.rms_eps) == ("mistral3", 1e-5)
    assert [(layer.query_growth, layer.query_growth_positions) for layer in arch.layers] == [(0.3, 16)] * 2
    edit_json(folder / "config.json", head_dim=None, **ministral(llama_4_scaling_beta=0))
    arch = open_model(folder).architecture
    assert (arch.head_dim, arch.layers[0].query_growth) == (128, 0.0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_parameters": None}, "llama_4_scaling_beta is missing"),
        (ministral(llama_4_scaling_beta=None), "llama_4_scaling_beta is missing"),
        (ministral(llama_4_scaling_beta="0.1"), "llama_4_scaling_beta is not a number"),
        (ministral(llama_4_scaling_beta=-1), "the growth of queries is -1"),
        (ministral(llama_4_scaling_beta=10**400), "llama_4_scaling_beta is too large"),
        (ministral(original_max_position_embeddings=0), "original_max_position_embeddings is not between 1"),
        (
            ministral(original_max_position_embeddings=1.5),
            "original_max_position_embeddings is not an integer",
        ),
    ],
)
def test_hostile_configurations_of_ministral(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        open_model(tiny_hf(tmp_path / "hf", arch="mistral3", config={"head_dim": 16, **config}))


def test_biases_are_those_of_the_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_hf(tmp_path / "hf", config={"attention_bias": True})
    with pytest.raises(ModelFileError, match="sets attention_bias, but not every layer has its biases"):
        open_model(folder)
    for layer in (0, 1):
        for part, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            name = f"model.layers.{layer}.self_attn.{part}_proj.bias"
            add_tensor(folder, name, np.ones(rows, np.float32))
    assert sum(name.endswith(".bias") for name in open_model(folder).tensors) == 8
    assert not caplog.records
    edit_json(folder / "config.json", attention_bias=False)
    assert not any(name.endswith(".bias") for name in open_model(folder).tensors)
    assert "does not set attention_bias, so the biases in the file are not used" in caplog.text
    edit_json(folder / "config.json", attention_bias=True, architectures=["MistralForCausalLM"])
    assert not any(name.endswith(".bias") for name in open_model(folder).tensors)
    other = tiny_hf(tmp_path / "qwen3", arch="qwen3", config={"attention_bias": True})
    with pytest.raises(UnsupportedModelError, match="sets attention_bias"):
        open_model(other)


BASE = base_frequencies(16, 10000.0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_scaling": None}, BASE),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, scale_linear(BASE, 2.0)),
        ({"rope_scaling": LLAMA3}, scale_llama3(BASE, 32.0, 1.0, 4.0, 64)),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 1.5, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
        (
            {"rope_parameters": {**LLAMA3, "rope_theta": 1e4, "original_max_position_embeddings": None}},
            scale_llama3(BASE, 32.0, 1.0, 4.0, 256),
        ),
        # Both, in the words of old and of new transformers.
        (
            {"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 1e4}},
            scale_llama3(BASE, 32.0, 1.0, 4.0, 64),
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2},
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
            },
            scale_linear(BASE, 2.0),
        ),
        ({"rope_theta": None, "rope_scaling": {}, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default"}}, BASE),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, BASE),  # counts beyond 256 tokens only
        ({"rope_scaling": YARN}, scale_yarn(BASE, 1e4, 4.0, 64, (32.0, 1.0))),
        ({"rope_scaling": {**YARN, "factor": None}}, scale_yarn(BASE, 1e4, 4.0, 64, (32.0, 1.0))),
        (
            {"rope_scaling": {**YARN, "beta_fast": 9, "beta_slow": 0.5, "truncate": False}},
            scale_yarn(BASE, 1e4, 4.0, 64, (9.0, 0.5), truncate=False),
        ),
        (
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 128},  # counts first
            scale_llama3(BASE, 32.0, 1.0, 4.0, 128),
        ),
    ],
)
def test_rope_of_old_and_new_configurations(tmp_path: Path, config: dict[str, Any], expected: Any) -> None:
    inv_freq = open_model(tiny_hf(tmp_path / "hf", config=config)).architecture.ropes[0].inv_freq
    expected = base_frequencies(16, expected) if isinstance(expected, float) else expected
    np.testing.assert_array_equal(inv_freq, expected.astype(np.float32))


def test_long_factors_limit_the_context(tmp_path: Path) -> None:
    arch = open_model(tiny_hf(tmp_path / "a", config={"rope_scaling": LONG})).architecture
    np.testing.assert_array_equal(arch.ropes[0].inv_freq, BASE.astype(np.float32))
    assert arch.ropes[0].scale == pytest.approx(np.sqrt(1 + np.log(2.56) / np.log(100)))
    assert arch.max_positions == 100
    same = {**LONG, "long_factor": LONG["short_factor"], "attention_factor": 1.0}
    arch = open_model(tiny_hf(tmp_path / "b", config={"rope_scaling": same})).architecture
    assert (arch.max_positions, arch.ropes[0].scale) == (256, 1.0)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            UnsupportedModelError,
            "class 'GPT2LMHeadModel'; supported: Ll",
        ),
        ({"architectures": None, "model_type": None}, ModelFileError, "neither architectures nor model_type"),
        (
            {"architectures": [], "model_type": "gpt2"},
            UnsupportedModelError,
            "model_type 'gpt2'; supported: llama, mistral, qwen2, qwen3",
        ),
        ({"architectures": ["A", "B"]}, ModelFileError, "architectures does not name one"),
        ({"architectures": [["LlamaForCausalLM"]]}, ModelFileError, "architectures does not name one"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act is not silu"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModelError, "quantization_config.*GGUF"),
        ({"mlp_bias": True}, UnsupportedModelError, "sets mlp_bias"),
        ({"hidden_size": None}, ModelFileError, "hidden_size is missing"),
        ({"hidden_size": 64.0}, ModelFileError, "hidden_size is not an integer"),
        ({"hidden_size": True}, ModelFileError, "hidden_size is not an integer"),
        ({"hidden_size": 10**4000}, ModelFileError, "hidden_size is not between 1 and"),
        ({"hidden_size": 1}, ModelFileError, "4 heads do not divide the hidden_size 1"),
        ({"num_hidden_layers": -1}, ModelFileError, "num_hidden_layers is not between"),
        ({"num_hidden_layers": 3}, ModelFileError, r"model\.layers\.2\.input_layernorm\.weight is missing"),
        (
            {"num_hidden_layers": 1},
            UnsupportedModelError,
            r"'model\.layers\.1\.input_layernorm\.weight' is not",
        ),
        ({"num_key_value_heads": 3}, ModelFileError, "do not divide among 3"),
        ({"num_key_value_heads": 4}, ModelFileError, r"self_attn\.k_proj\.weight is 32 x 64, not 64 x 64"),
        ({"vocab_size": 321}, ModelFileError, r"embed_tokens\.weight is 320 x 64, not 321 x 64"),
        ({"rms_norm_eps": 0}, ModelFileError, "rms_eps is 0"),
        ({"rms_norm_eps": 10**400}, ModelFileError, "rms_norm_eps is too large"),
        ({"rms_norm_eps": "1e-5"}, ModelFileError, "rms_norm_eps is not a number"),
        ({"rope_theta": -1}, ModelFileError, "rotary base is -1"),
        ({"rope_scaling": []}, ModelFileError, "rope_scaling is not an object"),
        (
            {"rope_scaling": {"type": "proportional", "factor": 2.0}},
            UnsupportedModelError,
            "'proportional' rotary scaling",
        ),
        ({"rope_scaling": {"type": "dynamic"}}, ModelFileError, "factor is missing"),
        ({"rope_scaling": {**YARN, "factor": -4}}, ModelFileError, "rotary factor is -4"),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, ModelFileError, "beta_slow is not between 0 and"),
        ({"rope_scaling": {**YARN, "beta_slow": -1}}, ModelFileError, "beta_slow is not between 0 and"),
        ({"rope_scaling": {**YARN, "attention_factor": 0}}, ModelFileError, "rotary scale is 0"),
        ({"rope_scaling": {**YARN, "mscale": 10**400}}, ModelFileError, "mscale is too large"),
        ({"rope_scaling": {**YARN, "mscale": -99, "mscale_all_dim": 1}}, ModelFileError, "rotary scale is -"),
        ({"rope_scaling": {**YARN, "truncate": 1}}, ModelFileError, "truncate is not true or false"),
        (
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}},
            ModelFileError,
            "original_max_position_embeddings is not between 1",
        ),
        (
            {"rope_scaling": YARN, "rope_parameters": {**YARN, "attention_factor": 1.0}},
            ModelFileError,
            "different things",
        ),
        ({"rope_scaling": {"type": "longrope"}}, ModelFileError, "short_factor is not a list of 8 numbers"),
        ({"rope_scaling": {**LONG, "long_factor": [1.0]}}, ModelFileError, "long_factor is not a list of 8"),
        ({"rope_scaling": {**LONG, "long_factor": ["1"] * 8}}, ModelFileError, "long_factor is not a number"),
        ({"rope_scaling": {**LONG, "short_factor": [0] * 8}}, ModelFileError, "not between 1e-6 and 1e6"),
        (
            {"rope_scaling": {**LONG, "original_max_position_embeddings": 1}},
            ModelFileError,
            "rotary scale is inf",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, ModelFileError, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, ModelFileError, "rotary factor is 0"),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}},
            ModelFileError,
            "low_freq_factor is not between",
        ),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 2.0}},
            ModelFileError,
            "different things",
        ),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "factor": 8.0}},
            ModelFileError,
            "different things",
        ),
        (
            {"rope_theta": None, "rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
            ModelFileError,
            "different things",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 2.0}}},
            UnsupportedModelError,
            "kind of layer",
        ),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
        ({"layer_types": ["linear_attention"]}, UnsupportedModelError, "layer_types"),
        ({"eos_token_id": [2, "x"]}, ModelFileError, "eos_token_id is not made of token ids"),
        ({"eos_token_id": 2.5}, ModelFileError, "eos_token_id is not made of token ids"),
        ({"tie_word_embeddings": 1}, ModelFileError, "tie_word_embeddings is not true or false"),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, config: dict[str, Any], error: type[ModelError], words: str
) -> None:
    folder = tiny_hf(tmp_path / "hf", config=config)
    with pytest.raises(error, match=words) as caught:
        open_model(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": -Infinity}', "holds -Infinity"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": ' * 100000, "nested too deeply|not valid JSON"),
        ('{"a": ' + "9" * 10000 + "}", "not valid JSON"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "at most 1048576 are read"),
    ],
)
def test_broken_json(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=words):
        open_model(folder)


def test_json_that_is_not_utf8(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ModelFileError, match="not UTF-8"):
        open_model(folder)


def test_only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin, a pickle, which can run code"):
        open_model(folder)


def test_missing_files(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModelError, match=r"has no tokenizer\.json"):
        open_model(folder)
    with pytest.raises(ModelFileError, match="give the folder that holds it"):
        open_model(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor model\.safetensors\.index"):
        open_model(folder)


@pytest.mark.parametrize(
    "name", ["../a.safetensors", "/etc/a.safetensors", "a\\b.safetensors", "a.bin", "\0.safetensors"]
)
def test_an_index_may_not_lead_out(tmp_path: Path, name: str) -> None:
    folder = tiny_hf(tmp_path / "hf", shards=2)
    index = folder / "model.safetensors.index.json"
    edit_json(index, weight_map={"model.norm.weight": name})
    with pytest.raises(ModelFileError, match=r"is not the name of a \.safetensors file beside it"):
        open_model(folder)


def test_symlinks_are_followed(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf")
    (folder / "model.safetensors").rename(tmp_path / "blob")
    os.symlink(tmp_path / "blob", folder / "model.safetensors")
    assert open_model(folder).architecture.n_layers == 2


def test_index_and_shards_disagree(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf", shards=2)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map=dict.fromkeys(weight_map, "model-00001-of-00002.safetensors"))
    with pytest.raises(ModelFileError, match=r"00001-of-00002\.safetensors: the tensor .* is missing"):
        open_model(folder)
    edit_json(index, weight_map=weight_map)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"00002-of-00002\.safetensors: no such file"):
        open_model(folder)
    edit_json(index, weight_map={})
    with pytest.raises(ModelFileError, match="weight_map is missing or empty"):
        open_model(folder)


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin: int, end: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (b"", ModelFileError, "truncated: 0 bytes"),
        (b"PK\x03\x04 zip archive", ModelFileError, "not a safetensors file"),
        (b"\xff" * 7 + b"\x7f{}", ModelFileError, "at most 16777216 are read"),
        (struct.pack("<Q", 100) + b"{}", ModelFileError, "truncated: the header has 100 bytes"),
        (safetensors(b'{"a": 1'), ModelFileError, "not valid JSON"),
        (safetensors(b'{"\xff": 1}'), ModelFileError, "not UTF-8"),
        (safetensors(b'{"a": {}, "a": {}}'), ModelFileError, "'a' appears twice"),
        (safetensors({"a": 1}), ModelFileError, "'a' has no description"),
        (safetensors({"a": {}}), ModelFileError, "'a' has no dtype"),
        (
            safetensors({"a": tensor(0, 8, dtype="I64")}, bytes(8)),
            UnsupportedModelError,
            "dtype 'I64'; supported",
        ),
        (safetensors({"a": tensor(0, 8, shape=[-2])}, bytes(8)), ModelFileError, "impossible shape"),
        (safetensors({"a": tensor(0, 8, shape=[2.0])}, bytes(8)), ModelFileError, "impossible shape"),
        (safetensors({"a": tensor(0, 8, shape=[])}, bytes(8)), ModelFileError, "impossible shape"),
        (safetensors({"a": tensor(0, 8, shape=[0])}, bytes(8)), ModelFileError, "impossible shape"),
        (safetensors({"a": tensor(0, 8, shape=[1 << 64])}, bytes(8)), ModelFileError, "impossible shape"),
        (
            safetensors({"a": tensor(0, 8, shape=[1 << 40] * 2)}, bytes(8)),
            ModelFileError,
            "data_offsets of 8",
        ),
        (safetensors({"a": tensor(0, 8, shape=[3])}, bytes(8)), ModelFileError, "data_offsets of 8 bytes"),
        (safetensors({"a": tensor(8, 0, shape=[2])}, bytes(8)), ModelFileError, "data_offsets of -8"),
        (
            safetensors({"a": {**tensor(0, 8), "data_offsets": [0]}}),
            ModelFileError,
            "impossible data_offsets",
        ),
        (
            safetensors({"a": {**tensor(0, 8), "data_offsets": [True, 9]}}),
            ModelFileError,
            "impossible data_off",
        ),
        (
            safetensors({"a": tensor(0, 8)}, bytes(7)),
            ModelFileError,
            "truncated: the tensor 'a' ends at byte",
        ),
        (safetensors({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12)), ModelFileError, "'b' overlaps"),
        (safetensors({"a": tensor(0, 8), "b": tensor(12, 16)}, bytes(16)), ModelFileError, "hole before it"),
        (safetensors({"a": tensor(0, 8)}, bytes(9)), ModelFileError, "1 bytes that belong to no tensor"),
    ],
)
def test_safetensors_damage(tmp_path: Path, raw: bytes, error: type[ModelError], words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(error, match=words):
        read_safetensors(path)


def test_unknown_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hf"
    tiny_hf(path)
    raw = (path / "model.safetensors").read_bytes()
    renamed = raw.replace(b"mlp.gate_proj", b"mlp.gaga_proj")
    (path / "model.safetensors").write_bytes(renamed)
    with pytest.raises(UnsupportedModelError, match=r"'model\.layers\.0\.mlp\.gaga_proj\.weight' is not"):
        open_model(path)


def test_chat_template_forms(folder: Path) -> None:
    settings = folder / "tokenizer_config.json"
    edit_json(
        settings, chat_template=[{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    )
    assert open_model(folder).chat_template == "D"
    assert open_model(folder).chat_templates == {"tool_use": "T"}
    edit_json(settings, chat_template=None)
    assert open_model(folder).chat_template is None
    assert open_model(folder).chat_templates == {}
    edit_json(settings, chat_template=7)
    with pytest.raises(ModelFileError, match="chat_template is not a string"):
        open_model(folder)
    edit_json(
        settings, chat_template=[{"name": "tool_use", "template": "T"}, {"name": "a", "template": "A"}, 5]
    )
    assert open_model(folder).chat_template is None
    (folder / "chat_template.jinja").write_text("J")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("U")
    (folder / "additional_chat_templates" / "notes.txt").write_text("N")
    assert open_model(folder).chat_template == "J"
    assert open_model(folder).chat_templates == {"tool_use": "U", "a": "A"}
    edit_json(settings, chat_template=[{"name": "tool_use", "template": 7}])
    with pytest.raises(ModelFileError, match="chat_template is not a string"):
        open_model(folder)


def test_end_of_turn_ids(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert open_model(folder).tokenizer.eos_ids == (2, 0)  # config.json's, then <|endoftext|>
    edit_json(folder / "config.json", eos_token_id=[7])
    assert open_model(folder).tokenizer.eos_ids == (7, 2, 0)


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("named", [None, [], "absent"])
def test_the_model_type_stands_for_the_class(tmp_path: Path, arch: str, named: Any) -> None:
    folder = tiny_hf(tmp_path / "hf", arch=arch, config={"architectures": named})
    if named == "absent":
        values = json.loads((folder / "config.json").read_text())
        del values["architectures"]
        (folder / "config.json").write_text(json.dumps(values))
    assert open_model(folder).architecture.name == ("llama" if arch == "mistral" else arch)


@pytest.mark.parametrize(
    ("values", "ends", "warns"),
    [
        ({"eos_token_id": [2, 320]}, (2, 0), "eos_token_id has the id '320'"),
        ({"eos_token_id": [320, 5, -1]}, (5, 2, 0), "eos_token_id has the id '320'"),
        ({"eos_token_id": 10**400}, (2, 0), "eos_token_id has the id"),
        ({"pad_token_id": -1}, (2, 0), "pad_token_id has the id '-1'"),
        ({"bos_token_id": 32000}, (2, 0), "bos_token_id has the id '32000'"),
    ],
)
def test_ids_that_no_token_has_are_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture, values: dict[str, Any], ends: tuple[int, ...], warns: str
) -> None:
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", **values)
    edit_json(folder / "tokenizer_config.json", bos_token=None)
    tokenizer = open_model(folder).tokenizer
    assert tokenizer.eos_ids == ends
    assert tokenizer.pad_id is None
    assert warns in caplog.text
    assert "the model has 320 tokens: it is left out" in caplog.text


def test_an_eos_token_given_as_an_object(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", bos_token={"content": "<|endoftext|>"})
    assert open_model(folder).tokenizer.bos_id == 0


def _no_vocabulary(tokenizer: dict[str, Any]) -> None:
    del tokenizer["model"]["vocab"]


def _id_out_of_range(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"]["zz"] = 320


def _added_without_content(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"].append({"id": 3})


def _added_with_odd_flags(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][0]["lstrip"] = "no"


def _added_without_id(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][0]["id"] = "3"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_vocabulary, r"model\.vocab is missing"),
        (_id_out_of_range, "'zz' has no id below 320"),
        (_added_without_content, "an entry without content"),
        (_added_with_odd_flags, r"flags of '<\|endoftext\|>' that are not true or false"),
        (_added_without_id, r"'<\|endoftext\|>' has no id"),
    ],
)
def test_damaged_tokenizers(folder: Path, damage: Callable[[dict[str, Any]], None], words: str) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    damage(tokenizer)
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelFileError, match=words):
        open_model(folder)


def test_a_tokenizer_beyond_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_tokenizer, "TOKENIZER_LIMIT", 1000)
    with pytest.raises(ModelFileError, match="at most 1000 are read"):
        open_model(folder)
