"""Record what llama.cpp writes greedily with Gemma 3 270M.

    python tests/scripts/record_greedy_reference.py GGUF tests/data/reference/gemma3_greedy.json

GGUF is the catalog's `gemma-3-270m`. Needs xllamacpp (llama.cpp's server), torch and transformers, which the
test suite does not. llama.cpp has keys and values in float32, and computes attention without its fused
kernel. Of each prompt the record has:

    prompt  the text
    ids     its tokens
    tokens  the TOKENS tokens that follow
    second  for each of them, the id of the next most likely token
    gaps    for each of them, how far the log-probability of `second` lies below the token's own
    exact   the same by transformers, with the file's weights in float32
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import torch
import xllamacpp  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM

TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\n",
    "1, 1, 2, 3, 5, 8,",
    "In 1969, humans first",
    "Die Hauptstadt von Deutschland ist",
    "A recipe for pancakes:\n\nIngredients:\n",
    "Q: What is photosynthesis?\nA:",
)


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup = sys.argv[1], 512, False
    params.cpuparams.n_threads = 2
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    found = [answer(server.listening_address, prompt) for prompt in PROMPTS]
    path = Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    for entry in found:
        entry["exact"] = exact_gaps(model, entry)
    lines = ",\n".join(json.dumps(entry) for entry in found)
    Path(sys.argv[2]).write_text(f"[\n{lines}\n]\n", "utf-8")


def answer(address: str, prompt: str) -> dict[str, Any]:
    ids = post(f"{address}/tokenize", {"content": prompt, "add_special": True})["tokens"]
    asked = {"prompt": ids, "n_predict": TOKENS, "temperature": 0.0, "n_probs": 2, "cache_prompt": False}
    steps = post(f"{address}/completion", {**asked, "ignore_eos": True})["completion_probabilities"]
    tops = [step["top_logprobs"] for step in steps]
    assert len(tops) == TOKENS
    assert all(step["id"] == top[0]["id"] for step, top in zip(steps, tops, strict=True))
    return {
        "prompt": prompt,
        "ids": ids,
        "tokens": [top[0]["id"] for top in tops],
        "second": [top[1]["id"] for top in tops],
        "gaps": [round(top[0]["logprob"] - top[1]["logprob"], 4) for top in tops],
    }


def exact_gaps(model: Any, entry: dict[str, Any]) -> list[float]:
    text = entry["ids"] + entry["tokens"][:-1]
    with torch.no_grad():
        logits = model(torch.tensor([text])).logits[0, len(entry["ids"]) - 1 :]
    each = torch.arange(TOKENS)
    return [round(float(gap), 4) for gap in logits[each, entry["tokens"]] - logits[each, entry["second"]]]


def post(address: str, asked: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        address, json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


if __name__ == "__main__":
    main()
