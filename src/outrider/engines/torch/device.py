"""Which device and which number type: what was asked for, or the best there is."""

from __future__ import annotations

import torch

from outrider.errors import ConfigError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32", "fp32": "float32"}


def find_device(name: str) -> torch.device:
    """The device called `name` ("auto", "cpu", "mps", "cuda" or "cuda:1"). Raises ConfigError where there is
    none of that name."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "mps", "cuda") or not (number.isdecimal() or (not number and ":" not in name)):
        raise ConfigError(f"device {name!r} is unknown; use 'auto', 'cpu', 'mps', 'cuda' or 'cuda:0'")
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "mps":
        if not _has_mps():
            raise ConfigError(f"device {name!r}: this PyTorch finds no MPS device; use device='cpu'")
        return torch.device("mps")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(number or 0)
    if index >= count:
        there = f"finds {count} CUDA devices" if count else "finds no CUDA device"
        raise ConfigError(f"device {name!r}: this PyTorch {there}; use device='cpu', or a CUDA build of it")
    return torch.device("cuda", index)


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type called `name`; "auto" is bfloat16 on CUDA devices (float16 where they are older than it),
    float16 on MPS, and float32 on the CPU. Raises ConfigError."""
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.float16 if device.type == "mps" else torch.float32
    name = NAMES.get(name, name).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown; use 'auto', {', '.join(map(repr, DTYPES))}")
    return DTYPES[name]


def name_of(device: torch.device) -> str:
    """The device in words, as "NVIDIA H100 80GB HBM3 (cuda:0)"."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (cuda:{device.index})"
    return str(device.type)


def first_gpu() -> str | None:
    """The first CUDA device in words; None without one."""
    return name_of(torch.device("cuda", 0)) if torch.cuda.is_available() else None


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())
