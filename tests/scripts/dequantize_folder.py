"""Writes a GGUF model as a Hugging Face folder of float weights, for checks of engines and of transformers:

    python tests/scripts/dequantize_folder.py MODEL.gguf FOLDER [F32|F16|BF16]

Of the llama and qwen2 families, with byte-level BPE vocabularies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from outrider.models.formats.dequantize import dequantize
from outrider.models.open import open_model
from outrider.models.source import ModelSource, Tensor
from outrider.models.text.bpe import BpeEncoder
from tests.support.models import Floats, encode, hf_name, write_safetensors

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def write_folder(gguf: Path, folder: Path, dtype: str = "F32") -> Path:
    """Write the folder, and return it."""
    source = open_model(gguf)
    if source.architecture.name not in CLASSES or source.tokenizer.kind != "bpe":
        sys.exit(f"{gguf}: only {' and '.join(CLASSES)} models with byte-level BPE are written")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(source), indent=1))
    (folder / "tokenizer.json").write_text(_tokenizer(source))
    settings = {"chat_template": source.chat_template} if source.chat_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    eos = list(source.tokenizer.eos_ids)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    tensors = [
        (hf_name(name, source.architecture.name), tensor.shape, encode(_values(source, tensor), dtype))
        for name, tensor in source.tensors.items()
    ]
    write_safetensors(folder / "model.safetensors", dtype, tensors)
    return folder


def _values(source: ModelSource, tensor: Tensor) -> Floats:
    """The values, with llama's rows of q and k in Hugging Face's order (GGUF has rotated pairs together)."""
    spec, values = source.architecture, dequantize(tensor)
    heads = {"attn_q": spec.n_heads, "attn_k": spec.n_kv_heads}.get(tensor.name.split(".")[-2])
    if heads is None or not spec.ropes[0].interleaved:
        return values
    pairs = values.reshape(heads, spec.head_dim // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _config(source: ModelSource) -> dict[str, Any]:
    spec = source.architecture
    (rope,) = spec.ropes
    return {
        "architectures": [CLASSES[spec.name]],
        "model_type": spec.name,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_size,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.rms_eps,
        "rope_theta": round(float(rope.inv_freq[1]) ** (-rope.dim / 2)),
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "bos_token_id": source.tokenizer.bos_id,
        "eos_token_id": source.tokenizer.own_eos_id,
    }


def _tokenizer(source: ModelSource) -> str:
    """tokenizer.json: the same vocabulary, merges and pre-tokenizer, and the special tokens."""
    data = source.tokenizer
    found = json.loads(BpeEncoder(data)._tokenizer.to_str())
    found["model"]["vocab"] = {
        piece: i for piece, i in found["model"]["vocab"].items() if i < len(data.tokens)
    }
    found["added_tokens"] = [
        {
            "id": i,
            "content": data.tokens[i],
            "special": int(kind) == 3,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for i, kind in enumerate(data.types)
        if int(kind) in (3, 4)
    ]
    found["decoder"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    return json.dumps(found)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
