from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import outrider.decoding

FILES = sorted(Path(outrider.decoding.__file__).parent.rglob("*.py"))
CLOCKS_AND_FILES = {"time", "datetime", "os", "io", "pathlib", "random", "secrets", "socket", "threading"}


def imported(tree: ast.Module) -> set[str]:
    """Modules imported when the module runs, so not under `if TYPE_CHECKING`."""
    names: set[str] = set()
    for node in tree.body:
        for child in [] if isinstance(node, ast.If) else ast.walk(node):
            if isinstance(child, ast.Import):
                names |= {alias.name for alias in child.names}
            elif isinstance(child, ast.ImportFrom):
                names.add(child.module or "")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_decoding_knows_no_model_file_or_clock(path: Path) -> None:
    for name in imported(ast.parse(path.read_text())):
        root = name.split(".", maxsplit=1)[0]
        if root == "outrider":
            leaves = {"outrider.errors", "outrider.value_checks"}
            assert name in leaves or name.startswith("outrider.decoding.")
        else:
            assert root == "numpy" or (root in sys.stdlib_module_names and root not in CLOCKS_AND_FILES)
