"""What this program runs on."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor, as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model", "Hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
