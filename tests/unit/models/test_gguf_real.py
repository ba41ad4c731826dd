"""The real models: the small one in full, spot checks for the pair."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from outrider.models.formats.dequantize import dequantize
from outrider.models.open import open_model
from tests.support.real import real_file

# SHA-256 of what the gguf package's GGUFReader finds in SmolLM2 (it takes 6 s): names, types, shapes and
# bytes of all tensors; pieces and merges joined by line feeds; token types as int32.
TENSORS = "ba4bd25afbca2b27a15754bee56a8fc5c6f22cadfacd90f6cde3a2533c38db0e"
TOKENS = "d1f2ce856b324081b621d9e2e8dbd22879f462329f3fd4aa39fa758dddb2ce55"
MERGES = "aea6ed50becdb3beed814d2fde2dea2e655d1039addf269d74a4708ce2ed4d63"
TYPES = "42ebc758a8f67c3350b89360a62a6e6a2efa97460d02faa86d5ca86bcdc4a362"


def real(name: str) -> Path:
    return real_file(name) or pytest.skip(f"{name} is not there")


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@pytest.mark.model
def test_smollm2_in_full() -> None:
    model = open_model(real("smollm2-135m-instruct-q4_1.gguf"))
    assert len(model.tensors) == 272
    everything = hashlib.sha256()
    for name, tensor in sorted(model.tensors.items()):
        everything.update(f"{name} {tensor.type} {list(tensor.shape)}\n".encode())
        everything.update(tensor.data.tobytes())
    assert everything.hexdigest() == TENSORS
    arch, tokenizer = model.architecture, model.tokenizer
    assert digest("\n".join(tokenizer.tokens).encode()) == TOKENS
    assert digest("\n".join(tokenizer.merges).encode()) == MERGES
    assert digest(tokenizer.types.astype("<i4").tobytes()) == TYPES
    assert (arch.name, arch.n_layers, arch.n_heads, arch.n_kv_heads, arch.head_dim) == ("llama", 30, 9, 3, 64)
    assert (tokenizer.pre, len(tokenizer.tokens), tokenizer.eos_ids) == ("smollm", 49152, (2, 0, 4))


@pytest.mark.pair
@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 24, 896, 14),
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 28, 1536, 12),
    ],
)
def test_qwen_pair(name: str, layers: int, hidden: int, heads: int) -> None:
    model = open_model(real(name))
    arch, tokenizer = model.architecture, model.tokenizer
    assert (arch.name, arch.n_layers, arch.hidden_size, arch.n_heads) == ("qwen2", layers, hidden, heads)
    assert (arch.n_kv_heads, arch.vocab_size, arch.max_positions) == (2, 151936, 32768)
    assert arch.ropes[0].inv_freq[1] == pytest.approx(1e6 ** (-2 / arch.ropes[0].dim))
    assert (tokenizer.kind, tokenizer.pre, len(tokenizer.tokens)) == ("bpe", "qwen2", 151936)
    assert [tokenizer.tokens[i] for i in tokenizer.eos_ids] == [
        *("<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),  # llama.cpp's list
    ]
    assert tokenizer.merges[0] == "Ġ Ġ"
    assert model.chat_template is not None
    assert "<|im_start|>" in model.chat_template
    # Weights that were read at a wrong offset or as a wrong type would not look like these.
    for tensor in (model.tensors["blk.0.attn_q.weight"], model.tensors[f"blk.{layers - 1}.ffn_down.weight"]):
        values = dequantize(tensor)
        assert np.isfinite(values).all()
        assert 0.005 < values.std() < 0.2
        assert abs(values.mean()) < 0.01
