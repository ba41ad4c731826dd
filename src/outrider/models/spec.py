"""What an engine has to compute for a model: its dimensions, and for each layer which parts it has.

A `ModelSpec` is built once, by `models/families.py`, from the numbers that a file of either format gives
(`Dimensions`). Engines read nothing else, and refuse by name a part that they do not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Activation: TypeAlias = Literal["silu", "gelu_tanh", "swiglu_clamped"]


@dataclass(frozen=True, slots=True, eq=False)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021, RoFormer) of the first `dim` columns of each head.

    dim:         even, at most head_dim.
    inv_freq:    float32[dim // 2], frequencies in radians per position, with every scaling applied (linear,
                 llama3, or GGUF's rope_freqs factors).
    scale:       factor on cos and sin; 1 unless a scaling variant asks for another.
    interleaved: rotates the pairs (2i, 2i + 1) (GGUF llama, whose q and k rows are permuted for it); else
                 (i, i + dim // 2) (Hugging Face, GGUF qwen2 and qwen3).
    """

    dim: int
    inv_freq: npt.NDArray[np.float32]
    scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class NormsSpec:
    """Which RMS norms (Zhang and Sennrich 2019) a layer has, each with a weight.

    attention, ffn:            of the residual stream, before attention and before the feed-forward part.
    q, k:                      of each head of queries and keys, before the rotation (Henry et al. 2020);
                               with `whole_qk` of all heads of a token together (OLMo 2, OLMo et al. 2024).
    post_attention, post_ffn:  of what attention and feed-forward give, before it is added to the stream.
    """

    attention: bool = True
    q: bool = False
    k: bool = False
    whole_qk: bool = False
    post_attention: bool = False
    ffn: bool = True
    post_ffn: bool = False


PRE_NORMS = NormsSpec()


@dataclass(frozen=True, slots=True)
class FeedForwardSpec:
    """down(activation(gate(x)) * up(x)) with `size` hidden columns; or `experts` of these, of which a router
    picks `experts_used` for each token. Dense when `experts` is 0."""

    size: int
    activation: Activation = "silu"
    experts: int = 0
    experts_used: int = 0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer.

    feed_forward:      see `FeedForwardSpec`.
    attention_scale:   factor on the products of queries and keys.
    query_growth, query_growth_positions: b and n of one more factor on queries at position p, counted from 0:
                       1 + b * ln(1 + floor(p / n)). None if b is 0 (Llama 4, Ministral 3).
    norms:             see `NormsSpec`.
    rope:              index into ModelSpec.ropes, or None for no rotation.
    window:            positions that attention sees, the token's own among them; None for all.
    attention_softcap: c for c * tanh(score / c), or None.
    sinks:             whether each head has one more logit in its softmax that has no value.
    """

    feed_forward: FeedForwardSpec
    attention_scale: float
    norms: NormsSpec = PRE_NORMS
    rope: int | None = 0
    window: int | None = None
    attention_softcap: float | None = None
    sinks: bool = False
    query_growth: float = 0.0
    query_growth_positions: int = 1


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What a head on another model, its target, reads and gives beside its layers (EAGLE-3, Li et al. 2025).

    A token comes with the target's hidden states of the token before it, side by side: x = Wfc · states.
    Of the tokens that it drafts itself, x is what it gave for the token before. The first layer's queries,
    keys and values are computed from norm(embedding) and norm(x), side by side, and it adds to x.

    states:        hidden states that a token comes with.
    state_size:    columns of each: the target's hidden size.
    tokens:        ids of the embedding, the target's; ModelSpec.vocab_size counts those of the output.
    joint_norm:    an RMS norm of all states together, before Wfc.
    state_norms:   an RMS norm of each state, before Wfc.
    norm_before_residual: the first layer adds to norm(x) instead of x.
    norm_output:   what it gives is the final norm of the last layer's output, instead of that output.
    """

    states: int
    state_size: int
    tokens: int
    joint_norm: bool = False
    state_norms: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def width(self) -> int:
        """Columns of the hidden states that a token comes with."""
        return self.states * self.state_size


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """A decoder-only transformer. All numbers are checked to be sane.

    name:            the family's name, see models/families.py.
    max_positions:   the trained context, as far as `ropes` reach.
    long_rope:       the rotary table of all layers in contexts beyond that, as LongRoPE has them; None where
                     there is no other. See `for_context`.
    long_positions:  how far that one reaches.
    embedding_scale: factor on the rows of the embedding.
    residual_scale:  factor on what attention and feed-forward give, before it is added to the stream.
    logit_scale:     factor on the logits.
    logit_softcap:   c for c * tanh(logit / c), after the scale, or None.
    head:            None, or what a head has beside its layers.
    kv_type:         what the native engine's caches hold keys and values in: "f16", "f32" or "q8_0". The last
                     is 8 bits, with a scale for each position and 32 columns of a key, or all of a value
                     (csrc/kernels/kernels.h).
    """

    name: str
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_eps: float
    ropes: tuple[RopeSpec, ...]
    layers: tuple[LayerSpec, ...] = field(repr=False)
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    long_rope: RopeSpec | None = None
    long_positions: int = 0
    head: HeadSpec | None = None
    kv_type: str = "f16"

    def for_context(self, positions: int) -> ModelSpec:
        """The same for contexts of `positions` tokens: with the long rotary table where they are longer than
        the usual one reaches. A sequence keeps one table from its first token to its last."""
        if self.long_rope is None or positions <= self.max_positions:
            return self
        return replace(self, ropes=(self.long_rope,), long_rope=None, max_positions=self.long_positions)

    @property
    def token_count(self) -> int:
        """Rows of the embedding."""
        return self.vocab_size if self.head is None else self.head.tokens

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def ffn_size(self) -> int:
        """Hidden columns of the widest feed-forward part."""
        return max(layer.feed_forward.size for layer in self.layers)
