"""The families of models that can be read, whatever format a file has: one entry of `FAMILIES` each.

A reader of a format gets `Dimensions` from a file. `check_dimensions` (checks.py) bounds them, `make_spec`
turns them into the `ModelSpec` that engines compute, and `check_tensors` holds the file's tensors against
it. What a family needs beyond that is said in its entry. The steps to add one are in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from outrider.models.spec import (
    PRE_NORMS,
    Activation,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    NormsSpec,
    RopeSpec,
)

# Ids of these pieces end a turn when the vocabulary has them as special tokens.
END_OF_TURN = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>")
) | {"<end_of_turn>"}


@dataclass(frozen=True, slots=True)
class HuggingFaceClass:
    """A model class of transformers, and where the defaults of its configuration differ from Llama's.

    n_kv_heads:         None: as many as heads.
    head_dim:           None: hidden_size divided by the heads.
    window:             None: it has none, whatever the file says; 0: only where the file says so.
    window_is_optional: the window counts only where use_sliding_window is true, in layers from
                        max_window_layers on.
    window_period:      unless layer_types says which layers have the window: every one that is not the last
                        of so many; 0 for all.
    attention_bias:     whether attention_bias in the configuration asks for biases.
    tied:               whether the output matrix is the embedding.
    activation_key:     names the activation.
    rms_eps:            of the norms.
    theta, local_theta: bases of the rotary frequencies; local_theta, of the layers with a window, where these
                        have a rotary table of their own.
    partial_rope:       whether partial_rotary_factor may leave columns of heads without rotation.
    original_positions: default of original_max_position_embeddings where that lies beside the rotary
                        parameters (longrope is then the only scaling); 0 where it is one of them.
    refused:            settings that change the result when they are true, and are not read.
    query_growth:       whether queries grow with their position, by llama_4_scaling_beta.
    multipliers:        whether embeddings, attention, what layers add to the stream, and logits have factors
                        of their own.
    model_type:         None: the class's name in lower case, without ForCausalLM.
    sizes:              defaults of sizes that the configurations of other classes must give.
    """

    name: str
    n_kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    window_is_optional: bool = False
    window_period: int = 0
    attention_bias: bool = False
    tied: bool = False
    activation_key: str = "hidden_act"
    rms_eps: float = 1e-6
    theta: float = 10000.0
    local_theta: float | None = None
    partial_rope: bool = False
    original_positions: int = 0
    refused: tuple[str, ...] = ()
    query_growth: bool = False
    multipliers: bool = False
    model_type: str | None = None
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def type(self) -> str:
        """model_type of its configurations."""
        return self.model_type or self.name.removesuffix("ForCausalLM").lower()


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one family apart from a Llama with weights alone.

    name:             general.architecture of its GGUF files.
    classes:          its model classes in Hugging Face folders.
    gguf_interleaved: whether its GGUF files want the pairs (2i, 2i + 1) rotated.
    norms:            of every layer.
    activation:       of the feed-forward parts.
    window_period:    in GGUF files, as in HuggingFaceClass.
    window_ignored:   whether llama.cpp does not use the window in its GGUF files.
    local_theta:      in GGUF files, as in HuggingFaceClass.
    unrotated_period: every layer that is the last of so many has no rotation, unless no_rope_layers in a
                      folder says which; 0 for none.
    norm_offset:      what Hugging Face's weights of norms are less than the factors that they stand for.
    scaled_embedding: whether embeddings are multiplied by sqrt(hidden_size).
    options:          keys of its GGUF files, after the architecture's name, that the files of other families
                      must not set.
    layer_tensors:    Hugging Face's names of tensors of a layer that LAYER_TENSORS lacks, to GGUF's.
    fused:            matrices that are stored as one, by GGUF's names: the names of their parts, whose rows
                      follow each other.
    required_bias, optional_bias: of a layer, by GGUF's names.
    """

    name: str
    classes: tuple[HuggingFaceClass, ...]
    gguf_interleaved: bool = False
    norms: NormsSpec = PRE_NORMS
    activation: Activation = "silu"
    window_period: int = 0
    window_ignored: bool = False
    local_theta: float | None = None
    unrotated_period: int = 0
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    options: frozenset[str] = frozenset()
    layer_tensors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    required_bias: tuple[str, ...] = ()
    optional_bias: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            "llama",
            (
                HuggingFaceClass("LlamaForCausalLM", attention_bias=True),
                HuggingFaceClass("MistralForCausalLM", n_kv_heads=8, window=4096),
            ),
            gguf_interleaved=True,
            optional_bias=("attn_q", "attn_k", "attn_v", "attn_output"),
        ),
        Family(
            "qwen2",
            (HuggingFaceClass("Qwen2ForCausalLM", n_kv_heads=32, window=4096, window_is_optional=True),),
            required_bias=("attn_q", "attn_k", "attn_v"),
        ),
        Family(
            "qwen3",
            (
                HuggingFaceClass(
                    "Qwen3ForCausalLM", n_kv_heads=32, head_dim=128, window=4096, window_is_optional=True
                ),
            ),
            norms=NormsSpec(q=True, k=True),
            layer_tensors={"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
        ),
        Family(
            "gemma3",
            (
                HuggingFaceClass(
                    "Gemma3ForCausalLM",
                    n_kv_heads=4,
                    head_dim=256,
                    window=4096,
                    window_period=6,
                    tied=True,
                    activation_key="hidden_activation",
                    theta=1e6,
                    local_theta=1e4,
                    model_type="gemma3_text",
                    sizes=MappingProxyType(
                        {
                            "vocab_size": 262208,
                            "hidden_size": 2304,
                            "intermediate_size": 9216,
                            "num_hidden_layers": 26,
                            "num_attention_heads": 8,
                            "max_position_embeddings": 131072,
                        }
                    ),
                ),
            ),
            norms=NormsSpec(q=True, k=True, post_attention=True, post_ffn=True),
            activation="gelu_tanh",
            window_period=6,
            local_theta=1e4,
            norm_offset=1.0,
            scaled_embedding=True,
            options=frozenset(("attn_logit_softcapping", "final_logit_softcapping")),
            layer_tensors={
                "self_attn.q_norm": "attn_q_norm",
                "self_attn.k_norm": "attn_k_norm",
                "post_attention_layernorm": "post_attention_norm",
                "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffw_norm",
            },
        ),
        Family(
            "granite",
            (HuggingFaceClass("GraniteForCausalLM", attention_bias=True, multipliers=True),),
            gguf_interleaved=True,
            options=frozenset(("embedding_scale", "residual_scale", "attention.scale", "logit_scale")),
            optional_bias=("attn_q", "attn_k", "attn_v", "attn_output"),
        ),
        Family(
            "smollm3",
            (
                HuggingFaceClass(
                    "SmolLM3ForCausalLM",
                    n_kv_heads=4,
                    attention_bias=True,
                    tied=True,
                    theta=2e6,
                    refused=("use_sliding_window",),
                ),
            ),
            gguf_interleaved=True,
            unrotated_period=4,
            optional_bias=("attn_q", "attn_k", "attn_v", "attn_output"),
        ),
        Family(
            "olmo2",
            (HuggingFaceClass("Olmo2ForCausalLM", rms_eps=1e-5),),
            norms=NormsSpec(
                attention=False, q=True, k=True, whole_qk=True, post_attention=True, ffn=False, post_ffn=True
            ),
            layer_tensors={
                "self_attn.q_norm": "attn_q_norm",
                "self_attn.k_norm": "attn_k_norm",
                "post_attention_layernorm": "post_attention_norm",
                "post_feedforward_layernorm": "post_ffw_norm",
            },
        ),
        Family(
            "phi3",
            (
                HuggingFaceClass(
                    "Phi3ForCausalLM", window=0, rms_eps=1e-5, partial_rope=True, original_positions=4096
                ),
            ),
            window_ignored=True,
            layer_tensors={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
            fused={"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")},
        ),
        Family(
            "mistral3",
            (
                HuggingFaceClass(
                    "Ministral3ForCausalLM",
                    n_kv_heads=8,
                    head_dim=128,
                    window=0,
                    rms_eps=1e-5,
                    query_growth=True,
                ),
            ),
            gguf_interleaved=True,
            options=frozenset(
                (
                    "attention.temperature_scale",
                    "rope.scaling.yarn_beta_fast",
                    "rope.scaling.yarn_beta_slow",
                    "rope.scaling.yarn_log_multiplier",
                )
            ),
        ),
    )
}

# Hugging Face's names of tensors to GGUF's, which are those of `ModelSource`.
TOP_TENSORS: Mapping[str, str] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_TENSORS: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

# Far above any model that exists; they keep every later product inside 64 bits.
LIMITS: Mapping[str, int] = {
    "n_layers": 1024,
    "hidden_size": 1 << 17,
    "n_heads": 4096,
    "n_kv_heads": 4096,
    "head_dim": 1024,
    "ffn_size": 1 << 20,
    "vocab_size": 1 << 22,
    "max_positions": 1 << 26,
    "rope_dim": 1024,
}


@dataclass(frozen=True, slots=True, eq=False)
class Dimensions:
    """The numbers of a model that every format gives, under one set of names.

    windows:    of each layer, None where it sees all positions; () for a model without any.
    local_rope: of layers with a window, where these have a rotary table of their own.
    long_rope, long_positions: as in ModelSpec; 0 positions where there is no such table.
    unrotated:  of each layer, whether it has no rotation; () for none.
    attention_scale: None: 1 / sqrt(head_dim).
    softcap, attention_softcap: 0 for none.
    embedding_scale, residual_scale, logit_scale: as in ModelSpec.
    query_growth, query_growth_positions: as in LayerSpec.
    """

    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    rms_eps: float
    rope: RopeSpec
    local_rope: RopeSpec | None = None
    long_rope: RopeSpec | None = None
    long_positions: int = 0
    windows: tuple[int | None, ...] = ()
    unrotated: tuple[bool, ...] = ()
    attention_scale: float | None = None
    softcap: float = 0.0
    attention_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    query_growth: float = 0.0
    query_growth_positions: int = 1

    @property
    def rope_dim(self) -> int:
        return self.rope.dim


def make_spec(family: Family, d: Dimensions) -> ModelSpec:
    """What a model of `family` with these dimensions computes."""
    scale = default_attention_scale(d.head_dim) if d.attention_scale is None else d.attention_scale
    layer = LayerSpec(
        FeedForwardSpec(d.ffn_size, family.activation),
        attention_scale=scale,
        norms=family.norms,
        attention_softcap=d.attention_softcap or None,
        query_growth=d.query_growth,
        query_growth_positions=d.query_growth_positions if d.query_growth else 1,
    )
    local = 0 if d.local_rope is None else 1  # the rotary table of layers with a window
    root = float(np.sqrt(np.float32(d.hidden_size)))
    nothing, rotated = (None,) * d.n_layers, (False,) * d.n_layers
    layers = [
        replace(layer, window=window, rope=None if plain else 0 if window is None else local)
        for window, plain in zip(d.windows or nothing, d.unrotated or rotated, strict=True)
    ]
    return ModelSpec(
        name=family.name,
        hidden_size=d.hidden_size,
        n_heads=d.n_heads,
        n_kv_heads=d.n_kv_heads,
        head_dim=d.head_dim,
        vocab_size=d.vocab_size,
        max_positions=d.max_positions,
        rms_eps=d.rms_eps,
        ropes=(d.rope,) if d.local_rope is None else (d.rope, d.local_rope),
        long_rope=d.long_rope,
        long_positions=d.long_positions or d.max_positions,
        layers=tuple(layers),
        embedding_scale=root if family.scaled_embedding else d.embedding_scale,
        logit_softcap=d.softcap or None,
        residual_scale=d.residual_scale,
        logit_scale=d.logit_scale,
    )


def default_attention_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), rounded to float32 at each step: the factor that engines multiply queries with."""
    return float(np.float32(1) / np.sqrt(np.float32(head_dim)))


def shown(text: str) -> str:
    """A name from a file, fit for one line of an error: quoted, escaped, at most 80 characters."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return ascii(short)


def last_of_each(n_layers: int, period: int) -> tuple[bool, ...]:
    """Whether each layer is the last of a `period` of layers; () when that is 0."""
    return tuple((i + 1) % period == 0 for i in range(n_layers)) if period else ()


def periodic_windows(n_layers: int, window: int, period: int) -> tuple[int | None, ...]:
    """`window` for every layer but the last of each `period`; for all layers when that is 0."""
    last = last_of_each(n_layers, period) or (False,) * n_layers
    return tuple(None if here else window for here in last)
