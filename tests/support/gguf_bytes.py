"""Builds GGUF files byte by byte, so that each field can be made invalid."""

from __future__ import annotations

import struct
from collections.abc import Sequence

UINT8, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 5, 4, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + payload


def entry(name: str, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_pairs: int | None = None,
    n_entries: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (
        len(entries) if n_entries is None else n_entries,
        len(pairs) if n_pairs is None else n_pairs,
    )
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return head + b"\0" * (-len(head) % alignment if alignment else 0) + data
