"""The kernels of every instruction set against the portable ones, by a program in csrc/tests: on this
processor, and on an emulated ARM one where the cross compiler and the emulator are installed. Another begins
and ends pools."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

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
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        configure = ["cmake", "-S", str(SOURCES), "-B", str(folder), *options]
        for command in (configure, ["cmake", "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(*command: str | Path, timeout: float | None = None) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder() -> Path:
    return build("checks")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return folder / "kernels_check"


def test_pools_end_while_helpers_come_late(folder: Path) -> None:
    status, output = run(folder / "pool_check", timeout=300)  # takes five seconds, or for ever
    assert status == 0, output


def test_all_kernels_of_this_processor_give_the_same_bits(program: Path) -> None:
    status, output = run(program)
    assert status == 0, output
    assert "portable: the same bits" in output


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_flipped_bit_is_seen(program: Path, operation: str) -> None:
    status, output = run(program, "--flip", operation)
    assert status == 1, output
    assert f": {operation} " in output


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
