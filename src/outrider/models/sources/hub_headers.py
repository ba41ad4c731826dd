"""Opens a model on the hub without its weights: headers of files by HTTP range requests, small files whole.

What is read goes into files as long as the real ones, with holes in the place of the weights, so that the
readers of local files check and describe them. The files are deleted when the model is open; its tensors have
shapes, types and sizes, and zeros for data.

Import this module lazily, as the hub's library takes a while to load.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented there, not in its __all__
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from outrider.errors import DownloadError, ModelError, ModelFileError, UnsupportedModelError
from outrider.models.formats import gguf_file, safetensors
from outrider.models.formats.gguf_rope import ROPE_TENSORS
from outrider.models.formats.hf_json import read_section
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.sources.download import human, writing
from outrider.models.sources.hub import TIMEOUT, RemoteFile, library_errors, repository_files
from outrider.models.sources.hub_files import Choice, choose

FIRST = 256 << 10  # bytes of a header that are asked for at first
STEP = 2 << 20  # most further bytes that are asked for at once
ROPE_LIMIT = 1 << 16  # bytes of a table of rotary factors, the only weights that are read
SMALL_LIMIT = 64 << 20  # bytes of a JSON file
TOTAL_LIMIT = 256 << 20  # bytes of all that is read of a model
FILE_LIMIT = 1 << 42  # bytes of a file, whatever the hub says
CONNECTIONS = 8
# What a folder's description needs beside its weights: not templates, not other forms of the tokenizer.
_NEEDED = ("config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json")
_SPAN = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def open_headers(repo: str, file: str | None, revision: str | None) -> ModelSource:
    """The model in a hub repository: its GGUF file or safetensors folder, chosen as a download would.

    Raises ModelNotFoundError and DownloadError (no such model, no access, no connection, a server that does
    not answer range requests), and the errors of `open_model`, with the reference in the place of a path.
    """
    what = f"hf:{repo}" + (f":{file}" if file else "") + (f"@{revision}" if revision else "")
    commit, files = repository_files(
        repo, revision or constants.DEFAULT_REVISION, os.environ.get("HF_ENDPOINT") or None, what
    )
    choice = choose([f.name for f in files], file, what)
    remote = _Remote(repo, commit, {f.name: f for f in files}, what)
    with (
        writing(what, Path(tempfile.gettempdir()), setting="TMPDIR"),
        tempfile.TemporaryDirectory(prefix="outrider-", ignore_cleanup_errors=True) as place,
    ):
        folder = Path(place)
        try:
            path = _folder(remote, choice, folder) if choice.folder else _gguf(remote, choice.names, folder)
            source = open_model(path)
        except ModelError as error:
            raise type(error)(str(error).replace(str(folder), what)) from None

        def there(path: Path) -> Path:
            return Path(what, *path.relative_to(folder).parts)

        named = replace(source, path=there(source.path), parts=tuple(map(there, source.parts)))
        return replace(named, display_name=repo.partition("/")[2]) if choice.folder else named


class _Remote:
    """The files of one commit, read in pieces. Safe for several threads."""

    def __init__(self, repo: str, commit: str, files: dict[str, RemoteFile], what: str) -> None:
        self.what, self.files = what, files
        self._repo, self._commit = repo, commit
        self._headers = {**build_hf_headers(library_name="outrider"), "Accept-Encoding": "identity"}
        self._lock = threading.Lock()
        self._moved = 0

    def read(self, name: str, first: int, count: int) -> tuple[bytes, int]:
        """Up to `count` bytes of a file from `first` on, fewer where it ends, and its size. Raises
        DownloadError, also for a server that sends something else."""
        headers = {**self._headers, "Range": f"bytes={first}-{first + count - 1}"}
        data, status, span = self._get(name, headers, count, partial=True)
        found = _SPAN.fullmatch(span)
        if status != 206 or found is None:
            raise DownloadError(
                f"{self.what}: the hub sends {name} as a whole only (it answers no range requests), so that "
                "its header cannot be read alone; pull the model"
            )
        start, stop, size = (int(number) for number in found.groups())
        listed = self.files[name].size
        other = start != first or stop - start + 1 != len(data) or not stop < size <= FILE_LIMIT
        if other or (listed is not None and size != listed):
            raise DownloadError(f"{self.what}: the hub sent other bytes of {name} than were asked for")
        return data, size

    def whole(self, name: str) -> bytes:
        """A small file."""
        listed = self.files[name].size
        if listed is not None and listed > SMALL_LIMIT:
            raise DownloadError(
                f"{self.what}: {name} has {human(listed)}; at most {human(SMALL_LIMIT)} are read"
            )
        data, _, _ = self._get(name, self._headers, SMALL_LIMIT, partial=False)
        return data

    def _get(self, name: str, headers: dict[str, str], most: int, *, partial: bool) -> tuple[bytes, int, str]:
        """(body, status, Content-Range). A body that is longer than `most` is an error, but of a whole file
        where a part was asked for nothing is read."""
        url = hf_hub_url(
            self._repo, name, revision=self._commit, endpoint=os.environ.get("HF_ENDPOINT") or None
        )
        data = bytearray()
        with (
            library_errors(self.what),
            get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response,
        ):
            hf_raise_for_status(response)
            status, span = int(response.status_code), str(response.headers.get("Content-Range", ""))
            if partial and status != 206:
                return b"", status, span
            for piece in response.iter_bytes(1 << 16):
                data += piece
                if len(data) > most:
                    break
        if len(data) > most:
            raise DownloadError(f"{self.what}: the hub sent more bytes of {name} than were asked for")
        with self._lock:
            self._moved += len(data)
            if self._moved > TOTAL_LIMIT:
                raise DownloadError(f"{self.what}: its headers have more than {human(TOTAL_LIMIT)}")
        return bytes(data), status, span


def _each(do: Callable[[str], None], names: Sequence[str]) -> None:
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for _ in pool.map(do, names):
            pass


# --- GGUF ------------------------------------------------------------------------------------------


def _gguf(remote: _Remote, names: Sequence[str], folder: Path) -> Path:
    """The headers of a GGUF model, of all parts; returns where the first one is."""

    def read(name: str) -> None:
        _gguf_header(remote, name, folder / Path(name).name)

    _each(read, names)
    return folder / Path(names[0]).name


def _gguf_header(remote: _Remote, name: str, path: Path) -> None:
    held, found = b"", None
    while found is None:
        piece, size = remote.read(name, len(held), FIRST if not held else min(len(held), STEP))
        held += piece
        path.write_bytes(held)
        try:
            found = gguf_file.read_gguf(path)
        except gguf_file.CutHeaderError:
            if not piece or len(held) >= min(size, gguf_file.HEADER_LIMIT):
                raise
    with path.open("r+b") as out:
        out.truncate(size)
        for entry in found.entries:
            count = 4 * math.prod(entry.shape)
            start = found.data_start + entry.offset
            if entry.name in ROPE_TENSORS and count <= ROPE_LIMIT and start + count <= size:
                out.seek(start)
                out.write(remote.read(name, start, count)[0])


# --- Folders ---------------------------------------------------------------------------------------


def _folder(remote: _Remote, choice: Choice, folder: Path) -> Path:
    """The headers of a folder's weights, and the JSON files that describe it."""
    _each(lambda name: _write(folder / name, remote.whole(name)), [n for n in _NEEDED if n in choice.names])
    if read_section(folder / "config.json", SMALL_LIMIT).values.get("quantization_config") is not None:
        raise UnsupportedModelError(
            f"{folder}: is quantized, and such a folder cannot be described without its data; pull it, or "
            "take a GGUF file"
        )
    weights = [name for name in choice.names if name.endswith(".safetensors")]
    _each(lambda name: _safetensors_header(remote, name, folder / name), weights)
    return folder


def _safetensors_header(remote: _Remote, name: str, path: Path) -> None:
    held, size = remote.read(name, 0, FIRST)
    length = 8 + int.from_bytes(held[:8], "little")
    if length > 8 + safetensors.HEADER_LIMIT:
        raise ModelFileError(
            f"{path}: has a header of {length - 8} bytes; at most {safetensors.HEADER_LIMIT} are read"
        )
    if length > len(held):
        held += remote.read(name, len(held), length - len(held))[0]
    with path.open("wb") as out:
        out.write(held[:length])
        out.truncate(size)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
