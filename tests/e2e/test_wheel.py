"""`make wheel`: what it builds installs where there is no compiler, and answers a prompt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.build import BUILD_LOCK
from tests.support.models import tiny_gguf

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 12 << 20

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="auditwheel checks wheels for Linux"),
    pytest.mark.skipif(
        not (Path(sys.prefix) / "bin" / "pip").is_file(), reason="needs pip in the environment"
    ),
]


def call(*command: str | Path, **options: object) -> str:
    """Run a command; its output. Fails with all that it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    BUILD_LOCK.parent.mkdir(exist_ok=True)
    with FileLock(BUILD_LOCK):
        call("make", "wheel", f"VENV={sys.prefix}", f"DIST={folder}", cwd=ROOT)
    (made,) = folder.glob("*.whl")
    return made


def test_it_is_small_and_for_every_linux_of_its_age(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES
    assert "manylinux" in wheel.name, "auditwheel found nothing that other systems lack"
    inside = zipfile.ZipFile(wheel).namelist()
    assert sum(name.endswith(".so") for name in inside) == 4
    assert "outrider/server/static/index.html" in inside
    assert not [name for name in inside if name.startswith(("tests/", "benchmarks/", "csrc/"))]


def test_it_answers_a_prompt_in_a_clean_environment_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CC", "CXX", "VIRTUAL_ENV")}
    env["PATH"] = str(place / "bin")  # no compiler, no cmake
    pip = [sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check", "install"]
    call(*pip, "--quiet", "--no-compile", "--only-binary=:all:", wheel, env=env)
    model = tiny_gguf(tmp_path / "tiny.gguf", seed=3)
    found = {}
    for spec in ("none", "suffix"):
        command: list[str | Path] = [
            place / "bin" / "outrider",
            "run",
            "-m",
            model,
            "-p",
            "ab ab ab",
            "-n",
            "12",
        ]
        printed = call(*command, "--temp", "0", "--spec", spec, "--json", env=env, cwd=tmp_path)
        found[spec] = json.loads(printed)["token_ids"]
    assert len(found["none"]) > 0
    assert found["suffix"] == found["none"]
