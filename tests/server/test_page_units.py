"""The page's scripts without a browser: page_units.mjs, run by Node.js where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.server.settings import STATIC

UNITS = Path(__file__).with_name("page_units.mjs")


def test_scripts_in_node(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js (Debian: apt-get install nodejs)")
    folder = tmp_path / "page"
    shutil.copytree(STATIC, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(UNITS, folder)
    found = subprocess.run(
        [node, "--test", UNITS.name], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "pass 0" not in found.stdout
