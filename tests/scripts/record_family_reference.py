"""Record what transformers and llama.cpp compute for a tiny random model of each family.

    python tests/scripts/record_family_reference.py tests/data/reference/families.npz [NAME ...]

Only the families and scalings that are named, or "wrapped", are computed again, all without a name.
Needs torch, transformers and xllamacpp (llama.cpp's server), which the test suite does not. The weights come
from a seed (tests/support/models.py), so that only results are recorded. For each family:

    FAMILY.logits        float32[tokens, columns]: transformers, float32, eager attention
    FAMILY.hidden        float32[tokens, layers + 1, hidden columns]: its hidden states, the last one before
                         the final norm
    FAMILY.llama_cpp     float32[tokens, columns]: log-probabilities by llama.cpp, of the GGUF file in F32
    FAMILY.llama_cpp_q8  float32[tokens, columns]: the same in Q8_0

for each family that is the text part of a model that reads images (tests/support/wrapped.py):

    FAMILY.wrapped       float32[tokens, columns]: logits of that model for the text, of both spellings of the
                         tensors' names

and for each rotary scaling (tests/support/ropes.py), in fewer columns:

    rope NAME.logits, rope NAME.llama_cpp   as above; the second only where GGUF has such a scaling
    rope NAME.inv_freq, rope NAME.scale     float32[head_dim // 2] and float64: transformers' rotary table

`tokens`, `columns` and `hidden_columns` are in the file too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xllamacpp  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.models import VOCAB_SIZE, family_dims, tiny_gguf, tiny_hf
from tests.support.ropes import SCALINGS
from tests.support.wrapped import WRAPPED, wrapped_dims, wrapped_hf

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "granite", "smollm3", "olmo2", "phi3", "mistral3")
TOKENS = 48
DIGIT = 27


def main() -> None:
    rng = np.random.default_rng(11)
    tokens = rng.integers(3, VOCAB_SIZE, TOKENS).astype(np.int32)
    columns = np.sort(rng.choice(VOCAB_SIZE, 80, replace=False)).astype(np.int32)
    hidden_columns = np.sort(rng.choice(family_dims("llama").hidden, 32, replace=False)).astype(np.int32)
    path = Path(sys.argv[1])
    record = dict(np.load(path)) if path.exists() else {}
    record |= {"tokens": tokens, "columns": columns, "hidden_columns": hidden_columns}
    wanted = sys.argv[2:] or [*FAMILIES, *SCALINGS, "wrapped"]
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in SCALINGS if name in wanted):
            record |= scaling(Path(folder), name, tokens.tolist(), columns[::4])
        for arch in WRAPPED if "wrapped" in wanted else ():
            record[f"{arch}.wrapped"] = wrapped_logits(Path(folder), arch, tokens.tolist())[:, columns]
        for family in (name for name in FAMILIES if name in wanted):
            model = tiny_hf(Path(folder) / family, arch=family, dims=family_dims(family), tied=False)
            logits, hidden = transformers_pass(model, tokens.tolist())
            record[f"{family}.logits"] = logits[:, columns]
            record[f"{family}.hidden"] = hidden[:, :, hidden_columns]
            for name, kind in (("llama_cpp", "F32"), ("llama_cpp_q8", "Q8_0")):
                file = Path(folder) / f"{family}-{kind}.gguf"
                tiny_gguf(file, arch=family, dims=family_dims(family), types=kind, tied=False)
                found = llama_cpp_log_probs(file, tokens.tolist())
                record[f"{family}.{name}"] = found[:, columns]
                print(f"{family} {kind}: llama.cpp and transformers differ by {error(found, logits):.1e}")
    np.savez_compressed(path, allow_pickle=False, **record)


def scaling(folder: Path, name: str, tokens: list[int], columns: np.ndarray) -> dict[str, np.ndarray]:
    made = SCALINGS[name]
    path = made.folder(folder / f"rope {name}")
    logits, _ = transformers_pass(path, tokens)
    rotary = rotary_after(path, tokens)
    record = {
        f"rope {name}.logits": logits[:, columns],
        f"rope {name}.inv_freq": rotary.inv_freq.numpy(),
        f"rope {name}.scale": np.array(rotary.attention_scaling),
    }
    if made.keys is not None:
        found = llama_cpp_log_probs(made.gguf(folder / f"rope {name}.gguf"), tokens)
        record[f"rope {name}.llama_cpp"] = found[:, columns]
        print(f"{name}: llama.cpp and transformers differ by {error(found, logits):.1e}")
    return record


def rotary_after(path: Path, tokens: list[int]) -> Any:
    """The rotary table after a pass: longrope's depends on how long the text is."""
    model = AutoModelForCausalLM.from_pretrained(path).model
    with torch.no_grad():
        model(torch.tensor([tokens]))
    return model.rotary_emb


def wrapped_logits(folder: Path, arch: str, tokens: list[int]) -> np.ndarray:
    """float32[tokens, vocab]. Weights of the part for images, which are not in the folder, are random."""
    found: list[np.ndarray] = []
    for old in (False, True):
        path = wrapped_hf(folder / f"{arch} wrapped {old}", arch, old=old, dims=wrapped_dims(arch))
        model = AutoModelForImageTextToText.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            found.append(model(torch.tensor([tokens])).logits[0].numpy())
    assert np.array_equal(found[0], found[1])
    return found[0]


def error(found: np.ndarray, logits: np.ndarray) -> float:
    wanted = log_probs(logits)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def transformers_pass(path: Path, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """float32[tokens, vocab] and float32[tokens, layers + 1, hidden]."""
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    last: list[torch.Tensor] = []  # hidden_states[-1] of the output has gone through the final norm
    model.model.layers[-1].register_forward_hook(
        lambda _module, _args, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True)
    states = [state[0] for state in (*out.hidden_states[:-1], last[0])]
    return out.logits[0].numpy(), torch.stack(states, dim=1).numpy()


def llama_cpp_log_probs(path: Path, tokens: list[int]) -> np.ndarray:
    """float32[tokens, vocab]: log-probabilities after each prefix, keys and values in float32."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup = str(path), 256, False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    rows = np.empty((len(tokens), VOCAB_SIZE), np.float32)
    for i in range(len(tokens)):
        asked = {"prompt": tokens[: i + 1], "n_predict": 1, "n_probs": VOCAB_SIZE, "temperature": 0.0}
        # (The server withholds what ends in half a character: it is made to choose a digit. What it gives
        # are the probabilities before that.)
        answer = server.handle_completions({**asked, "cache_prompt": False, "logit_bias": [[DIGIT, 1e4]]})
        found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert len(found) == VOCAB_SIZE
        for entry in found:
            rows[i, entry["id"]] = entry["logprob"]
    return rows


def log_probs(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(axis=1, keepdims=True)
    return np.asarray(logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True)))


if __name__ == "__main__":
    main()
