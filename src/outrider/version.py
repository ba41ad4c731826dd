"""The installed version of the package. Imports nothing of it, so every module can ask."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("outrider")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"
