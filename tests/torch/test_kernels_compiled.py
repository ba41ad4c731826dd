"""What the compiler makes of the kernels for a Hopper GPU: the same instruction in all tiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.torch import kernel_support

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def test_instructions() -> None:
    """Bits do not depend on the tile, and the noise is rounded as on the CPU, because of these."""
    assert kernel_support.triton is not None
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.torch.kernel_compiled"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode and "ptxas" in done.stderr:
        pytest.skip("no assembler for GPUs")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["linear"] == [[MMA]] * 5
    assert found["attention"] == [[MMA]] * 2
    assert found["fused in the noise"] == 0
    (other,) = found["linear of 64 rows and four warps"]  # the check can fail
    assert other.startswith("wgmma")
