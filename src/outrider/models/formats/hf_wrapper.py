"""Models that also read images, of which only the text part is run.

config.json has the text part's settings in `text_config`. Its tensors have the usual names with a prefix:

    written by transformers below 5    language_model.model.layers.…   language_model.lm_head.weight
    by transformers 5                  model.language_model.layers.…   lm_head.weight
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.families import shown
from outrider.models.formats.hf_json import Section
from outrider.models.source import Tensor

logger = logging.getLogger("outrider")

Rename: TypeAlias = Callable[[str], str]

_OLD, _NEW = "language_model.", "model.language_model."
_TOP_KEYS = ("eos_token_id", "bos_token_id", "pad_token_id", "quantization_config", "quantization")
_OF_IMAGES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A class of transformers that also reads images.

    type:  model_type of its configurations.
    texts: the classes that its text part may be, by model_type; the first where a file does not say.
    """

    name: str
    type: str
    texts: Mapping[str, str]


WRAPPERS: Mapping[str, Wrapper] = {
    wrapper.name: wrapper
    for wrapper in (
        Wrapper("Gemma3ForConditionalGeneration", "gemma3", {"gemma3_text": "Gemma3ForCausalLM"}),
        Wrapper(
            "Mistral3ForConditionalGeneration",
            "mistral3",
            {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"},
        ),
    )
}


def text_part(config: Section) -> Section | None:
    """The settings of the text part as the config.json of a text model would have them; None where `config`
    is one already.

    Raises ModelFileError without text_config, UnsupportedModelError for a text part of another kind.
    """
    wrapper = _wrapper(config)
    if wrapper is None:
        return None
    text = config.section("text_config")
    if text is None:
        raise ModelFileError(f"{config.path}: is a {wrapper.name} without a text_config")
    kind = text.text("model_type", next(iter(wrapper.texts)))
    if kind not in wrapper.texts:
        raise UnsupportedModelError(
            f"{config.path}: has the text part {shown(kind)} in a {wrapper.name}; supported:"
            f" {', '.join(wrapper.texts)}"
        )
    values = dict(text.values)
    values |= {key: config.values[key] for key in _TOP_KEYS if config.values.get(key) is not None}
    values["architectures"], values["model_type"] = [wrapper.texts[kind]], kind
    # What the text part says of it does not count in transformers 5.
    values["tie_word_embeddings"] = config.flag("tie_word_embeddings", True)
    logger.warning("%s: the part for images is left out: images are not supported", config.path)
    return Section(config.path, values)


def _wrapper(config: Section) -> Wrapper | None:
    named = config.values.get("architectures") or [None]
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        return WRAPPERS.get(named[0])
    model_type = config.values.get("model_type")
    return next((made for made in WRAPPERS.values() if named == [None] and made.type == model_type), None)


def text_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Rename]:
    """The text part's tensors, under the names that a text model has; and from these to the folder's names.
    Raises ModelFileError for a tensor that is there in both spellings."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _OF_IMAGES.match(name):
            continue
        plain = _plain(name)
        if plain in found:
            raise ModelFileError(f"{folder}: the tensor {shown(name)} is there under another name, too")
        found[plain] = replace(tensor, name=plain)
    old = any(name.startswith(_OLD) for name in tensors)
    return found, (lambda name: f"{_OLD}{name}") if old else _new


def _new(name: str) -> str:
    return _NEW + name.removeprefix("model.") if name.startswith("model.") else name


def _plain(name: str) -> str:
    if name.startswith(_NEW):
        return "model." + name.removeprefix(_NEW)
    return name.removeprefix(_OLD)
