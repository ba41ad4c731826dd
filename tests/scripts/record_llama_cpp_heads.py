"""Records what llama.cpp computes with tiny heads in GGUF:
`python -m tests.scripts.record_llama_cpp_heads SOURCE BUILD`, the folders of llama.cpp's source (recorded
with the one in llama-cpp-python 0.3.36) and of its shared libraries.

Its graphs give logits and states for every token of a text, the last ones fed back, and the target's states
that a head reads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from tests.support.heads import RECORDED_GGUF, gguf_head, head_inputs, tiny_head
from tests.support.models import Dims, tiny_gguf

FOLDER = Path(__file__).parent.parent / "data/reference"
TOKENS, TRUE = 10, 7  # of a text, and with the target's states


def build(folder: Path, source: Path, libraries: Path) -> Path:
    program = folder / "llama_cpp_head"
    headers = [f"-I{source / part}" for part in ("include", "src", "ggml/include")]
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base"]
    code = Path(__file__).with_name("llama_cpp_head.cpp")
    subprocess.run(["c++", "-std=c++17", *headers, str(code), *linked, "-o", str(program)], check=True)
    return program


def main() -> None:
    source, libraries = map(Path, sys.argv[1:])
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder, source, libraries)
        target = tiny_gguf(folder / "target.gguf", dims=Dims(layers=6), tied=False)
        fields = GGUFReader(target).fields.items()
        tokenizer = {key: field.contents() for key, field in fields if key.startswith("tokenizer.")}
        for case, dims in RECORDED_GGUF.items():
            made = tiny_head(dims)
            head = gguf_head(folder / "head.gguf", made, keys=tokenizer)
            tokens, states = head_inputs(dims, TOKENS)
            sizes = np.array([TOKENS, TRUE, dims.width], np.int32)
            given = (sizes, np.array(tokens, np.int32), states[:TRUE])
            (folder / "in").write_bytes(b"".join(part.tobytes() for part in given))
            subprocess.run([program, target, head, folder / "in", folder / "out"], check=True)
            vocab, hidden, taps = np.fromfile(folder / "out", np.int32, 3)
            numbers = np.fromfile(folder / "out", np.float32, offset=12)
            rows = numbers[: TOKENS * (vocab + hidden)].reshape(TOKENS, -1)
            assert np.isneginf(np.delete(rows[:, :vocab], made.ids, axis=1)).all()
            found[f"{case}.logits"], found[f"{case}.states"] = rows[:, made.ids], rows[:, vocab:]
            found["taps"] = numbers[rows.size :].reshape(taps, TOKENS, -1)
    np.savez_compressed(FOLDER / "heads_llama_cpp.npz", **found)


if __name__ == "__main__":
    main()
