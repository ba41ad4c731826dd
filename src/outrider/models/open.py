"""One door for every model format."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ModelFileError, ModelNotFoundError
from outrider.models.gguf import open_gguf
from outrider.models.source import ModelSource


def open_model(path: Path) -> ModelSource:
    """Open the model at `path`: a GGUF file, a Hugging Face folder, or a folder with one GGUF file.

    Nothing is loaded: tensors are views into the mapped file. Raises ModelNotFoundError, ModelFileError or
    UnsupportedModelError; each names the file and what is wrong.
    """
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except ValueError:  # a NUL in the name, on Python before 3.13
        is_folder = False
    if not is_folder:
        if path.suffix == ".safetensors":
            raise ModelFileError(
                f"{path}: give the folder that holds it, with config.json and tokenizer.json"
            )
        return open_gguf(path)
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(p.name for p in found[:5])
        raise ModelNotFoundError(f"{path}: holds {len(found)} GGUF files ({names}); name one of them")
    if not found:
        raise ModelNotFoundError(f"{path}: holds neither config.json nor a GGUF file")
    return open_gguf(found[0])
