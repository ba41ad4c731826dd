"""Opens a model of any format."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ModelFileError, ModelNotFoundError, OutriderError
from outrider.models.formats.gguf import open_gguf
from outrider.models.formats.huggingface import open_huggingface
from outrider.models.source import ModelSource


def open_model(path: Path) -> ModelSource:
    """Open the model at `path`: a GGUF file, a Hugging Face folder, or a folder with one GGUF file
    and no safetensors.

    Nothing is loaded: tensors are views into the mapped file. Raises ModelNotFoundError, ModelFileError or
    UnsupportedModelError; each names the file and what is wrong.
    """
    path = Path(path)
    try:
        return _open(path)
    except OutriderError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


def _open(path: Path) -> ModelSource:
    if "\0" in str(path) or not path.is_dir():
        if path.suffix == ".safetensors" and path.exists():
            raise ModelFileError(
                f"{path}: give the folder that holds it, with config.json and tokenizer.json"
            )
        return open_gguf(path)
    found = sorted(path.glob("*.gguf"))
    # Some repositories have a config.json next to their GGUF files, for a download counter.
    if (path / "config.json").exists() and (not found or any(path.glob("*.safetensors"))):
        return open_huggingface(path)
    if len(found) > 1:
        names = ", ".join(p.name for p in found[:5])
        raise ModelNotFoundError(f"{path}: holds {len(found)} GGUF files ({names}); name one of them")
    if not found:
        raise ModelNotFoundError(f"{path}: holds neither config.json nor a GGUF file")
    return open_gguf(found[0])
