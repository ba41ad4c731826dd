"""The forward pass of the known families in plain NumPy float64, one token at a time and without a cache.

The oracle of the native engine: short and slow. It shares only the file readers with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.models.source import ModelSource
from outrider.models.spec import RopeSpec
from outrider.models.weight_types import BLOCKS
from tests.support.superblocks import superblocks
from tests.support.three_bits import values

Array: TypeAlias = npt.NDArray[np.float64]


class Reference:
    """`logits(ids, parents)` is float64[n, vocab]: row i follows token i, which sees its ancestors.
    `hidden(ids, parents)` is float64[n, layers + 1, hidden]: each layer's input, and the last one's output.

    rounded: round the activations of quantized matrices as the native engine does (8 bits with one scale for
             32 columns, and 8 more bits for attn_v; K-quants as in superblocks.py), for close comparisons.
    """

    def __init__(self, source: ModelSource, *, rounded: bool = False) -> None:
        self.spec = source.architecture
        tensors = {"output.weight": source.tensors["token_embd.weight"], **source.tensors}
        floats = ("F32", "F16", "BF16", "F8_32", "F8_128")
        self.integer = {name for name, t in tensors.items() if rounded and t.type not in floats}
        self.superblocks = {
            n: superblocks(t) for n, t in tensors.items() if rounded and BLOCKS[t.type][0] == 256
        }
        self.weights = {name: values(t).astype(np.float64) for name, t in tensors.items()}

    def logits(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Array:
        last = self.hidden(ids, parents)[:, -1]
        norm, cap = self.weights["output_norm.weight"], self.spec.logit_softcap
        found = np.stack([self._linear(self._norm(x, norm), "output") for x in last]) * self.spec.logit_scale
        return cap * np.tanh(found / cap) if cap else found

    def hidden(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Array:
        parents = range(-1, len(ids) - 1) if parents is None else parents
        keys: dict[tuple[int, int], Any] = {}
        rows = []
        for i, token in enumerate(ids):
            lineage = [i]
            while parents[lineage[0]] >= 0:
                lineage.insert(0, parents[lineage[0]])
            rows.append(self._token(token, i, lineage, keys))
        return np.stack(rows)

    def _token(self, token: int, node: int, lineage: list[int], keys: dict[tuple[int, int], Any]) -> Array:
        spec, w = self.spec, self.weights
        x = w["token_embd.weight"][token] * spec.embedding_scale
        states = [x]
        for i, layer in enumerate(spec.layers):
            at = f"blk.{i}."
            h = self._norm(x, w[at + "attn_norm.weight"]) if layer.norms.attention else x
            q, k, v = (
                self._linear(h, at + name).reshape(-1, spec.head_dim)
                for name in ("attn_q", "attn_k", "attn_v")
            )
            whole = layer.norms.whole_qk
            if layer.norms.q:
                q = self._norm_heads(q, w[at + "attn_q_norm.weight"], whole)
            if layer.norms.k:
                k = self._norm_heads(k, w[at + "attn_k_norm.weight"], whole)
            if layer.rope is not None:
                q, k = (self._rotate(part, len(lineage) - 1, spec.ropes[layer.rope]) for part in (q, k))
            keys[i, node] = k, v
            growth = np.log1p((len(lineage) - 1) // layer.query_growth_positions) * layer.query_growth
            seen = lineage[-layer.window :] if layer.window else lineage
            seen_k = np.stack([keys[i, n][0] for n in seen])  # [positions, kv_heads, head_dim]
            seen_v = np.stack([keys[i, n][1] for n in seen])
            heads = []
            for head, query in enumerate(q):
                group = head // (spec.n_heads // spec.n_kv_heads)
                scores = seen_k[:, group] @ query * layer.attention_scale * (1 + growth)
                if cap := layer.attention_softcap:
                    scores = cap * np.tanh(scores / cap)
                weights = np.exp(scores - scores.max())
                heads.append(weights @ seen_v[:, group] / weights.sum())
            out = self._linear(np.concatenate(heads), at + "attn_output")
            if layer.norms.post_attention:
                out = self._norm(out, w[at + "post_attention_norm.weight"])
            x = x + spec.residual_scale * out
            h = self._norm(x, w[at + "ffn_norm.weight"]) if layer.norms.ffn else x
            gate = self._activate(self._linear(h, at + "ffn_gate"), layer.feed_forward.activation)
            out = self._linear(gate * self._linear(h, at + "ffn_up"), at + "ffn_down")
            if layer.norms.post_ffn:
                out = self._norm(out, w[at + "post_ffw_norm.weight"])
            x = x + spec.residual_scale * out
            states.append(x)
        return np.stack(states)

    def _linear(self, x: Array, name: str) -> Array:
        fine = name.endswith("attn_v")
        if matrix := self.superblocks.get(f"{name}.weight"):
            return matrix.times(x, fine=fine) + self.weights.get(f"{name}.bias", 0.0)
        if f"{name}.weight" in self.integer:
            x = np.concatenate([_round(x[i : i + 32], fine=fine) for i in range(0, len(x), 32)])
        return np.asarray(self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0.0))

    def _norm(self, x: Array, weight: Array) -> Array:
        return np.asarray(x / np.sqrt(np.mean(x * x) + self.spec.rms_eps) * weight)

    def _norm_heads(self, heads: Array, weight: Array, whole: bool) -> Array:
        if whole:
            return self._norm(heads.reshape(-1), weight).reshape(heads.shape)
        return np.stack([self._norm(head, weight) for head in heads])

    @staticmethod
    def _activate(x: Array, kind: str) -> Array:
        if kind == "silu":
            return np.asarray(x / (1 + np.exp(-x)))
        return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))

    @staticmethod
    def _rotate(heads: Array, position: int, rope: RopeSpec) -> Array:
        half = rope.dim // 2
        angle = position * rope.inv_freq.astype(np.float64)
        cos, sin = np.cos(angle) * rope.scale, np.sin(angle) * rope.scale
        out = heads.copy()
        if rope.interleaved:
            first, second = slice(0, rope.dim, 2), slice(1, rope.dim, 2)
        else:
            first, second = slice(0, half), slice(half, rope.dim)
        x, y = heads[:, first], heads[:, second]
        out[:, first], out[:, second] = x * cos - y * sin, x * sin + y * cos
        return out


def _round(block: Array, fine: bool) -> Array:
    step = max(np.abs(block).max() / 127, np.finfo(np.float64).tiny)
    coarse = np.rint(block / step)
    rest = np.rint((block / step - coarse) * 254) / 254 if fine else 0.0
    return np.asarray((coarse + rest) * step)
