"""The page's scripts without a browser: page_units.mjs, run by Node.js where there is one."""

from __future__ import annotations

import hashlib
import re
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


def test_the_vendored_library_is_the_published_one() -> None:
    folder = STATIC / "vendor"
    about = (folder / "LICENSE.txt").read_text("utf-8")
    digest = hashlib.sha256((folder / "markdown-it.min.js").read_bytes()).hexdigest()
    assert f"SHA-256: {digest}" in about
    version = re.search(r"of markdown-it (\d+\.\d+\.\d+), unchanged", about)
    assert version is not None
    documents = Path(__file__).resolve().parents[2] / "docs" / "dependencies.md"
    assert f"markdown-it {version[1]} " in documents.read_text("utf-8")
