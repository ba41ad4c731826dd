"""Measures how long a model takes from the start of the process to its first token, from a cold page cache.

    python benchmarks/start_up.py --dir FOLDER [--model llama-3.1-8b:q4_k_m] [--threads 2] [--rounds 3]
        [--json FILE]

The model has random weights in exactly the shapes, types and vocabulary size of the one that is named (as in
`outrider bench --synthetic`); it is written into FOLDER, with its packed weights later, and both are deleted
at the end. Each round measures, with no byte of the file in the page cache: the time to read the file once,
from front to back; the time to the first token of a prompt of four tokens without packed weights; with them,
which a start before has kept. The last is measured once more with the packed weights in the page cache, as
after a restart of the server. `opened` is the time until the weights are ready; the rest is the first pass.
The processors' time tells a machine that is busy with other things from a start that is slow. A virtual
machine may get memory from its host only when it is first touched, which takes ten times as long as clearing
it; so as much as a start needs is touched before each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from tests.support.models import random_blocks

from outrider.bench.cost_curve import aligned
from outrider.models.source import ModelSource
from outrider.plan.shapes import shape_source

PIECE = 1 << 24  # bytes of random weights that are repeated, and of a read
PROMPT = [9, 8, 7, 6]
WORKER = """\
import sys, time
start = float(sys.argv[1])
from outrider import LLM, SamplingParams
imported = time.time()
llm = LLM(sys.argv[2], threads=int(sys.argv[3]), max_model_len=512, weights_cache=sys.argv[4] or False)
opened = time.time()
prompt = {"prompt_token_ids": [int(n) for n in sys.argv[5].split()]}
llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))
print(imported - start, opened - start, time.time() - start)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--model", default="llama-3.1-8b:q4_k_m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        path, packed = Path(folder) / "model.gguf", Path(folder) / "packed"
        write_model(path, shape_source(args.model))
        runs: dict[str, list[dict[str, float]]] = {"read": [], "first": [], "packed": [], "packed, warm": []}
        started(path, args.threads, packed)  # keeps the packed weights
        for _ in range(args.rounds):
            drop([path])
            runs["read"].append({"token": read(path)})
            drop([path])
            runs["first"].append(started(path, args.threads, None))
            drop([path, *packed.iterdir()])
            runs["packed"].append(started(path, args.threads, packed))
            runs["packed, warm"].append(started(path, args.threads, packed))
        sizes = {"model": path.stat().st_size, "packed": max(f.stat().st_size for f in packed.iterdir())}
    middle = {
        name: {part: statistics.median(run[part] for run in found) for part in found[0]}
        for name, found in runs.items()
    }
    base = middle["read"]["token"]
    print(f"{sizes['model'] / 1e9:.2f} GB, {sizes['model'] / base / 1e9:.2f} GB/s read")
    lines = [["start", "imported, s", "opened, s", "first token, s", "processors, s", "x read"]]
    for name, found in middle.items():
        parts = [
            f"{found[part]:.2f}" if part in found else "" for part in ("imported", "opened", "token", "cpu")
        ]
        lines.append([name, *parts, f"{found['token'] / base:.2f}"])
    print(aligned(lines))
    if args.json:
        result = {"model": args.model, "threads": args.threads, "bytes": sizes, "seconds": runs}
        args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def write_model(path: Path, source: ModelSource) -> None:
    """Write the model as a GGUF file, with weights of which every PIECE is the same but for its place."""
    spec, rng = source.architecture, np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(len(spec.layers))
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.ffn_size)
    writer.add_head_count(spec.n_heads)
    writer.add_head_count_kv(spec.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)  # of Llama 3
    add_tokenizer(writer, spec.vocab_size)
    for tensor in source.tensors.values():
        if len(tensor.shape) == 1:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes)
            continue
        shape = (tensor.shape[0], tensor.nbytes // tensor.shape[0])  # in bytes
        kind = GGMLQuantizationType[tensor.type]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), tensor.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pieces = {name: random_piece(name, spec.hidden_size, rng) for name in ("Q4_K", "Q6_K")}
    for tensor in source.tensors.values():
        if len(tensor.shape) == 1:
            writer.write_tensor_data(np.ones(tensor.shape, np.float32))
            continue
        piece = pieces[tensor.type]
        times = -(-tensor.nbytes // piece.nbytes)
        writer.write_tensor_data(np.tile(piece, times)[: tensor.nbytes])
    writer.close()
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)  # so that its pages can be dropped
    os.close(descriptor)


def random_piece(name: str, columns: int, rng: np.random.Generator) -> np.ndarray:
    """About PIECE bytes of rows of a type."""
    kind = GGMLQuantizationType[name]
    rows = PIECE // random_blocks((1, columns), kind, rng).nbytes
    return random_blocks((rows, columns), kind, rng).reshape(-1)


def add_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    """A byte-level BPE vocabulary of the right size: bytes, pairs of them, and special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [n for n in range(256) if n not in printable]
    letters = [chr(n) for n in printable] + [chr(256 + n) for n in range(len(others))]
    pairs = [(one, other) for one in letters for other in letters]
    triples = [(one + other, "e") for one, other in pairs]
    merges = [*pairs, *triples][: vocab_size - 256 - 256]
    pieces = [*letters, *(one + other for one, other in merges)]
    special = [f"<|reserved_{n}|>" for n in range(vocab_size - len(pieces))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*pieces, *special])
    writer.add_token_types([1] * len(pieces) + [3] * len(special))
    writer.add_token_merges([f"{one} {other}" for one, other in merges])
    writer.add_bos_token_id(len(pieces))
    writer.add_eos_token_id(len(pieces) + 1)


def drop(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def touch(size: int) -> None:
    """Use and free as many bytes in a process of its own."""
    program = f"import numpy; numpy.empty({size}, numpy.uint8)[::4096] = 1"
    subprocess.run([sys.executable, "-c", program], check=True)


def read(path: Path) -> float:
    """Seconds to read a file once from front to back."""
    touch(path.stat().st_size)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(PIECE)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def started(path: Path, threads: int, packed: Path | None) -> dict[str, float]:
    """Seconds from the start of a process until Outrider is imported, the model is open, and its first token
    is there, and processor time in all."""
    arguments = [str(path), str(threads), str(packed or ""), " ".join(map(str, PROMPT))]
    touch(2 * path.stat().st_size)  # its pages in the page cache, and the packed weights
    command = [sys.executable, "-c", WORKER, repr(time.time()), *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Users' Python keeps what it compiles; the first start, which is not counted, compiles here.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    imported, opened, token = map(float, output.split()[-3:])
    return {"imported": imported, "opened": opened, "token": token, "cpu": cpu}


if __name__ == "__main__":
    main()
