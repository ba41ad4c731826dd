"""The GGUF container: everything that can be wrong with a header has its own clear error."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.formats import gguf_file
from outrider.models.formats.gguf_file import read_gguf
from outrider.models.formats.gguf_metadata import Metadata
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    entry,
    gguf,
    pair,
    string,
)
from tests.support.models import tiny_gguf


def read(tmp_path: Path, raw: bytes) -> gguf_file.GGUFFile:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    file = read_gguf(path)
    file.tensors()
    return file


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


PIECES = st.lists(
    st.binary(min_size=1, max_size=12).map(lambda raw: raw.replace(b"\0", b"z"))
    | st.binary(max_size=300)
    | st.sampled_from([b"\5" + bytes(7) + b"abcde", bytes(9), b"a" * 256])
    | st.text(max_size=4).map(str.encode),
    max_size=20,
)


@given(PIECES, st.binary(max_size=20))
def test_strings_of_any_bytes_are_read(pieces: list[bytes], after: bytes) -> None:
    """With zero bytes in them, empty or long, with anything after them, and cut."""
    raw = b"".join(map(string, pieces))
    cursor = gguf_file._Cursor(Path("x"), b"GGUF" + raw + after)
    assert cursor._strings(len(pieces)) == tuple(pieces)
    assert cursor.at == 4 + len(raw)
    if pieces:
        with pytest.raises(ModelFileError, match="truncated"):
            gguf_file._Cursor(Path("x"), b"GGUF" + raw[:-1])._strings(len(pieces))


@given(PIECES)
def test_pieces_are_decoded_one_by_one_or_all_at_once(pieces: list[bytes]) -> None:
    found = Metadata(Path("x"), {"pieces": tuple(pieces)}).pieces("pieces")
    assert found == tuple(raw.decode(errors="backslashreplace") for raw in pieces)


def test_reads_every_value_type(tmp_path: Path) -> None:
    pairs = [
        pair("u8", UINT8, b"\x07"),
        pair("i32", INT32, struct.pack("<i", -5)),
        pair("f32", FLOAT32, struct.pack("<f", 0.5)),
        pair("yes", BOOL, b"\x01"),
        pair("text", STRING, string("grün")),
        pair("u64", UINT64, u64(1 << 40)),
        pair("numbers", ARRAY, u32(INT32) + u64(3) + struct.pack("<3i", 1, -2, 3)),
        pair("truths", ARRAY, u32(BOOL) + u64(2) + b"\x00\x01"),
        pair("strings", ARRAY, u32(STRING) + u64(3) + string("a") + string("") + string(b"\xff")),
    ]
    metadata = read(tmp_path, gguf(pairs)).metadata
    assert metadata.integer("u8", 0, 255) == 7
    assert metadata.integer("i32", -10, 0) == -5
    assert metadata.number("f32") == 0.5
    assert metadata.flag("yes", False) is True
    assert metadata.text("text") == "grün"
    assert metadata.integer("u64", 0, 1 << 41) == 1 << 40
    numbers = metadata.array("numbers", np.int32)
    assert numbers is not None
    assert numbers.tolist() == [1, -2, 3]
    assert metadata.pieces("strings") == ("a", "", "\\xff")
    assert metadata.integer("absent", 0, 1, default=None) is None


def test_version_2_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, gguf([pair("a", BOOL, b"\x00")], version=2)).metadata.flag("a", True) is False


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    values = np.arange(12, dtype="<f4")
    entries = [entry("a", (4, 2)), entry("b", (4,), offset=32)]
    tensors = read(tmp_path, gguf((), entries, values.tobytes())).tensors()
    assert tensors["a"].shape == (2, 4)
    assert tensors["b"].shape == (4,)
    assert tensors["a"].data.tobytes() == values[:8].tobytes()
    assert tensors["b"].data.tobytes() == values[8:].tobytes()
    assert not tensors["a"].data.flags.writeable
    assert not tensors["a"].data.flags.owndata


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (b"", ModelFileError, "is empty"),
        (b"PK\x03\x04 zipped", ModelFileError, r"not a GGUF file \(starts with b'PK"),
        (b"GGUF", ModelFileError, "truncated"),
        (b"GGUF\x03\x00\x00\x00", ModelFileError, "truncated"),
        (gguf(version=1), UnsupportedModelError, "version 1"),
        (gguf(version=4), UnsupportedModelError, "version 4"),
        (gguf(version=3 << 24), UnsupportedModelError, "big-endian"),
        (gguf(n_pairs=1 << 62), ModelFileError, "truncated: 4611686018427387904 keys"),
        (gguf(n_entries=1 << 62), ModelFileError, "4611686018427387904 tensors"),
        (gguf(n_entries=1, n_pairs=0), ModelFileError, "truncated"),
        (gguf([string("k" * 20)], alignment=0), ModelFileError, "truncated"),
        (gguf([pair("k", UINT64, b"\0")], alignment=0), ModelFileError, "truncated"),
        (gguf([pair("key", STRING, u64(1 << 63))]), ModelFileError, "truncated"),
        (gguf([pair("key", BOOL, b"\x02")]), ModelFileError, "'key' is a truth value of 2"),
        (gguf([pair("key", 13, b"\0")]), ModelFileError, "'key' has the unknown value type 13"),
        (gguf([pair("key", ARRAY, u32(14) + u64(0))]), ModelFileError, "unknown element type 14"),
        (gguf([pair("key", ARRAY, u32(ARRAY) + u64(1))]), UnsupportedModelError, "array of arrays"),
        (gguf([pair("key", ARRAY, u32(UINT8) + u64(1 << 60))]), ModelFileError, "truncated"),
        (gguf([pair("key", ARRAY, u32(STRING) + u64(1 << 60))]), ModelFileError, "truncated"),
        (
            gguf([pair("key", ARRAY, u32(STRING) + u64(2) + string("a"))], alignment=0),
            ModelFileError,
            "truncated",
        ),
        (gguf([pair("key", ARRAY, u32(STRING) + u64(1) + u64(1 << 63))]), ModelFileError, "truncated"),
        (gguf([pair(b"\xff\xfe", BOOL, b"\0")]), ModelFileError, "not UTF-8"),
        (gguf([pair("", BOOL, b"\0"), pair("k", BOOL, b"\0")]), ModelFileError, "0 bytes"),
        (gguf([pair("key", BOOL, b"\0")] * 2), ModelFileError, "'key' appears twice"),
        (gguf([pair("general.alignment", UINT32, u32(24))]), ModelFileError, "not a power of two"),
        (gguf([pair("general.alignment", UINT32, u32(0))]), ModelFileError, "general.alignment is 0"),
        (gguf([pair("general.alignment", UINT32, u32(1 << 31))]), ModelFileError, "general.alignment"),
        (gguf([pair("general.alignment", STRING, string("32"))]), ModelFileError, "not an integer"),
        (gguf((), [entry("t", (8,))] * 2, bytes(64)), ModelFileError, "'t' appears twice"),
        (gguf((), [entry("t", ())], bytes(64)), ModelFileError, "0 dimensions"),
        (gguf((), [entry("t", (1,) * 5)], bytes(64)), ModelFileError, "5 dimensions"),
        (gguf((), [entry("t", (8, 0))], bytes(64)), ModelFileError, "impossible dimensions"),
        (gguf((), [entry("t", (1 << 62, 1 << 62))], bytes(64)), ModelFileError, "impossible dimensions"),
        (gguf((), [entry("t", (1 << 32, 1 << 32))], bytes(64)), ModelFileError, "truncated"),
        (gguf((), [entry("t", (16,))], bytes(60)), ModelFileError, "truncated: the tensor 't' ends at byte"),
        (gguf((), [entry("t", (8,), offset=64)], bytes(64)), ModelFileError, "truncated"),
        (gguf((), [entry("t", (8,), offset=(1 << 64) - 32)], bytes(64)), ModelFileError, "truncated"),
        (gguf((), [entry("t", (8,), offset=8)], bytes(64)), ModelFileError, "not a multiple of 32"),
        (gguf((), [entry("t", (9,)), entry("u", (8,), offset=32)], bytes(64)), ModelFileError, "overlap"),
        (gguf((), [entry("t", (8,)), entry("u", (8,))], bytes(64)), ModelFileError, "overlap"),
        (
            gguf((), [entry("t", (33,), kind=8)], bytes(99)),
            ModelFileError,
            "33 columns, not a multiple of 32",
        ),
        (
            gguf((), [entry("t", (256,), kind=29)], bytes(99)),
            UnsupportedModelError,
            "type IQ1_M; supported: F32,",
        ),
        (gguf((), [entry("t", (256,), kind=99)], bytes(99)), UnsupportedModelError, "type number 99"),
        (
            gguf((), [entry("a\nb\x1b[2J", (8,), kind=99)], bytes(99)),
            UnsupportedModelError,
            r"'a\\nb\\x1b\[2J'",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, raw: bytes, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        read(tmp_path, raw)
    assert str(tmp_path / "x.gguf") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = gguf([pair("key", STRING, string("x" * 5000))], data=bytes(5000))
    read(tmp_path, raw)
    monkeypatch.setattr(gguf_file, "HEADER_LIMIT", 1 << 12)
    with pytest.raises(ModelFileError, match="header is larger"):
        read(tmp_path, raw)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_gguf(Path(str(tmp_path) + "/nul\0.gguf"))
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        read_gguf(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path / ("x" * 300))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_gguf(tmp_path / "pipe")


@pytest.mark.parametrize("types", ["F32", "BF16", "Q4_1", "Q5_0", "Q6_K"])
def test_agrees_with_the_gguf_package(tmp_path: Path, types: str) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", types=types, keys={"general.alignment": 64})
    ours, theirs = read_gguf(path), GGUFReader(path)
    tensors = ours.tensors()
    assert len(tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        mine = tensors[tensor.name]
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert mine.type == GGMLQuantizationType(tensor.tensor_type).name
        assert mine.data.tobytes() == np.ascontiguousarray(tensor.data).tobytes()
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        mine_value, value = ours.metadata.pairs[key], field.contents()
        if isinstance(mine_value, bytes):
            assert mine_value.decode() == value
        elif isinstance(mine_value, tuple):
            assert [piece.decode() for piece in mine_value] == value
        else:
            np.testing.assert_array_equal(np.asarray(mine_value), np.asarray(value))
