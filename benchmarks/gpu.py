"""Checks and measures the torch engine on a GPU, with random weights of exact shapes made on the device.

    python benchmarks/gpu.py [--quick] [--json FILE] [--device cuda] [--ops auto|torch] [--budget SECONDS]

Needs PyTorch and NumPy, and of Outrider the source tree only (no compiled module). Llama-3.1-8B is the target
and Llama-3.2-1B the draft, both in bfloat16; --quick takes 8 of the target's layers, and fewer widths. Each
part is measured by itself: one that fails is reported and the others go on.

- bandwidth: what a copy and a reading of a large tensor reach; the floor under a pass is its bytes / that.
- bits: rows of logits over widths, trees, neighbours and prefill chunks, in strict and in fast mode.
- T(n): seconds of a pass over n tokens of each of 1, 4 or 16 sequences.
- plain decoding, through the engine as users drive it: the token to the host, or logits where the engine
  cannot draw.
- speculative decoding with the draft model, whose random weights no target would accept: the passes are real,
  and the tokens of a step are those that profiles recorded on other models let expect. It is synthetic.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from outrider.decoding.drawing import RowDraws  # noqa: E402
from outrider.decoding.sampling.params import SamplingParams  # noqa: E402
from outrider.device_memory import PATH  # noqa: E402
from outrider.engines.base import ForwardItem  # noqa: E402
from outrider.engines.torch.choice import choose_ops  # noqa: E402
from outrider.engines.torch.model import TorchModel  # noqa: E402
from outrider.engines.torch.module import Weights  # noqa: E402
from outrider.engines.torch.ops import Ops, TorchOps  # noqa: E402
from outrider.engines.torch.weights import random_weights  # noqa: E402
from outrider.models.spec import FeedForwardSpec, LayerSpec, ModelSpec, RopeSpec  # noqa: E402

PROFILES = (
    HERE / "results/first_table-qwen-coder.json"
)  # of the Qwen2.5-Coder 1.5B and 0.5B, greedy and sampled
CONTEXT = 512  # tokens before those that are timed
POSITIONS = 2048  # of a sequence
DRAFTS = (1, 2, 3, 4, 5, 7)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    batches: tuple[int, ...] = (1, 4, 16)
    rounds: int = 10
    tokens: int = 200
    steps: int = 60


QUICK = Plan(widths=(1, 4, 16), batches=(1, 4), rounds=4, tokens=50, steps=20)


def llama(
    name: str, layers: int, hidden: int, *, head_dim: int, kv_heads: int, ffn: int, vocab: int = 128256
) -> ModelSpec:
    rope = RopeSpec(head_dim, (500000.0 ** -(np.arange(0, head_dim, 2) / head_dim)).astype(np.float32))
    layer = LayerSpec(FeedForwardSpec(ffn), attention_scale=head_dim**-0.5)
    return ModelSpec(
        name=name,
        hidden_size=hidden,
        n_heads=hidden // head_dim,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        max_positions=131072,
        rms_eps=1e-5,
        ropes=(rope,),
        layers=(layer,) * layers,
    )


TARGET = llama("Llama-3.1-8B", 32, 4096, head_dim=128, kv_heads=8, ffn=14336)
DRAFT = llama("Llama-3.2-1B", 16, 2048, head_dim=64, kv_heads=8, ffn=8192)
TINY = llama("tiny", 3, 128, head_dim=32, kv_heads=2, ffn=256, vocab=512)


class Bench:
    """The models, and what was found so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.plan = QUICK if args.quick or args.tiny else Plan()
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        self.found: dict[str, Any] = {}
        self.began = time.perf_counter()
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.target = TINY if args.tiny else TARGET
        self.draft = TINY if args.tiny else DRAFT
        if args.quick and not args.tiny:
            self.target = replace(
                self.target, name=f"{self.target.name} (8 layers)", layers=self.target.layers[:8]
            )
        self.weights = random_weights(self.target, self.device, dtype, tied=False, seed=1)
        self.draft_weights = random_weights(self.draft, self.device, dtype, tied=True, seed=2)
        self.sync()
        self._models: dict[str, TorchModel] = {}

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return float(self.args.budget - (time.perf_counter() - self.began))

    def model(self, kind: str) -> TorchModel:
        """The target in "strict" or "fast" mode, or the "draft"; on the same weights, each with slots of its
        own."""
        if kind not in self._models:
            spec, weights = (
                (self.draft, self.draft_weights) if kind == "draft" else (self.target, self.weights)
            )
            strict = kind == "strict"
            self._models[kind] = make_model(
                spec, weights, self.ops(strict), strict, 20 * (CONTEXT + 256) if self.cuda else None
            )
        return self._models[kind]

    def ops(self, strict: bool) -> Ops:
        if self.args.ops == "torch":
            return TorchOps()
        return choose_ops(self.device, POSITIONS + PATH, strict=strict)


def make_model(spec: ModelSpec, weights: Weights, ops: Ops, strict: bool, slots: int | None) -> TorchModel:
    return TorchModel(spec, weights, ops=ops, strict=strict, positions=POSITIONS, slots=lambda model: slots)


def tiny_or_cuda(
    doc: str | None, measure: Callable[[torch.device, bool], dict[str, Any]], argv: Sequence[str] | None
) -> int:
    """The command of a benchmark that runs on a CUDA device, or anywhere with `--tiny`: what `measure` finds,
    by device and whether it is tiny, is written to `--json`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not args.tiny:
        print("no CUDA device: only --tiny runs, in the interpreter (TRITON_INTERPRET=1)", file=sys.stderr)
        return 2
    found = measure(device, args.tiny)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def ids(count: int, vocab: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, vocab, count)]


def item(
    cache: Any, tokens: Sequence[int], parents: Sequence[int] | None = None, rows: bool = True
) -> ForwardItem:
    n = len(tokens)
    return ForwardItem(
        cache,
        np.array(tokens, np.int32),
        np.arange(-1, n - 1, dtype=np.int32) if parents is None else np.array(parents, np.int32),
        np.arange(n if rows else 0, dtype=np.int32),
    )


def greedy(model: TorchModel, one: ForwardItem) -> list[int]:
    """A pass, and the token of each of its rows at temperature 0: drawn on the device where the model can."""
    if model.caps.draws_rows:
        positions = one.cache.length + np.arange(1, len(one.tokens) + 1)
        draws = RowDraws(SamplingParams(temperature=0.0), 0, model.vocab_size, positions)
        ((_, drawn),) = model.forward_drawn([one], [draws])
        assert drawn is not None, "one pass has the few tokens of a step"
        return drawn.tokens
    return [int(token) for token in model.forward([one])[0].argmax(axis=1)]


def filled(model: TorchModel, length: int, capacity: int, seed: int = 0) -> Any:
    """A cache with `length` random tokens."""
    cache = model.new_cache(capacity)
    model.forward([item(cache, ids(length, model.vocab_size, seed), rows=False)])
    return cache


# --- The parts -------------------------------------------------------------------------------------


def machine(b: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": str(b.device),
        "python": sys.version.split()[0],
    }
    try:
        import triton  # type: ignore[import-not-found, unused-ignore]

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    if b.cuda:
        properties = torch.cuda.get_device_properties(b.device)
        found |= {
            "card": properties.name,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
        }
    found["operations"] = {mode: type(b.ops(mode == "strict")).__name__ for mode in ("strict", "fast")}
    found["weights_gb"] = {
        b.target.name: round(b.weights.nbytes / 1e9, 3), b.draft.name: round(b.draft_weights.nbytes / 1e9, 3)
    }  # fmt: skip
    return found


def bandwidth(b: Bench) -> dict[str, float]:
    """GB/s that a copy (read and written bytes) and a matrix-vector product (read) reach."""
    count = 1 << (30 if b.cuda else 24)
    source = torch.empty(count, dtype=torch.bfloat16, device=b.device).normal_()
    other = torch.empty_like(source)
    matrix, vector = source.view(-1, 8192), torch.ones(8192, dtype=torch.bfloat16, device=b.device)
    size = source.numel() * source.element_size()
    return {
        "copy": 2 * size / timed(b, lambda: other.copy_(source)) / 1e9,
        "matrix-vector product": size / timed(b, lambda: torch.mv(matrix, vector)) / 1e9,
        "product with one row": size / timed(b, lambda: F.linear(vector[None], matrix)) / 1e9,
    }


def timed(b: Bench, run: Callable[[], Any], rounds: int = 10) -> float:
    """The least of the seconds of several runs."""
    run()
    times = []
    for _ in range(rounds):
        b.sync()
        began = time.perf_counter()
        run()
        b.sync()
        times.append(time.perf_counter() - began)
    return min(times)


def bits(b: Bench) -> dict[str, Any]:
    """Rows of logits against those of one token a pass. In strict mode none may differ."""
    return {kind: _bits(b, b.model(kind)) for kind in ("strict", "fast")}


def _bits(b: Bench, model: TorchModel) -> dict[str, Any]:
    text = ids(300 + 64, model.vocab_size, 5)
    prompt, text = text[:300], text[300:]
    cache = filled_with(model, [prompt[:1], prompt[1:]])
    plain = np.concatenate([model.forward([item(cache, [token])])[0] for token in text])
    cache.close()
    counts: dict[str, list[int | float]] = {}

    def compare(name: str, rows: np.ndarray, wanted: np.ndarray) -> None:
        differ = int((rows.view(np.uint32) != wanted.view(np.uint32)).any(axis=1).sum())
        flips = int((rows.argmax(1) != wanted.argmax(1)).sum())
        largest = float(np.abs(rows - wanted).max())
        old = counts.setdefault(name, [0, 0, 0, 0.0])
        counts[name] = [old[0] + len(rows), old[1] + differ, old[2] + flips, max(old[3], largest)]

    for chunks in ([prompt[:129], prompt[129:200], prompt[200:]], [prompt[:7], prompt[7:40], prompt[40:]]):
        cache = filled_with(model, chunks)
        compare("prefill chunks", model.forward([item(cache, text[:1])])[0], plain[:1])
        cache.close()
    for width in (2, 3, 4, 8, 16, 17, 32, 64):
        cache = filled_with(model, [prompt])
        rows = [model.forward([item(cache, text[i : i + width])])[0] for i in range(0, 64, width)]
        compare(f"width {width}", np.concatenate(rows), plain)
        cache.close()
    random = np.random.default_rng(1)
    for _ in range(2):
        cache, beside = filled_with(model, [prompt]), filled(model, 77, 300, seed=9)
        tree: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        while len(path) < 12:
            wrong = random.random() < 0.5
            parents.append(int(random.integers(-1, len(tree))) if wrong else path[-1] if path else -1)
            tree.append(int(random.integers(3, model.vocab_size)) if wrong else text[len(path)])
            if not wrong:
                path.append(len(tree) - 1)
        _, found = model.forward([item(beside, ids(5, model.vocab_size, 3)), item(cache, tree, parents)])
        compare("trees beside another sequence", found[path], plain[:12])
        start = len(prompt)
        cache.keep(start, [start + node for node in path])
        compare("after a tree's path was kept", model.forward([item(cache, text[12:20])])[0], plain[12:20])
        cache.close()
        beside.close()
    compare("finite", np.nan_to_num(plain, nan=np.inf), plain)
    return {
        name: dict(zip(("rows", "differ", "flips", "largest"), values, strict=True))
        for name, values in counts.items()
    }


def filled_with(model: TorchModel, chunks: Sequence[Sequence[int]]) -> Any:
    cache = model.new_cache(512)
    for chunk in chunks:
        model.forward([item(cache, chunk, rows=False)])
    return cache


def against_torch(b: Bench) -> dict[str, float]:
    """How far the logits of the kernels are from those of PyTorch's own operations, relative, in the same
    type: large differences are mistakes, small ones are rounding."""
    plain = make_model(b.target, b.weights, TorchOps(), False, 1024 if b.cuda else None)
    tokens = ids(40, plain.vocab_size, 5)
    wanted = plain.forward([item(plain.new_cache(64), tokens)])[0].astype(np.float64)
    found = {}
    for kind in ("strict", "fast"):
        model = b.model(kind)
        cache = model.new_cache(64)
        rows = model.forward([item(cache, tokens)])[0]
        cache.close()
        found[kind] = float(np.linalg.norm(rows - wanted) / np.linalg.norm(wanted))
    return found


def curve(b: Bench) -> dict[str, Any]:
    """Milliseconds of a pass over n tokens of each sequence, by mode, batch and n: the median of rounds."""
    found: dict[str, Any] = {}
    for kind in ("strict", "fast", "draft"):
        model = b.model(kind)
        found[kind] = {}
        for batch in b.plan.batches if kind != "draft" else (1,):
            caches = [filled(model, CONTEXT, CONTEXT + 65, seed) for seed in range(batch)]
            times: dict[int, float] = {}
            for n in b.plan.widths:
                tokens = ids(n, model.vocab_size, n)

                def one(
                    tokens: list[int] = tokens, caches: list[Any] = caches, model: TorchModel = model
                ) -> None:
                    for cache in caches:
                        cache.truncate(CONTEXT)
                    model.forward([item(cache, tokens) for cache in caches])

                times[n] = 1e3 * median(one, b.plan.rounds)
            found[kind][batch] = times
            for cache in caches:
                cache.close()
    return found


def median(run: Callable[[], Any], rounds: int) -> float:
    """The median of the seconds of several runs, which end when their results are on the host."""
    for _ in range(2):
        run()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def prefill(b: Bench) -> dict[str, float]:
    """Prompt tokens per second, 1024 of them."""
    found = {}
    for kind in ("strict", "fast"):
        model = b.model(kind)
        tokens = ids(1024, model.vocab_size, 3)
        cache = model.new_cache(1025)

        def one(tokens: list[int] = tokens, cache: Any = cache, model: TorchModel = model) -> None:
            cache.truncate(0)
            model.forward([item(cache, tokens[:-1], rows=False)])
            model.forward([item(cache, tokens[-1:])])

        found[kind] = 1024 / median(one, 3)
        cache.close()
    return found


def plain(b: Bench) -> dict[str, Any]:
    """Greedy decoding of one sequence: tokens per second, and what reading the weights alone would allow."""
    found: dict[str, Any] = {}
    speeds = b.found.get("bandwidth") or {}
    for kind in ("strict", "fast", "draft"):
        model = b.model(kind)
        cache = filled(model, CONTEXT, CONTEXT + b.plan.tokens + 8)
        token = 5
        for _ in range(3):
            (token,) = greedy(model, item(cache, [token]))
        began = time.perf_counter()
        for _ in range(b.plan.tokens):
            (token,) = greedy(model, item(cache, [token]))
        seconds = (time.perf_counter() - began) / b.plan.tokens
        cache.close()
        read = model.weights.nbytes + CONTEXT * model.slot_bytes
        if model.weights.output is not model.weights.embedding:
            read -= model.weights.embedding.numel() * model.weights.embedding.element_size()
        found[kind] = {"tokens_per_s": 1 / seconds, "bytes_per_pass_gb": read / 1e9}
        if speeds:
            floor = read / 1e9 / max(speeds.values())
            found[kind] |= {"floor_tokens_per_s": 1 / floor, "part_of_floor": floor / seconds}
    return found


def speculative(b: Bench) -> dict[str, Any]:
    """Tokens per second with drafts of k tokens and the acceptance of recorded profiles."""
    profiles = {}
    for workload in json.loads(PROFILES.read_text())["workloads"]:
        made = workload["methods"]["draft_model"]
        reached = [made["num_drafts"], *made["accepted_per_pos"]]
        profiles[workload["workload"]] = [after / before for before, after in pairwise(reached)]
    base = b.found["plain decoding"]["strict"]["tokens_per_s"]
    ways = {"draft tokens chosen on the host": _host_draft(b)}
    if (chosen := _device_draft(b)) is not None:
        ways["draft tokens chosen on the device"] = chosen
    found: dict[str, Any] = {"synthetic": True, "profiles": profiles}
    for way, draft in ways.items():
        step = {k: _step_seconds(b, k, draft) for k in DRAFTS}
        found[way] = {
            "ms per step": {k: 1e3 * seconds for k, seconds in step.items()},
            "speed-up over plain strict": {
                name: {k: _expected(chances, k) / seconds / base for k, seconds in step.items()}
                for name, chances in profiles.items()
            },
        }
    return found


def _host_draft(b: Bench) -> Callable[[Any, int, int], list[int]]:
    """Drafts k tokens after `token`: a pass for each, its logits to the host, arg max there."""
    draft = b.model("draft")

    def chosen(cache: Any, token: int, k: int) -> list[int]:
        found = [token]
        for _ in range(k):
            found.append(int(draft.forward([item(cache, found[-1:])])[0][0].argmax()))
        return found[1:]

    return chosen


def _device_draft(b: Bench) -> Callable[[Any, int, int], list[int]] | None:
    """The same on the device, with one wait for the host in a draft; None where the model cannot."""
    draft = b.model("draft")
    chains = getattr(draft, "chains", lambda size: None)(draft.vocab_size)
    if chains is None:
        return None
    start: Any = importlib.import_module("outrider.engines.chains").ChainStart
    params = SamplingParams(temperature=0.0)

    def chosen(cache: Any, token: int, k: int) -> list[int]:
        (chain,) = chains.draft([start(cache, [token], params, 0, cache.length + 1, k)])
        return list(chain.tokens)

    return chosen


def _expected(chances: Sequence[float], k: int) -> float:
    """Tokens of a step with k draft tokens: the i-th is accepted with probability chances[i] when all before
    it are; further ones as the last."""
    kept, total = 1.0, 1.0
    for chance in [*chances, *[chances[-1]] * k][:k]:
        kept *= chance
        total += kept
    return total


def _step_seconds(b: Bench, k: int, draft: Callable[[Any, int, int], list[int]]) -> float:
    """Seconds of a step: a draft of k tokens, one pass of the target over k + 1, k + 1 arg maxes, and both
    caches rolled back to what half of the draft being accepted leaves."""
    target, room = b.model("strict"), CONTEXT + b.plan.steps * (k + 2) + 64
    caches = [filled(model, CONTEXT, room) for model in (target, b.model("draft"))]
    token, times = 5, []
    for _ in range(b.plan.steps):
        began = time.perf_counter()
        base = caches[0].length
        tokens = greedy(target, item(caches[0], [token, *draft(caches[1], token, k)]))
        kept = k // 2
        caches[0].keep(base, list(range(base, base + 1 + kept)))
        caches[1].truncate(min(caches[1].length, base + 1 + kept))
        token = tokens[kept]
        times.append(time.perf_counter() - began)
    for cache in caches:
        cache.close()
    return statistics.median(times)


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "machine": machine,
    "bandwidth": bandwidth,
    "kernels against PyTorch": against_torch,
    "bits": bits,
    "plain decoding": plain,
    "T(n)": curve,
    "speculative decoding": speculative,
    "prefill": prefill,
}


def show(name: str, found: Any, seconds: float) -> None:
    print(f"\n## {name} ({seconds:.1f} s)")
    if name == "T(n)" and "error" not in found:
        for kind, by_batch in found.items():
            for batch, times in by_batch.items():
                cells = "  ".join(f"{n}: {ms:.2f}" for n, ms in times.items())
                print(f"{kind}, {batch} sequences, ms by n: {cells}")
        return
    print(json.dumps(found, indent=1, default=float))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer layers and widths: under a minute")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try this program without a GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", choices=("auto", "torch"), default="auto")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas between them")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds; no part begins after them")
    parser.add_argument("--json", type=Path, help="write what was found here")
    args = parser.parse_args()
    if args.device == "cpu" and not args.tiny:
        parser.error("there is no GPU; --tiny tries this program without one")
    bench = Bench(args)
    failed = 0
    for name in args.parts.split(","):
        began = time.perf_counter()
        if bench.left < 0:
            bench.found[name] = {"error": "left out: the budget is spent"}
        else:
            try:
                bench.found[name] = PARTS[name](bench)
            except Exception as error:  # the other parts are worth having
                traceback.print_exc()
                bench.found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}
                failed += 1
        show(name, bench.found[name], time.perf_counter() - began)
        if args.json:
            args.json.write_text(json.dumps(bench.found, indent=1, default=float))
    print(f"\n{time.perf_counter() - bench.began:.0f} s in all, {failed} parts failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
