"""Arrays of strings that two files share are read once, and as they would be without that."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ModelFileError
from outrider.models.formats.gguf_file import read_gguf
from outrider.models.formats.shared_strings import current, shared_strings
from outrider.models.open import open_model
from outrider.models.text.vocabulary import compare_vocabularies
from tests.support.gguf_bytes import ARRAY, STRING, gguf, pair, string
from tests.support.models import tiny_gguf

STRINGS = st.lists(st.sampled_from([b"", b"a", b"ab", b"\xff", bytes(8), b"\1" + bytes(7)]), max_size=5)


def file(*arrays: list[bytes]) -> bytes:
    pairs = [
        pair(
            f"k{i}",
            ARRAY,
            STRING.to_bytes(4, "little") + len(one).to_bytes(8, "little") + b"".join(map(string, one)),
        )
        for i, one in enumerate(arrays)
    ]
    return gguf(pairs)


def outcome(path: Path) -> object:
    try:
        return read_gguf(path).metadata.pairs
    except ModelFileError as error:
        return str(error)


@given(st.lists(st.lists(STRINGS, min_size=1, max_size=3), min_size=2, max_size=3), st.integers(0, 40))
def test_files_are_read_as_they_are_alone(arrays: list[list[list[bytes]]], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.gguf" for i in range(len(arrays))]
        for i, (path, one) in enumerate(zip(paths, arrays, strict=True)):
            raw = file(*one)
            path.write_bytes(raw[: len(raw) - cut] if i and cut < len(raw) - 24 else raw)
        alone = [outcome(path) for path in paths]
        with shared_strings():
            assert [outcome(path) for path in paths] == alone
        assert current() is None


def test_a_familys_vocabulary_is_one_object_and_compared_as_such(tmp_path: Path) -> None:
    same = [tiny_gguf(tmp_path / f"{i}.gguf", seed=i) for i in (1, 2)]
    for scope, shared in ((nullcontext(), False), (shared_strings(), True)):
        with scope:
            one, two = (open_model(path).tokenizer for path in same)
            assert (one.tokens is two.tokens) is shared
            assert one.tokens == two.tokens
            assert compare_vocabularies(one, two).compatible
