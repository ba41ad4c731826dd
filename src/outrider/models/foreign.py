"""Says what a file or folder is that is not the model it was taken for.

Only the words of error messages come from here. A file is known by its first bytes, a folder or repository by
the names of its files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from outrider.models.families import shown

NAMES_LIMIT = 1000
HEAD_BYTES = 512  # how much of a file `describe_file` looks at
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

_AGAIN = "download the file itself"
_CONVERT = "convert the original model again with llama.cpp, or take its GGUF file"
_UNPACK = "unpack it first"
_TAKE = "take the model's safetensors or GGUF files"
_PICKLE = f"a pickled PyTorch checkpoint, which can run code when it is read, so none is loaded: {_TAKE}"
# Files of ggml before GGUF: a number of four letters, which little-endian machines wrote backwards.
_BEFORE_GGUF = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT"}
_BEGINNINGS = (
    (LFS_POINTER, f"a Git LFS pointer: run `git lfs pull` in its repository, or {_AGAIN}"),
    (b"GGUF", "a GGUF file: give it by its own path, not inside a folder of safetensors"),
    (b"algg", "a LoRA adapter from before GGUF: give the whole model, with the adapter merged into it"),
    (b"PK\x03\x04", f"a zip archive; a .bin, .pt or .pth is {_PICKLE}"),
    (b"PK\x05\x06", "an empty zip archive"),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
    (b"\x1f\x8b", f"a gzip archive: {_UNPACK}"),
    (b"BZh", f"a bzip2 archive: {_UNPACK}"),
    (b"\xfd7zXZ", f"an xz archive: {_UNPACK}"),
    (b"\x28\xb5\x2f\xfd", f"a zstd archive: {_UNPACK}"),
    (b"7z\xbc\xaf", f"a 7-Zip archive: {_UNPACK}"),
    (b"Rar!", f"a RAR archive: {_UNPACK}"),
    (b"\x89HDF", f"an HDF5 file, as Keras writes them: {_TAKE}"),
    (b"<?xml", f"XML text, as servers send it for an error: {_AGAIN}"),
)
_HTML = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_IMATRIX_ENTRY = re.compile(rb"[\w.]{1,128}\.weight\b")
_CUT = re.compile(
    r"(?:[-._]split-[a-z]{1,2}|\.gguf[-._]?part[-_]?\d+(?:[-_]?of[-_]?\d+)?|\.gguf\.\d{3})\Z", re.I
)
_CONSOLIDATED = re.compile(r"consolidated(?:[.-].*)?\.(?:safetensors|pth|pt)")

# Folders of weights for other programs: a file's name or ending, and what it is.
_OTHER_WEIGHTS = (
    (".onnx", "an ONNX model"),
    (".msgpack", "Flax weights"),
    (".h5", "Keras weights"),
    (".tflite", "a TensorFlow Lite model"),
    (".ot", "Rust weights"),
    (".mlmodel", "a Core ML model"),
    ("openvino_model.xml", "an OpenVINO model"),
)


def describe_file(head: bytes, size: int, name: str = "") -> str | None:
    """What a file is, by its first HEAD_BYTES and its size in bytes, or None when it is not known.

    Begins with an article ("a Git LFS pointer: run …"), and says what to do.
    """
    before = _BEFORE_GGUF.get(head[:4])
    rules = [
        *((head.startswith(beginning), words) for beginning, words in _BEGINNINGS),
        (before is not None, f"a {before} file, from before GGUF (August 2023): {_CONVERT}"),
        (_HTML.match(head), f"a web page (HTML): {_AGAIN}, which on a hub is at …/resolve/main/FILE"),
        (head[257:262] == b"ustar", f"a tar archive: {_UNPACK}"),
        (head[4:8] == b"TFL3", f"a TensorFlow Lite model: {_TAKE}"),
        (name.lower().endswith(".onnx"), f"an ONNX model: {_TAKE}"),
        (
            head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8,
            "a safetensors file: give the folder that holds it, with config.json and tokenizer.json",
        ),
        (_is_imatrix(head), "an importance matrix (imatrix), which only quantizers read: give the model"),
        (
            head and not head.strip(b"\0"),
            f"a file that begins with zeros, as an unfinished download does: {_AGAIN}",
        ),
    ]
    return next((words for fits, words in rules if fits), None) or _describe_text(head, size)


def _is_imatrix(head: bytes) -> bool:
    """Whether it begins as older imatrix files of llama.cpp do: how many entries, then the first name."""
    entries, length = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:8], "little")
    name = head[8 : 8 + length]
    return 0 < entries < 1 << 20 and 0 < length <= 128 and bool(_IMATRIX_ENTRY.fullmatch(name))


def _describe_text(head: bytes, size: int) -> str | None:
    try:
        text = head.decode("ascii")
    except UnicodeDecodeError:
        return None
    if not text.strip() or not all(c.isprintable() or c in "\r\n\t" for c in text):
        return None
    if text.lstrip()[0] in "{[":
        return "JSON text: give the folder that holds it, if it is part of a model there"
    first = text.split("\n", 1)[0].strip()
    shown = first if len(first) <= 40 else first[:39] + "…"
    return f"text ({shown!r}, {size} bytes in all), as servers send it for an error: {_AGAIN}"


def cut_piece(name: str) -> str:
    """What to do about a file that was cut into pieces without a header of their own, or ""."""
    if not _CUT.search(name):
        return ""
    return "; its name is that of a piece of a cut file: join all pieces, in order, with `cat`"


def describe_folder(names: Collection[str]) -> str | None:
    """What a folder or repository holds instead of a model that can be read, by the names of its files, or
    None when it is not known. Completes "PLACE: holds …", and says what to do."""
    here = sorted(name for name in names if "/" not in name)
    if "adapter_config.json" in here:
        return (
            "a LoRA adapter (adapter_config.json), not a whole model: merge it into its base model"
            " (`merge_and_unload` of peft, then `save_pretrained`) and give that folder"
        )
    if "params.json" in here or any(_CONSOLIDATED.fullmatch(name) for name in here):
        found = next((name for name in here if _CONSOLIDATED.fullmatch(name)), "params.json")
        return (
            f"a model in its maker's own layout ({shown(found)[1:-1]}); only Hugging Face's is read: take"
            " config.json, model*.safetensors and tokenizer.json of the same model, or a GGUF file"
        )
    if "model_index.json" in here:
        return "a diffusion pipeline (model_index.json), not a language model"
    if any(name.endswith(PICKLES) for name in here):
        return None  # callers have a text of their own for these
    for ending, words in _OTHER_WEIGHTS:
        if (other := next((name for name in sorted(names) if _ends(name, ending)), None)) is not None:
            return f"{words} ({shown(other)[1:-1]}); {_TAKE}"
    return None


def names_in(folder: Path) -> list[str]:
    """The names of the files in a folder and in the folders directly in it, at most NAMES_LIMIT."""
    found: list[str] = []
    for path in folder.iterdir():
        inner = islice(_entries(path), NAMES_LIMIT) if path.is_dir() else ()
        found += [f"{path.name}/{entry.name}" for entry in inner] or [path.name]
        if len(found) >= NAMES_LIMIT:
            break
    return found[:NAMES_LIMIT]


def _entries(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from folder.iterdir()


def _ends(name: str, ending: str) -> bool:
    return PurePosixPath(name).name == ending or (ending.startswith(".") and name.lower().endswith(ending))
