"""Mixed precision (Micikevicius et al. 2018): weights of float32, and products of bfloat16."""

from __future__ import annotations

import torch


def mixed_precision(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def products(device: torch.device, mixed: bool) -> torch.autocast:
    """The context in which products are of bfloat16, if `mixed` says so."""
    return torch.autocast(device.type, torch.bfloat16, enabled=mixed)
