"""RMS norms and gated activations: one program for each row, so that no row depends on another.

The fused forms compute what the separate operations compute, with the same roundings to the type of x: they
only save passes over memory and launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["heads"])
def _rms_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    added_ptr,
    d,
    heads,
    x_stride,
    x_head_stride,
    residual_stride,
    eps,
    has_residual: tl.constexpr,
    has_weight: tl.constexpr,
    block_d: tl.constexpr,
):
    """Row i of out[n * heads, d], of x[n, heads, d]; with a residual also its sum with x in `added`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block_d)
    mask = at < d
    x = tl.load(x_ptr + row // heads * x_stride + row % heads * x_head_stride + at, mask=mask, other=0.0)
    values = x.to(tl.float32)
    if has_residual:
        residual = tl.load(residual_ptr + row * residual_stride + at, mask=mask, other=0.0)
        added = (values + residual.to(tl.float32)).to(x.dtype)
        tl.store(added_ptr + row * d + at, added, mask=mask)
        values = added.to(tl.float32)
    mean = tl.sum(values * values, 0) / d
    values = values * (1.0 / tl.sqrt_rn(mean + eps))
    if has_weight:
        values = values * tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * d + at, values.to(out_ptr.dtype.element_ty), mask=mask)


def _run(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    d = x.shape[-1]
    rows = x if x.dim() == 3 and x.stride(-1) == 1 else x.reshape(-1, 1, d)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    added = out if residual is None else torch.empty_like(out)
    block_d = triton.next_power_of_2(d)
    _rms_norm[(rows.shape[0] * rows.shape[1],)](
        *(rows, x if residual is None else residual, x if weight is None else weight, out, added),
        *(d, rows.shape[1], rows.stride(0), rows.stride(1), 0 if residual is None else residual.stride(0)),
        eps,
        has_residual=residual is not None,
        has_weight=weight is not None,
        block_d=block_d,
        num_warps=min(8, max(1, block_d // 512)),
        enable_fp_fusion=False,
    )
    return out, added


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last dimension of x[..., d], in float32, rounded once."""
    return _run(x, None, weight, eps)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(s), s) for s = x + residual, both [n, d]; s is rounded to their type before the norm."""
    return _run(x, residual, weight, eps)


@triton.jit
def _gated(x_ptr, out_ptr, m, x_stride, tanh_gelu: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    gate = tl.load(x_ptr + row * x_stride + at, mask=at < m, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + m + at, mask=at < m, other=0.0).to(tl.float32)
    inner = gate
    if tanh_gelu:  # 0.5 g (1 + tanh(t)) = g / (1 + e^-2t)
        inner = 2.0 * 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    active = gate / (1.0 + tl.exp(-inner))
    active = active.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * m + at, (active * up).to(out_ptr.dtype.element_ty), mask=at < m)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up for gate_up[n, 2 m], the gates first: [n, m]. activation: "silu", or "gelu_tanh",
    the GELU approximated by tanh. The activation is rounded to the type of gate_up, then the product."""
    n, m = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((n, m), dtype=gate_up.dtype, device=gate_up.device)
    block = 1024
    _gated[(n, triton.cdiv(m, block))](
        *(gate_up, out, m, gate_up.stride(0)),
        tanh_gelu=activation == "gelu_tanh",
        block=block,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
