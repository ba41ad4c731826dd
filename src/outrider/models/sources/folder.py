"""The models in a folder, by the names of its files: nothing is opened."""

from __future__ import annotations

import os
from pathlib import Path

from outrider.models.gguf_names import SIDE_FILE, part_names, whole_models

MOST = 200  # models of a folder; further ones are left out


def models_in(folder: Path) -> list[Path]:
    """GGUF files (of a split model its first part), and folders with config.json and weights, in a folder;
    sorted by name. Empty where it cannot be read."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    names = {entry.name for entry in entries if entry.suffix.lower() == ".gguf" and entry.is_file()}
    models = [name for name in whole_models(sorted(names)) if not SIDE_FILE.search(name)]
    whole = [folder / name for name in models if set(part_names(name) or [name]) <= names]
    return [*whole, *(entry for entry in entries if _is_model_folder(entry))][:MOST]


def size_of(path: Path) -> int:
    """Bytes of a model's weights by its files, all parts of a split one together; 0 where that cannot be
    told."""
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.glob("*.safetensors"))
        parts = part_names(path.name) or [path.name]
        return sum(os.stat(path.parent / name).st_size for name in parts)
    except OSError:
        return 0


def _is_model_folder(path: Path) -> bool:
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))
