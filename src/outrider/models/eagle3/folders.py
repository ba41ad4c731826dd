"""EAGLE-3 heads in folders: checkpoints of the original repository, and those of the package speculators.

Both have a config.json and safetensors whose names differ little. The original's configuration is that of a
Llama with `draft_vocab_size` (github.com/SafeAILab/EAGLE, cnets.py). That of speculators keeps the layers'
numbers apart, and has switches for what later heads do otherwise (github.com/vllm-project/speculators).
In both, d2t holds offsets: output row i is the target's id i + d2t[i].
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_tensors
from outrider.models.eagle3.head import (
    NO_TOKENIZER,
    TRAINED_LENGTH,
    USUAL_STATES,
    USUAL_TRAINED_LENGTH,
    Eagle3Head,
    check_layers,
    check_target_ids,
    head_spec,
    without_maps,
)
from outrider.models.families import FAMILIES, LAYER_TENSORS, LIMITS, Dimensions, HuggingFaceClass, shown
from outrider.models.formats.hf_json import Section
from outrider.models.formats.huggingface import read_dimensions
from outrider.models.formats.safetensors import read_weights
from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import HeadSpec, ModelSpec
from outrider.models.weight_types import FLOAT_TYPES

MAPS = ("I64", "I32", "BOOL")  # dtypes of d2t and t2d
OFFSET_LIMIT = 1 << 32
# The parts of layers that are computed, by model_type, in the families' own terms.
_KINDS: dict[str, tuple[str, HuggingFaceClass]] = {
    "llama": ("llama", FAMILIES["llama"].classes[0]),
    "qwen3": ("qwen3", FAMILIES["qwen3"].classes[0]),
}
_TOP = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
}
_PARTS = {
    **LAYER_TENSORS,
    "hidden_norm": "attn_norm_2",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_LAYER = re.compile(r"(?:midlayer|layers\.(0|[1-9][0-9]{0,3}))\.(.+)\.weight", re.ASCII)
_STATE_NORM = re.compile(r"fc_norm\.[0-9]{1,2}\.weight", re.ASCII)
_NOT_READ = ("verifier_norm.weight", "verifier_lm_head.weight")  # the target's own, for training


def read_original(folder: Path, config: Section) -> Eagle3Head:
    """A checkpoint of the original repository. Raises ModelError."""
    aux = config.section("eagle_config") or Section(config.path, {})
    key = "eagle_aux_hidden_state_layer_ids"
    given = aux.values.get(key) or config.values.get(key)
    return _read(folder, config, config, given, HeadSpec(_count(config, given), 0, 0), made_for="")


def read_speculators(folder: Path, config: Section) -> Eagle3Head:
    """A head in the speculators format. Raises ModelError."""
    layer = config.section("transformer_layer_config")
    if layer is None:
        raise ModelFileError(f"{config.path}: transformer_layer_config is missing")
    joint, each = config.flag("norm_before_fc", False), config.flag("fc_norm", False)
    if joint and each:
        raise ModelFileError(f"{config.path}: sets both norm_before_fc and fc_norm")
    given = config.values.get("eagle_aux_hidden_state_layer_ids")
    head = HeadSpec(
        _count(config, given),
        0,
        0,
        joint_norm=joint,
        state_norms=each,
        norm_before_residual=config.flag("norm_before_residual", False),
        norm_output=config.flag("norm_output", False),
    )
    speculators = config.section("speculators_config") or Section(config.path, {})
    verifier = speculators.section("verifier") or Section(config.path, {})
    return _read(folder, config, layer, given, head, made_for=verifier.text("name_or_path", ""))


def _count(config: Section, layers: object) -> int:
    return USUAL_STATES if layers is None else len(check_layers(config.path, layers))


def _read(
    folder: Path, config: Section, layer: Section, layers: object, head: HeadSpec, *, made_for: str
) -> Eagle3Head:
    """config: of the head; layer: of its layers, in transformers' terms."""
    stored = read_weights(folder, (*FLOAT_TYPES, *MAPS))
    tensors, names = _renamed(folder, without_maps(stored))
    family, dimensions = _dimensions(layer)
    rows = config.integer("draft_vocab_size", 1, LIMITS["vocab_size"], dimensions.vocab_size)
    fc = tensors.get("fc.weight")
    columns = fc.shape[-1] if fc is not None and fc.shape else 0
    size = config.integer(
        "target_hidden_size", 1, LIMITS["hidden_size"], max(1, columns // max(1, head.states))
    )
    head = replace(head, state_size=size, tokens=dimensions.vocab_size)
    spec = head_spec(folder, family, replace(dimensions, vocab_size=rows), head)
    check_tensors(folder, spec, tensors, lambda name: names.get(name) or _file_name(name))
    for name in ("token_embd.weight", "output.weight"):
        if name not in tensors and (name == "output.weight" or size != spec.hidden_size):
            raise ModelFileError(f"{folder}: the tensor {_file_name(name)} is missing")
    source = ModelSource(
        path=folder,
        format="safetensors",
        display_name=folder.resolve().name,
        architecture=spec,
        tensors=tensors,
        tokenizer=NO_TOKENIZER,
        chat_template=None,
    )
    ids = _target_ids(folder, stored, spec)
    found = None if layers is None else check_layers(config.path, layers, head.states)
    target = shown(made_for)[1:-1] if made_for else ""
    trained = config.integer(TRAINED_LENGTH, 1, LIMITS["max_positions"], USUAL_TRAINED_LENGTH)
    return Eagle3Head(source, found, ids, target, trained_length=trained)


def _dimensions(layer: Section) -> tuple[str, Dimensions]:
    """The family whose layers a head has, and their numbers."""
    model_type = layer.text("model_type", "llama")
    if model_type not in _KINDS:
        raise UnsupportedModelError(
            f"{layer.path}: has layers of the model_type {shown(model_type)}; supported: {', '.join(_KINDS)}"
        )
    for option in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if layer.flag(option, False):
            raise UnsupportedModelError(f"{layer.path}: sets {option}, which is not supported")
    kinds = layer.values.get("layer_types")
    if isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds):
        raise UnsupportedModelError(f"{layer.path}: layer_types has more than full attention")
    if layer.text("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"{layer.path}: hidden_act is not silu")
    family, kind = _KINDS[model_type]
    return family, read_dimensions(layer, FAMILIES[family], kind)


def _renamed(folder: Path, stored: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors under GGUF's names, and the file's name of each."""
    found: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in stored.items():
        if name in _NOT_READ or name.endswith(".rotary_emb.inv_freq"):
            continue
        match = _LAYER.fullmatch(name)
        part = _PARTS.get(match[2]) if match else None
        new = f"blk.{match[1] or 0}.{part}.weight" if match and part else _TOP.get(name)
        new = name if new is None and _STATE_NORM.fullmatch(name) else new
        if new is None:
            raise UnsupportedModelError(
                f"{folder}: the tensor {shown(name)} is not part of an EAGLE-3 head as it is known here"
            )
        if new in found:
            raise ModelFileError(f"{folder}: holds {shown(names[new])} beside {shown(name)}")
        found[new], names[new] = replace(tensor, name=new), name
    return found, names


def _file_name(name: str) -> str:
    """The name of a tensor that the file does not have."""
    top = next((theirs for theirs, ours in _TOP.items() if ours == name), name)
    if not name.startswith("blk."):
        return top
    _, layer, part, _ = name.split(".")
    return f"layers.{layer}.{next(theirs for theirs, ours in _PARTS.items() if ours == part)}.weight"


def _target_ids(folder: Path, stored: dict[str, Tensor], spec: ModelSpec) -> npt.NDArray[np.int32] | None:
    """From offsets to ids."""
    d2t, t2d = stored.get("d2t"), stored.get("t2d")
    if d2t is None:
        return check_target_ids(folder, None, spec)
    if d2t.type not in ("I64", "I32") or len(d2t.shape) != 1:
        raise ModelFileError(f"{folder}: the tensor d2t is not a list of integers")
    offsets = np.frombuffer(d2t.data.tobytes(), "<i8" if d2t.type == "I64" else "<i4").astype(np.int64)
    if (np.abs(offsets) > OFFSET_LIMIT).any() or (offsets < -OFFSET_LIMIT).any():
        raise ModelFileError(f"{folder}: the tensor d2t holds impossible offsets")
    mask = None
    if t2d is not None:
        if t2d.type != "BOOL" or len(t2d.shape) != 1:
            raise ModelFileError(f"{folder}: the tensor t2d is not a list of truth values")
        mask = np.asarray(t2d.data != 0)
    return check_target_ids(folder, np.arange(len(offsets)) + offsets, spec, mask)
