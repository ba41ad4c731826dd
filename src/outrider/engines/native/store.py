"""Packed weights on disk, so that a second start maps them instead of packing again. Off unless asked for.

A file is named by the digest of the model's file and the quantization. It begins with a header that says
everything: layout, model, and each tensor's type, shape and offset. The header that this program would
write is known before a file is opened, so a file is either exactly as expected or not used; nothing in it is
trusted. Checksums at its end find damage in the data.

    magic (16 bytes), header length (8), header (JSON), zeros to 4096 · tensors, each at a multiple of 4096 ·
    zeros to 4096 more than the last · one checksum of 8 bytes for each tensor

A failure here costs the time to pack again: it is logged as a warning, never raised.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from outrider.engines.native import _core
from outrider.errors import ConfigError, ModelNotFoundError, OutriderError
from outrider.models.formats.mapped import map_file
from outrider.models.source import ModelSource
from outrider.models.sources.download import (
    DISK_MARGIN,
    cache_root,
    human,
    read_json,
    recorded_sha256,
    sha256_file,
    write_json,
)

logger = logging.getLogger("outrider")

SETTING = "OUTRIDER_WEIGHTS_CACHE"
MAGIC = b"outrider packed\n"
PAGE = 4096
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: its ggml type, (rows, columns) and bytes as packed."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int


def packed_weights_cache(setting: bool | str | os.PathLike[str] | None) -> PackedWeightsCache | None:
    """The cache that a setting stands for: True for the one in Outrider's cache folder, a path for another,
    False for none, None for what OUTRIDER_WEIGHTS_CACHE says (1 or a path). Raises ConfigError for an empty
    path.
    """
    if setting is None:
        text = os.environ.get(SETTING, "").strip()
        on_or_off = {"": False, "0": False, "off": False, "false": False, "1": True, "on": True, "true": True}
        setting = on_or_off.get(text.lower(), text)
    if isinstance(setting, bool):
        return PackedWeightsCache(cache_root() / "packed") if setting else None
    if not os.fspath(setting).strip():
        raise ConfigError("weights_cache must be True, False or a folder's path, not an empty one")
    return PackedWeightsCache(Path(setting).expanduser().absolute())


class PackedWeightsCache:
    """Files of packed weights in `folder`, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, source: ModelSource, entries: Sequence[Entry]) -> list[Bytes] | None:
        """The tensors' bytes, mapped and checked, in the order of `entries`; None when they are not there.
        Hashes the model's files, unless their digest is on record."""
        try:
            digest = self._digest(source)
            path = self._path(source, digest)
            data = np.frombuffer(map_file(path), np.uint8)
        except ModelNotFoundError:
            return None
        except (OSError, OutriderError) as error:
            logger.warning("the packed weights cannot be read, so they are packed again: %s", error)
            return None
        if damage := _damage(data, _prefix(digest, source, entries), entries):
            logger.warning("%s: %s; the weights are packed again", path, damage)
            return None
        return [data[start : start + entry.nbytes] for entry, start in _offsets(entries)]

    def write(self, source: ModelSource, entries: Sequence[Entry], tensors: Sequence[Bytes]) -> None:
        """Keep the tensors' bytes for the next time. One process at a time; the others do not write."""
        try:
            digest = self._digest(source)
            path = self._path(source, digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(path.name + ".lock"), timeout=0):
                for stale in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that ended too soon
                    stale.unlink()
                self._write(path, _prefix(digest, source, entries), entries, tensors)
        except Timeout:
            logger.info("another process is writing the packed weights of %s", source.display_name)
        except (OSError, OutriderError) as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = f"the disk of {self.folder} is full" if full else error
            logger.warning("the packed weights were not kept for the next start: %s", why)

    def _path(self, source: ModelSource, digest: str) -> Path:
        return self.folder / f"{digest[:32]}-{source.quantization or 'stored'}.packed"

    def _write(self, path: Path, prefix: bytes, entries: Sequence[Entry], tensors: Sequence[Bytes]) -> None:
        size = _size(entries)
        if (free := shutil.disk_usage(self.folder).free) < size + DISK_MARGIN:
            raise OSError(
                f"{human(size)} are needed in {self.folder}, where {human(free)} are free; make room, or "
                f"name another folder with --weights-cache or {SETTING}"
            )
        fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with fresh.open("wb") as file:
                file.write(prefix)
                for (_, start), tensor in zip(_offsets(entries), tensors, strict=True):
                    file.seek(start)
                    file.write(tensor.data)
                file.seek(size - 8 * len(entries))
                file.write(_checksums(tensors))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)

    def _digest(self, source: ModelSource) -> str:
        """SHA-256 of the model's file, or of all files that its weights come from."""
        if source.path.is_file() and not source.parts:
            return self._file_digest(source.path)
        files = (source.path, *source.parts)
        if source.path.is_dir():
            # config.json says what the integers of a quantized folder stand for.
            found = (
                p for p in source.path.iterdir() if p.suffix == ".safetensors" or p.name == "config.json"
            )
            files = tuple(sorted(found))
        digests = [(file.name, self._file_digest(file)) for file in files]
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    def _file_digest(self, path: Path) -> str:
        """SHA-256 of a file: of a fetch's record, of the store's while size and time agree, or computed."""
        fetched = recorded_sha256(path)
        if fetched is not None:
            return fetched
        path = path.resolve()
        status = path.stat()
        now = {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        record = self.folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
        recorded = read_json(record)
        known = recorded.pop("sha256", None)
        if recorded == now and isinstance(known, str) and len(known) == 64:
            return known
        digest = sha256_file(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(record, {**now, "sha256": digest})
        return digest


def _prefix(digest: str, source: ModelSource, entries: Sequence[Entry]) -> bytes:
    """Everything of a file before its first tensor."""
    header = {
        "layout": _core.LAYOUT_VERSION,
        "model": digest,
        "quantization": source.quantization,
        "size": _size(entries),
        "tensors": [[e.name, e.type, *e.shape, start, e.nbytes] for e, start in _offsets(entries)],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    start = MAGIC + struct.pack("<Q", len(text)) + text
    return start.ljust(_data_start(entries), b"\0")


def _data_start(entries: Sequence[Entry]) -> int:
    """A bound on the header's length that does not depend on the places in it."""
    longest = 512 + sum(len(json.dumps(e.name)) + 128 for e in entries)
    return -(-longest // PAGE) * PAGE


def _offsets(entries: Sequence[Entry]) -> Iterator[tuple[Entry, int]]:
    at = _data_start(entries)
    for entry in entries:
        yield entry, at
        at += -(-entry.nbytes // PAGE) * PAGE


def _size(entries: Sequence[Entry]) -> int:
    """Bytes of the whole file."""
    last, start = list(_offsets(entries))[-1]
    return start + -(-last.nbytes // PAGE) * PAGE + PAGE + 8 * len(entries)


def _checksums(tensors: Sequence[Bytes]) -> bytes:
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # each lets go of the interpreter's lock
        return struct.pack(f"<{len(tensors)}Q", *pool.map(_core.checksum, tensors))


def _damage(data: Bytes, prefix: bytes, entries: Sequence[Entry]) -> str | None:
    """What is wrong with a file, or None."""
    if data[: len(MAGIC)].tobytes() != MAGIC:
        return "not a file of packed weights"
    if data[: len(prefix)].tobytes() != prefix:
        return "made by another version of Outrider, or damaged"
    if len(data) != _size(entries):
        return f"truncated: {len(data)} bytes of {_size(entries)}"
    tensors = [data[start : start + entry.nbytes] for entry, start in _offsets(entries)]
    if data[-8 * len(entries) :].tobytes() != _checksums(tensors):
        return "damaged: a checksum differs"
    return None
