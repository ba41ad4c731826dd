"""Chooses the files of a hub repository that make up a model, by their names alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import ModelNotFoundError, UnsupportedModelError, nearest
from outrider.models.foreign import describe_folder
from outrider.models.gguf_names import SIDE_FILE, part_names, whole_models
from outrider.models.sources.download import one_line

PREFERRED = "Q4_K_M"

_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_SMALL = re.compile(
    r"[^/]+\.(json|jinja)|additional_chat_templates/[^/]+\.jinja|tokenizer\.model|merges\.txt|vocab\.txt"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to download: one GGUF model (all its parts, the first one first), or those of a folder
    (weights first)."""

    names: tuple[str, ...]
    folder: bool


def choose(names: Sequence[str], file: str | None, what: str) -> Choice:
    """Choose the model among a repository's files; `file` is a name, a quantization tag, or None.

    None stands for the safetensors folder if there is one, else the only GGUF, else the only Q4_K_M.
    Raises ModelNotFoundError, naming the files, when there is no single answer.
    """
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    models = whole_models([name for name in ggufs if not SIDE_FILE.search(name)])
    if file is not None:
        return _choose_named(names, ggufs, models, file, what)
    if weights := _weights(names):
        return Choice((*weights, *(n for n in names if _SMALL.fullmatch(n))), folder=True)
    if not models and (other := describe_folder(names)) is not None:
        raise UnsupportedModelError(f"{what}: holds {other}")
    if not models:
        raise ModelNotFoundError(
            f"{what}: holds neither a GGUF file nor config.json with safetensors; look for another"
            " repository of the same model (pickled weights are never loaded)"
        )
    if len(models) == 1:
        return _one_gguf(models[0], ggufs, what)
    preferred = _tagged(models, PREFERRED)
    if len(preferred) == 1:
        return _one_gguf(preferred[0], ggufs, what)
    raise ModelNotFoundError(
        f"{what}: holds {len(models)} GGUF files, choose one with :FILE or its tag: {_shown(models)}"
    )


def _choose_named(names: Sequence[str], ggufs: list[str], models: list[str], file: str, what: str) -> Choice:
    if file in ggufs:
        return _one_gguf(file, ggufs, what)
    if file in names:
        raise ModelNotFoundError(
            f"{what}: {file!r} is no GGUF file; leave out ':{file}' to fetch a safetensors folder"
        )
    found = _tagged(models, file)
    if len(found) == 1:
        return _one_gguf(found[0], ggufs, what)
    if found:
        raise ModelNotFoundError(f"{what}: {file!r} fits {len(found)} files, choose one: {_shown(found)}")
    raise ModelNotFoundError(
        f"{what}: the repository has no {file!r}{nearest(file, ggufs)};"
        f" it has {_shown(ggufs) or 'no GGUF file'}"
    )


def _tagged(models: list[str], tag: str) -> list[str]:
    """The files with a quantization tag in their names, found as llama.cpp does for `:Q4_K_M`.

    For `Q4_0`, m-Q4_0.gguf takes precedence over m-Q4_0_4_4.gguf.
    """
    for end in ("[-./]", "_"):
        mark = re.compile(rf"(?:^|[-._/]){re.escape(tag)}(?={end})", re.IGNORECASE)
        if found := [name for name in models if mark.search(name)]:
            return found
    return []


def _one_gguf(name: str, ggufs: Sequence[str], what: str) -> Choice:
    """The model in the file `name`, with all its parts when it is split."""
    parts = part_names(name)
    if missing := [part for part in parts if part not in ggufs]:
        raise ModelNotFoundError(
            f"{what}: {missing[0]!r} is missing, one of the {len(parts)} parts of a split model"
        )
    return Choice(tuple(parts or (name,)), folder=False)


def _weights(names: Sequence[str]) -> list[str]:
    """The safetensors files of a Hugging Face folder; empty when the repository does not hold one."""
    here = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    if "config.json" not in names:
        return []
    if "model.safetensors.index.json" in names:
        return [name for name in here if _SHARD.search(name)] or here
    whole = [name for name in here if not name.startswith(("consolidated", "adapter_model"))]
    return ["model.safetensors"] if "model.safetensors" in here else whole


def _shown(names: list[str]) -> str:
    return one_line(", ".join(sorted(names)), 600)
