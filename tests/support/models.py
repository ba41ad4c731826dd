"""Tiny but complete models with random weights, for tests that read files or run forward passes.

Both builders generate the same weights from the same seed, so a tiny model written as GGUF (F32) and as a
Hugging Face folder (F32) computes the same function.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Floats: TypeAlias = npt.NDArray[np.float32]

QK_NORMS, POST_NORMS = ("qwen3", "gemma3", "olmo2"), ("gemma3", "olmo2")  # the families that have these
# The families whose GGUF files have the rows of q and k in another order than folders.
INTERLEAVED = ("llama", "granite", "smollm3", "mistral3")
PHI3_FUSED = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}
VOCAB_SIZE = 320
# Types that `quantize` cannot write, or not so that many integers occur: where in a block the scale d is, the
# standard deviation of the decoded values for d = 1, and the dmin / d that gives a mean of 0 (0: no dmin).
RANDOM_TYPES = {
    "Q4_K": (0, 300, 7.5),
    "Q5_K": (0, 600, 15.5),
    "Q6_K": (208, 1400, 0),
    "IQ4_NL": (0, 70, 0),
    "IQ4_XS": (0, 1300, 0),
    "Q3_K": (108, 42, 0),
    "Q2_K": (80, 14, 1.5),
    "TQ1_0": (52, 0.8, 0),
    "TQ2_0": (64, 1.2, 0),
    "IQ3_XXS": (0, 160, 0),
    "IQ3_S": (0, 165, 0),
    "IQ2_XXS": (0, 54, 0),
    "IQ2_XS": (0, 56, 0),
    "IQ2_S": (0, 57, 0),
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = (
    "the quick brown fox jumps over the lazy dog and then the other dogs jump over the fox; "
    "def function(self, name): return self.name or another(name) for name in names if not none"
)


@dataclass(frozen=True)
class Dims:
    """Sizes of a tiny model. head_dim is hidden // heads unless given."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 96
    context: int = 256
    head_dim: int = 0
    theta: float = 10000.0
    eps: float = 1e-5
    window: int = 0  # of Gemma's layers

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden // self.heads


def family_dims(arch: str) -> Dims:
    """Sizes of the models that tests/scripts/record_family_reference.py recorded. Heads are larger than
    hidden // heads, except where q is square in llama.cpp. Windows are shorter than the texts."""
    if arch == "gemma3":
        return Dims(layers=6, hidden=128, ffn=256, head_dim=64, theta=1e6, eps=1e-6, window=16)
    layers = 5 if arch == "smollm3" else 3  # the fourth has no rotation
    head_dim = 0 if arch in ("qwen2", "olmo2", "phi3") else 64
    return Dims(layers=layers, hidden=128, ffn=256, head_dim=head_dim, theta=1e6, eps=1e-6)


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of VOCAB_SIZE pieces: 3 special, 256 bytes, 61 merges. GGUF pre: gpt-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def tiny_weights(
    arch: str = "llama", dims: Dims | None = None, *, tied: bool = True, seed: int = 0
) -> dict[str, Floats]:
    """Random float32 weights under GGUF's names, q and k in Hugging Face's row order."""
    dims = dims or Dims()
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Floats:
        return np.asarray(rng.standard_normal((rows, columns)) * scale / np.sqrt(columns), np.float32)

    def norm(columns: int = dims.hidden) -> Floats:
        return np.asarray(1 + 0.1 * rng.standard_normal(columns), np.float32)

    q, kv = dims.heads * dims.head, dims.kv_heads * dims.head
    weights = {"token_embd.weight": matrix(VOCAB_SIZE, dims.hidden, 4.0), "output_norm.weight": norm()}
    if not tied:
        weights["output.weight"] = matrix(VOCAB_SIZE, dims.hidden, 4.0)
    for layer in range(dims.layers):
        part = f"blk.{layer}."
        weights[part + "attn_norm.weight"] = norm()
        weights[part + "attn_q.weight"] = matrix(q, dims.hidden)
        weights[part + "attn_k.weight"] = matrix(kv, dims.hidden)
        weights[part + "attn_v.weight"] = matrix(kv, dims.hidden)
        weights[part + "attn_output.weight"] = matrix(dims.hidden, q)
        weights[part + "ffn_norm.weight"] = norm()
        weights[part + "ffn_gate.weight"] = matrix(dims.ffn, dims.hidden)
        weights[part + "ffn_up.weight"] = matrix(dims.ffn, dims.hidden)
        weights[part + "ffn_down.weight"] = matrix(dims.hidden, dims.ffn)
        if arch == "qwen2":
            for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                weights[f"{part}{name}.bias"] = (0.3 * rng.standard_normal(rows)).astype(np.float32)
        if arch in POST_NORMS:
            weights[part + "post_attention_norm.weight"] = norm()
            weights[part + "post_ffw_norm.weight"] = norm()
        if arch in QK_NORMS:
            weights[part + "attn_q_norm.weight"] = norm(q if arch == "olmo2" else dims.head)
            weights[part + "attn_k_norm.weight"] = norm(kv if arch == "olmo2" else dims.head)
        if arch == "phi3":
            for fused, parts in PHI3_FUSED.items():
                pieces = [weights.pop(f"{part}{name}.weight") for name in parts]
                weights[f"{part}{fused}.weight"] = np.concatenate(pieces)
        if arch == "olmo2":  # has norms after its parts only
            del weights[part + "attn_norm.weight"], weights[part + "ffn_norm.weight"]
    return weights


def tiny_gguf(
    path: Path,
    *,
    arch: str = "llama",
    types: str | Mapping[str, str] = "F32",
    dims: Dims | None = None,
    tied: bool = True,
    seed: int = 0,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Floats | None] | None = None,
) -> Path:
    """Write a tiny model as GGUF and return its path.

    types: a tensor type for all matrices, or one for each part ("attn_q", "token_embd", …; the others
    are F32). Superblocks need sizes that are multiples of 256, which are chosen if `dims` is None. Types
    that `quantize` cannot write are random bytes with realistic scales.
    keys: values that override or (None) remove metadata. tensors: the same for the tensors.
    """
    wanted = {types} if isinstance(types, str) else set(types.values())
    if dims is None:
        blocks = max(GGML_QUANT_SIZES[GGMLQuantizationType[t]][0] for t in wanted)
        dims = replace(Dims(), hidden=256, ffn=512) if blocks == 256 else Dims()
    rng = np.random.default_rng(seed + 1)
    writer = GGUFWriter(path, arch)
    for key, value in {**_metadata(arch, dims), **(keys or {})}.items():
        writer.kv_data[0].pop(key, None)
        if key == "general.alignment":
            writer.add_custom_alignment(value)
        elif value is not None:
            _add_key(writer, key, value)
    weights: dict[str, Floats | None] = {**tiny_weights(arch, dims, tied=tied, seed=seed), **(tensors or {})}
    for name, values in weights.items():
        if values is None:
            continue
        part = name.split(".")[-2]
        kind = types if isinstance(types, str) else types.get(part, "F32")
        heads = {"attn_q": dims.heads, "attn_k": dims.kv_heads}.get(part)
        if arch in INTERLEAVED and heads is not None:
            values = interleaved(values, heads)  # noqa: PLW2901
        _add_tensor(writer, name, values, GGMLQuantizationType["F32" if values.ndim == 1 else kind], rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


FIM_NAMES = (
    *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
)


def fim_gguf(path: Path, names: Sequence[str] = FIM_NAMES, **more: Any) -> Path:
    """The tiny model as GGUF whose last pieces are tokens for filling in. more: arguments of `tiny_gguf`."""
    metadata = _metadata("llama", Dims())
    key, size = "tokenizer.ggml.", len(names)
    made = {
        key + "tokens": [*metadata[key + "tokens"][:-size], *names],
        key + "token_type": [*metadata[key + "token_type"][:-size], *[3] * size],
        key + "merges": metadata[key + "merges"][:-size],  # the last merges make the last pieces
    }
    return tiny_gguf(path, **{**more, "keys": {**made, **more.get("keys", {})}})


def interleaved(values: Floats, heads: int) -> Floats:
    """Rows of q or k reordered for a rotation of pairs (2i, 2i + 1) instead of (i, i + d/2)."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(values.shape)


def tiny_hf(
    path: Path,
    *,
    arch: str = "llama",
    dtype: str = "F32",
    dims: Dims | None = None,
    tied: bool = True,
    seed: int = 0,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a tiny model as a Hugging Face folder and return it.

    arch: mistral or a name in `FAMILIES`. dtype: F32, F16 or BF16. config: overrides for config.json;
    a value None there is JSON's null.
    """
    dims = dims or Dims()
    path.mkdir(parents=True, exist_ok=True)
    settings = {**_config(arch, dims, tied), **(config or {})}
    (path / "config.json").write_text(json.dumps(settings))
    weights = tiny_weights(arch, dims, tied=tied, seed=seed)
    if arch == "gemma3":  # its norms multiply by 1 + weight
        weights = {name: values - 1 if values.ndim == 1 else values for name, values in weights.items()}
    encoded = [(hf_name(name, arch), values.shape, encode(values, dtype)) for name, values in weights.items()]
    if shards == 1:
        write_safetensors(path / "model.safetensors", dtype, encoded)
    else:
        weight_map: dict[str, str] = {}
        for shard in range(shards):
            name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            write_safetensors(path / name, dtype, encoded[shard::shards])
            weight_map.update((tensor, name) for tensor, _, _ in encoded[shard::shards])
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE})
    )
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return path


def encode(values: Floats, dtype: str) -> bytes:
    """`values` encoded as F32, F16 or BF16 (rounded to nearest even)."""
    if dtype == "BF16":
        return bytes(quantize(values, GGMLQuantizationType.BF16).tobytes())
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_safetensors(path: Path, dtype: str, tensors: list[tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write (name, shape, bytes) tensors in the safetensors format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(raw for _, _, raw in tensors))


def hf_name(name: str, arch: str = "llama") -> str:
    """The Hugging Face name of a GGUF tensor."""
    parts = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    if arch == "phi3":
        parts |= {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
    if arch in POST_NORMS:
        parts["post_attention_norm"] = "post_attention_layernorm"
        parts |= {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    *block, part, kind = name.split(".")
    return f"model.layers.{block[1]}.{parts[part]}.{kind}" if block else f"{parts[part]}.{kind}"


# Classes of transformers, where they are not the capitalized name.
CLASSES = {"smollm3": "SmolLM3", "mistral3": "Ministral3"}

# What the files of one family have and others do not: GGUF keys after its name, and keys of config.json.
OWN_KEYS: Mapping[str, Mapping[str, Any]] = {
    "mistral3": {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.yarn_beta_slow": 0.5,
        "rope.scaling.yarn_log_multiplier": 0.5,
        "attention.temperature_scale": 0.3,
    },
    "granite": {"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.25, "logit_scale": 2.0},
}
OWN_CONFIG: Mapping[str, Mapping[str, Any]] = {
    "mistral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 16.0,
            "beta_slow": 0.5,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "llama_4_scaling_beta": 0.3,
        }
    },
    "smollm3": {"pad_token_id": 0},  # transformers' default is beyond the vocabulary
    "phi3": {"pad_token_id": 0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 256},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
        "logits_scaling": 2.0,
    },
}


def _metadata(arch: str, dims: Dims) -> dict[str, Any]:
    parsed = json.loads(tiny_tokenizer().to_str())
    vocab = sorted(parsed["model"]["vocab"].items(), key=lambda item: item[1])
    return {
        "general.name": "Tiny",
        f"{arch}.block_count": dims.layers,
        f"{arch}.context_length": dims.context,
        f"{arch}.embedding_length": dims.hidden,
        f"{arch}.feed_forward_length": dims.ffn,
        f"{arch}.attention.head_count": dims.heads,
        f"{arch}.attention.head_count_kv": dims.kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": dims.eps,
        f"{arch}.rope.freq_base": dims.theta,
        **(
            {f"{arch}.attention.key_length": dims.head, f"{arch}.attention.value_length": dims.head}
            if dims.head_dim or arch in QK_NORMS
            else {}
        ),
        **({f"{arch}.attention.sliding_window": dims.window} if dims.window else {}),
        **({"phi3.rope.dimension_count": dims.head * 3 // 4} if arch == "phi3" else {}),
        **{f"{arch}.{key}": value for key, value in OWN_KEYS.get(arch, {}).items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [piece for piece, _ in vocab],
        "tokenizer.ggml.token_type": [3 if piece in SPECIAL else 1 for piece, _ in vocab],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in parsed["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _config(arch: str, dims: Dims, tied: bool) -> dict[str, Any]:
    return {
        "architectures": [f"{CLASSES.get(arch, arch.capitalize())}ForCausalLM"],
        "model_type": {"gemma3": "gemma3_text", "mistral3": "ministral3"}.get(arch, arch),
        **({"hidden_activation": "gelu_pytorch_tanh"} if arch == "gemma3" else {"hidden_act": "silu"}),
        **({"sliding_window": dims.window, "query_pre_attn_scalar": dims.head} if dims.window else {}),
        "num_hidden_layers": dims.layers,
        "max_position_embeddings": dims.context,
        "hidden_size": dims.hidden,
        "intermediate_size": dims.ffn,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        **({"head_dim": dims.head} if dims.head_dim or arch in QK_NORMS else {}),
        "rms_norm_eps": dims.eps,
        "rope_theta": dims.theta,
        **OWN_CONFIG.get(arch, {}),
        "vocab_size": VOCAB_SIZE,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    kinds = {
        bool: GGUFValueType.BOOL,
        int: GGUFValueType.UINT32,
        float: GGUFValueType.FLOAT32,
        str: GGUFValueType.STRING,
        list: GGUFValueType.ARRAY,
    }
    writer.add_key_value(key, value, kinds[type(value)])


def _add_tensor(
    writer: GGUFWriter, name: str, values: Floats, kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    if kind.name in ("F32", "F16"):
        writer.add_tensor(
            name, np.ascontiguousarray(values, np.float32 if kind.name == "F32" else np.float16)
        )
    elif kind.name in RANDOM_TYPES:
        writer.add_tensor(name, random_blocks(values.shape, kind, rng), raw_dtype=kind)
    else:
        raw = quantize(np.ascontiguousarray(values), kind).view(np.uint8)
        writer.add_tensor(name, raw.reshape(values.shape[0], -1), raw_dtype=kind)


def random_blocks(
    shape: tuple[int, ...], kind: GGMLQuantizationType, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Blocks of a (rows, columns) matrix of a type in RANDOM_TYPES: uint8[rows, bytes]. The values are about
    1 / sqrt(columns) in size, with a mean near 0."""
    rows, columns = shape
    values, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // values, size), np.uint8)
    at, spread, centre = RANDOM_TYPES[kind.name]
    d = rng.uniform(0.5, 1.5, len(blocks)) / (spread * np.sqrt(columns))
    scales = np.stack([d, d * centre], axis=1).astype("<f2").view(np.uint8)  # [blocks, 4]
    width = 4 if centre else 2
    blocks[:, at : at + width] = scales[:, :width]
    return blocks.reshape(rows, -1)
