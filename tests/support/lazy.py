"""Packages that one test file needs and every worker would import when it collects the tests."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # pytest asks all that a test file names whether it wraps a fixture or is a mock.
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
