"""The kernels of every instruction set against the portable ones, by a program in csrc/tests: on this
processor, and on an emulated ARM one where the cross compiler and the emulator are installed. Another begins
and ends pools."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.build import BUILD_LOCK

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "csrc" / "tests"
OPERATIONS = (
    *("matmul", "rms_norm", "quantize", "quantize_residual", "silu_mul", "rope"),
    *("store_kv", "copy_kv", "attention"),
)

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(
        not (SOURCES.is_dir() and shutil.which("cmake") and (shutil.which("c++") or shutil.which("g++"))),
        reason="needs the sources, cmake and a C++ compiler",
    ),
]


def build(name: str, *options: str) -> Path:
    """The folder of the programs, built or brought up to date."""
    folder = ROOT / "build" / name
    configure("cmake", SOURCES, folder, *options)
    return folder


def configure(cmake: str, source: Path, folder: Path, *options: str, targets: Sequence[str] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [option for target in targets for option in ("--target", target)]
    with FileLock(BUILD_LOCK):
        for command in (
            [cmake, "-S", str(source), "-B", str(folder), *options],
            [cmake, "--build", str(folder), *wanted],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def extension_build() -> tuple[str, Path] | None:
    """(cmake, folder) of the editable installation's own build, whose kernels need no second compilation."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for cache in (ROOT / "build").glob(f"{version}-*/CMakeCache.txt"):
        found = re.search(r"^CMAKE_COMMAND:INTERNAL=(.+)$", cache.read_text("utf-8"), re.MULTILINE)
        if found and Path(found[1]).is_file():
            return found[1], cache.parent
    return None


def run(*command: str | Path, timeout: float | None = None) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder() -> Path:
    own = extension_build()
    if own is None:
        return build("checks")
    cmake, place = own
    configure(cmake, ROOT, place, "-DOUTRIDER_CHECKS=ON", targets=["kernels_check", "pool_check"])
    return place / "csrc" / "tests"


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return folder / "kernels_check"


def test_pools_end_while_helpers_come_late(folder: Path) -> None:
    status, output = run(folder / "pool_check", "1000", timeout=300)  # takes a second, or for ever
    assert status == 0, output


def test_all_kernels_of_this_processor_give_the_same_bits(program: Path) -> None:
    status, output = run(program)
    assert status == 0, output
    assert "portable: the same bits" in output
    if "avx2: the same bits" in output:  # AVX-VNNI's kernels are compared too, at least with it emulated
        assert re.search("^avxvnni.*: the same bits$", output, re.MULTILINE)
    if "avx512: the same bits" in output and platform.system() == "Linux":  # and AMX's
        assert re.search("^amx.*: the same bits$", output, re.MULTILINE)


@pytest.mark.grid(4)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_flipped_bit_is_seen(program: Path, operation: str) -> None:
    status, output = run(program, "--flip", operation)
    assert status == 1, output
    assert f": {operation} " in output


def test_a_column_that_tiles_forget_is_seen(program: Path) -> None:
    status, output = run(program, "--flip", "tile")
    if "amx" not in output:
        pytest.skip("AMX's kernels are not compiled, or not emulated here")
    assert status == 1, output
    assert "amx with its instructions emulated: matmul " in output


@pytest.mark.skipif(
    platform.machine() in ("aarch64", "arm64")
    or not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")),
    reason="needs aarch64-linux-gnu-g++ and qemu-aarch64, on another architecture",
)
def test_neon_kernels_give_the_same_bits_under_an_emulator() -> None:
    folder = build(
        "checks-arm",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )
    status, output = run("qemu-aarch64", folder / "kernels_check")
    assert status == 0, output
    assert "neon: the same bits" in output
