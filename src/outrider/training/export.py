"""Writes a trained head: a folder in the speculators format, a GGUF file, and a model card.

The folder's dialect is that of github.com/vllm-project/speculators; `models/eagle3/folders.py` reads it.
Embeddings are left out, since they are the target's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from safetensors.numpy import save

from outrider.models.eagle3.head import TRAINED_LENGTH
from outrider.models.families import LAYER_TENSORS
from outrider.models.source import ModelSource
from outrider.training.head import Head
from outrider.training.progress import Evaluation
from outrider.training.settings import Settings, replace_file

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_GGUF_TOP = {
    "norm": "output_norm",
    "lm_head": "output",
    "fc": "fc",
    "input_norm": "enc.output_norm",
}
_GGUF_PARTS = {**LAYER_TENSORS, "hidden_norm": "attn_norm_2"}


@dataclass(frozen=True, slots=True)
class Made:
    """A head and what its files say of it.

    ids:      int64[rows], the target's ids of the output's rows, ascending.
    layers:   of the target, whose inputs it reads, in their order.
    coverage: which part of the held-out answers' tokens it has.
    tokens:   of the answers that it was trained on.
    longest:  text that it was trained on, in tokens.
    """

    head: Head
    source: ModelSource
    ids: npt.NDArray[np.int64]
    layers: Sequence[int]
    settings: Settings
    last: Evaluation
    coverage: float
    tokens: int
    longest: int
    seconds: float
    license: str


def write(folder: Path, made: Made) -> None:
    """Write config.json, model.safetensors and README.md; for a target in GGUF head.gguf too, with its
    tokenizer."""
    arrays = weights(made.head)
    replace_file(folder / "model.safetensors", save({**arrays, **maps(made)}, {"format": "pt"}))
    replace_file(folder / "config.json", (json.dumps(config(made), indent=2) + "\n").encode())
    replace_file(folder / "README.md", card(made).encode())
    if made.source.format == "gguf":
        write_gguf(folder / "head.gguf", made, arrays)


def weights(head: Head) -> Arrays:
    """By the names of checkpoints: matrices as float16, norms as float32."""
    found: Arrays = {"lm_head.weight": head.output.cpu().numpy().astype(np.float16)}
    for name, tensor in head.state_dict().items():
        found[name] = tensor.cpu().numpy().astype(np.float16 if tensor.ndim == 2 else np.float32)
    return found


def maps(made: Made) -> Arrays:
    """Which ids of the target the output's rows are: d2t and t2d. Of the whole vocabulary none, as in the
    package speculators; vLLM refuses a head that has them then."""
    vocab_size = made.source.architecture.vocab_size
    if len(made.ids) == vocab_size:
        return {}
    mask = np.zeros(vocab_size, bool)
    mask[made.ids] = True
    return {"d2t": made.ids - np.arange(len(made.ids)), "t2d": mask}


def config(made: Made) -> dict[str, Any]:
    """config.json."""
    sizes, spec = made.head.sizes, made.source.architecture
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": made.settings.steps,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": made.source.display_name, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.ffn,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "num_hidden_layers": 1,
            "rms_norm_eps": sizes.eps,
            "rope_theta": sizes.theta,
            "hidden_act": "silu",
            "max_position_embeddings": spec.max_positions,
            "vocab_size": spec.vocab_size,
        },
        "draft_vocab_size": len(made.ids),
        "target_hidden_size": spec.hidden_size,
        TRAINED_LENGTH: made.longest,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": list(made.layers),
        "torch_dtype": "float16",
    }


def write_gguf(path: Path, made: Made, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """As llama.cpp's converter writes heads: the rows of q and k for a rotation of pairs (2i, 2i + 1), d2t
    with the ids themselves."""
    sizes = made.head.sizes
    writer = GGUFWriter(path.with_name(path.name + ".new"), "eagle3")
    writer.add_name(f"EAGLE-3 head of {made.source.display_name}")
    writer.add_block_count(1)
    writer.add_context_length(made.source.architecture.max_positions)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(sizes.eps)
    writer.add_rope_freq_base(sizes.theta)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_vocab_size(made.source.architecture.vocab_size)
    writer.add_array("eagle3.target_layers", list(made.layers))
    writer.add_uint32("eagle3.target_hidden_size", sizes.hidden)
    writer.add_uint32(f"eagle3.{TRAINED_LENGTH}", made.longest)
    writer.add_bool("eagle3.norm_before_residual", True)
    writer.add_bool("eagle3.norm_before_fc", True)
    _copy_tokenizer(made.source.path, writer)
    for name, array in arrays.items():
        heads = {"q_proj": sizes.heads, "k_proj": sizes.kv_heads}.get(name.split(".")[-2])
        writer.add_tensor(_gguf_name(name), array if heads is None else _in_pairs(array, heads))
    writer.add_tensor("d2t", made.ids)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_name(path.name + ".new").replace(path)


def _copy_tokenizer(target: Path, writer: GGUFWriter) -> None:
    for name, field in GGUFReader(target).fields.items():
        if name.startswith("tokenizer.") and not name.startswith("tokenizer.chat_template"):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)


def _in_pairs(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    half = len(rows) // heads // 2
    return np.ascontiguousarray(rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape))


def _gguf_name(name: str) -> str:
    part = name.removesuffix(".weight")
    inner = part.removeprefix("layers.0.")
    return f"{_GGUF_TOP[part] if inner == part else f'blk.0.{_GGUF_PARTS[inner]}'}.weight"


def card(made: Made) -> str:
    """The model card."""
    acceptance, settings = made.last.held.acceptance, made.settings
    positions = "\n".join(
        f"| {k} | {100 * share:.1f}% |" for k, share in enumerate(acceptance.by_position, start=1)
    )
    return f"""\
---
license: {made.license}
tags: [eagle3, speculative-decoding]
---
# An EAGLE-3 head for {made.source.display_name}

A small drafter for speculative decoding (Li et al. 2025). It reads the inputs of the layers
{", ".join(map(str, made.layers))} of its target, and is of no use with another one. The text is the target's
own, whatever it drafts. `outrider run -m TARGET -md FOLDER` uses it.

| | |
|---|---|
| data | {settings.describe()} |
| tokens of answers | {made.tokens:,}, {settings.epochs} times each |
| the same with prompts | {made.last.tokens:,} in all |
| training | {made.seconds:,.0f} seconds, seed {settings.seed}, {settings.steps} steps of its own tokens |
| output | {len(made.ids):,} ids, {100 * made.coverage:.1f}% of the tokens of held-out answers |

On {acceptance.drafts:,} places of held-out texts, greedily: {acceptance.tokens_per_pass:.2f} tokens a pass
of the target, with {settings.steps} drafted. Probability that a position is accepted if those before it were:

| position | accepted |
|---|---|
{positions}
"""
