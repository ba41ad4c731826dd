"""Downloads models from a model hub with `huggingface_hub`, into its cache, which other programs share.

HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE have their usual meaning. This module adds two things that
the library does not do: an interrupted download of a large file is resumed, even in a later run, and the file
is checked against the SHA-256 that the hub lists. Only weights, JSON, tokenizer files and chat templates are
downloaded, never pickles or Python code.

Import this module lazily, as the library takes a while to load.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented there, not in its __all__
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
)

from outrider.errors import DownloadError, ModelNotFoundError, OutriderError
from outrider.models.sources.download import check_disk, exclusive, logger, one_line, sha256_file, writing
from outrider.models.sources.hub_files import choose

TIMEOUT = 10.0  # seconds without an answer to a small request
MAX_PLAIN_BYTES = 45 * 10**9  # larger files are left to the library, which has a protocol for them
COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository. size in bytes; sha256 is listed for large files only."""

    name: str
    size: int | None
    sha256: str | None


def fetch_hub(
    repo: str,
    file: str | None,
    revision: str | None,
    cache: Path | None,
    *,
    progress: bool = True,
    offline: bool = False,
    verify: bool = False,
    sha256: str | None = None,
) -> Path:
    """The GGUF file or safetensors folder of a hub repository, in the library's cache.

    file:   a file name, a quantization tag (`Q4_K_M`), or None to choose: the folder when the repository
            has safetensors, else its only GGUF, else the only Q4_K_M.
    cache:  the library's cache folder; None for its default.
    verify: hash large files that are in the cache already; a damaged one is downloaded again.
    sha256: of the one GGUF file, where it is known: another file is refused.

    When the hub cannot be reached, a copy from an earlier run is used, with a warning.
    Raises ModelNotFoundError and DownloadError, each one line that says what to do.
    """
    root = Path(cache or constants.HF_HUB_CACHE).expanduser().absolute()
    what = f"hf:{repo}" + (f":{file}" if file else "") + (f"@{revision}" if revision else "")
    remote = _Remote(
        repo=repo,
        revision=revision or constants.DEFAULT_REVISION,
        endpoint=os.environ.get("HF_ENDPOINT") or None,
        store=root / ("models--" + repo.replace("/", "--")),
        what=what,
        progress=progress,
        verify=verify,
    )
    with writing(what, root, setting="HF_HOME"):
        if offline:
            path = remote.cached(file)
            _check_known(remote, path, path.resolve().name, sha256)
            return path
        return _online(remote, file, sha256)


def _check_known(remote: _Remote, path: Path, listed: str | None, sha256: str | None) -> None:
    """Raise DownloadError unless the file has the known SHA-256, if there is one. listed: the file's own, as
    the hub lists it or the cache names it; where that is none, it is hashed."""
    if sha256 is None:
        return
    found = listed if listed is not None and SHA256.fullmatch(listed) else remote.hash(path, path.name)
    if found != sha256:
        raise DownloadError(
            f"{remote.what}: the hub's file has SHA-256 {found[:12]}…, expected {sha256[:12]}…"
        )


def _online(remote: _Remote, file: str | None, sha256: str | None) -> Path:
    try:
        commit, files = remote.listing()
    except _UnreachableError:
        try:
            path = remote.cached(file)
        except (DownloadError, ModelNotFoundError):
            path = None
        if path is None:
            raise
        _check_known(remote, path, path.resolve().name, sha256)
        logger.warning("%s: the hub cannot be reached; using the copy in %s", remote.what, path)
        return path
    choice = choose([f.name for f in files], file, remote.what)
    listed = next((f.sha256 for f in files if f.name == choice.names[0]), None)
    if listed is not None:  # another file is not even fetched
        _check_known(remote, Path(choice.names[0]), listed, sha256)
    folder = remote.fetch(commit, [f for f in files if f.name in choice.names])
    if choice.folder:
        return folder
    _check_known(remote, folder / choice.names[0], listed, sha256)
    return folder / choice.names[0]


def repository_files(
    repo: str, revision: str, endpoint: str | None, what: str
) -> tuple[str, list[RemoteFile]]:
    """(commit, files) as the hub lists them, without names that would be unsafe as paths. `what` begins the
    messages of errors: ModelNotFoundError and DownloadError."""
    with library_errors(what):
        info = HfApi(endpoint=endpoint, library_name="outrider").model_info(
            repo, revision=revision, files_metadata=True, timeout=TIMEOUT
        )
    if not COMMIT.fullmatch(info.sha or ""):
        raise DownloadError(f"{what}: the answer is not a model hub's; check HF_ENDPOINT")
    files = []
    for entry in info.siblings or []:
        name = str(entry.rfilename)
        unsafe = not name.isprintable() or "\\" in name
        if unsafe or any(part in ("", ".", "..") for part in name.split("/")):
            continue
        size = entry.size if isinstance(entry.size, int) and entry.size >= 0 else None
        sha256 = str(entry.lfs["sha256"]) if entry.lfs else ""
        files.append(RemoteFile(name, size, sha256 if SHA256.fullmatch(sha256) else None))
    return str(info.sha), files


@dataclass(frozen=True, slots=True)
class _Remote:
    """One repository at one revision. `store` is its folder in the library's cache.

    store/blobs/SHA256 holds a file's bytes, store/snapshots/COMMIT/NAME is a link to them, and
    store/refs/BRANCH has the commit of a branch.
    """

    repo: str
    revision: str
    endpoint: str | None
    store: Path
    what: str
    progress: bool
    verify: bool

    def listing(self) -> tuple[str, list[RemoteFile]]:
        """See `repository_files`."""
        return repository_files(self.repo, self.revision, self.endpoint, self.what)

    def fetch(self, commit: str, files: list[RemoteFile]) -> Path:
        """Download the files into the cache and return the snapshot folder that links to them."""
        handled = [self._fetch_large(commit, file) for file in files]
        with library_errors(self.what), _bars(self.progress and not all(handled)):
            folder = Path(
                snapshot_download(
                    self.repo,
                    revision=self.revision,
                    cache_dir=self.store.parent,
                    endpoint=self.endpoint,
                    etag_timeout=TIMEOUT,
                    max_workers=2,
                    allow_patterns=[glob.escape(file.name) for file in files],
                )
            )
        if folder.name != commit or not all((folder / file.name).is_file() for file in files):
            raise DownloadError(f"{self.what}: the repository changed while it was being fetched; pull again")
        return folder

    def _fetch_large(self, commit: str, file: RemoteFile) -> bool:
        """Download a file with a listed SHA-256 to where the library expects it, with resuming and a check.

        Returns False for files that are left to the library: small ones without a listed SHA-256, and those
        larger than MAX_PLAIN_BYTES.
        """
        if file.sha256 is None or file.size is None or file.size > MAX_PLAIN_BYTES:
            return False
        blob = self.store / "blobs" / file.sha256
        pointer = self.store / "snapshots" / commit / file.name
        if self._is_cached(blob, pointer, file, verify=self.verify):
            return True
        blob.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(blob):
            if self._is_cached(blob, pointer, file, verify=False):  # another process was faster
                return True
            partial = blob.with_name(blob.name + ".incomplete")
            present = partial.stat().st_size if partial.exists() else 0
            if present > file.size:
                partial.unlink()
                present = 0
            check_disk(blob.parent, file.size - present, self.what, setting="HF_HOME")
            with partial.open("ab") as out, library_errors(self.what), _bars(self.progress):
                http_get(
                    hf_hub_url(self.repo, file.name, revision=commit, endpoint=self.endpoint),
                    out,
                    resume_size=present,
                    headers=build_hf_headers(library_name="outrider"),
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
                out.flush()
                os.fsync(out.fileno())
            if self.hash(partial, file.name) != file.sha256:
                partial.unlink()
                raise DownloadError(
                    f"{self.what}: {file.name} does not have the SHA-256 that the hub lists; it was deleted:"
                    " pull again, and if this repeats distrust the hub in use (HF_ENDPOINT)"
                )
            partial.replace(blob)
        return True

    def _is_cached(self, blob: Path, pointer: Path, file: RemoteFile, *, verify: bool) -> bool:
        """Whether the cache has the file. A damaged copy is deleted, so that it is downloaded again."""
        for path in (pointer, blob):
            if not path.is_file():
                continue
            if path.stat().st_size == file.size and (not verify or self.hash(path, file.name) == file.sha256):
                return True
            logger.warning("%s is damaged: fetching it again", path)
            path.resolve().unlink()
            path.unlink(missing_ok=True)
        return False

    def hash(self, path: Path, name: str) -> str:
        """SHA-256 of a file, with a bar."""
        return sha256_file(path, progress=self.progress, title=name)

    def cached(self, file: str | None) -> Path:
        """The copy of an earlier run in the cache. Raises DownloadError when it is missing or incomplete."""
        missing = DownloadError(f"{self.what}: not in {self.store.parent}, and offline; pull it when online")
        try:
            commit = (self.store / "refs" / self.revision).read_text(encoding="utf-8").strip()
        except OSError:
            commit = self.revision
        folder = self.store / "snapshots" / commit
        if not COMMIT.fullmatch(commit) or not folder.is_dir():
            raise missing
        # `is_file` is False for a link whose blob was deleted.
        names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
        if not names:
            raise missing
        choice = choose(names, file, f"{self.what} (offline copy)")
        shards = _shards(folder / "model.safetensors.index.json") if choice.folder else set()
        if lost := sorted(shards - set(names)):
            raise DownloadError(
                f"{self.what}: the offline copy lacks {len(lost)} files, {lost[0]!r} first;"
                " pull it when online"
            )
        for name in choice.names if self.verify else ():
            blob = (folder / name).resolve()
            if SHA256.fullmatch(blob.name) and self.hash(blob, name) != blob.name:
                raise DownloadError(
                    f"{self.what}: the cached {name} is damaged; pull it with --verify when online"
                )
        return folder if choice.folder else folder / choice.names[0]


def _shards(index: Path) -> set[str]:
    """The files that a safetensors index names; empty for a damaged index, which the loader reports."""
    try:
        table = json.loads(index.read_bytes())["weight_map"]
        return {name for name in table.values() if isinstance(name, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """Hide the library's progress bars unless `shown`; a user's setting to hide them takes precedence."""
    if shown or are_progress_bars_disabled() or os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS"):
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


class _UnreachableError(DownloadError):
    """No connection to the hub, or it is down."""


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Convert exceptions of the library to errors with a message of one line.

    Any exception is possible, as the library parses the hub's answers without checking them. Only errors of
    the operating system (disk full, no access) are raised unchanged, for `writing` to convert.
    """
    try:
        yield
    except Exception as error:
        system = (
            OSError,
            PermissionError,
            FileExistsError,
            NotADirectoryError,
        )  # exactly these, no subclasses
        if isinstance(error, system) and type(error) in system and error.errno:
            raise
        logger.debug("%s: %r", what, error)
        kind, text = _diagnosis(error)
        raise kind(f"{what}: {text}") from error


def _diagnosis(error: Exception) -> tuple[type[OutriderError], str]:
    """The error class and message: the first entry of the table whose condition holds."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    sign_in = "set HF_TOKEN, or run `hf auth login`"
    message = getattr(error, "server_message", None)
    said = f" (the hub says: {one_line(str(message))})" if message else ""
    table: list[tuple[bool, type[OutriderError], str]] = [
        (
            isinstance(error, GatedRepoError),
            DownloadError,
            f"is gated; accept its terms on the hub's page and {sign_in}, then pull again{said}",
        ),
        (
            isinstance(error, RevisionNotFoundError),
            ModelNotFoundError,
            "the repository has no such revision; check what follows '@'",
        ),
        (
            isinstance(error, EntryNotFoundError) and status == 404,
            ModelNotFoundError,
            "the repository has no such file any more; pull again",
        ),
        (
            isinstance(error, RepositoryNotFoundError) or status == 404,
            ModelNotFoundError,
            f"no such repository; check the spelling, and if it is private {sign_in}",
        ),
        (
            status in (401, 403),
            DownloadError,
            f"the hub refuses access (HTTP {status}); {sign_in} with a valid token",
        ),
        (status >= 500, _UnreachableError, f"the hub is down (HTTP {status}); pull again later"),
        (status > 0, DownloadError, f"the hub answered HTTP {status}; pull again later"),
        (
            _is_network_error(error),
            _UnreachableError,
            f"the connection to the hub failed ({type(error).__name__}); check the network and HF_ENDPOINT,"
            " then pull again: it goes on where it stopped",
        ),
    ]
    for fits, kind, text in table:
        if fits:
            return kind, text
    return DownloadError, f"{type(error).__name__}: {one_line(str(error))}"


def _is_network_error(error: BaseException | None) -> bool:
    """Whether the error or one of its causes is a connection error, of whichever HTTP client."""
    for _ in range(8):
        if error is None:
            return False
        client = type(error).__module__.startswith(("httpx", "httpcore", "requests", "urllib3"))
        if client or isinstance(error, (ConnectionError, TimeoutError)):
            return True
        error = error.__cause__
    return False
