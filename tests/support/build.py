"""The folder of compiled files, which tests that build take turns at."""

from __future__ import annotations

from pathlib import Path

BUILD_LOCK = Path(__file__).parents[2] / "build" / ".lock"
