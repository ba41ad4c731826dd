"""The folders of csrc/ and which of them may include which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
FILES = sorted(path for path in CSRC.rglob("*") if path.suffix in {".h", ".cpp"})
MOST_LINES = 430

# folder: the other folders that its files may include
LAYERS: dict[str, set[str]] = {
    "memory": set(),
    "threads": set(),
    "kernels": {"memory"},
    "model": {"kernels", "memory", "threads"},
    "sampler": set(),
    "lookup": set(),
    "policy": set(),
    "engine": {"kernels", "memory", "model", "policy", "sampler"},
    "tests": {"kernels", "memory", "threads"},
}
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)

pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="needs the sources")


def name(path: Path) -> str:
    return path.relative_to(CSRC).as_posix()


def test_every_folder_has_a_layer() -> None:
    assert {path.relative_to(CSRC).parts[0] for path in FILES} == LAYERS.keys()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_includes_follow_the_layers(path: Path) -> None:
    folder = path.relative_to(CSRC).parts[0]
    for included in _INCLUDE.findall(path.read_text()):
        target, slash, _ = included.partition("/")
        assert slash, f'name the folder: "{included}"'
        assert (CSRC / included).is_file()
        assert target in {folder, *LAYERS[folder]}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_an_include_of_a_higher_layer_would_be_seen() -> None:
    text = '#include <vector>\n  #  include "model/model.h"\n// "kernels/kernels.h"\n'
    assert _INCLUDE.findall(text) == ["model/model.h"]
