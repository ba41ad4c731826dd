"""Record what llama.cpp makes of tests/data/tokenizer/corpus.json under each of its pre-tokenizers.

    python tests/scripts/record_pre_tokenizers.py

Writes tests/data/tokenizer/pre_tokenizers.json, with the vocabulary of vocabularies.json. It needs the
package xllamacpp, llama.cpp's server, which runs on the loopback interface.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.scripts.record_tokenizer_reference import HERE, corpus
from tests.support.models import Dims, tiny_gguf

PATH = HERE / "pre_tokenizers.json"
# One of each group of equal ones, see models/text/pre_tokenizers.py.
PRES = (
    *(
        "llama-bpe",
        "smaug-bpe",
        "minicpm5",
        "qwen2",
        "qwen35",
        "seed-coder",
        "tekken",
        "gpt-4o",
        "deepseek-llm",
    ),
    *("deepseek-coder", "deepseek-v3", "falcon", "smollm", "gpt-2", "poro-chat", "viking", "default"),
)


def write_model(path: Path, pre: str) -> None:
    """A tiny model with the byte-level vocabulary."""
    fields: dict[str, Any] = json.loads((HERE / "vocabularies.json").read_text())["bpe"]
    dims = Dims(layers=1, hidden=32, heads=2, kv_heads=1, ffn=32, context=64)
    keys = {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": fields["tokens"],
        "tokenizer.ggml.token_type": fields["types"],
        "tokenizer.ggml.merges": fields["merges"],
        "tokenizer.ggml.bos_token_id": fields["tokens"].index("<s>"),
        "tokenizer.ggml.eos_token_id": fields["tokens"].index("</s>"),
    }
    embedding = np.zeros((len(fields["tokens"]), dims.hidden), np.float32)
    tiny_gguf(path, dims=dims, keys=keys, tensors={"token_embd.weight": embedding})


def tokenize(path: Path, texts: list[str]) -> list[list[int]]:
    """The ids of texts by llama.cpp's server, special tokens parsed and none added."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup, params.port = str(path), 64, False, 0
    server = xllamacpp.Server(params)
    found = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            found.append(json.loads(answer.read())["tokens"])
    return found


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for pre in PRES:
            path = Path(place) / f"{pre}.gguf"
            write_model(path, pre)
            found[pre] = tokenize(path, corpus())
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in found.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
