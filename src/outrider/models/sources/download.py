"""What all downloads share: the cache folder, checks of disk space, checksums, locks and progress bars.

The cache never has incomplete files under their final names: a file is written as `NAME.partial`, checked,
and then renamed. `NAME.json` in the same folder records its size, modification time and SHA-256 at the time
of the last hashing. While size and time are unchanged, the file is not hashed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout
from tqdm import tqdm

from outrider.errors import DownloadError, OutriderError

logger = logging.getLogger("outrider")

CHUNK = 1 << 20  # bytes read, hashed or written at a time
DISK_MARGIN = 32 << 20  # bytes that a download leaves free on the disk
LOCK_SECONDS = 3600.0  # how long one pull waits for another of the same file


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of downloaded models. It may not exist yet.

    In order: `cache_dir`, OUTRIDER_CACHE, XDG_CACHE_HOME/outrider, LOCALAPPDATA/outrider on Windows,
    ~/.cache/outrider. A relative XDG_CACHE_HOME is ignored, as its specification asks.
    """
    given = os.fspath(cache_dir) if cache_dir is not None else os.environ.get("OUTRIDER_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "outrider"


def human(size: int) -> str:
    """A size in bytes with a decimal unit: `98.4 MB`, `1.12 GB`."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def one_line(text: str, limit: int = 300) -> str:
    """Untrusted text for an error message: on one line, printable, of at most `limit` characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def free_bytes(folder: Path) -> int:
    """Bytes that are free on the disk of `folder`, which may not exist yet."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def check_disk(folder: Path, needed: int, what: str, *, setting: str = "OUTRIDER_CACHE") -> None:
    """Raise DownloadError unless `needed` bytes fit on the disk of `folder`, which may not exist yet.

    `setting` is the environment variable that names another folder, for the error.
    """
    free = free_bytes(folder)
    if free < needed + DISK_MARGIN:
        raise DownloadError(
            f"{what}: needs {human(needed)} in {folder}, where {human(free)} are free;"
            f" make room, or name another folder with {setting}"
        )


@contextmanager
def writing(what: str, folder: Path, *, setting: str = "OUTRIDER_CACHE") -> Iterator[None]:
    """Convert OSErrors of writing into `folder` to a DownloadError that says what to do."""
    try:
        yield
    except OutriderError:  # ModelNotFoundError is an OSError too
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"{what}: the disk of {folder} is full; make room and pull again") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DownloadError(
                f"{what}: cannot write into {folder} ({error.strerror}); name another folder with {setting}"
            ) from error
        raise DownloadError(f"{what}: {one_line(str(error))}; check the disk of {folder}") from error


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Hold the file lock of `target`, so that two processes do not download it at the same time."""
    lock_path = target.parent / ".locks" / f"{target.name}.lock"
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        logger.warning("another process is fetching %s: waiting for it", target.name)
        try:
            lock.acquire(timeout=LOCK_SECONDS, poll_interval=0.2)
        except Timeout:
            raise DownloadError(
                f"{target.name}: another process has held {lock_path} for an hour; end it and pull again"
            ) from None
    try:
        yield
    finally:
        lock.release()


class Progress:
    """A progress bar on stderr that counts bytes; hidden unless `enabled`. `total` is None when unknown."""

    def __init__(self, title: str, total: int | None, *, enabled: bool = True) -> None:
        self._bar = tqdm(
            total=total,
            desc=title,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            disable=not enabled,
            # In a log file ten updates a second would be too many.
            mininterval=0.1 if sys.stderr.isatty() else 5.0,
        )

    def at(self, done: int) -> None:
        """Show that `done` bytes have arrived; it may be fewer than before, after a retry."""
        if self._bar.total is not None:
            done = min(done, self._bar.total)
        self._bar.update(done - self._bar.n)

    def after(self, start: int) -> Callable[[int], None]:
        """The `at` function of a part that begins at byte `start` of the whole."""
        return lambda done: self.at(start + done)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def sha256_file(path: Path, *, progress: bool = False, title: str = "") -> str:
    """SHA-256 of the file, in lower-case hexadecimal; `title` is shown with the progress bar."""
    title = title or path.name.removesuffix(".partial")
    digest = hashlib.sha256()
    done = 0
    with (
        path.open("rb") as file,
        Progress(f"checking {title}", path.stat().st_size, enabled=progress) as bar,
    ):
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            bar.at(done)
    return digest.hexdigest()


def record_path(path: Path) -> Path:
    """The path of a cached file's record."""
    return path.with_name(path.name + ".json")


def write_record(path: Path, sha256: str) -> None:
    """Record the SHA-256 of the file in its current state. Errors are ignored, as the cache may be
    read-only."""
    status = path.stat()
    record = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    try:
        write_json(record_path(path), record)
    except OSError as error:
        logger.debug("no record written for %s: %s", path, error)


def recorded_sha256(path: Path) -> str | None:
    """The recorded SHA-256, or None when there is no record or the file has changed since."""
    record = read_json(record_path(path))
    try:
        status = path.stat()
    except OSError:
        return None
    if (record.get("size"), record.get("mtime_ns")) != (status.st_size, status.st_mtime_ns):
        return None
    sha256 = record.get("sha256")
    return sha256 if isinstance(sha256, str) else None


def write_json(path: Path, value: dict[str, object]) -> None:
    """Replace a small JSON file atomically."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps(value), encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a small file; empty when the file is missing, damaged, or holds something else."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def publish(partial: Path, final: Path, sha256: str) -> Path:
    """Rename a checked file to its final name, atomically, and record its SHA-256."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    write_record(final, sha256)
    return final
