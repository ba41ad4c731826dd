"""Models that are split into several GGUF files."""

from __future__ import annotations

import itertools
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ModelFileError, ModelNotFoundError
from outrider.models.gguf_names import PART_LIMIT, part_names, whole_models
from outrider.models.open import open_model
from tests.support.models import Dims, tiny_gguf
from tests.support.split_gguf import split


def test_any_part_stands_for_the_model(tmp_path: Path) -> None:
    whole = open_model(tiny_gguf(tmp_path / "whole-model.gguf"))
    (tmp_path / "split").mkdir()
    paths = split(tmp_path / "split")
    for given_path in (*paths, tmp_path / "split"):
        model = open_model(given_path)
        assert (model.path, model.parts) == (paths[0], tuple(paths[1:]))
        assert model.display_name == whole.display_name
        assert model.tensors.keys() == whole.tensors.keys()
        for name, tensor in model.tensors.items():
            assert tensor.data.tobytes() == whole.tensors[name].data.tobytes()


def test_a_fingerprint_covers_all_parts(tmp_path: Path) -> None:
    paths = split(tmp_path)
    before = open_model(paths[0]).fingerprint()
    raw = paths[2].read_bytes()
    paths[2].write_bytes(raw + b"\0")
    assert open_model(paths[0]).fingerprint() != before


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    paths = split(tmp_path)
    paths.pop(missing).unlink()
    words = rf"m-0000{missing + 1}-of-00003\.gguf: no such file: part {missing + 1} of 3 of the split model"
    for path in (*paths, tmp_path):
        with pytest.raises(ModelNotFoundError, match=words) as caught:
            open_model(path)
        assert "\n" not in str(caught.value)


def test_a_part_under_another_name(tmp_path: Path) -> None:
    paths = split(tmp_path)
    other = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"one of the 3 parts.*-00001-of-00003\.gguf.*original names"):
        open_model(other)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"no": {1: 2, 2: 1}}, r"00002-of-00003\.gguf: does not say that it is part 1 \(split\.no"),
        ({"no": {2: None}}, r"00003-of-00003\.gguf: does not say that it is part 2 \(split\.no"),
        ({"count": {1: 2}}, r"00002-of-00003\.gguf: is no part of the 3 that"),
        ({"count": {2: None}}, r"00003-of-00003\.gguf: is no part of the 3 that"),
        (
            {"tensors": dict.fromkeys(range(3), 99)},
            r"00001-of-00003\.gguf: the 3 parts have 20 tensors, not as many as split\.tens",
        ),
        (
            {"tensors": {2: 21}},
            r"00003-of-00003\.gguf: has another 'split.tensors.count' than m-00001",
        ),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    paths = split(tmp_path, wrong=keys)
    with pytest.raises(ModelFileError, match=words):
        open_model(paths[0])


@pytest.mark.parametrize("key", ["general.architecture", "general.name"])
def test_metadata_of_another_model(tmp_path: Path, key: str) -> None:
    paths = split(tmp_path, keys={key: "qwen2"})
    with pytest.raises(
        ModelFileError, match=rf"00002-of-00003\.gguf: has another '{key}' than m-00001.*two mod"
    ):
        open_model(paths[2])
    split(tmp_path, keys={"general.architecture": "llama"})
    assert len(open_model(paths[0]).parts) == 2


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"arch": "qwen3"},
            r"00002-of-00003\.gguf: has another 'split.tensors.count' than m-00001",
        ),
        ({"dims": Dims(layers=3)}, r"has another 'split.tensors.count' than"),
        ({"dims": Dims(hidden=128)}, r"the tensor .* is .*128.*, not .*64"),
        ({"tied": False}, r"has another 'split.tensors.count' than"),
    ],
)
def test_a_part_of_another_model(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    paths = split(tmp_path)
    (tmp_path / "other").mkdir()
    others = split(tmp_path / "other", **other)
    paths[1].write_bytes(others[1].read_bytes())
    for path in paths:
        with pytest.raises(ModelFileError, match=words) as caught:
            open_model(path)
        assert "\n" not in str(caught.value)


def test_a_part_of_a_model_in_other_parts(tmp_path: Path) -> None:
    paths = split(tmp_path)
    (tmp_path / "other").mkdir()
    paths[1].write_bytes(split(tmp_path / "other", count=2)[1].read_bytes())
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: is no part of the 3 that"):
        open_model(paths[0])
    with pytest.raises(ModelFileError, match=r"one of the 2 parts .* but its name does not end in"):
        open_model(paths[1])


def test_a_truncated_part(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-64])
    with pytest.raises(ModelFileError, match=r"00003-of-00003\.gguf: truncated"):
        open_model(paths[0])


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = split(tmp_path, wrong={"tensors": dict.fromkeys(range(3), 21)})
    raw = paths[1].read_bytes()
    number = b"split.no" + struct.pack("<IH", 2, 1)  # of type uint16
    assert number in raw
    paths[2].write_bytes(raw.replace(number, b"split.no" + struct.pack("<IH", 2, 2)))
    with pytest.raises(ModelFileError, match=r"00003\.gguf: the tensor .* is in another part, too"):
        open_model(paths[0])


def test_a_folder_with_a_projector_beside_the_model(tmp_path: Path) -> None:
    split(tmp_path, count=2)
    tiny_gguf(tmp_path / "mmproj-m.gguf")
    assert len(open_model(tmp_path).parts) == 1
    split(tmp_path, stem="n", count=2)
    with pytest.raises(ModelNotFoundError, match=r"holds 2 GGUF files \(m-00001-of-00002.gguf, n-00001"):
        open_model(tmp_path)


def test_a_single_part_is_a_whole_model(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m-00001-of-00001.gguf", keys={"split.count": 1})
    assert open_model(path).parts == ()


def test_too_many_parts(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m-00001-of-02000.gguf", keys={"split.count": 2000})
    with pytest.raises(ModelFileError, match=rf"split\.count is 2000, not between 0 and {PART_LIMIT}"):
        open_model(path)


@given(st.text(max_size=30) | st.from_regex(r"[a-z/-]{0,5}-\d{5}-of-\d{5}\.(gguf|GGUF)", fullmatch=True))
def test_names_of_parts(name: str) -> None:
    names = part_names(name)
    if not names:
        return
    assert name in names
    assert len(set(names)) == len(names) <= PART_LIMIT
    assert all(part_names(other) == names for other in itertools.islice(names, 5))
    assert re.search(r"-00001-of-\d{5}\.gguf$", names[0], re.IGNORECASE)
    assert whole_models(names) == [names[0]]
