"""GGUF files of the known families, as llama.cpp's converters write them, into a `ModelSource`.

`gguf_file` parses and checks the container (and says why it is our own); here its keys and tensors get
their meaning. Defaults for absent keys are llama.cpp's. An option that would change the logits and
that no family here has is refused by name, never ignored.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_dimensions, check_tensors
from outrider.models.families import (
    FAMILIES,
    LIMITS,
    Dimensions,
    Family,
    default_attention_scale,
    last_of_each,
    make_spec,
    periodic_windows,
    shown,
)
from outrider.models.formats.generation_config import gguf_sampling
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.formats.gguf_rope import ROPE_TENSORS, original_context, read_ropes
from outrider.models.formats.gguf_split import all_tensors, read_parts
from outrider.models.formats.gguf_tokenizer import read_tokenizer
from outrider.models.fused import split_fused
from outrider.models.source import ModelSource, Tensor

logger = logging.getLogger("outrider")

# Options of other families: key after the architecture's name, and the values that mean "off".
_OFF: Mapping[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.temperature_scale": (0,),
    "attention.causal": (1,),
    "use_parallel_residual": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
}
# The same for keys that mean nothing, or something else, to other families.
_OFF_IN: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "granite": {"rope.scaling.finetuned": (1,)},  # llama.cpp: no rotation at all
    "olmo2": {"attention.sliding_window": (0,)},  # OLMo 3
}


MAX_TEMPLATES = 32  # chat templates beside the default one


def open_gguf(path: Path) -> ModelSource:
    """Open and check the GGUF file `path`; its tensors stay on disk, mapped.

    Any part of a split model stands for all its parts. Raises ModelNotFoundError (no such file, or a folder),
    ModelFileError (not a GGUF file, truncated, or inconsistent), UnsupportedModelError (architecture, tensor
    type, tokenizer or option, named).
    """
    files = read_parts(path)
    path, *parts = (file.path for file in files)
    metadata = files[0].metadata
    _refuse_what_is_no_model(metadata, any(file.entries for file in files))
    family = _family(metadata)
    tensors = all_tensors(files)
    factors = {name: tensors.pop(name) for name in ROPE_TENSORS if name in tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{path}: the tensor token_embd.weight is missing")
    dimensions = read_dimensions(metadata, family, embedding.shape[0], factors)
    check_dimensions(path, dimensions)
    architecture = make_spec(family, dimensions)
    split_fused(path, architecture, tensors)
    check_tensors(path, architecture, tensors)
    return ModelSource(
        path=path,
        format="gguf",
        display_name=display_name(metadata),
        architecture=architecture,
        tensors=tensors,
        tokenizer=read_tokenizer(metadata, architecture.vocab_size),
        chat_template=metadata.text("tokenizer.chat_template", None),
        recommended_sampling=gguf_sampling(metadata),
        parts=tuple(parts),
        chat_templates=_named_templates(metadata),
    )


def _refuse_what_is_no_model(metadata: Metadata, has_tensors: bool) -> None:
    """Raise UnsupportedModelError for the GGUF files of models that are not models themselves."""
    pairs = metadata.pairs
    kind, name = metadata.text("general.type", "model"), metadata.text("general.architecture", "")
    if name == "clip" or kind in ("mmproj", "clip-vision"):
        what = "a vision or audio projector (mmproj); give the language model's own GGUF file"
    elif kind == "imatrix" or name == "imatrix" or any(key.startswith("imatrix.") for key in pairs):
        what = "an importance matrix (imatrix), which only quantizers read; give the model itself"
    elif kind == "adapter" or "adapter.type" in pairs:
        what = (
            "a LoRA adapter, not a whole model; merge it into its base model with llama-export-lora and give"
            " the result"
        )
    elif name == "controlvector":
        what = "a control vector, not a whole model; give the model itself"
    elif not has_tensors and "tokenizer.ggml.tokens" in pairs:
        what = "only a vocabulary, without weights; give the model itself"
    elif kind != "model":
        what = f"a {shown(kind)}, not a whole model"
    else:
        return
    raise UnsupportedModelError(f"{metadata.path}: holds {what}")


def _named_templates(metadata: Metadata) -> dict[str, str]:
    """The chat templates beside the default one, by name."""
    prefix = "tokenizer.chat_template."
    names = [key.removeprefix(prefix) for key in metadata.pairs if key.startswith(prefix)]
    return {name: metadata.text(prefix + name) for name in names[:MAX_TEMPLATES] if name != "default"}


def _family(metadata: Metadata) -> Family:
    path = metadata.path
    name = metadata.text("general.architecture")
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"{path}: has the architecture {shown(name)}; supported: {', '.join(FAMILIES)}"
        )
    refuse_options(metadata, FAMILIES[name])
    return FAMILIES[name]


def refuse_options(metadata: Metadata, family: Family) -> None:
    """Raise UnsupportedModelError for an option of other families that is on."""
    name = family.name
    for option, off in {**_OFF, **_OFF_IN.get(name, {})}.items():
        value = metadata.pairs.get(f"{name}.{option}")
        if option in family.options or value is None:
            continue
        if not (isinstance(value, int | float) and value in off):
            raise UnsupportedModelError(f"{metadata.path}: sets {name}.{option}, which is not supported")


def read_dimensions(
    metadata: Metadata, family: Family, vocab_size: int, factors: Mapping[str, Tensor]
) -> Dimensions:
    """The numbers under a family's keys. factors: those of ROPE_TENSORS that the file has."""
    path, name = metadata.path, family.name

    def size(key: str, limit: str, default: int | None = None) -> int:
        if default is not None and f"{name}.{key}" not in metadata:
            return default
        return metadata.integer(f"{name}.{key}", 1, LIMITS[limit])

    n_layers = size("block_count", "n_layers")

    def same(key: str, limit: str, what: str, default: int | None = None) -> int:
        """A number that may be a list with one entry for each layer; all have to be equal."""
        values = metadata.array(f"{name}.{key}", np.int64) if metadata.is_array(f"{name}.{key}") else None
        if values is None:
            return size(key, limit, default)
        if len(values) != n_layers:
            raise ModelFileError(f"{path}: {name}.{key} has {len(values)} entries for {n_layers} layers")
        if (values != values[0]).any():
            raise UnsupportedModelError(
                f"{path}: its layers have different numbers of {what} ({name}.{key}: {min(values)} to"
                f" {max(values)}), which is not supported"
            )
        if not 1 <= values[0] <= LIMITS[limit]:
            raise ModelFileError(f"{path}: {name}.{key} is {values[0]}, not between 1 and {LIMITS[limit]}")
        return int(values[0])

    hidden_size = size("embedding_length", "hidden_size")
    n_heads = same("attention.head_count", "n_heads", "heads")
    head_dim = size("attention.key_length", "head_dim", hidden_size // n_heads)
    if head_dim * n_heads != hidden_size and f"{name}.attention.key_length" not in metadata:
        raise ModelFileError(f"{path}: {n_heads} heads do not divide the embedding length {hidden_size}")
    if size("attention.value_length", "head_dim", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: keys and values have heads of different sizes")
    rope_dim = size("rope.dimension_count", "rope_dim", head_dim)
    context = size("context_length", "max_positions")
    growth = _option(metadata, family, "attention.temperature_scale")
    ropes = read_ropes(metadata, family, rope_dim, context, factors)
    return Dimensions(
        n_layers=n_layers,
        hidden_size=hidden_size,
        n_heads=n_heads,
        n_kv_heads=same("attention.head_count_kv", "n_kv_heads", "key heads", n_heads),
        head_dim=head_dim,
        ffn_size=same("feed_forward_length", "ffn_size", "feed-forward columns"),
        vocab_size=vocab_size,
        max_positions=ropes.positions,
        rms_eps=metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope=ropes.rope,
        local_rope=ropes.local,
        long_rope=ropes.long,
        long_positions=ropes.long_positions,
        windows=_windows(metadata, family, n_layers),
        unrotated=last_of_each(n_layers, family.unrotated_period),
        attention_scale=_attention_scale(metadata, family, n_layers, hidden_size // n_heads),
        softcap=_option(metadata, family, "final_logit_softcapping"),
        attention_softcap=_option(metadata, family, "attn_logit_softcapping"),
        embedding_scale=_option(metadata, family, "embedding_scale") or 1.0,
        residual_scale=_option(metadata, family, "residual_scale") or 1.0,
        logit_scale=1 / (_option(metadata, family, "logit_scale", 1.0) or math.inf),  # 0, which is refused
        query_growth=growth,
        query_growth_positions=original_context(metadata, family, context) if growth else 1,
    )


def _option(metadata: Metadata, family: Family, key: str, default: float = 0.0) -> float:
    """The value of one of the keys in `Family.options`; `default` for a family that does not have it."""
    return metadata.number(f"{family.name}.{key}", default) if key in family.options else default


def _attention_scale(metadata: Metadata, family: Family, n_layers: int, width: int) -> float | None:
    """As the file says; 0 or nothing is the usual one. Gemma's do not say it: llama.cpp knows Gemma 3 27B,
    whose heads are smaller than hidden size / heads (`width`), by its 62 layers."""
    if family.name == "gemma3" and n_layers == 62:
        return default_attention_scale(width)
    return _option(metadata, family, "attention.scale") or None


def _windows(metadata: Metadata, family: Family, n_layers: int) -> tuple[int | None, ...]:
    """The pattern is a period, or says of each layer whether it has the window."""
    path, key = metadata.path, f"{family.name}.attention.sliding_window"
    window = metadata.integer(key, 0, LIMITS["max_positions"], default=0)
    pattern = f"{key}_pattern"
    if not window:
        return ()
    if family.window_ignored:
        logger.warning("%s: %s is set, but not used, as in llama.cpp", path, key)
        return ()
    if not metadata.is_array(pattern):
        period = metadata.integer(pattern, 0, LIMITS["n_layers"], default=family.window_period)
        return periodic_windows(n_layers, window, period)
    has = metadata.pairs[pattern]
    if not isinstance(has, np.ndarray) or has.dtype.kind not in "biu":
        raise ModelFileError(f"{path}: {pattern} is not an array of truth values")
    if len(has) != n_layers:
        raise ModelFileError(f"{path}: {pattern} has {len(has)} entries for {n_layers} layers")
    return tuple(window if here else None for here in has.tolist())


def display_name(metadata: Metadata) -> str:
    """The model's own name, or that of its file."""
    raw = metadata.pairs.get("general.name")
    name = raw.decode(errors="replace") if isinstance(raw, bytes) else ""
    plain = "".join(c for c in name[:200] if c.isprintable()).strip()
    return plain or metadata.path.stem
