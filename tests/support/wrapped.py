"""Tiny models as the text parts of Hugging Face folders that also read images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outrider.models.formats.safetensors import read_safetensors
from tests.support.models import Dims, family_dims, tiny_hf, write_safetensors

# By the text part's family: the class, its model_type, and what it needs beside the text part.
IMAGES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}
WRAPPED: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "gemma3": (
        *("Gemma3ForConditionalGeneration", "gemma3"),
        {
            "vision_config": {
                **IMAGES,
                "model_type": "siglip_vision_model",
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
        },
    ),
    **dict.fromkeys(
        ("mistral", "mistral3"),
        (
            *("Mistral3ForConditionalGeneration", "mistral3"),
            {
                "vision_config": {**IMAGES, "model_type": "pixtral", "head_dim": 16},
                "tie_word_embeddings": False,
            },
        ),
    ),
}
OF_IMAGES = ("multi_modal_projector.mm_soft_emb_norm.weight", "vision_tower.post_layernorm.bias")


def wrapped_dims(arch: str) -> Dims:
    """Sizes of the models that tests/scripts/record_family_reference.py recorded."""
    return family_dims("llama" if arch == "mistral" else arch)


def spelled(name: str, *, old: bool) -> str:
    """The name of a text model's tensor in a folder written by transformers below 5 (`old`), or by 5."""
    if old:
        return f"language_model.{name}"
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def wrapped_hf(
    path: Path,
    arch: str,
    *,
    old: bool,
    dims: Dims | None = None,
    config: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """The folder of `tiny_hf`, as the text part of a model that reads images. config, text: values that
    override those at the top and in text_config; None removes one."""
    tiny_hf(path, arch=arch, dims=dims, tied=arch == "gemma3")
    inner = json.loads((path / "config.json").read_text())
    name, model_type, more = WRAPPED[arch]
    top = {
        "architectures": [name],
        "model_type": model_type,
        "eos_token_id": inner.pop("eos_token_id"),
        **more,
    }
    del inner["architectures"], inner["tie_word_embeddings"]
    top["text_config"] = _with(inner, text)
    (path / "config.json").write_text(json.dumps(_with(top, config)))
    weights = path / "model.safetensors"
    found = [
        (spelled(tensor.name, old=old), tensor.shape, tensor.data.tobytes())
        for tensor in read_safetensors(weights).values()
    ]
    image = np.ones(32, "<f4").tobytes()
    found += [(each if old else f"model.{each}", (32,), image) for each in OF_IMAGES]
    write_safetensors(weights, "F32", found)
    return path


def _with(base: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in {**base, **(changes or {})}.items() if value is not None}
