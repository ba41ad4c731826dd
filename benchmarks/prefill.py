"""Measures how long a prompt takes to read, of Outrider and of peers, and attention's share of it.

    python benchmarks/prefill.py -m MODEL.gguf [--lengths 128,512,2048,8192] [--peer llama.cpp=PYTHON] …

Peers run in processes of their own (cost_curve_worker.py), and prefills are interleaved; the least time of a
few rounds counts. A peer is given as for cost_curve.py. Outrider reads a prompt in chunks of 256 tokens, as
its engines do. A chunk's time grows with the positions before it, and all that grows is attention: its share
of a prompt is what chunks take above the first one (whose own, to 128 positions on average, counts as
the rest). Writes results/prefill.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine_process import EngineProcess
from outrider.bench.cost_curve import aligned, macs_per_token
from outrider.bench.machine import describe, drift, probe
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel
from outrider.models.open import open_model
from outrider.models.quantization import with_kv_type

HERE = Path(__file__).parent
RESULT = HERE / "results" / "prefill.json"
RATE = HERE.parent / "csrc" / "tests" / "multiply_rate.cpp"
CHUNK = 256  # tokens of a pass
OWN = {"outrider": None, "outrider, q8_0 keys and values": "q8_0"}


class Own:
    """Outrider in this process: a cache type, and the seconds of each chunk of the longest prompt so far."""

    def __init__(self, model: Path, threads: int, kv_quantization: str | None, longest: int) -> None:
        source = with_kv_type(open_model(model), kv_quantization)
        self.model = NativeModel.load(source, threads=threads)
        self.output_macs = self.model.vocab_size * self.model.hidden_size  # of the last token only
        self.macs = macs_per_token(source) - self.output_macs
        self._cache = self.model.new_cache(longest)
        self._tokens = ((7919 * np.arange(1, longest + 1)) % self.model.vocab_size).astype(np.int32)
        self.chunks: list[float] = []

    def prefill(self, count: int) -> float:
        """Seconds of a prompt of `count` tokens, with the logits of the last."""
        self._cache.truncate(0)
        found = []
        for at in range(0, count, CHUNK):
            part = self._tokens[at : min(at + CHUNK, count)]
            n = len(part)
            rows = np.array([n - 1] if at + n == count else [], np.int32)
            began = time.perf_counter()
            self.model.forward([ForwardItem(self._cache, part, np.arange(-1, n - 1, dtype=np.int32), rows)])
            found.append(time.perf_counter() - began)
        if len(found) == len(self.chunks):
            self.chunks = [min(pair) for pair in zip(found, self.chunks, strict=True)]
        elif len(found) > len(self.chunks):
            self.chunks = found
        return sum(found)

    def attention_share(self) -> float | None:
        """Attention's share of the longest prompt, from a line through its whole chunks' times."""
        whole = self.chunks[:-1]  # (the last one has logits, and may be shorter)
        if len(whole) < 4:
            return None
        slope, first = np.polyfit(np.arange(len(whole)), whole, 1)
        return float(slope * np.arange(len(whole)).sum() / (slope * np.arange(len(whole)) + first).sum())


def multiply_rates(threads: int) -> dict[str, float]:
    """Thousand million multiplications a second of each instruction set; empty without a C++ compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "multiply_rate"
        try:
            build = ["c++", "-O2", "-std=c++20", "-pthread", str(RATE), "-o", str(program)]
            subprocess.run(build, check=True, capture_output=True)
            found = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"the multiply rate was not measured: {error}", file=sys.stderr)
            return {}
    return {name: float(rate) for name, rate in map(str.split, found.splitlines())}


def gmacs(result: dict[str, Any], length: int) -> float:
    """Thousand million multiplications by weights a second, of Outrider's prompt of so many tokens."""
    macs = length * result["macs_per_token"] + result["output_macs"]
    return float(macs / result["seconds"]["outrider"][str(length)] / 1e9)


def table(result: dict[str, Any]) -> str:
    engines = list(result["seconds"])
    peers = [name for name in engines if name not in OWN]
    rows = [
        ["tokens", *(f"{name} s" for name in engines), *(["best peer / outrider"] if peers else []), "GMAC/s"]
    ]
    limit = result["multiply_rates"].get(result["isa"])
    rows[0] += ["of the limit"] if limit else []
    for n in map(str, result["lengths"]):
        taken = {name: times.get(n) for name, times in result["seconds"].items()}
        own = taken["outrider"]
        least = min((t for name in peers if (t := taken[name]) is not None), default=None)
        rows.append(
            [n, *("" if t is None else f"{t:.2f}" for t in taken.values()),
             *([f"{least / own:.2f}" if least else ""] if peers else []),
             f"{gmacs(result, int(n)):.0f}", *([f"{gmacs(result, int(n)) / limit:.0%}"] if limit else [])]
        )  # fmt: skip
    lines = [aligned(rows)]
    for name, share in result["attention_share"].items():
        if share is not None:
            lines.append(f"attention's share of {result['lengths'][-1]} tokens, {name}: {share:.0%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--lengths", default="128,512,2048,8192", metavar="N,N,…")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=0.2, help="seconds between prefills")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    lengths = sorted(int(n) for n in args.lengths.split(","))
    own = {name: Own(args.model, args.threads, kind, lengths[-1]) for name, kind in OWN.items()}
    workers = {}
    for name, python in (peer.split("=", 1) for peer in args.peer):
        command = [python, str(HERE / "cost_curve_worker.py"), name, str(args.model), "1", str(args.threads)]
        workers[name] = EngineProcess(name, [*command, str(lengths[-1])])
    rates = multiply_rates(args.threads)
    before = probe()
    seconds: dict[str, dict[str, float]] = {name: {} for name in (*own, *workers)}
    for n in lengths:
        for _ in range(args.rounds):
            for name, times in seconds.items():
                taken = own[name].prefill(n) if name in own else float(workers[name].ask(-n)) / 1e3
                times[str(n)] = min(taken, times.get(str(n), taken))
                time.sleep(args.rest)
    for worker in workers.values():
        worker.close()
    first = own["outrider"]
    result = {
        "machine": describe(args.threads),
        "model": args.model.name,
        "isa": first.model.isa,
        "lengths": lengths,
        "seconds": seconds,
        "macs_per_token": first.macs,
        "output_macs": first.output_macs,
        "multiply_rates": rates,
        "attention_share": {name: engine.attention_share() for name, engine in own.items()},
        "chunk_seconds": {name: engine.chunks for name, engine in own.items()},
        "peers": {name: worker.info for name, worker in workers.items()},
        "probe_drift": drift(before, probe()),
    }
    print(table(result))
    print(f"the probe moved by {result['probe_drift']:.0%}", file=sys.stderr)
    args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
