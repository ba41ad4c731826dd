"""Record what Hugging Face transformers computes from the default model's dequantized weights.

    python tests/scripts/record_logits_reference.py MODEL.gguf tests/data/reference/smollm2_logits.npz

Needs torch and transformers, which the test suite does not. For each of ten prompts the file holds the
token ids, the 64 tokens of greedy continuation with the gap between the two highest logits at each
step, and the float32 logits of a fixed sample of vocabulary entries at every prompt position.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The three primary colours are",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "In the year 1969, two astronauts",
    "A recipe for bread needs flour, water,",
    "import numpy as np\n\nx = np.",
    "<|im_start|>user\nName a city in France.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a village by the sea, there lived a girl who could talk to birds. One morning,",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,",
    "Der schnelle braune Fuchs springt über den faulen Hund. In English:",
]
STEPS = 64
SAMPLE = 1024


def main() -> None:
    model_path, out_path = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(model_path.parent, gguf_file=model_path.name)
    model = AutoModelForCausalLM.from_pretrained(
        model_path.parent, gguf_file=model_path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    columns = np.sort(np.random.default_rng(0).choice(model.config.vocab_size, SAMPLE, replace=False))
    record: dict[str, np.ndarray] = {"columns": columns.astype(np.int32)}
    for i, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        text, gaps = list(ids), []
        with torch.no_grad():
            out = model(torch.tensor([ids]), use_cache=True)
            logits = out.logits[0].float().numpy()
            for _ in range(STEPS):
                top = torch.topk(out.logits[0, -1].float(), 2)
                gaps.append(float(top.values[0] - top.values[1]))
                text.append(int(top.indices[0]))
                out = model(torch.tensor([text[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        record[f"prompt{i}"] = np.asarray(ids, np.int32)
        record[f"logits{i}"] = logits[:, columns].astype(np.float32)
        record[f"greedy{i}"] = np.asarray(text[len(ids) :], np.int32)
        record[f"gaps{i}"] = np.asarray(gaps, np.float32)
    np.savez_compressed(out_path, allow_pickle=False, **record)


if __name__ == "__main__":
    main()
