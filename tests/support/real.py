"""Finds the real models on this machine, if they are present."""

from __future__ import annotations

import os
from pathlib import Path

from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.download import cache_root
from outrider.models.sources.pypi import catalog_path


def real_model(name: str) -> Path | None:
    """A model of the catalog ("smollm2", "qwen-coder-0.5b", "qwen-coder-1.5b"), from the cache or from the
    folder OUTRIDER_DEV_MODELS (default ~/.cache/outrider-dev/models). Nothing is downloaded."""
    model = CATALOG[name]
    folder = Path(os.environ.get("OUTRIDER_DEV_MODELS") or Path.home() / ".cache/outrider-dev/models")
    for path in (catalog_path(model, cache_root()), folder / model.file_name):
        if path.is_file() and path.stat().st_size == model.size:
            return path
    return None


def real_file(file_name: str) -> Path | None:
    """`real_model` by the name of the file."""
    (name,) = (name for name, model in CATALOG.items() if model.file_name == file_name)
    return real_model(name)
