"""The machine that the program runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_NAMES = ("model name", "Model", "Hardware")
_CPUINFO = Path("/proc/cpuinfo")
_PROCESSORS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_name(info: Path = _CPUINFO) -> str:
    """The processor's name as the system reports it. Family and model are added where the name has no number,
    as on virtual machines that report "AMD EPYC" for all models."""
    fields: dict[str, str] = {}
    try:
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = next((fields[key] for key in _NAMES if fields.get(key)), "") or platform.processor() or "unknown"
    family, model = fields.get("cpu family"), fields.get("model")
    if family and model and not any(char.isdigit() for char in name):
        name += f" (family {family}, model {model})"
    return name


def available_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_level_cache_bytes(folder: Path = _PROCESSORS) -> int | None:
    """Bytes of the third-level caches of all processors, each counted once; None where the system does not
    say (Linux does)."""
    caches: dict[str, int] = {}
    for index in folder.glob("cpu[0-9]*/cache/index*"):
        try:
            level, size, shared = (
                (index / name).read_text().strip() for name in ("level", "size", "shared_cpu_list")
            )
            if level == "3":
                caches[shared] = int(size[:-1]) * _UNITS[size[-1:]]
        except (OSError, ValueError, KeyError):
            continue
    return sum(caches.values()) or None
