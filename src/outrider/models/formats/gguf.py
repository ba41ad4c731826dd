"""GGUF files of the known families, as llama.cpp's converters write them, into a `ModelSource`.

`gguf_file` parses and checks the container (and says why it is our own); here its keys and tensors get
their meaning. Defaults for absent keys are llama.cpp's. An option that would change the logits and
that no family here has is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.families import (
    FAMILIES,
    LIMITS,
    Dimensions,
    Family,
    check_dimensions,
    check_tensors,
    check_theta,
    make_spec,
    shown,
)
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.gguf_file import read_gguf
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.formats.gguf_tokenizer import read_tokenizer
from outrider.models.formats.rope import Frequencies, base_frequencies, scale_linear
from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import RopeSpec

_ROPE_FACTORS = "rope_freqs.weight"

# Options of other families: key after the architecture's name, and the values that mean "off".
_OFF: Mapping[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "attention.causal": (1,),
    "use_parallel_residual": (0,),
}


MAX_TEMPLATES = 32  # chat templates beside the default one


def open_gguf(path: Path) -> ModelSource:
    """Open and check the GGUF file `path`; its tensors stay on disk, mapped.

    Raises ModelNotFoundError (no such file, or a folder), ModelFileError (not a GGUF file, truncated, or
    inconsistent), UnsupportedModelError (architecture, tensor type, tokenizer or option, named).
    """
    file = read_gguf(path)
    metadata = file.metadata
    family = _family(metadata)
    tensors = file.tensors()
    factors = tensors.pop(_ROPE_FACTORS, None)
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{path}: the tensor token_embd.weight is missing")
    dimensions = _dimensions(metadata, family, embedding.shape[0], factors)
    check_dimensions(path, dimensions)
    architecture = make_spec(family, dimensions)
    check_tensors(path, architecture, tensors)
    return ModelSource(
        path=path,
        format="gguf",
        display_name=_display_name(metadata),
        architecture=architecture,
        tensors=tensors,
        tokenizer=read_tokenizer(metadata, architecture.vocab_size),
        chat_template=metadata.text("tokenizer.chat_template", None),
        chat_templates=_named_templates(metadata),
    )


def _named_templates(metadata: Metadata) -> dict[str, str]:
    """The chat templates beside the default one, by name."""
    prefix = "tokenizer.chat_template."
    names = [key.removeprefix(prefix) for key in metadata.pairs if key.startswith(prefix)]
    return {name: metadata.text(prefix + name) for name in names[:MAX_TEMPLATES] if name != "default"}


def _family(metadata: Metadata) -> Family:
    path = metadata.path
    parts = metadata.integer("split.count", 0, 1 << 16, default=0)
    if parts > 1:
        raise UnsupportedModelError(
            f"{path}: is one of the {parts} parts of a split model; join them first with "
            f"`llama-gguf-split --merge FIRST_PART OUTPUT`"
        )
    name = metadata.text("general.architecture")
    kind = metadata.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"{path}: holds a {shown(kind)}, not a whole model")
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"{path}: has the architecture {shown(name)}; supported: {', '.join(FAMILIES)}"
        )
    for option, off in _OFF.items():
        value = metadata.pairs.get(f"{name}.{option}")
        if value is not None and not (isinstance(value, int | float) and value in off):
            raise UnsupportedModelError(f"{path}: sets {name}.{option}, which is not supported")
    return FAMILIES[name]


def _dimensions(metadata: Metadata, family: Family, vocab_size: int, factors: Tensor | None) -> Dimensions:
    path, name = metadata.path, family.name

    def size(key: str, limit: str, default: int | None = None) -> int:
        if default is not None and f"{name}.{key}" not in metadata:
            return default
        return metadata.integer(f"{name}.{key}", 1, LIMITS[limit])

    hidden_size = size("embedding_length", "hidden_size")
    n_heads = size("attention.head_count", "n_heads")
    head_dim = size("attention.key_length", "head_dim", hidden_size // n_heads)
    if head_dim * n_heads != hidden_size and f"{name}.attention.key_length" not in metadata:
        raise ModelFileError(f"{path}: {n_heads} heads do not divide the embedding length {hidden_size}")
    if size("attention.value_length", "head_dim", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: keys and values have heads of different sizes")
    rope_dim = size("rope.dimension_count", "rope_dim", head_dim)
    max_positions = size("context_length", "max_positions")
    window = metadata.integer(f"{name}.attention.sliding_window", 0, 1 << 32, default=0)
    theta = check_theta(path, metadata.number(f"{name}.rope.freq_base", 10000.0))
    inv_freq = _scaled(metadata, name, base_frequencies(rope_dim, theta), factors)
    return Dimensions(
        n_layers=size("block_count", "n_layers"),
        hidden_size=hidden_size,
        n_heads=n_heads,
        n_kv_heads=size("attention.head_count_kv", "n_kv_heads", n_heads),
        head_dim=head_dim,
        ffn_size=size("feed_forward_length", "ffn_size"),
        vocab_size=vocab_size,
        max_positions=min(max_positions, window or max_positions),
        rms_eps=metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope=RopeSpec(
            rope_dim,
            inv_freq.astype(np.float32),
            scale=metadata.number(f"{name}.rope.scaling.attn_factor", 1.0),
            interleaved=family.gguf_interleaved,
        ),
    )


def _scaled(metadata: Metadata, name: str, base: Frequencies, factors: Tensor | None) -> Frequencies:
    path = metadata.path
    kind = metadata.text(f"{name}.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{path}: has {shown(kind)} rotary scaling; supported: none, linear, and {_ROPE_FACTORS}"
        )
    if kind == "linear":
        # The older key is rope.scale_linear; 0 means "not set" in both.
        old = metadata.number(f"{name}.rope.scale_linear", 0.0)
        factor = metadata.number(f"{name}.rope.scaling.factor", old) or 1.0
        if not 1e-3 <= factor <= 1e6:
            raise ModelFileError(f"{path}: the rotary scaling factor is {factor}, not between 0.001 and 1e6")
        base = scale_linear(base, factor)
    if factors is None:
        return base
    if factors.type != "F32" or factors.shape != base.shape:
        raise ModelFileError(f"{path}: the tensor {_ROPE_FACTORS} is not a vector of {len(base)} F32 values")
    divisors = dequantize(factors).astype(np.float64)
    if not (np.isfinite(divisors) & (divisors > 1e-6)).all():
        raise ModelFileError(f"{path}: the tensor {_ROPE_FACTORS} holds numbers that are not positive")
    return base / divisors


def _display_name(metadata: Metadata) -> str:
    raw = metadata.pairs.get("general.name")
    name = raw.decode(errors="replace") if isinstance(raw, bytes) else ""
    plain = "".join(c for c in name[:200] if c.isprintable()).strip()
    return plain or metadata.path.stem
