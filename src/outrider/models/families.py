"""The families of models that can be read, whatever format a file has: one entry of `FAMILIES` each.

A reader of a format gets `Dimensions` from a file. `check_dimensions` bounds them, `make_spec` turns them
into the `ModelSpec` that engines compute, and `check_tensors` holds the file's tensors against it. What a
family needs beyond that is said in its entry. The steps to add one are in docs/architecture.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.source import Tensor
from outrider.models.spec import (
    PRE_NORMS,
    Activation,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    NormsSpec,
    RopeSpec,
)
from outrider.models.weight_types import FLOAT_TYPES, SUPPORTED_TYPES

# Ids of these pieces end a turn when the vocabulary has them as special tokens.
END_OF_TURN = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>")
) | {"<end_of_turn>"}


@dataclass(frozen=True, slots=True)
class HuggingFaceClass:
    """A model class of transformers, and where the defaults of its configuration differ from Llama's.

    n_kv_heads:         None: as many as heads.
    head_dim:           None: hidden_size divided by the heads.
    window_is_optional: the window counts only where use_sliding_window is true, in layers from
                        max_window_layers on.
    window_period:      unless layer_types says which layers have the window: every one that is not the last
                        of so many; 0 for all.
    attention_bias:     whether attention_bias in the configuration asks for biases.
    tied:               whether the output matrix is the embedding.
    activation_key:     names the activation.
    theta, local_theta: bases of the rotary frequencies; local_theta, of the layers with a window, where these
                        have a rotary table of their own.
    model_type:         None: the class's name in lower case, without ForCausalLM.
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
    theta: float = 10000.0
    local_theta: float | None = None
    model_type: str | None = None

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
    local_theta:      in GGUF files, as in HuggingFaceClass.
    norm_offset:      what Hugging Face's weights of norms are less than the factors that they stand for.
    scaled_embedding: whether embeddings are multiplied by sqrt(hidden_size).
    softcaps:         whether there may be softcaps on the logits and on attention.
    layer_tensors:    Hugging Face's names of tensors of a layer that LAYER_TENSORS lacks, to GGUF's.
    required_bias, optional_bias: of a layer, by GGUF's names.
    """

    name: str
    classes: tuple[HuggingFaceClass, ...]
    gguf_interleaved: bool = False
    norms: NormsSpec = PRE_NORMS
    activation: Activation = "silu"
    window_period: int = 0
    local_theta: float | None = None
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    softcaps: bool = False
    layer_tensors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
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
                ),
            ),
            norms=NormsSpec(q=True, k=True, post_attention=True, post_ffn=True),
            activation="gelu_tanh",
            window_period=6,
            local_theta=1e4,
            norm_offset=1.0,
            scaled_embedding=True,
            softcaps=True,
            layer_tensors={
                "self_attn.q_norm": "attn_q_norm",
                "self_attn.k_norm": "attn_k_norm",
                "post_attention_layernorm": "post_attention_norm",
                "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffw_norm",
            },
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
    attention_scale: None: 1 / sqrt(head_dim).
    softcap, attention_softcap: 0 for none.
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
    windows: tuple[int | None, ...] = ()
    attention_scale: float | None = None
    softcap: float = 0.0
    attention_softcap: float = 0.0

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
    )
    local = 0 if d.local_rope is None else 1  # the rotary table of layers with a window
    layers = [
        layer if window is None else replace(layer, window=window, rope=local)
        for window in d.windows or (None,) * d.n_layers
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
        layers=tuple(layers),
        embedding_scale=float(np.sqrt(np.float32(d.hidden_size))) if family.scaled_embedding else 1.0,
        logit_softcap=d.softcap or None,
    )


def default_attention_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), rounded to float32 at each step: the factor that engines multiply queries with."""
    return float(np.float32(1) / np.sqrt(np.float32(head_dim)))


def shown(text: str) -> str:
    """A name from a file, fit for one line of an error: quoted, escaped, at most 80 characters."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return ascii(short)


def check_dimensions(path: Path, d: Dimensions) -> None:
    """Raise ModelFileError, naming the number, unless every one is positive, bounded and consistent."""
    for name, most in LIMITS.items():
        value = getattr(d, name)
        if not 1 <= value <= most:
            raise ModelFileError(f"{path}: {name} is {value}, not between 1 and {most}")
    if d.n_heads % d.n_kv_heads:
        raise ModelFileError(f"{path}: {d.n_heads} heads do not divide among {d.n_kv_heads} key heads")
    if d.rope_dim % 2 or d.rope_dim > d.head_dim:
        raise ModelFileError(f"{path}: rope_dim {d.rope_dim} is odd or above head_dim {d.head_dim}")
    if d.head_dim % 2:
        raise ModelFileError(f"{path}: head_dim {d.head_dim} is odd")
    if not (math.isfinite(d.rms_eps) and 0 < d.rms_eps < 1):
        raise ModelFileError(f"{path}: rms_eps is {d.rms_eps}, not between 0 and 1")
    for rope in (d.rope, d.local_rope or d.rope):
        _check_rope(path, rope)
    _check_layers(path, d)


def _check_layers(path: Path, d: Dimensions) -> None:
    """The numbers of what not all families have."""
    for window in d.windows:
        if window is not None and not 1 <= window <= LIMITS["max_positions"]:
            raise ModelFileError(
                f"{path}: the sliding window is {window}, not between 1 and {LIMITS['max_positions']}"
            )
    if d.windows and len(d.windows) != d.n_layers:
        raise ModelFileError(f"{path}: names the kinds of {len(d.windows)} layers, but has {d.n_layers}")
    scale = 1.0 if d.attention_scale is None else d.attention_scale
    for what, value in (("scale of attention", scale), ("softcap", d.softcap or 1.0)):
        if not 1e-6 <= value <= 1e6:
            raise ModelFileError(f"{path}: the {what} is {value}, not between 1e-6 and 1e6")
    if d.attention_softcap and not 1e-6 <= d.attention_softcap <= 1e6:
        raise ModelFileError(
            f"{path}: the softcap on attention is {d.attention_softcap}, not between 1e-6 and 1e6"
        )


def _check_rope(path: Path, rope: RopeSpec) -> None:
    if not (math.isfinite(rope.scale) and rope.scale > 0):
        raise ModelFileError(f"{path}: the rotary scale is {rope.scale}, not a positive number")
    frequencies = rope.inv_freq
    if (
        frequencies.shape != (rope.dim // 2,)
        or not np.isfinite(frequencies).all()
        or (frequencies <= 0).any()
    ):
        raise ModelFileError(f"{path}: the rotary frequencies are not {rope.dim // 2} positive numbers")


def periodic_windows(n_layers: int, window: int, period: int) -> tuple[int | None, ...]:
    """`window` for every layer but the last of each `period`; for all layers when that is 0."""
    return tuple(None if period and (i + 1) % period == 0 else window for i in range(n_layers))


def check_theta(path: Path, theta: float) -> float:
    """`theta`, the base of the rotary frequencies, or ModelFileError unless it is between 1 and 1e12."""
    if not 1 < theta <= 1e12:  # a NaN fails too
        raise ModelFileError(f"{path}: the rotary base is {theta}, not between 1 and 1e12")
    return theta


def check_tensors(
    path: Path,
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    file_name: Callable[[str], str] = lambda name: name,
) -> None:
    """Raise unless `tensors` are exactly those of `spec`, each with the right shape and a known type.

    `file_name` turns a tensor's name into the one that its file uses. Raises ModelFileError for a missing
    or misshaped tensor, UnsupportedModelError for one that `spec` has no use for.
    """
    known = set()
    for name, shape, required in expected_tensors(spec):
        known.add(name)
        tensor = tensors.get(name)
        if tensor is None:
            if required:
                raise ModelFileError(f"{path}: the tensor {file_name(name)} is missing")
            continue
        if tensor.shape != shape:
            raise ModelFileError(
                f"{path}: the tensor {file_name(name)} is {_by(tensor.shape)}, not {_by(shape)}"
            )
        allowed = FLOAT_TYPES if len(shape) == 1 else SUPPORTED_TYPES
        if tensor.type not in allowed:
            raise UnsupportedModelError(
                f"{path}: the tensor {file_name(name)} has type {tensor.type}; supported: "
                f"{', '.join(allowed)}"
            )
    for name in tensors:
        if name not in known:
            # Leaving out a weight that somebody trained would change the text without a warning.
            raise UnsupportedModelError(
                f"{path}: the tensor {shown(file_name(name))} is not part of a {spec.name} model "
                f"of {spec.n_layers} layers as it is known here"
            )


def expected_tensors(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(name, shape, whether it must be there) of every tensor of a model. Shapes are (rows, columns)."""
    hidden = spec.hidden_size
    yield "token_embd.weight", (spec.vocab_size, hidden), True
    yield "output_norm.weight", (hidden,), True
    yield "output.weight", (spec.vocab_size, hidden), False
    family = FAMILIES[spec.name]
    for i, layer in enumerate(spec.layers):
        weights = _layer_weights(spec, layer)
        for part, shape in weights.items():
            yield f"blk.{i}.{part}.weight", shape, True
        for part in family.required_bias:
            yield f"blk.{i}.{part}.bias", weights[part][:1], True
        for part in family.optional_bias:
            yield f"blk.{i}.{part}.bias", weights[part][:1], False


def _layer_weights(spec: ModelSpec, layer: LayerSpec) -> dict[str, tuple[int, ...]]:
    hidden, ffn = spec.hidden_size, layer.feed_forward.size
    q_rows, kv_rows = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    norms: dict[str, tuple[int, bool]] = {  # name: columns, whether the layer has it
        "attn_norm": (hidden, layer.norms.attention),
        "attn_q_norm": (q_rows if layer.norms.whole_qk else spec.head_dim, layer.norms.q),
        "attn_k_norm": (kv_rows if layer.norms.whole_qk else spec.head_dim, layer.norms.k),
        "post_attention_norm": (hidden, layer.norms.post_attention),
        "ffn_norm": (hidden, layer.norms.ffn),
        "post_ffw_norm": (hidden, layer.norms.post_ffn),
    }
    return {
        **{name: (columns,) for name, (columns, present) in norms.items() if present},
        "attn_q": (q_rows, hidden),
        "attn_k": (kv_rows, hidden),
        "attn_v": (kv_rows, hidden),
        "attn_output": (hidden, q_rows),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
