"""What the modules of the torch engine compute with: the seam for kernels, and plain PyTorch behind it.

`Ops` has three operations. `TorchOps` runs on every device that PyTorch has; kernels for one kind of device
implement the same protocol. All of a pass's shapes are static, and what varies lies in tensors on the device
(`Layout`), so that a pass may be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

KEYS = 64  # keys that attention over gathered keys takes at a time
NOTHING = -1e30  # the highest score of a token that has seen no key yet; finite, so that it can be subtracted


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one sequence in a pass, on the host: rows begin .. end-1, whose keys lie in the slots start
    .. start+committed+end-begin-1. `seen` is bool[rows, rows] where a row sees not all rows before it."""

    begin: int
    end: int
    start: int
    committed: int
    seen: torch.Tensor | None

    def first(self, window: int | None) -> int:
        """The first key that a row sees."""
        return 0 if window is None else max(0, self.committed - window + 1)


@dataclass(slots=True, eq=False)
class Layout:
    """Which keys each of a pass's n tokens sees. Tensors are int32 on the device, of static shapes.

    A sequence owns a range of slots of the caches. Its first `committed` slots hold what was there before the
    pass; its new tokens follow in the order given, each in a slot of its own, whose keys and values are
    written before attention is called. A token at position p has p + 1 keys. Key i, which is at position i,
    lies in slot start + i for i < committed, and in slot path[i - committed] from there on: the token's
    ancestors in order, the token itself last. So keys have the same numbers in a tree as in a chain, and
    kernels that go through them by number give the same bits for both.

    start:     int32[n], the first slot of the token's sequence.
    committed: int32[n], as above; the same for all tokens of a sequence.
    position:  int32[n], the token's own position.
    path:      int32[n, P], absolute slots; entries beyond a token's own, number position - committed, mean
               nothing. None when each sequence's new tokens are a chain: key i is in slot start + i then.
    span:      on the host: no token has more keys. Static, so it is part of a CUDA graph's identity.
    groups:    on the host: the rows by sequence, padding left out; None where a pass must not depend on them
               (in a CUDA graph, and where bits must not depend on the number of rows).

    Padding rows are tokens of a sequence of their own in slot 0, at position 0.
    """

    start: torch.Tensor
    committed: torch.Tensor
    position: torch.Tensor
    path: torch.Tensor | None
    span: int
    groups: tuple[Group, ...] | None = None
    _blocks: dict[tuple[int, int | None], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _masks: dict[tuple[int, int | None, bool], torch.Tensor] = field(default_factory=dict)

    def keys(self, first: int, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(slots, seen): int64[n, KEYS] and bool[n, KEYS] of the keys first .. first+KEYS-1 of each token.
        The slot of a key that is not seen is 0. Computed once for all layers of a pass."""
        if (first, window) not in self._blocks:
            number = torch.arange(first, first + KEYS, device=self.start.device)[None]
            seen = number <= self.position[:, None]
            if window is not None:
                seen = seen & (number > self.position[:, None] - window)
            slots = number + self.start[:, None]
            if self.path is not None:
                new = number - self.committed[:, None]
                at = self.path.gather(1, new.clamp(0, self.path.shape[1] - 1))
                slots = torch.where(new < 0, slots, at)
            self._blocks[first, window] = torch.where(seen, slots, 0).long(), seen
        return self._blocks[first, window]

    def mask(self, group: Group, window: int | None, dtype: torch.dtype | None) -> torch.Tensor:
        """[rows, keys] of the group's rows and the keys from `group.first(window)` on: 0 where a row sees a
        key and -inf elsewhere, as `dtype`; True and False where that is None. Computed once for all
        layers."""
        at = (group.begin, window, dtype is None)
        if at not in self._masks:
            position, first = self.position[group.begin : group.end], group.first(window)
            number = torch.arange(first, group.committed, device=position.device)
            number = torch.cat([number, position.long()])  # of each key
            seen = number <= position[:, None]
            if window is not None:
                seen = seen & (number > position[:, None] - window)
            if group.seen is not None:
                before = seen.new_ones(len(position), group.committed - first)
                seen = seen & torch.cat([before, group.seen], 1)
            if dtype is not None:
                seen = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)
            self._masks[at] = seen
        return self._masks[at]


class Ops(Protocol):
    """The operations of a pass over n tokens. Results have the type of `x` or `q`. Kernels that have only
    some of them inherit the rest from `TorchOps`.

    invariant: whether a row's bits depend neither on the number of rows nor on the other rows, whatever they
               are. Then no pass needs padding for exactness.
    spans:     whether attention reads `Layout.span`; if not, its cost follows the tensors alone.
    """

    @property
    def invariant(self) -> bool: ...

    @property
    def spans(self) -> bool: ...

    def linear(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x[n, k] times w[m, k] transposed, plus bias[m]: [n, m]."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x * x) + eps) * weight over the last dimension, d, of x[..., d]; weight is [d]."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual), with the bits of the two apart; both [n, d]."""

    def attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        layout: Layout,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """softmax(softcap(scale * q k)) v over the keys that each token sees: [n, heads, d].

        q:       [n, heads, d]; the heads of one key head lie together.
        k_cache, v_cache: [slots, kv_heads, d], of one layer.
        window:  the last so many keys are seen, the token's own among them; None for all.
        softcap: c for c * tanh(score / c), or None.
        """

    def rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        """The first 2 * r columns of each head of x[n, heads, d] (a view with strides), rotated by cos and
        sin, float32[n, r]; see `RopeSpec`. The other columns are copied."""

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        slots: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        interleaved: bool,
    ) -> torch.Tensor:
        """`rotate` of the queries and keys in qkv[n, heads + 2 * kv_heads, d]: the queries are returned, keys
        and values are written to the slots, int64[n], of the caches."""

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """activation(gate) * up of gate_up[n, 2 * m], whose first m columns are the gate: [n, m]. activation:
        "silu" or "gelu_tanh"."""


class TorchOps:
    """PyTorch's own operations. A row's bits depend on the number of rows, but where `Layout.groups` is None
    not on its neighbours or its place: each token's keys are taken in blocks of the same numbers."""

    invariant = False
    spans = True

    def linear(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, w, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        exact = x.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
        return (exact if weight is None else exact * weight.float()).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        layout: Layout,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        if layout.groups is None:
            return _gathered(q, k_cache, v_cache, layout, scale=scale, window=window, softcap=softcap)
        found = [
            _together(q, k_cache, v_cache, layout, group, scale=scale, window=window, softcap=softcap)
            for group in layout.groups
        ]
        if (padding := len(q) - layout.groups[-1].end) or len(found) > 1:
            return torch.cat([*found, q.new_zeros(padding, *q.shape[1:])])
        return found[0]

    def rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        half = cos.shape[1]
        one, two = (
            (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
            if interleaved
            else (
                slice(0, half),
                slice(half, 2 * half),
            )
        )
        cos, sin = cos[:, None], sin[:, None]
        first, second = x[..., one].float(), x[..., two].float()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        out[..., one] = first * cos - second * sin
        out[..., two] = first * sin + second * cos
        out[..., 2 * half :] = x[..., 2 * half :]
        return out

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        slots: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        interleaved: bool,
    ) -> torch.Tensor:
        kv_heads = k_cache.shape[1]
        qk = self.rotate(qkv[:, :-kv_heads], cos, sin, interleaved)
        k_cache.index_copy_(0, slots, qk[:, -kv_heads:])
        v_cache.index_copy_(0, slots, qkv[:, -kv_heads:])
        return qk[:, :-kv_heads]

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return gated(gate, up, activation)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """See `Ops.gated`."""
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def _gathered(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    layout: Layout,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Each token's keys by number, a block at a time, with the running softmax of Milakov and Gimelshein
    (2018, Online normalizer calculation for softmax). A block of which nothing is seen changes no bit."""
    n, heads, d = q.shape
    kv_heads = k_cache.shape[1]
    queries = (q.float() * scale).view(n, kv_heads, heads // kv_heads, d)
    highest = torch.full_like(queries[..., :1], NOTHING)
    total, out = torch.zeros_like(highest), torch.zeros_like(queries)
    for first in range(0, layout.span, KEYS):
        slots, seen = layout.keys(first, window)
        keys = k_cache[slots].float().transpose(1, 2)  # [n, kv_heads, KEYS, d]
        scores = queries @ keys.transpose(2, 3)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights, kept = torch.exp(scores - higher), torch.exp(highest - higher)
        total = total * kept + weights.sum(-1, keepdim=True)
        out = out * kept + weights @ v_cache[slots].float().transpose(1, 2)
        highest = higher
    return (out / total).to(q.dtype).reshape(n, heads, d)


def _together(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    layout: Layout,
    group: Group,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """All rows of one sequence over its slots at once."""
    q = q[group.begin : group.end]
    n, first = len(q), group.first(window)  # what no row sees is left out
    held = slice(group.start + first, group.start + group.committed + n)
    keys, values = k_cache[held].transpose(0, 1), v_cache[held].transpose(0, 1)  # [kv_heads, keys, d]
    begins = group.committed == 0 and group.seen is None  # a chain from the first position
    causal = begins and softcap is None and (window is None or n <= window)
    masked = not causal and (n > 1 or window is not None)
    seen = layout.mask(group, window, q.dtype if softcap is None else None) if masked else None
    if softcap is None:
        # A mask of three dimensions would do too, but not for the CPU's fused kernel.
        found = F.scaled_dot_product_attention(
            *(q.transpose(0, 1)[None], keys[None], values[None]),
            attn_mask=seen,
            is_causal=causal,
            scale=scale,
            enable_gqa=True,
        )
        return found[0].transpose(0, 1)
    kv_heads = len(keys)
    queries = (
        (q.float() * scale).view(n, kv_heads, -1, q.shape[-1]).permute(1, 2, 0, 3)
    )  # [kv_heads, group, n, d]
    scores = softcap * torch.tanh(queries @ keys.float()[:, None].transpose(2, 3) / softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    found = torch.softmax(scores, -1) @ values.float()[:, None]
    return found.permute(2, 0, 1, 3).reshape(q.shape).to(q.dtype)
