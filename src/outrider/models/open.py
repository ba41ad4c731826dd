"""Opens a model of any supported format."""

from __future__ import annotations

import logging
from pathlib import Path

from outrider.errors import ModelFileError, ModelNotFoundError, OutriderError, UnsupportedModelError
from outrider.models.eagle3.open import head_kind
from outrider.models.families import shown
from outrider.models.foreign import PICKLES, describe_folder, names_in
from outrider.models.formats.gguf import open_gguf
from outrider.models.formats.huggingface import open_huggingface
from outrider.models.gguf_names import part_names, whole_models
from outrider.models.source import ModelSource

logger = logging.getLogger("outrider")


def open_model(path: Path) -> ModelSource:
    """Open the model at `path`: a GGUF file (any part of a split one), a Hugging Face folder, or a folder
    with one GGUF model and no safetensors.

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
    if "\0" not in str(path) and (kind := head_kind(path)) is not None:
        raise UnsupportedModelError(
            f"{path}: is a head ({kind}), which drafts for a model: give it with -md beside its target, to"
            " run, chat, serve, bench or verify"
        )
    if "\0" in str(path) or not path.is_dir():
        if path.suffix == ".safetensors" and path.exists():
            adapter = (path.parent / "adapter_config.json").exists()
            what = f"; it holds {describe_folder(names_in(path.parent))}" if adapter else ""
            raise ModelFileError(
                f"{path}: give the folder that holds it, with config.json and tokenizer.json{what}"
            )
        return open_gguf(path)
    found = sorted(path.glob("*.gguf"))
    # Some repositories have a config.json next to GGUF files, because the hub counts downloads by it.
    if (path / "config.json").exists() and (not found or any(path.glob("*.safetensors"))):
        return _open_folder(path)
    models = whole_models([p.name for p in found])
    if len(models) > 1:
        raise ModelNotFoundError(
            f"{path}: holds {len(models)} GGUF files ({', '.join(models[:5])}); name one of them"
        )
    if not models:
        raise _no_model(path)
    # Of a split model any part, as the first may be what is missing.
    parts = part_names(models[0])
    return open_gguf(next(p for p in found if p.name == models[0] or p.name in parts))


def _open_folder(path: Path) -> ModelSource:
    model = open_huggingface(path)
    if (path / "adapter_config.json").exists():
        logger.warning("%s: its LoRA adapter (adapter_config.json) is not used, only the model itself", path)
    return model


def _no_model(path: Path) -> ModelNotFoundError | UnsupportedModelError:
    names = names_in(path)
    if (what := describe_folder(names)) is not None:
        return UnsupportedModelError(f"{path}: holds {what}")
    weights = next((name for name in sorted(names) if name.endswith((".safetensors", *PICKLES))), None)
    but = f", only {shown(weights)}: get the model's other files, too" if weights else ""
    return ModelNotFoundError(f"{path}: holds neither config.json nor a GGUF file{but}")
