"""What the keys and tensors of a GGUF file mean, and which files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.rope import base_frequencies, scale_yarn
from outrider.models.open import open_model
from outrider.models.spec import FeedForwardSpec, LayerSpec, NormsSpec
from outrider.models.weight_types import SUPPORTED_TYPES
from tests.support.models import (
    CHAT_TEMPLATE,
    PHI3_FUSED,
    RANDOM_TYPES,
    SPECIAL,
    Dims,
    interleaved,
    tiny_gguf,
    tiny_weights,
)

SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁a", "b"],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0],
    "tokenizer.ggml.bos_token_id": None,
    "tokenizer.ggml.eos_token_id": None,
    "tokenizer.ggml.add_bos_token": None,
}


def test_llama(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path / "a.gguf"))
    arch = model.architecture
    assert (model.format, model.display_name, model.chat_template) == ("gguf", "Tiny", CHAT_TEMPLATE)
    assert (arch.name, arch.n_layers, arch.hidden_size, arch.ffn_size) == ("llama", 2, 64, 96)
    assert (arch.n_heads, arch.n_kv_heads, arch.head_dim, arch.ropes[0].dim) == (4, 2, 16, 16)
    assert (arch.vocab_size, arch.max_positions, arch.ropes[0].interleaved) == (320, 256, True)
    assert arch.rms_eps == pytest.approx(1e-5)
    assert arch.ropes[0].inv_freq.dtype == np.float32
    np.testing.assert_array_equal(arch.ropes[0].inv_freq, base_frequencies(16, 10000.0).astype(np.float32))
    assert "output.weight" not in model.tensors
    assert model.weights_bytes == sum(4 * w.size for w in tiny_weights().values())


def test_named_chat_templates(tmp_path: Path) -> None:
    keys = {"tokenizer.chat_template.tool_use": "T", "tokenizer.chat_template.default": "D"}
    model = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys))
    assert (model.chat_template, model.chat_templates) == (CHAT_TEMPLATE, {"tool_use": "T"})


def test_qwen2(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path / "a.gguf", arch="qwen2", tied=False))
    assert (model.architecture.name, model.architecture.ropes[0].interleaved) == ("qwen2", False)
    assert model.tensors["blk.1.attn_k.bias"].shape == (32,)
    assert model.tensors["output.weight"].shape == (320, 64)


def test_qwen3(tmp_path: Path) -> None:
    dims = Dims(head_dim=32)  # heads times head_dim is not the hidden size
    model = open_model(tiny_gguf(tmp_path / "a.gguf", arch="qwen3", dims=dims))
    arch = model.architecture
    assert (arch.name, arch.n_layers, arch.head_dim, arch.ropes[0].interleaved) == ("qwen3", 2, 32, False)
    assert model.tensors["blk.1.attn_q.weight"].shape == (128, 64)
    assert model.tensors["blk.1.attn_k_norm.weight"].shape == (32,)
    assert all(layer.norms == NormsSpec(q=True, k=True) for layer in arch.layers)
    path = tiny_gguf(tmp_path / "b.gguf", arch="qwen3", tensors={"blk.1.attn_q_norm.weight": None})
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_q_norm\.weight is missing"):
        open_model(path)


def test_granite(tmp_path: Path) -> None:
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", arch="granite")).architecture
    assert (arch.name, arch.ropes[0].interleaved) == ("granite", True)
    assert (arch.embedding_scale, arch.residual_scale, arch.logit_scale) == (3.0, 0.5, 0.5)
    assert all(layer.attention_scale == 0.25 for layer in arch.layers)
    unset = dict.fromkeys(
        ("granite.embedding_scale", "granite.residual_scale", "granite.attention.scale"), 0.0
    )
    keys = {**unset, "granite.logit_scale": None, "granite.rope.scaling.finetuned": True}
    arch = open_model(tiny_gguf(tmp_path / "b.gguf", arch="granite", keys=keys)).architecture
    assert (arch.embedding_scale, arch.residual_scale, arch.logit_scale) == (1.0, 1.0, 1.0)
    assert arch.layers[0].attention_scale == 0.25  # 1 / sqrt(16)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("embedding_scale", -1.0, "the scale of embeddings is -1.0, not between"),
        ("embedding_scale", 1, "embedding_scale is int, not a floating-point"),
        ("residual_scale", float("nan"), "not a finite number"),
        ("residual_scale", 1e30, "the scale of what layers add is"),
        ("attention.scale", -0.5, "the scale of attention is -0.5"),
        ("attention.scale", "x", "attention.scale is bytes, not a floating-point"),
        ("logit_scale", 0.0, "the scale of logits is 0.0"),
        ("logit_scale", -8.0, "the scale of logits is -0.125"),
        ("logit_scale", [1.0], "logit_scale is an array, not a floating-point"),
        ("rope.scaling.finetuned", False, "sets granite.rope.scaling.finetuned"),
        ("expert_count", 8, "sets granite.expert_count"),
    ],
)
def test_hostile_values_of_granites_keys(tmp_path: Path, key: str, value: Any, words: str) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", arch="granite", keys={f"granite.{key}": value})
    with pytest.raises(ModelError, match=words) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


def test_smollm3(tmp_path: Path) -> None:
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", arch="smollm3", dims=Dims(layers=9))).architecture
    assert (arch.name, arch.ropes[0].interleaved) == ("smollm3", True)
    assert [layer.rope for layer in arch.layers] == [0, 0, 0, None, 0, 0, 0, None, 0]


def test_olmo2(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", arch="olmo2", keys={"olmo2.attention.sliding_window": 0})
    model = open_model(path)
    arch = model.architecture
    assert (arch.name, arch.ropes[0].interleaved) == ("olmo2", False)
    norms = NormsSpec(False, q=True, k=True, whole_qk=True, post_attention=True, ffn=False, post_ffn=True)
    assert all(layer.norms == norms for layer in arch.layers)
    assert model.tensors["blk.1.attn_q_norm.weight"].shape == (64,)  # of all heads
    assert model.tensors["blk.1.attn_k_norm.weight"].shape == (32,)


@pytest.mark.parametrize(
    ("keys", "tensors", "words"),
    [
        ({"olmo2.attention.sliding_window": 9}, {}, "sets olmo2.attention.sliding_window"),  # OLMo 3
        ({"olmo2.attention.sliding_window": [9]}, {}, "sets olmo2.attention.sliding_window"),
        ({}, {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, "attn_q_norm.weight is 16, not 64"),
        ({}, {"blk.0.attn_norm.weight": np.ones(64, np.float32)}, "'blk.0.attn_norm.weight' is not part of"),
        ({}, {"blk.1.post_ffw_norm.weight": None}, "post_ffw_norm.weight is missing"),
    ],
)
def test_hostile_files_of_olmo2(
    tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        open_model(tiny_gguf(tmp_path / "a.gguf", arch="olmo2", keys=keys, tensors=tensors))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_phi3(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"phi3.attention.sliding_window": 9}
    model = open_model(tiny_gguf(tmp_path / "a.gguf", arch="phi3", types=kind, keys=keys))
    arch = model.architecture
    assert (arch.name, arch.ropes[0].dim, arch.ropes[0].interleaved) == (
        "phi3",
        arch.head_dim * 3 // 4,
        False,
    )
    assert "attention.sliding_window is set, but not used, as in llama.cpp" in caplog.text
    assert [layer.window for layer in arch.layers] == [None, None]
    assert not any("qkv" in name for name in model.tensors)
    if kind == "Q4_K":
        return
    for fused, parts in PHI3_FUSED.items():
        values = np.concatenate([dequantize(model.tensors[f"blk.1.{part}.weight"]) for part in parts])
        expected = tiny_weights("phi3")[f"blk.1.{fused}.weight"]
        assert np.abs(values - expected).max() <= (0 if kind == "F32" else 5e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("keys", "tensors", "words"),
    [
        ({}, {"blk.1.attn_qkv.weight": None}, "blk.1.attn_qkv.weight is missing"),
        (
            {},
            {"blk.1.ffn_up.weight": np.ones((96, 64), np.float32)},
            "ffn_up.weight is 96 x 64, not 192 x 64",
        ),
        ({}, {"blk.0.attn_qkv.weight": np.ones(128, np.float32)}, "attn_qkv.weight is 128, not 128 x 64"),
        ({}, {"blk.0.attn_k.weight": np.ones((32, 64), np.float32)}, "holds blk.0.attn_k.weight beside"),
        ({}, {"blk.0.attn_qkv.bias": np.ones(128, np.float32)}, "'blk.0.attn_qkv.bias' is not part of"),
        ({"phi3.attention.head_count_kv": 4}, {}, "attn_qkv.weight is 128 x 64, not 192 x 64"),
        ({"phi3.rope.dimension_count": 0}, {}, "dimension_count is 0, not between 1"),
        ({"phi3.rope.dimension_count": 18}, {}, "rope_dim 18 is odd or above head_dim 16"),
    ],
)
def test_hostile_files_of_phi3(
    tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        open_model(tiny_gguf(tmp_path / "a.gguf", arch="phi3", keys=keys, tensors=tensors))
    assert "\n" not in str(caught.value)


def test_mistral3(tmp_path: Path) -> None:
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", arch="mistral3")).architecture
    (rope,) = arch.ropes
    expected = scale_yarn(base_frequencies(16, 1e6), 1e6, 4.0, 16, (16.0, 0.5))
    np.testing.assert_array_equal(rope.inv_freq, expected.astype(np.float32))
    assert rope.scale == pytest.approx((1 + 0.1 * np.log(4)) / (1 + 0.05 * np.log(4)))
    assert (arch.name, rope.interleaved) == ("mistral3", True)
    for layer in arch.layers:
        assert layer.query_growth == pytest.approx(0.3)
        assert layer.query_growth_positions == 16
    keys = {"mistral3.attention.temperature_scale": None}
    arch = open_model(tiny_gguf(tmp_path / "b.gguf", arch="mistral3", keys=keys)).architecture
    assert arch.layers[0].query_growth == 0.0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attention.temperature_scale", -0.1, "the growth of queries is -0.1"),
        ("attention.temperature_scale", 1e9, "the growth of queries is 1000000000.0"),
        ("attention.temperature_scale", float("nan"), "not a finite number"),
        ("rope.scaling.original_context_length", 0, "is 0, not between 1"),
        ("rope.scaling.yarn_beta_fast", 0.25, "yarn_beta_slow is not between 0 and yarn_beta_fast"),
        ("rope.scaling.yarn_beta_slow", 0.0, "yarn_beta_slow is not between 0 and yarn_beta_fast"),
        ("rope.scaling.yarn_log_multiplier", -99.0, "rotary scale is -"),
    ],
)
def test_hostile_values_of_mistral3s_keys(tmp_path: Path, key: str, value: Any, words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as caught:
        open_model(tiny_gguf(tmp_path / "a.gguf", arch="mistral3", keys={f"mistral3.{key}": value}))
    assert "\n" not in str(caught.value)


def test_layers_of_a_llama(tmp_path: Path) -> None:
    arch = open_model(tiny_gguf(tmp_path / "a.gguf")).architecture
    layer = LayerSpec(FeedForwardSpec(96), attention_scale=0.25, norms=NormsSpec(), rope=0)
    assert arch.layers == (layer, layer)
    assert (arch.embedding_scale, arch.logit_softcap, len(arch.ropes)) == (1.0, None, 1)


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_every_type_decodes_to_nearly_the_weights(tmp_path: Path, kind: str) -> None:
    model = open_model(tiny_gguf(tmp_path / "a.gguf", types=kind))
    tensor = model.tensors["blk.0.attn_q.weight"]
    values = dequantize(tensor)
    assert tensor.type == kind
    assert values.dtype == np.float32
    assert values.shape == tensor.shape
    if kind in RANDOM_TYPES:  # there is nothing to be near to, but the scale
        assert 0.5 < values.std() * np.sqrt(values.shape[1]) < 2
        return
    expected = interleaved(tiny_weights()["blk.0.attn_q.weight"], 4)
    error = {"F32": 0, "F16": 1e-3, "BF16": 4e-3, "Q8_0": 5e-3, "MXFP4": 0.25}.get(kind, 0.1)
    assert np.abs(values - expected).max() <= error * np.abs(expected).max()


def test_mixed_types(tmp_path: Path) -> None:
    types = {"token_embd": "Q6_K", "attn_v": "Q6_K", "ffn_up": "Q4_K"}
    model = open_model(tiny_gguf(tmp_path / "a.gguf", types=types))
    assert model.tensors["token_embd.weight"].type == "Q6_K"
    assert model.tensors["blk.0.ffn_up.weight"].type == "Q4_K"
    assert model.tensors["blk.0.ffn_gate.weight"].type == "F32"


def test_head_dim_from_key_length(tmp_path: Path) -> None:
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", dims=Dims(head_dim=32))).architecture
    assert (arch.head_dim, arch.ropes[0].dim, arch.ropes[0].inv_freq.shape) == (32, 32, (16,))


def test_absent_keys_take_llama_cpp_defaults(tmp_path: Path) -> None:
    keys = {"llama.attention.head_count_kv": None, "llama.rope.freq_base": None, "general.name": None}
    path = tiny_gguf(tmp_path / "my model.gguf", dims=Dims(kv_heads=4), keys=keys)
    model = open_model(path)
    assert model.architecture.n_kv_heads == 4
    assert model.architecture.ropes[0].inv_freq[1] == pytest.approx(10000 ** (-2 / 16))
    assert model.display_name == "my model"


@pytest.mark.parametrize(
    ("keys", "divisor"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4),
        ({"llama.rope.scaling.factor": 2.0}, 2),
        ({"llama.rope.scale_linear": 8.0}, 8),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1),
        ({"llama.rope.scaling.factor": 0.0}, 1),
    ],
)
def test_rope_scaling(tmp_path: Path, keys: dict[str, Any], divisor: float) -> None:
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).architecture
    expected = (base_frequencies(16, 10000.0) / divisor).astype(np.float32)
    np.testing.assert_array_equal(arch.ropes[0].inv_freq, expected)


def test_rope_freqs_divide_and_disappear(tmp_path: Path) -> None:
    factors = np.array([1, 1, 2, 4, 8, 32, 32, 32], np.float32)
    model = open_model(tiny_gguf(tmp_path / "a.gguf", tensors={"rope_freqs.weight": factors}))
    assert "rope_freqs.weight" not in model.tensors
    expected = (base_frequencies(16, 10000.0) / factors).astype(np.float32)
    np.testing.assert_array_equal(model.architecture.ropes[0].inv_freq, expected)


YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}


@pytest.mark.parametrize(
    ("keys", "betas", "scale"),
    [
        ({}, (32.0, 1.0), 1 + 0.1 * np.log(4)),
        ({"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_ext_factor": 1.0}, (32.0, 1.0), 1.138629),
        ({"attn_factor": 0.5, "yarn_log_multiplier": 0.0}, (32.0, 1.0), 0.5 * (1 + 0.1 * np.log(4))),
    ],
)
def test_yarn(tmp_path: Path, keys: dict[str, Any], betas: tuple[float, float], scale: float) -> None:
    more = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    rope = open_model(tiny_gguf(tmp_path / "a.gguf", keys={**YARN, **more})).architecture.ropes[0]
    expected = scale_yarn(base_frequencies(16, 1e4), 1e4, 4.0, 64, betas)
    np.testing.assert_array_equal(rope.inv_freq, expected.astype(np.float32))
    assert rope.scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("factor", float("nan"), "not a finite number"),
        ("factor", 1e9, "the rotary scaling factor is 1000000000.0"),
        ("original_context_length", 0, "original_context_length is 0, not between 1 and"),
        ("original_context_length", 64.0, "is float, not an integer"),
        ("attn_factor", 0.0, "rotary scale is 0.0"),
        ("yarn_beta_fast", 16.0, "sets llama.rope.scaling.yarn_beta_fast"),
        ("yarn_beta_slow", -1.0, "sets llama.rope.scaling.yarn_beta_slow"),
        ("yarn_ext_factor", 0.5, "sets llama.rope.scaling.yarn_ext_factor"),
        ("yarn_attn_factor", "1", "yarn_attn_factor is bytes, not a floating-point"),
        ("yarn_log_multiplier", 0.1, "sets llama.rope.scaling.yarn_log_multiplier"),
    ],
)
def test_hostile_values_of_yarns_keys(tmp_path: Path, key: str, value: Any, words: str) -> None:
    keys = {**YARN, f"llama.rope.scaling.{key}": value}
    with pytest.raises(ModelError, match=words) as caught:
        open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys))
    assert "\n" not in str(caught.value)


SHORT = np.linspace(1, 2, 8, dtype=np.float32)


def test_long_factors_limit_the_context(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.original_context_length": 100}
    tensors = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": SHORT * 2}
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys, tensors=tensors)).architecture
    expected = (base_frequencies(16, 1e4) / SHORT).astype(np.float32)
    np.testing.assert_array_equal(arch.ropes[0].inv_freq, expected)
    assert arch.max_positions == 100
    tensors["rope_factors_long.weight"] = SHORT  # the same: there is nothing to limit
    assert (
        open_model(tiny_gguf(tmp_path / "b.gguf", keys=keys, tensors=tensors)).architecture.max_positions
        == 256
    )
    tensors["rope_factors_long.weight"] = np.ones(7, np.float32)
    with pytest.raises(ModelFileError, match=r"rope_factors_long\.weight is not a vector of 8 F32"):
        open_model(tiny_gguf(tmp_path / "c.gguf", keys=keys, tensors=tensors))


def test_optional_llama_biases(tmp_path: Path) -> None:
    bias = {"blk.0.attn_q.bias": np.ones(64, np.float32), "blk.1.attn_output.bias": np.ones(64, np.float32)}
    assert open_model(tiny_gguf(tmp_path / "a.gguf", tensors=bias)).tensors.keys() >= bias.keys()


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        ("llama", {}, [None, None, None]),
        ("llama", {"sliding_window": 0}, [None, None, None]),
        ("llama", {"sliding_window": 100}, [100, 100, 100]),
        ("llama", {"sliding_window": 100, "sliding_window_pattern": 2}, [100, None, 100]),
        ("gemma3", {"sliding_window": 100}, [100, 100, 100]),  # the sixth would see all
        ("gemma3", {"sliding_window": 9, "sliding_window_pattern": 3}, [9, 9, None]),
        ("gemma3", {"sliding_window": 9, "sliding_window_pattern": [False, True, False]}, [None, 9, None]),
    ],
)
def test_windows_of_layers(
    tmp_path: Path, arch: str, keys: dict[str, Any], expected: list[int | None]
) -> None:
    path = tiny_gguf(
        tmp_path / "a.gguf",
        arch=arch,
        dims=Dims(layers=3),
        keys={f"{arch}.attention.{key}": value for key, value in keys.items()},
    )
    spec = open_model(path).architecture
    assert [layer.window for layer in spec.layers] == expected
    assert spec.max_positions == 256
    if arch == "gemma3":  # layers with a window have a rotary table of their own
        assert [layer.rope for layer in spec.layers] == [0 if w is None else 1 for w in expected]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attention.sliding_window", 1 << 31, "not between 0 and"),
        ("attention.sliding_window", 1.5, "float, not an integer"),
        ("attention.sliding_window_pattern", [True], "has 1 entries for 2 layers"),
        ("attention.sliding_window_pattern", ["a", "b"], "not an array of truth values"),
        ("attention.sliding_window_pattern", 1 << 20, "not between 0 and"),
        ("rope.freq_base_swa", 0.5, "the rotary base is 0.5"),
        ("rope.freq_base_swa", float("nan"), "not a finite number"),
        ("final_logit_softcapping", -3.0, "the softcap is -3.0"),
        ("attn_logit_softcapping", 1e30, "the softcap on attention is"),
    ],
)
def test_hostile_values_of_gemmas_keys(tmp_path: Path, key: str, value: Any, words: str) -> None:
    keys = {"gemma3.attention.sliding_window": 8, f"gemma3.{key}": value}
    path = tiny_gguf(tmp_path / "a.gguf", arch="gemma3", keys=keys)
    with pytest.raises(ModelFileError, match=words) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


def test_bpe_tokenizer(tmp_path: Path) -> None:
    data = open_model(tiny_gguf(tmp_path / "a.gguf")).tokenizer
    assert (data.kind, data.pre, len(data.tokens)) == ("bpe", "gpt-2", 320)
    assert data.tokens[:3] == SPECIAL
    assert data.types.dtype == np.int32
    assert data.types[:4].tolist() == [3, 3, 3, 1]
    assert all(len(merge.split(" ")) == 2 for merge in data.merges)
    assert len(data.merges) == 320 - 3 - 256
    assert (data.bos_id, data.unk_id, data.pad_id) == (1, None, None)
    assert data.eos_ids == (2, 0)  # the eos key, then <|endoftext|>
    assert not data.add_bos
    assert not data.add_space_prefix


def test_end_of_turn_ids(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.eom_token_id": 7,
    }
    assert open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).tokenizer.eos_ids == (5, 2, 7, 0)
    plain = {"tokenizer.ggml.token_type": [1] * 320}  # pieces that only look like control tokens
    assert open_model(tiny_gguf(tmp_path / "b.gguf", keys=plain)).tokenizer.eos_ids == (2,)


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("tekken", True), ("smollm", False)])
def test_add_bos_default_follows_the_pre_tokenizer(tmp_path: Path, pre: str, expected: bool) -> None:
    keys = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": None}
    assert open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).tokenizer.add_bos is expected


def test_spm_tokenizer(tmp_path: Path) -> None:
    data = open_model(tiny_gguf(tmp_path / "a.gguf", keys=SPM)).tokenizer
    assert (data.kind, data.merges, data.tokens[3]) == ("spm", (), "▁a")
    assert data.scores.tolist() == [0, 0, 0, -1, -2]
    assert (data.bos_id, data.eos_ids, data.unk_id) == (1, (2,), 0)
    assert data.add_bos
    assert data.add_space_prefix


def test_minus_one_means_no_such_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"tokenizer.ggml.padding_token_id": (1 << 32) - 1}
    assert open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).tokenizer.pad_id is None
    assert not caplog.records


@pytest.mark.parametrize("role", ["padding", "unknown", "bos", "eos", "eot", "eom"])
def test_ids_that_no_token_has_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", keys={f"tokenizer.ggml.{role}_token_id": 320})
    tokenizer = open_model(path).tokenizer
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, *tokenizer.eos_ids)
    assert 320 not in ids
    assert f"{role}_token_id is 320, but there are 320 tokens: it is left out" in caplog.text


def test_ids_that_no_token_has_of_a_sentence_piece_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """llama.cpp goes back to its defaults for these vocabularies."""
    wrong = {"unknown": 9, "bos": 5, "eos": 1 << 20, "padding": 5}
    keys = {**SPM, **{f"tokenizer.ggml.{role}_token_id": value for role, value in wrong.items()}}
    data = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).tokenizer
    assert (data.unk_id, data.bos_id, data.eos_id, data.pad_id) == (0, 1, 2, None)
    assert "eos_token_id is 1048576, but there are 5 tokens: 2 is used" in caplog.text
    assert "padding_token_id is 5, but there are 5 tokens: it is left out" in caplog.text


def test_a_missing_pre_tokenizer_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = open_model(tiny_gguf(tmp_path / "a.gguf", keys={"tokenizer.ggml.pre": None})).tokenizer
    assert data.pre == "default"
    assert "does not name its pre-tokenizer" in caplog.text


def test_what_templates_call_the_tokens(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 2}
    data = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).tokenizer
    assert data.named == {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}
    keys = {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.padding_token_id": 0}
    data = open_model(tiny_gguf(tmp_path / "b.gguf", keys=keys)).tokenizer
    assert data.named == {"bos_token": "<|im_start|>", "eos_token": "", "pad_token": "<|endoftext|>"}


def test_equal_numbers_for_each_layer(tmp_path: Path) -> None:
    keys = {
        "llama.attention.head_count": [4, 4],
        "llama.attention.head_count_kv": [2, 2],
        "llama.feed_forward_length": [96, 96],
    }
    arch = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).architecture
    assert (arch.n_heads, arch.n_kv_heads, arch.ffn_size) == (4, 2, 96)


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"llama.block_count": None}, ModelFileError, "llama.block_count is missing"),
        ({"llama.block_count": "2"}, ModelFileError, "llama.block_count is bytes, not an integer"),
        ({"llama.block_count": 0}, ModelFileError, "llama.block_count is 0, not between 1 and"),
        ({"llama.block_count": 1 << 31}, ModelFileError, "llama.block_count is 2147483648"),
        ({"llama.block_count": 3}, ModelFileError, "tensor blk.2.attn_norm.weight is missing"),
        ({"llama.block_count": 1}, UnsupportedModelError, "blk.1.attn_norm.weight' is not part of a llama"),
        (
            {"llama.attention.head_count": [4, 2]},
            UnsupportedModelError,
            "numbers of heads .*head_count: 2 to 4",
        ),
        ({"llama.attention.head_count": [4]}, ModelFileError, "head_count has 1 entries for 2 layers"),
        ({"llama.attention.head_count": [4.0, 4.0]}, ModelFileError, "not an array of integers"),
        ({"llama.attention.head_count": [0, 0]}, ModelFileError, "head_count is 0, not between 1"),
        ({"llama.attention.head_count_kv": [2, 4]}, UnsupportedModelError, "numbers of key heads .*: 2 to 4"),
        ({"llama.attention.head_count_kv": [2, 2, 2]}, ModelFileError, "head_count_kv has 3 entries for 2"),
        ({"llama.feed_forward_length": [96, 64]}, UnsupportedModelError, "feed-forward columns .*: 64 to 96"),
        ({"llama.attention.head_count": 5}, ModelFileError, "5 heads do not divide the embedding length 64"),
        ({"llama.attention.head_count_kv": 3}, ModelFileError, "4 heads do not divide among 3"),
        ({"llama.attention.head_count": 64}, ModelFileError, "rope_dim 1 is odd"),
        (
            {"llama.attention.key_length": 15, "llama.attention.value_length": 15},
            ModelFileError,
            "rope_dim 15 is odd",
        ),
        ({"llama.attention.value_length": 8}, UnsupportedModelError, "heads of different sizes"),
        ({"llama.rope.dimension_count": 18}, ModelFileError, "above head_dim 16"),
        ({"llama.rope.dimension_count": 7}, ModelFileError, "rope_dim 7 is odd"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, ModelFileError, "epsilon is missing"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, ModelFileError, "rms_eps is 0.0"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, ModelFileError, "rms_eps is -1.0"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, ModelFileError, "not a finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": 1}, ModelFileError, "is int, not a floating-point"),
        ({"llama.rope.freq_base": 0.0}, ModelFileError, "rotary base is 0.0"),
        ({"llama.rope.freq_base": float("inf")}, ModelFileError, "not a finite number"),
        ({"llama.rope.scaling.type": "ntk"}, UnsupportedModelError, "'ntk' rotary scaling"),
        ({"llama.rope.scaling.factor": -2.0}, ModelFileError, "rotary scaling factor is -2.0"),
        ({"llama.rope.scaling.attn_factor": -1.0}, ModelFileError, "rotary scale is -1.0"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "sets llama.expert_count"),
        ({"llama.logit_scale": 0.25}, UnsupportedModelError, "sets llama.logit_scale"),
        ({"llama.attention.temperature_scale": 0.1}, UnsupportedModelError, "attention.temperature_scale"),
        ({"llama.attention.causal": False}, UnsupportedModelError, "sets llama.attention.causal"),
        ({"llama.context_length": 1 << 30}, ModelFileError, "llama.context_length"),
        ({"llama.feed_forward_length": 97}, ModelFileError, "blk.0.ffn_gate.weight is 96 x 64, not 97 x 64"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "tokenizer 'bert'; supported: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, ModelFileError, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.tokens": ["a"] * 321}, ModelFileError, "321 token pieces for 320 embedding rows"),
        ({"tokenizer.ggml.tokens": [1, 2]}, ModelFileError, "tokens is an array, not an array of strings"),
        ({"tokenizer.ggml.token_type": [1]}, ModelFileError, "token_type has 1 entries for 320 pieces"),
        ({"tokenizer.ggml.token_type": [1.0]}, ModelFileError, "not an array of integers"),
        ({"tokenizer.ggml.token_type": [7] * 320}, ModelFileError, "not between 0 and 6"),
        ({"llama.expert_count": [1, 2]}, UnsupportedModelError, "sets llama.expert_count"),
        ({"tokenizer.ggml.merges": None}, ModelFileError, "merges is missing"),
        ({"tokenizer.ggml.eos_token_id": "2"}, ModelFileError, "eos_token_id is bytes, not an integer"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, ModelFileError, "not a truth value"),
        ({"tokenizer.chat_template": 7}, ModelFileError, "chat_template is int, not a string"),
        ({"tokenizer.chat_template.rag": 7}, ModelFileError, "chat_template.rag is int, not a string"),
        ({**SPM, "tokenizer.ggml.scores": None}, ModelFileError, "scores is missing"),
        ({**SPM, "tokenizer.ggml.scores": [0.0]}, ModelFileError, "scores has 1 entries for 5"),
        ({**SPM, "tokenizer.ggml.scores": [float("nan")] * 5}, ModelFileError, "not finite"),
    ],
)
def test_keys_that_are_refused(
    tmp_path: Path, keys: dict[str, Any], error: type[ModelError], words: str
) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", keys=keys)
    with pytest.raises(error, match=words) as caught:
        open_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({"token_embd.weight": None}, ModelFileError, "token_embd.weight is missing"),
        ({"output_norm.weight": None}, ModelFileError, "output_norm.weight is missing"),
        ({"blk.1.ffn_down.weight": None}, ModelFileError, "blk.1.ffn_down.weight is missing"),
        ({"output_norm.weight": np.ones(65, np.float32)}, ModelFileError, "is 65, not 64"),
        ({"blk.0.attn_k.weight": np.ones((32, 65), np.float32)}, ModelFileError, "is 32 x 65, not 32 x 64"),
        ({"output.weight": np.ones((100, 64), np.float32)}, ModelFileError, "is 100 x 64, not 320 x 64"),
        ({"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, UnsupportedModelError, "is not part of"),
        ({"rope_freqs.weight": np.ones(7, np.float32)}, ModelFileError, "not a vector of 8 F32"),
        ({"rope_freqs.weight": np.zeros(8, np.float32)}, ModelFileError, "not positive"),
        ({"rope_freqs.weight": np.full(8, np.nan, np.float32)}, ModelFileError, "not positive"),
    ],
)
def test_tensors_that_are_refused(
    tmp_path: Path, tensors: dict[str, Any], error: type[ModelError], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_model(tiny_gguf(tmp_path / "a.gguf", tensors=tensors))


def test_qwen2_must_have_its_biases(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", arch="qwen2", tensors={"blk.1.attn_v.bias": None})
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_v\.bias is missing"):
        open_model(path)


def test_other_architectures_are_named(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", arch="mamba")
    with pytest.raises(UnsupportedModelError, match="architecture 'mamba'; supported: llama, qwen2"):
        open_model(path)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither config\.json nor a GGUF file"):
        open_model(tmp_path)
    tiny_gguf(tmp_path / "a.gguf")
    (tmp_path / "config.json").write_text("{}")  # some repositories of GGUF files have one
    assert open_model(tmp_path).path == tmp_path / "a.gguf"
    tiny_gguf(tmp_path / "b.gguf")
    with pytest.raises(ModelNotFoundError, match=r"holds 2 GGUF files \(a.gguf, b.gguf\)"):
        open_model(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_model(tmp_path / "absent")
    with pytest.raises(ModelFileError, match="cannot be read"):
        open_model(tmp_path / ("x" * 300))
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_model(Path("nul\0"))
