"""What this program runs on."""

from __future__ import annotations

import platform
from pathlib import Path

_NAMES = ("model name", "Model", "Hardware")
_CPUINFO = Path("/proc/cpuinfo")


def cpu_name(info: Path = _CPUINFO) -> str:
    """The processor, as the system calls it; with its family and model where the name has no number, as on
    virtual machines that call theirs "AMD EPYC" whatever it is."""
    told: dict[str, str] = {}
    try:
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            told.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = next((told[key] for key in _NAMES if told.get(key)), "") or platform.processor() or "unknown"
    family, model = told.get("cpu family"), told.get("model")
    if family and model and not any(char.isdigit() for char in name):
        name += f" (family {family}, model {model})"
    return name
