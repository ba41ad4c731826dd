"""The forward pass of a `ModelSpec` in PyTorch, over tokens of any number of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from outrider.engines.torch.ops import Layout, Ops, gated
from outrider.engines.torch.packed import Matrix, Packed
from outrider.models.spec import LayerSpec, ModelSpec

# Tokens from which a CPU computes gate and up apart: 3% less of a prompt's time, as both are read in a row
# (SmolLM2 135M, float32, Zen 5; benchmarks/torch_cpu.py).
HALVES_FROM = 64


@dataclass(slots=True, eq=False)
class LayerWeights:
    """The weights of a layer; None where it has no such part. Matrices are [rows, columns].

    qkv:     the rows of attn_q, attn_k and attn_v.
    gate_up: the rows of ffn_gate and ffn_up.
    """

    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    attn_norm: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    post_attention_norm: torch.Tensor | None = None
    ffn_norm: torch.Tensor | None = None
    post_ffn_norm: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class Weights:
    """All weights of a model, on one device. `output` is `embedding` where the two are tied."""

    embedding: torch.Tensor
    norm: torch.Tensor
    output: torch.Tensor
    layers: list[LayerWeights]

    def tensors(self) -> list[torch.Tensor]:
        """Each once."""
        found = [self.embedding, self.norm, self.output]
        for layer in self.layers:
            for part in (getattr(layer, name) for name in LayerWeights.__slots__):
                if part is not None:
                    found += part.tensors() if isinstance(part, Packed) else [part]
        return list({t.data_ptr(): t for t in found}.values())

    @property
    def packed(self) -> bool:
        """Whether the matrices of layers are in few bits."""
        return any(isinstance(layer.qkv, Packed) for layer in self.layers)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())


class Module:
    """Computes passes. Activations have the weights' type, norms and rotations are computed in float32.

    positions: rotary tables reach so far.
    """

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops, positions: int) -> None:
        self.spec, self.weights, self.ops = spec, weights, ops
        device = weights.embedding.device
        at = torch.arange(positions, dtype=torch.float32, device=device)[:, None]
        self._ropes = []
        for rope in spec.ropes:
            angle = at * torch.from_numpy(rope.inv_freq.copy()).to(device)
            self._ropes.append((angle.cos() * rope.scale, angle.sin() * rope.scale))

    def forward(
        self,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        layout: Layout,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The residual stream after the last layer, [n, hidden], and that at each of `taps`.

        tokens, slots: int32[n] and int64[n]; keys and values of token i are written to slot slots[i] of
        keys and values, [layers, slots, kv_heads, head_dim].
        """
        x = self._embedded(tokens)
        h = self._norm(x, self.weights.layers[0].attn_norm)
        return self._layers(x, h, slots, layout, keys=keys, values=values, taps=taps)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.weights.embedding)
        return x if self.spec.embedding_scale == 1 else x * self.spec.embedding_scale

    def _layers(
        self,
        x: torch.Tensor,
        h: torch.Tensor,
        slots: torch.Tensor,
        layout: Layout,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """`forward` from the residual stream x, and what the first layer's attention reads, h."""
        spec, position = self.spec, layout.position
        rotations = [
            (cos.index_select(0, position), sin.index_select(0, position)) for cos, sin in self._ropes
        ]
        hidden = []
        layers = list(zip(spec.layers, self.weights.layers, strict=True))
        for i, (layer, weights) in enumerate(layers):
            if i in taps:
                hidden.append(x)
            at = None if layer.rope is None else rotations[layer.rope]
            out = self._attention(h, layer, weights, slots, layout, keys=keys[i], values=values[i], at=at)
            x, h = self._add(x, out, weights.post_attention_norm, weights.ffn_norm)
            out = self._linear(self._gated(h, weights, layer.feed_forward.activation), weights.down, None)
            # The last norm is left to `logits`, which computes it for the rows that are wanted.
            following = layers[i + 1][1].attn_norm if i + 1 < len(layers) else None
            x, h = self._add(x, out, weights.post_ffn_norm, following)
        if spec.n_layers in taps:
            hidden.append(x)
        return x, hidden

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """float32[n, vocab] of rows of the last layer's residual stream."""
        spec = self.spec
        x = self.ops.rms_norm(x, self.weights.norm, spec.rms_eps)
        found = self.ops.linear(x, self.weights.output, None).float()
        if spec.logit_scale != 1:
            found = found * spec.logit_scale
        if spec.logit_softcap is not None:
            found = spec.logit_softcap * torch.tanh(found / spec.logit_softcap)
        return found

    def _attention(
        self,
        x: torch.Tensor,
        layer: LayerSpec,
        weights: LayerWeights,
        slots: torch.Tensor,
        layout: Layout,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
        at: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        spec, ops, n = self.spec, self.ops, len(x)
        heads, kv_heads, norms = spec.n_heads, spec.n_kv_heads, layer.norms
        qkv = self._linear(x, weights.qkv, weights.qkv_bias)
        qkv = qkv.view(n, heads + 2 * kv_heads, spec.head_dim)
        if norms.q or norms.k:
            q = self._head_norm(qkv[:, :heads], weights.q_norm, norms.whole_qk)
            k = self._head_norm(qkv[:, heads : heads + kv_heads], weights.k_norm, norms.whole_qk)
            qkv = torch.cat([q, k, qkv[:, heads + kv_heads :]], 1)
        if at is None:
            q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
        else:
            turned = spec.ropes[layer.rope or 0].interleaved
            q = ops.rotate_and_store(qkv, *at, slots=slots, k_cache=keys, v_cache=values, interleaved=turned)
        if layer.query_growth:
            blocks = torch.div(layout.position, layer.query_growth_positions, rounding_mode="floor")
            growth = 1 + layer.query_growth * torch.log1p(blocks.float())
            q = (q.float() * growth[:, None, None]).to(q.dtype)
        out = ops.attention(
            *(q, keys, values, layout),
            scale=layer.attention_scale,
            window=layer.window,
            softcap=layer.attention_softcap,
        )
        return self._linear(out.reshape(n, heads * spec.head_dim), weights.output, weights.output_bias)

    def _gated(self, x: torch.Tensor, weights: LayerWeights, activation: str) -> torch.Tensor:
        w = weights.gate_up
        if len(x) >= HALVES_FROM and x.device.type == "cpu" and isinstance(w, torch.Tensor):
            gate, up = (self.ops.linear(x, half, None) for half in w.chunk(2))
            return gated(gate, up, activation)
        return self.ops.gated(self._linear(x, w, None), activation)

    def _linear(self, x: torch.Tensor, w: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return w.product(x, bias) if isinstance(w, Packed) else self.ops.linear(x, w, bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else self.ops.rms_norm(x, weight, self.spec.rms_eps)

    def _head_norm(self, x: torch.Tensor, weight: torch.Tensor | None, whole: bool) -> torch.Tensor:
        if weight is None:
            return x
        x = x.contiguous()
        if whole:
            return self._norm(x.view(len(x), -1), weight).view(x.shape)
        return self._norm(x, weight)

    def _add(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        post_norm: torch.Tensor | None,
        following: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(the residual stream with a part's output, and that as the norm before the next part gives it)."""
        out = self._norm(out, post_norm)
        if self.spec.residual_scale != 1:
            out = out * self.spec.residual_scale
        if following is None:
            x = x + out
            return x, x
        h, x = self.ops.add_rms_norm(out, x, following, self.spec.rms_eps)
        return x, h
