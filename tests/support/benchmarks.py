"""The scripts of benchmarks/ as modules."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@contextlib.contextmanager
def imported(name: str) -> Iterator[Any]:
    """A script, for as long as this lasts; it finds those that it imports itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module(name)


def script(name: str) -> Any:
    """A script that needs those beside it only while it is imported."""
    with imported(name) as module:
        return module
