"""What every way of fetching a model shares: the cache folder, disk space, checksums, locks, progress.

A file comes into the cache whole or not at all: it is written as `NAME.partial`, checked, and renamed.
Beside it lies `NAME.json`, a record of the size, modification time and SHA-256 that were true when it
was last hashed; while size and time still agree the file is not hashed again.
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
    """The folder that holds what Outrider fetched. It need not exist yet.

    In order: `cache_dir`, OUTRIDER_CACHE, XDG_CACHE_HOME/outrider, LOCALAPPDATA/outrider on Windows,
    ~/.cache/outrider. A relative XDG_CACHE_HOME is ignored, as its specification asks.
    """
    given = os.fspath(cache_dir) if cache_dir is not None else os.environ.get("OUTRIDER_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "outrider"


def human(size: int) -> str:
    """Bytes as people write them, in powers of ten: `98.4 MB`, `1.12 GB`."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def one_line(text: str, limit: int = 300) -> str:
    """Text from outside made fit for an error line: one line, printable, at most `limit` characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def check_disk(folder: Path, needed: int, what: str, *, setting: str = "OUTRIDER_CACHE") -> None:
    """Raise DownloadError unless `needed` bytes fit on the disk of `folder`, which need not exist.

    `setting` is the environment variable that names another folder, for the error.
    """
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed + DISK_MARGIN:
        raise DownloadError(
            f"{what}: needs {human(needed)} in {folder}, where {human(free)} are free;"
            f" make room, or name another folder with {setting}"
        )


@contextmanager
def writing(what: str, folder: Path, *, setting: str = "OUTRIDER_CACHE") -> Iterator[None]:
    """Turn the operating system's refusal to write into `folder` into one clear DownloadError."""
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
    """Hold the lock of `target` while it is being made, so that two pulls at once do not collide."""
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
    """A bar over bytes on stderr; `enabled=False` makes it silent. `total` is None when unknown."""

    def __init__(self, title: str, total: int | None, *, enabled: bool = True) -> None:
        self._bar = tqdm(
            total=total,
            desc=title,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            disable=not enabled,
            # A log file does not want ten lines a second.
            mininterval=0.1 if sys.stderr.isatty() else 5.0,
        )

    def at(self, done: int) -> None:
        """Show that `done` bytes are there, which may be fewer than before."""
        if self._bar.total is not None:
            done = min(done, self._bar.total)
        self._bar.update(done - self._bar.n)

    def after(self, start: int) -> Callable[[int], None]:
        """`at` for one part of the whole, which begins at byte `start`."""
        return lambda done: self.at(start + done)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def sha256_file(path: Path, *, progress: bool = False, title: str = "") -> str:
    """SHA-256 of the file, in lower-case hexadecimal; `title` names it on the bar."""
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


def record_of(path: Path) -> Path:
    """Where the record of a cached file lies."""
    return path.with_name(path.name + ".json")


def write_record(path: Path, sha256: str) -> None:
    """Note that the file, as it is now, has this SHA-256. A cache that is read-only stays as it is."""
    status = path.stat()
    record = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    try:
        write_json(record_of(path), record)
    except OSError as error:
        logger.debug("no record beside %s: %s", path, error)


def recorded_sha256(path: Path) -> str | None:
    """The SHA-256 on record, or None when there is none or the file has changed since."""
    record = read_json(record_of(path))
    try:
        status = path.stat()
    except OSError:
        return None
    if (record.get("size"), record.get("mtime_ns")) != (status.st_size, status.st_mtime_ns):
        return None
    sha256 = record.get("sha256")
    return sha256 if isinstance(sha256, str) else None


def write_json(path: Path, value: dict[str, object]) -> None:
    """Replace a small JSON file in one go."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps(value), encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, object]:
    """A small JSON object, or an empty one when it is missing, damaged, or not an object."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def publish(partial: Path, final: Path, sha256: str) -> Path:
    """Give a checked file its name, in one step that leaves no half of it behind."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    write_record(final, sha256)
    return final
