"""The operations of a pass in Triton: `Ops` on CUDA devices, with bits that no other row can change."""

from __future__ import annotations

import torch

from outrider.engines.torch.kernels.attention import attention
from outrider.engines.torch.kernels.linear import linear
from outrider.engines.torch.kernels.norms import add_rms_norm, gated, rms_norm
from outrider.engines.torch.kernels.rotary import rotate, rotate_and_store
from outrider.engines.torch.ops import Layout


class TritonOps:
    """See `Ops`. Fused operations have the bits of those that they replace.

    reach: no token has more keys. Passes of few tokens have room for the results of so many in a workspace
           of 4 * n * heads * (d + 2) * reach / 128 bytes.
    """

    invariant = True
    spans = False

    def __init__(self, reach: int) -> None:
        self._reach = reach

    def linear(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, w, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

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
        most = self._reach
        return attention(q, k_cache, v_cache, layout, scale=scale, window=window, softcap=softcap, most=most)

    def rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        return rotate(x, cos, sin, interleaved)

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
        """`rotate` of the queries and keys in qkv[n, heads + 2 kv_heads, d]: the queries are returned, keys
        and values are written to the slots, int32 or int64[n], of the caches."""
        return rotate_and_store(qkv, cos, sin, slots, k_cache, v_cache, interleaved)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual), both [n, d]."""
        return add_rms_norm(x, residual, weight, eps)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """activation(gate) * up for gate_up[n, 2 m], the gates first: [n, m]. "silu" or "gelu_tanh"."""
        return gated(gate_up, activation)
