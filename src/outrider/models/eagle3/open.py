"""Finds out whether a file or folder is a head on another model, and of which kind."""

from __future__ import annotations

import re
from pathlib import Path

from outrider.errors import ModelFileError, OutriderError, UnsupportedModelError
from outrider.models.eagle3.folders import read_original, read_speculators
from outrider.models.eagle3.gguf import read_gguf_head
from outrider.models.eagle3.head import NAME, Eagle3Head
from outrider.models.families import shown
from outrider.models.formats.gguf_file import peek_architecture
from outrider.models.formats.hf_json import Section, read_section
from outrider.models.formats.huggingface import CONFIG_LIMIT

# Kinds of heads that are not read: what the name of their class, or of their format, has in it.
_OTHERS = (
    (r"medusa", "Medusa"),
    (r"hydra", "Hydra"),
    (r"mlp_?speculator", "MLP speculator"),
    (r"d(?:flash|spark)", "DFlash or DSpark"),
    (r"p_?eagle", "P-EAGLE"),
    (r"mtp|next_?n", "multi-token prediction (MTP)"),
    (r"assistant", "assistant"),
    (r"eagle", "EAGLE-1 or EAGLE-2"),
)
_OWN = re.compile(r"eagle_?3", re.IGNORECASE)
_SETTINGS = {"medusa_num_heads": "Medusa", "hydra_num_heads": "Hydra"}


def open_head(path: Path) -> Eagle3Head | None:
    """The EAGLE-3 head at `path`, a folder or a GGUF file; None where there is no head, but perhaps a model.

    Raises ModelFileError for one that is damaged, and UnsupportedModelError for one that is not supported and
    for other kinds of heads, by name.
    """
    path = Path(path)
    try:
        return _open(path)
    except OutriderError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


def head_kind(path: Path) -> str | None:
    """What kind of head is at `path`, "EAGLE-3" for those that are read; None for anything else. Raises
    ModelError for a file that is damaged."""
    if (file := _gguf(path)) is not None:
        return _kind_of(peek_architecture(file) or "")
    config = _config(path)
    return None if config is None else _kind_of_folder(config)


def _open(path: Path) -> Eagle3Head | None:
    kind = head_kind(path)
    if kind is None:
        return None
    if kind != "EAGLE-3":
        raise UnsupportedModelError(
            f"{path}: holds a head of the kind {kind}, which is not supported; heads that are: EAGLE-3"
        )
    if (file := _gguf(path)) is not None:
        return read_gguf_head(file)
    config = _config(path)
    assert config is not None
    if "speculators_model_type" in config.values or "transformer_layer_config" in config.values:
        return read_speculators(path, config)
    return read_original(path, config)


def _gguf(path: Path) -> Path | None:
    """The GGUF file that a path stands for."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.gguf"))
    return found[0] if found and not any(path.glob("*.safetensors")) else None


def _config(path: Path) -> Section | None:
    config = path / "config.json"
    return read_section(config, CONFIG_LIMIT) if config.is_file() else None


def _kind_of(name: str) -> str | None:
    if name == NAME or _OWN.search(name):
        return "EAGLE-3"
    return next((kind for part, kind in _OTHERS if re.search(part, name, re.IGNORECASE)), None)


def _kind_of_folder(config: Section) -> str | None:
    values = config.values
    if isinstance(declared := values.get("speculators_model_type"), str):
        return _kind_of(declared) or shown(declared)
    found = next((kind for key, kind in _SETTINGS.items() if key in values), None)
    named = values.get("architectures")
    for name in named if isinstance(named, list) else []:
        found = found or (_kind_of(name) if isinstance(name, str) else None)
    if found is None and values.get("draft_vocab_size") is not None:
        return "EAGLE-3"  # the class of the first heads' configurations is Llama's
    return found
