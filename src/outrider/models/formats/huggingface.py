"""Hugging Face folders (config.json, safetensors, tokenizer.json) into a `ModelSource`.

Defaults for absent keys are those of transformers' configuration classes. What would change the logits and
is not supported is refused by name.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_dimensions, check_tensors
from outrider.models.column_order import take_into_rows
from outrider.models.families import (
    FAMILIES,
    LAYER_TENSORS,
    LIMITS,
    TOP_TENSORS,
    Dimensions,
    Family,
    HuggingFaceClass,
    default_attention_scale,
    last_of_each,
    make_spec,
    periodic_windows,
    shown,
)
from outrider.models.formats.dequantize import dequantize, same_values
from outrider.models.formats.generation_config import huggingface_sampling
from outrider.models.formats.hf_json import Section, read_section
from outrider.models.formats.hf_quantization import Quantization, read_quantization
from outrider.models.formats.hf_quantized import DTYPES, unpack_modules
from outrider.models.formats.hf_rope import read_query_growth, read_ropes
from outrider.models.formats.hf_tokenizer import read_tokenizer
from outrider.models.formats.hf_wrapper import WRAPPERS, text_part, text_tensors
from outrider.models.formats.safetensors import read_weights
from outrider.models.fused import split_fused
from outrider.models.quantization import EMBEDDING, OUTPUT
from outrider.models.source import ModelSource, Tensor
from outrider.models.weight_types import FLOAT_TYPES

CONFIG_LIMIT = 1 << 20

logger = logging.getLogger("outrider")

_CLASSES: Mapping[str, tuple[Family, HuggingFaceClass]] = {
    kind.name: (family, kind) for family in FAMILIES.values() for kind in family.classes
}
_TYPES = {kind.type: name for name, (_, kind) in _CLASSES.items()}  # by model_type
_KINDS = ("full_attention", "sliding_attention")
_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)\.(weight|bias)", re.ASCII)
FREQUENCIES = ".rotary_emb.inv_freq"  # old checkpoints keep this table; it follows from the configuration


def open_huggingface(folder: Path) -> ModelSource:
    """Open and check the model in `folder`; its tensors stay on disk, mapped.

    Raises ModelNotFoundError (a file is missing), ModelFileError (a file is damaged or inconsistent),
    UnsupportedModelError (model class, option, dtype or pickled weights, named).
    """
    path = folder / "config.json"
    config = read_section(path, CONFIG_LIMIT)
    text = text_part(config)
    config = text or config
    family, kind = _model_class(config)
    dimensions = read_dimensions(config, family, kind)
    check_dimensions(path, dimensions)
    architecture = make_spec(family, dimensions)
    layer_tensors = {**LAYER_TENSORS, **family.layer_tensors}
    how = read_quantization(config)
    stored, spelled = _read_tensors(folder, how, text is not None)
    tensors, names = _renamed(folder, stored, layer_tensors)
    if how is not None:
        _leave_out_empty_biases(family, tensors)
    _tie(folder, config, kind, tensors, names)
    _biases(config, family, kind, tensors)

    def file_name(name: str) -> str:
        return spelled(names.get(name) or _file_name(name, layer_tensors))

    split_fused(folder, architecture, tensors, file_name)
    take_into_rows(folder, architecture, tensors)
    check_tensors(folder, architecture, tensors, file_name)
    _shift_norms(family, tensors)
    tokenizer, templates = read_tokenizer(folder, config, architecture.vocab_size)
    return ModelSource(
        path=folder,
        format="safetensors",
        display_name=folder.resolve().name,
        architecture=architecture,
        tensors=tensors,
        tokenizer=tokenizer,
        chat_template=templates.pop("default", None),
        chat_templates=templates,
        recommended_sampling=huggingface_sampling(folder),
        stored_method=None if how is None else how.method,
    )


def _read_tensors(
    folder: Path, how: Quantization | None, wrapped: bool
) -> tuple[dict[str, Tensor], Callable[[str], str]]:
    """The tensors under the names that a text model has, and from these to the folder's names."""
    tensors = read_weights(folder, FLOAT_TYPES if how is None else (*FLOAT_TYPES, *DTYPES))
    spelled: Callable[[str], str] = str
    if wrapped:
        tensors, spelled = text_tensors(folder, tensors)
    return tensors if how is None else unpack_modules(folder, how, tensors), spelled


def _leave_out_empty_biases(family: Family, tensors: dict[str, Tensor]) -> None:
    """Delete biases of zeros that the family does not have: GPTQ's first programs wrote them everywhere."""
    known = (*family.optional_bias, *family.required_bias)
    for name, tensor in list(tensors.items()):
        part = name.partition(".")[2].partition(".")[2]
        if (
            part.endswith(".bias")
            and part.removesuffix(".bias") not in known
            and not dequantize(tensor).any()
        ):
            del tensors[name]


def _shift_norms(family: Family, tensors: dict[str, Tensor]) -> None:
    """Add what the family's weights of norms lack, as llama.cpp's converter does."""
    for name, tensor in tensors.items():
        if family.norm_offset and len(tensor.shape) == 1:
            values = (dequantize(tensor) + np.float32(family.norm_offset)).astype("<f4")
            tensors[name] = replace(tensor, type="F32", data=values.view(np.uint8))


def _tie(
    folder: Path,
    config: Section,
    kind: HuggingFaceClass,
    tensors: dict[str, Tensor],
    names: dict[str, str],
) -> None:
    """Decide, as transformers 5 does, whether the output matrix is the embedding. Raises ModelFileError when
    it should be neither that nor in the file."""
    head = tensors.get(OUTPUT)
    if not config.flag("tie_word_embeddings", kind.tied):
        if head is None:
            raise ModelFileError(
                f"{folder}: the tensor lm_head.weight is missing, and the embeddings are not tied"
            )
        return
    embedding = tensors.get(EMBEDDING)
    if head is None:
        return
    if embedding is None:  # saved under the other of its two names
        tensors[EMBEDDING] = replace(tensors.pop(OUTPUT), name=EMBEDDING)
        names[EMBEDDING] = names[OUTPUT]
    elif head.type in FLOAT_TYPES and same_values(head, embedding):
        del tensors[OUTPUT]
    else:
        logger.warning(
            "%s: sets tie_word_embeddings, but there is an lm_head of its own, which is used, as in"
            " transformers 5; set tie_word_embeddings to false to silence this warning",
            config.path,
        )


def _biases(config: Section, family: Family, kind: HuggingFaceClass, tensors: dict[str, Tensor]) -> None:
    """Hold the biases that a family may have against the configuration: without attention_bias those in the
    file are left out, as in transformers. Raises ModelFileError for one that is missing."""
    wanted = config.flag("attention_bias", False)
    if not family.optional_bias:
        if wanted and not family.required_bias:
            raise UnsupportedModelError(f"{config.path}: sets attention_bias, which is not supported")
        return
    wanted = wanted and kind.attention_bias
    parts = {f"{part}.bias" for part in family.optional_bias}
    found = [name for name in tensors if name.partition(".")[2].partition(".")[2] in parts]
    if wanted and len(found) < len(parts) * config.integer("num_hidden_layers", 1, LIMITS["n_layers"]):
        raise ModelFileError(f"{config.path}: sets attention_bias, but not every layer has its biases")
    if found and not wanted:
        logger.warning(
            "%s: does not set attention_bias, so the biases in the file are not used, as in transformers",
            config.path,
        )
        for name in found:
            del tensors[name]


def _model_class(config: Section) -> tuple[Family, HuggingFaceClass]:
    named = config.values.get("architectures")
    if named is None or named == []:  # transformers goes by model_type alone
        model_type = config.text("model_type", "")
        if not model_type:
            raise ModelFileError(f"{config.path}: has neither architectures nor model_type")
        if model_type not in _TYPES:
            raise UnsupportedModelError(
                f"{config.path}: has the model_type {shown(model_type)}; supported: {', '.join(_TYPES)}"
            )
        named = [_TYPES[model_type]]
    name = named[0] if isinstance(named, list) and len(named) == 1 else None
    if not isinstance(name, str):
        raise ModelFileError(f"{config.path}: architectures does not name one model class")
    if name not in _CLASSES:
        supported = ", ".join((*_CLASSES, *WRAPPERS))
        raise UnsupportedModelError(f"{config.path}: has the class {shown(name)}; supported: {supported}")
    family, kind = _CLASSES[name]
    wanted = _ACTIVATIONS[family.activation]
    if config.text(kind.activation_key, wanted) != wanted:
        raise UnsupportedModelError(f"{config.path}: {kind.activation_key} is not {wanted}")
    for option in ("mlp_bias", "use_mrope", "use_bidirectional_attention", *kind.refused):
        if config.flag(option, False):
            raise UnsupportedModelError(f"{config.path}: sets {option}, which is not supported")
    return family, kind


def read_dimensions(config: Section, family: Family, kind: HuggingFaceClass) -> Dimensions:
    """The numbers that a configuration gives a model of a class."""

    def size(key: str, limit: str, default: int | None = None) -> int:
        return config.integer(key, 1, LIMITS[limit], kind.sizes.get(key) if default is None else default)

    hidden_size = size("hidden_size", "hidden_size")
    n_heads = size("num_attention_heads", "n_heads")
    kv_default = n_heads if "num_key_value_heads" in config.values else kind.n_kv_heads or n_heads
    head_dim = size("head_dim", "head_dim", kind.head_dim or hidden_size // n_heads or 1)
    if kind.head_dim is None and head_dim * n_heads != hidden_size and config.values.get("head_dim") is None:
        raise ModelFileError(f"{config.path}: {n_heads} heads do not divide the hidden_size {hidden_size}")
    max_positions = size("max_position_embeddings", "max_positions")
    growth, growth_positions = read_query_growth(config, kind, max_positions)
    ropes = read_ropes(config, kind, head_dim, max_positions)
    n_layers = size("num_hidden_layers", "n_layers")

    def multiplier(key: str) -> float:
        return config.number(key, 1.0) if kind.multipliers else 1.0

    return Dimensions(
        n_layers=n_layers,
        hidden_size=hidden_size,
        n_heads=n_heads,
        n_kv_heads=size("num_key_value_heads", "n_kv_heads", kv_default),
        head_dim=head_dim,
        ffn_size=size("intermediate_size", "ffn_size"),
        vocab_size=size("vocab_size", "vocab_size"),
        max_positions=ropes.positions,
        rms_eps=config.number("rms_norm_eps", kind.rms_eps),
        rope=ropes.rope,
        local_rope=ropes.local,
        long_rope=ropes.long,
        long_positions=ropes.long_positions,
        windows=_windows(config, kind, n_layers),
        unrotated=_unrotated(config, family, n_layers),
        attention_scale=_attention_scale(config, kind),
        softcap=config.number("final_logit_softcapping", 0.0) if kind.local_theta else 0.0,
        attention_softcap=config.number("attn_logit_softcapping", 0.0) if kind.local_theta else 0.0,
        embedding_scale=multiplier("embedding_multiplier"),
        residual_scale=multiplier("residual_multiplier"),
        logit_scale=1 / (multiplier("logits_scaling") or math.inf),  # 0, which is refused
        query_growth=growth,
        query_growth_positions=growth_positions,
    )


def _attention_scale(config: Section, kind: HuggingFaceClass) -> float | None:
    """Granite's own factor; Gemma's 1 / sqrt(query_pre_attn_scalar)."""
    if kind.multipliers:
        return config.number("attention_multiplier", 1.0)
    if kind.local_theta is None:
        return None
    return default_attention_scale(config.integer("query_pre_attn_scalar", 1, 1 << 20, 256))


def _unrotated(config: Section, family: Family, n_layers: int) -> tuple[bool, ...]:
    """SmolLM3's: those that are 0 in no_rope_layers, or else the last of each no_rope_layer_interval."""
    if not family.unrotated_period:
        return ()
    rotated = config.values.get("no_rope_layers")
    if rotated is None:
        period = config.integer("no_rope_layer_interval", 1, LIMITS["n_layers"], family.unrotated_period)
        return last_of_each(n_layers, period)
    if not (isinstance(rotated, list) and rotated and all(x in (0, 1) for x in rotated)):
        raise ModelFileError(f"{config.path}: no_rope_layers is not a list of 0 and 1")
    return tuple(not x for x in rotated[:n_layers])


def _windows(config: Section, kind: HuggingFaceClass, n_layers: int) -> tuple[int | None, ...]:
    layers = config.values.get("layer_types")
    if layers is not None and not (isinstance(layers, list) and all(x in _KINDS for x in layers)):
        raise UnsupportedModelError(f"{config.path}: layer_types has more than full and sliding attention")
    if kind.window is None or (kind.window_is_optional and not config.flag("use_sliding_window", False)):
        return ()
    given = config.values.get("sliding_window", kind.window or None)
    if given is None:
        return ()
    window = config.integer("sliding_window", 1, LIMITS["max_positions"], kind.window)
    if layers is not None and (kind.window_is_optional or kind.window_period):
        return tuple(window if x == "sliding_attention" else None for x in layers)
    if kind.window_is_optional:
        full = config.integer("max_window_layers", 0, LIMITS["n_layers"], 28)
        return tuple(window if i >= full else None for i in range(n_layers))
    period = kind.window_period
    if period:
        period = config.integer("sliding_window_pattern", 1, LIMITS["n_layers"], period)
    return periodic_windows(n_layers, window, period)


def _renamed(
    folder: Path, tensors: Mapping[str, Tensor], layer_tensors: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors under GGUF's names, and the file's name of each."""
    found: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in tensors.items():
        if name.endswith(FREQUENCIES):
            continue
        new = tensor_name(name, layer_tensors)
        if new is None:
            raise UnsupportedModelError(f"{folder}: the tensor {shown(name)} is not one that is known here")
        found[new], names[new] = replace(tensor, name=new), name
    return found, names


def tensor_name(name: str, layer_tensors: Mapping[str, str]) -> str | None:
    """GGUF's name of a tensor that a folder calls `name`; None where it is none of those that are known.

    layer_tensors: LAYER_TENSORS with those of the family.
    """
    match = _LAYER.fullmatch(name)
    part = layer_tensors.get(match[2]) if match else None
    return f"blk.{match[1]}.{part}.{match[3]}" if match and part else TOP_TENSORS.get(name)


def _file_name(name: str, layer_tensors: dict[str, str]) -> str:
    """The Hugging Face name of a tensor that the file does not have."""
    for theirs, ours in TOP_TENSORS.items():
        if ours == name:
            return theirs
    _, layer, part, kind = name.split(".")
    theirs = next(key for key, value in reversed(layer_tensors.items()) if value == part)  # the family's own
    return f"model.layers.{layer}.{theirs}.{kind}"
