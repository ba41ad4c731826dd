"""The models in the cache: Outrider's own, and those in the hub's, which other programs share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.errors import ModelNotFoundError, nearest
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.download import cache_root, record_path
from outrider.models.sources.known import KNOWN
from outrider.models.sources.pypi import catalog_path

Kind = Literal["GGUF", "safetensors"]


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model.

    name:   what `-m` takes.
    path:   the file, or the folder.
    size:   bytes.
    shared: whether it is in the hub's cache, which other programs use too.
    """

    name: str
    path: Path
    size: int
    kind: Kind
    shared: bool = False


def cached_models(cache_dir: str | os.PathLike[str] | None = None) -> list[CachedModel]:
    """All models in the cache, by name. cache_dir: instead of the default folders, as for `resolve`."""
    root = cache_root(cache_dir)
    hub = root / "hub" if cache_dir is not None else hub_cache()
    found = [*_catalog(root), *_packages(root), *_hub(hub)]
    return sorted(found, key=lambda model: model.name)


def find(name: str, cache_dir: str | os.PathLike[str] | None = None) -> CachedModel:
    """The cached model of this name, also a short one; `hf:` may be left out. Raises ModelNotFoundError."""
    models = {model.name: model for model in cached_models(cache_dir)}
    for known in (name, name.lower(), f"hf:{name}"):
        if known in models:
            return models[known]
    if (known_model := KNOWN.get(name.lower())) is not None:
        start, file = f"hf:{known_model.repo}", (known_model.file or "").lower()
        for model in models.values():
            if model.name == start or (model.name.startswith(f"{start}:") and file in model.name.lower()):
                return model
    raise ModelNotFoundError(f"no model {name!r} in the cache{nearest(name, models)}; see `outrider list`")


def remove(model: CachedModel) -> int:
    """Delete a model from the cache. Returns the bytes that are free again. Raises OSError."""
    if model.shared:
        return _remove_shared(model)
    size = 0 if model.path.is_symlink() else model.size
    model.path.unlink()
    record_path(model.path).unlink(missing_ok=True)
    return size


def hub_cache() -> Path:
    """The hub library's folder of repositories, by its own rules, without importing it."""
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
    return Path(home).expanduser() / "hub"


def _catalog(root: Path) -> Iterator[CachedModel]:
    for name, model in CATALOG.items():
        path = catalog_path(model, root)
        if path.is_file() and path.stat().st_size == model.size:
            yield CachedModel(name, path, model.size, "GGUF")


def _packages(root: Path) -> Iterator[CachedModel]:
    for path in sorted((root / "pypi").glob("*/*.gguf")):
        package = path.parent.name
        version = path.stem.removeprefix(f"{package}-")
        if path.is_file() and version != path.stem:
            yield CachedModel(f"pypi:{package}=={version}", path, path.stat().st_size, "GGUF")


def _hub(root: Path) -> Iterator[CachedModel]:
    """One for each GGUF file and each safetensors folder, of the newest snapshot that has it."""
    for store in sorted(root.glob("models--*--*")):
        repo = store.name.removeprefix("models--").replace("--", "/")
        seen: set[str] = set()
        snapshots = [path for path in (store / "snapshots").glob("*") if path.is_dir()]
        for folder in sorted(snapshots, key=lambda path: -path.stat().st_mtime_ns):
            for file in sorted(folder.rglob("*.gguf")):
                name = f"hf:{repo}:{file.relative_to(folder).as_posix()}"
                if name not in seen and file.is_file():  # False for a link whose blob was deleted
                    yield CachedModel(name, file, file.stat().st_size, "GGUF", True)
                    seen.add(name)
            weights = [file for file in folder.glob("*.safetensors") if file.is_file()]
            if f"hf:{repo}" not in seen and weights and (folder / "config.json").is_file():
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                yield CachedModel(f"hf:{repo}", folder, size, "safetensors", True)
                seen.add(f"hf:{repo}")


def _remove_shared(model: CachedModel) -> int:
    """A GGUF file, in all snapshots; or a whole repository that is a safetensors folder."""
    snapshot = next(
        parent for parent in (model.path, *model.path.parents) if parent.parent.name == "snapshots"
    )
    store = snapshot.parent.parent
    if model.kind == "safetensors":
        shutil.rmtree(store)
        return model.size
    inside = model.path.relative_to(snapshot)
    for folder in snapshot.parent.iterdir():
        link = folder / inside
        if not link.is_file():
            continue
        blob = link.resolve()
        link.unlink()
        if blob.is_relative_to(store.resolve() / "blobs") and not _is_linked(store, blob):
            blob.unlink(missing_ok=True)
    return model.size


def _is_linked(store: Path, blob: Path) -> bool:
    return any(path.resolve() == blob for path in (store / "snapshots").rglob("*") if path.is_symlink())
