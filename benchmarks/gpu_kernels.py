"""Checks and times the torch engine's Triton kernels on a GPU, against PyTorch's own operations.

    PYTHONPATH=src python benchmarks/gpu_kernels.py [--quick] [--tune] [--only PART] [--json FILE]

It needs torch, triton and numpy, no compiled module of Outrider and no model. Checks come first: results
against float64; bits of linear over 1..64 rows and over places, of attention over passes, trees, chains and
splits of a prefill; tokens of the sampler against the CPU's sampler (its NumPy specification). What PyTorch's
own product does in the same bit check stands beside it. Times are of CUDA graphs, the median of the replays,
with the weights of Llama-3.1-8B in more copies than the L2 cache holds. Kernels are compiled in processes
beside the checks. `--tune` times other tiles too, and says whether their bits are the same. `--tiny` runs all
parts on any device, the interpreter included (TRITON_INTERPRET=1), with small shapes and times of no meaning;
the interpreter's products depend on the place in the matrix unless it is given ordered ones
(tests/torch/test_kernels_benchmark.py). Each part that fails is told and the others go on; the exit status is
1 then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import triton

from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.engines.torch.kernels import attention as attention_kernel
from outrider.engines.torch.kernels import linear as linear_kernel
from outrider.engines.torch.kernels.ops import TritonOps
from outrider.engines.torch.kernels.row_settings import RowSettings
from outrider.engines.torch.kernels.sampling import sample
from outrider.engines.torch.ops import Layout

SHAPES = {  # of Llama-3.1-8B and, as "1B", of Llama-3.2-1B: (m, k)
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "lm_head": (128256, 4096),
    "1B qkv": (3072, 2048),
    "1B o": (2048, 2048),
    "1B gate_up": (16384, 2048),
    "1B down": (2048, 8192),
    "1B lm_head": (128256, 2048),
}
WIDTHS = (1, 4, 8, 16, 64, 512)
FLUSH = 400 << 20  # bytes of weights that a timed graph goes through, several times an L2 cache
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "T=0.7": SamplingParams(temperature=0.7),
    "T=0.7 top_p=0.9": SamplingParams(temperature=0.7, top_p=0.9),
    "T=0.7 top_k=20 top_p=0.8": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
    "T=1 min_p=0.05": SamplingParams(temperature=1.0, min_p=0.05),
    "T=1.5 top_k=5": SamplingParams(temperature=1.5, top_k=5),
}

TILES_OF_16 = (
    (16, 128, 6),
    (32, 128, 6),
    (32, 256, 4),
    (64, 64, 6),
    (64, 128, 4),
    (64, 256, 3),
    (128, 64, 5),
)
TILES_OF_MORE = (  # (rows of x, of w, of k, warps, stages)
    *((32, 32, 128, 4, 5), (64, 64, 64, 2, 3), (64, 128, 64, 2, 4), (64, 128, 64, 4, 3)),
    *((128, 128, 64, 4, 4), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3)),
)

ops = TritonOps(reach=8192)


class Bench:
    """The device, the sizes and what was found. `tiny`: small shapes, for the interpreter."""

    def __init__(self, device: str, quick: bool, tiny: bool) -> None:
        self.device, self.quick, self.tiny = device, quick, tiny
        self.dtype = torch.float16 if tiny else torch.bfloat16  # the interpreter rounds bfloat16 downwards
        self.found: dict[str, Any] = {}
        self.failed: list[str] = []
        self.random = torch.Generator(device).manual_seed(7)

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, generator=self.random, device=self.device, dtype=torch.float32)
        return (values * scale).to(dtype or self.dtype)

    def ints(self, values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def check(self, name: str, good: bool, detail: str = "") -> None:
        print(f"  {'ok  ' if good else 'FAIL'} {name}{': ' + detail if detail else ''}")
        if not good:
            self.failed.append(name)

    def microseconds(self, call: Callable[[Any], Any], inputs: Sequence[Any], replays: int = 10) -> float:
        """Microseconds of one call. One graph makes the calls with all `inputs`, one after the other."""
        if self.device == "cpu":
            begin = time.perf_counter()
            call(inputs[0])
            return (time.perf_counter() - begin) * 1e6
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call(inputs[0])
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for given in inputs:
                call(given)
        times: list[float] = []
        for _ in range(2 + replays):
            begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin_event.record()
            graph.replay()
            end_event.record()
            end_event.synchronize()
            times.append(begin_event.elapsed_time(end_event) * 1e3 / len(inputs))
        return statistics.median(times[2:])


def bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def linear_checks(bench: Bench) -> None:
    for dtype, bound in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 3e-5)):
        worst = 0.0
        for n, m, k in ((1, 100, 200), (17, 70, 130), (40, 64, 128)):
            x, w, bias = (bench.normal(*s, dtype=dtype) for s in ((n, k), (m, k), (m,)))
            exact = x.double() @ w.double().T + bias.double()
            error = (ops.linear(x, w, bias).double() - exact).abs() / (exact.abs() + k**0.5)
            worst = max(worst, float(error.max()))
        bench.check(f"linear {dtype} against float64", worst < bound, f"{worst:.2e}")
    most = 20 if bench.tiny else 64
    counts = {"triton": 0, "torch": 0}
    products: dict[str, Callable[[Any, Any], Any]] = {
        "triton": lambda a, b: ops.linear(a, b, None),
        "torch": F.linear,
    }
    shapes = ((48, 160),) if bench.tiny else tuple(SHAPES[s] for s in ("qkv", "o", "gate_up", "down"))
    if bench.quick:
        shapes = shapes[1:3]
    for m, k in shapes:
        w, x = bench.normal(m, k, scale=k**-0.5), bench.normal(most, k)
        order = torch.randperm(most, generator=torch.Generator().manual_seed(1)).to(bench.device)
        for name, product in products.items():
            whole = product(x, w)
            wide = product(torch.cat([x[order]] * (2 if bench.tiny else 8)), w)
            counts[name] += int(not bits(wide[:most], whole[order]))
            counts[name] += int(not bits(wide[-most:], whole[order]))
            for n in range(1, most, 5 if bench.tiny else 1):
                counts[name] += int(not bits(product(x[:n], w), whole[:n]))
                counts[name] += int(not bits(product(x[most - n :], w), whole[most - n :]))
    bench.found["linear_bits"] = counts
    bench.check("linear bits over widths and places", counts["triton"] == 0, f"passes that differ: {counts}")


def linear_times(bench: Bench) -> None:
    shapes = {"tiny": (64, 128)} if bench.tiny else SHAPES
    widths = (1, 20) if bench.tiny else (1, 16, 64, 512) if bench.quick else WIDTHS
    table: dict[str, Any] = {}
    print(f"  {'GB/s of weights':16}" + "".join(f"{f'n={n}':>16}" for n in widths) + "   triton / torch")
    for name, (m, k) in shapes.items():
        copies = 1 if bench.tiny else min(64, max(1, FLUSH // (m * k * 2)))
        weights = [bench.normal(m, k, scale=k**-0.5) for _ in range(copies)]
        cells = []
        for n in widths:
            x = bench.normal(n, k)
            own = bench.microseconds(partial(ops.linear, x, bias=None), weights)
            theirs = bench.microseconds(partial(F.linear, x), weights)
            rates = [m * k * 2 / 1e3 / t for t in (own, theirs)]
            cells.append(f"{rates[0]:7.0f} /{rates[1]:7.0f}")
            table[f"{name} {n}"] = {"triton_us": own, "torch_us": theirs, "triton_gbs": rates[0]}
        print(f"  {name:16}" + "".join(f"{c:>16}" for c in cells))
    bench.found["linear"] = table


def linear_tiles(bench: Bench) -> None:
    """Other tiles than those in use, their times, and whether they give the same bits."""
    tiles = [(16, m, k, w, s) for m, k, s in TILES_OF_16 for w in (2, 4) if m > 16 or w == 2]
    wide = list(TILES_OF_MORE)
    if bench.tiny:
        tiles, wide = tiles[:1], wide[:1]
    found: dict[str, Any] = {}
    for name, widths, candidates in (
        *((name, (1, 16), tiles) for name in ("o", "gate_up", "down", "1B o", "1B down")),
        *((name, (64, 512), wide) for name in ("o", "gate_up")),
    ):
        m, k = (64, 128) if bench.tiny else SHAPES[name]
        weights = [bench.normal(m, k, scale=k**-0.5) for _ in range(max(1, (FLUSH // 2) // (m * k * 2)))]
        weights = weights[: 1 if bench.tiny else None]
        for n in widths[: 1 if bench.tiny else 2]:
            x = bench.normal(n, k)
            expected = ops.linear(x, weights[0], None)
            for rows, block_m, block_k, warps, stages in candidates:
                shape = {"block_n": rows, "block_m": block_m, "block_k": block_k}
                shape |= {"num_warps": warps, "num_stages": stages}
                try:
                    run = partial(linear_kernel.with_tile, x, bias=None, shape=shape)
                    same = bits(run(weights[0]), expected)
                    taken = bench.microseconds(run, weights)
                except Exception as error:
                    print(f"  {name} n={n} {rows}x{block_m}x{block_k}: {type(error).__name__}")
                    continue
                key = f"{name} n={n} {rows}x{block_m}x{block_k} warps={warps} stages={stages}"
                found[key] = {"us": taken, "gbs": m * k * 2 / 1e3 / taken, "same_bits": same}
                print(f"  {key:52} {taken:9.1f} us {m * k * 2 / 1e3 / taken:7.0f} GB/s  bits {same}")
    bench.found["tiles"] = found


def caches(bench: Bench, slots: int, kv_heads: int, d: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [bench.normal(slots, kv_heads, d, dtype=dtype) for _ in range(2)]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, window: int | None) -> Any:
    """Attention of each token in float64, scale d^-0.5."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for i in range(len(q)):
        start, old, at = (int(x[i]) for x in (layout.start, layout.committed, layout.position))
        slots = [start + t if layout.path is None or t < old else int(layout.path[i, t - old])
                 for t in range(max(0, at + 1 - (window or at + 1)), at + 1)]  # fmt: skip
        group = q.shape[1] // k.shape[1]
        keys, values = (c[slots].double().repeat_interleave(group, 1) for c in (k, v))
        weights = torch.einsum("hd,thd->ht", q[i].double(), keys).mul(q.shape[2] ** -0.5).softmax(-1)
        out[i] = torch.einsum("ht,thd->hd", weights, values)
    return out


def attend(q: Any, k: Any, v: Any, layout: Layout, window: int | None = None) -> torch.Tensor:
    return ops.attention(q, k, v, layout, scale=q.shape[-1] ** -0.5, window=window, softcap=None)


def chain(bench: Bench, start: int, first: int, count: int, span: int) -> Layout:
    """`count` tokens of one sequence from position `first` on."""
    position = torch.arange(first, first + count, dtype=torch.int32, device=bench.device)
    starts, committed = torch.full_like(position, start), torch.full_like(position, first)
    return Layout(starts, committed, position, None, span)


def attention_checks(bench: Bench) -> None:
    heads, kv_heads, d, size = (4, 2, 32, 300) if bench.tiny else (32, 8, 128, 1500)
    k, v = caches(bench, 2 * size + 400, kv_heads, d, bench.dtype)
    q = bench.normal(size, heads, d)
    span = 4 * size
    steps = range(0, size, 97 if bench.tiny else 13)
    whole = attend(q, k, v, chain(bench, 100, 0, size, span))  # one prefill
    some = torch.tensor(list(steps), device=bench.device)
    for window in (None, 100):
        every = chain(bench, 100, 0, size, span)
        picked = Layout(every.start[some], every.committed[some], every.position[some], None, span)
        exact = reference(q[some], k, v, picked, window)
        error = float((attend(q[some], k, v, picked, window).double() - exact).abs().max())
        bench.check(f"attention against float64, window {window}", error < 2e-2, f"{error:.2e}")
    alone = all(
        bits(attend(q[i : i + 1], k, v, chain(bench, 100, i, 1, span)), whole[i : i + 1]) for i in steps
    )
    bench.check("attention bits: prefill and one token at a time", alone)
    cut, count = size // 3, 70
    part = attend(q[cut : cut + count], k, v, chain(bench, 100, cut, count, span))
    bench.check("attention bits: prefill in chunks", bits(part, whole[cut : cut + count]))
    # A tree whose nodes lie in other slots than the chain's, siblings between them, beside another sequence.
    nodes, first = 6, size - 10
    slots = [100 + first + 20 + 3 * i for i in range(nodes)]
    for i, slot in enumerate(slots):
        for cache in (k, v):
            cache[slot] = cache[100 + first + i]
            cache[slot + 1] = bench.normal(1, kv_heads, d)[0]  # a sibling
    path, rows, places = [], [], []
    for i in range(nodes):
        path += [slots[: i + 1] + [0] * (nodes - i - 1), slots[:i] + [slots[i] + 1] + [0] * (nodes - i - 1)]
        rows += [q[first + i], q[first + i]]
        places += [first + i, first + i]
    path, rows, places = [*path, [0] * nodes], [*rows, q[0]], [*places, 0]
    starts = [100] * (2 * nodes) + [0]
    tree = Layout(bench.ints(starts), bench.ints([first] * (2 * nodes) + [0]), bench.ints(places),
                  bench.ints(path), span)  # fmt: skip
    for spread in (64, 0):
        before, attention_kernel.SPREAD = attention_kernel.SPREAD, spread
        found = attend(torch.stack(rows), k, v, tree)
        attention_kernel.SPREAD = before
        good = bits(found[0 : 2 * nodes : 2], whole[first : first + nodes])
        bench.check(f"attention bits: tree and chain, spread up to {spread} tokens", good)
        other = not bits(found[1 : 2 * nodes : 2], whole[first : first + nodes])
        bench.check("attention: siblings differ", other)


def attention_case(bench: Bench, context: int, batch: int, new: int) -> dict[str, float]:
    """Microseconds of `new` tokens of each of `batch` sequences, after `context` tokens of each."""
    heads, kv_heads, d = (4, 2, 32) if bench.tiny else (32, 8, 128)
    size = context + new
    layers = 1 if bench.tiny else min(48, max(1, FLUSH // (batch * size * kv_heads * d * 4)))
    pools = [caches(bench, batch * size, kv_heads, d, bench.dtype) for _ in range(layers)]
    q = bench.normal(batch * new, heads, d)
    sequence = torch.arange(batch, device=bench.device, dtype=torch.int32).repeat_interleave(new)
    each = torch.arange(new, device=bench.device, dtype=torch.int32)
    at = each.repeat(batch) + context
    layout = Layout(sequence * size, torch.full_like(at, context), at, None, size)
    path = layout.start[:, None] + context + each[None]
    tree = Layout(layout.start, layout.committed, at, path.contiguous(), size)
    found = {"chain": bench.microseconds(lambda kv: attend(q, kv[0], kv[1], layout), pools)}
    if new <= 64:
        found["tree"] = bench.microseconds(lambda kv: attend(q, kv[0], kv[1], tree), pools)
    mask = torch.arange(size, device=bench.device)[None] <= at[:new, None]

    def theirs(pool: list[torch.Tensor]) -> torch.Tensor:
        k, v = (x.view(batch, size, kv_heads, d).transpose(1, 2) for x in pool)
        queries = q.view(batch, new, heads, d).transpose(1, 2)
        return F.scaled_dot_product_attention(
            queries, k, v, attn_mask=None if new == 1 else mask, enable_gqa=True
        )

    found["sdpa"] = bench.microseconds(theirs, pools)
    found["chain_gbs"] = batch * size * kv_heads * d * 4 / 1e3 / found["chain"]
    return found


def attention_times(bench: Bench) -> None:
    cases = [(c, b, t) for c in (512, 4096) for b in (1, 8) for t in (1, 8)] + [(4096, 1, 512)]
    found: dict[str, Any] = {}
    for context, batch, new in [(130, 2, 2)] if bench.tiny else cases:
        case = attention_case(bench, context, batch, new)
        found[f"{context} x {batch}, {new} new"] = case
        times = ", ".join(f"{name} {x:.1f}" for name, x in case.items())
        print(f"  context {context:5} batch {batch} new {new:3}, us and GB/s: {times}")
    bench.found["attention"] = found


def small_operations(bench: Bench) -> None:
    d = 96 if bench.tiny else 4096
    weight, found = bench.normal(d), {}
    x = bench.normal(16, d)
    exact = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    error = float((ops.rms_norm(x, weight, 1e-5).double() - exact).abs().max() / exact.abs().max())
    bench.check("rms_norm against float64", error < 8e-3, f"{error:.2e}")
    alone = torch.cat([ops.rms_norm(x[i : i + 1], weight, 1e-5) for i in range(16)])
    bench.check("rms_norm bits", bits(alone, ops.rms_norm(x, weight, 1e-5)))
    fused, added = ops.add_rms_norm(x, x.flip(0), weight, 1e-5)
    good = bits(added, x + x.flip(0)) and bits(fused, ops.rms_norm(x + x.flip(0), weight, 1e-5))
    bench.check("add_rms_norm bits", good)
    for n in (1,) if bench.tiny else (1, 16, 512):
        x = bench.normal(n, d)
        found[f"rms_norm {n}"] = bench.microseconds(lambda x: ops.rms_norm(x, weight, 1e-5), [x] * 20)
        fused_call = lambda x: ops.add_rms_norm(x, x, weight, 1e-5)  # noqa: E731
        found[f"add_rms_norm {n}"] = bench.microseconds(fused_call, [x] * 20)
        torch_call = lambda x: F.rms_norm(x, (d,), weight, 1e-5)  # noqa: E731
        found[f"torch rms_norm {n}"] = bench.microseconds(torch_call, [x] * 20)
        both = bench.normal(n, 7 * d)
        found[f"gated {n}"] = bench.microseconds(partial(ops.gated, activation="silu"), [both] * 20)
    print("  us: " + ", ".join(f"{name} {x:.1f}" for name, x in found.items()))
    bench.found["small"] = found


def sampler(bench: Bench) -> None:
    vocab = 2100 if bench.tiny else 128256
    rounds, n = (1, 6) if bench.tiny else (4 if bench.quick else 24, 32)
    numbers = np.random.default_rng(3)
    wrong = unsure = total = 0
    cpu: list[float] = []
    for turn in range(rounds):
        spread = float(numbers.choice([1.0, 2.5, 4.0]))
        logits = bench.normal(n, vocab, dtype=torch.float32, scale=spread)
        if turn % 2:
            logits = logits.bfloat16().float()  # many ties
        params = [list(SETTINGS.values())[(i + turn) % len(SETTINGS)] for i in range(n)]
        seeds = [int(s) for s in numbers.integers(0, 2**64, n, dtype=np.uint64)]
        places = numbers.integers(0, 2**20, n)
        settings = RowSettings.make(params, seeds, vocab, bench.device)
        tokens, status, *_ = sample(logits, settings, torch.tensor(places, device=bench.device))
        rows = logits.cpu().numpy()
        for i, (p, seed, token, state) in enumerate(
            zip(params, seeds, tokens.tolist(), status.tolist(), strict=True)
        ):
            begin = time.perf_counter()
            expected = Sampler(p, vocab, seed=seed).draw(rows[i], rows[i], int(places[i]))
            cpu.append((time.perf_counter() - begin) * 1e6)
            total += 1
            unsure += state != 0
            wrong += state == 0 and token != expected
    bench.check("sampler against the CPU", wrong == 0, f"{total} rows, {wrong} differ, {unsure} not decided")
    found: dict[str, Any] = {
        "rows": total,
        "wrong": wrong,
        "unsure": unsure,
        "numpy_us": statistics.median(cpu),
    }
    for name, p in SETTINGS.items():
        for n in (2,) if bench.tiny else (1, 16):
            logits = bench.normal(n, vocab, dtype=torch.float32, scale=2.5)
            settings = RowSettings.make([p] * n, list(range(n)), vocab, bench.device)
            places_on = torch.arange(n, device=bench.device)
            call = partial(sample, settings=settings, positions=places_on)
            found[f"{name}, {n} rows"] = bench.microseconds(call, [logits])
    print("  us: " + ", ".join(f"{name} {x:.0f}" for name, x in found.items()))
    bench.found["sampler"] = found


PARTS = (
    *(linear_checks, attention_checks, small_operations, sampler, linear_times, attention_times),
    linear_tiles,
)


def compile_beside(args: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Processes that compile the kernels of some parts, for Triton's cache on the disk, while others run."""
    command = [sys.executable, __file__, "--quick", *(["--tiny"] if args.tiny else []), "--only"]
    return [
        subprocess.Popen([*command, part.__name__], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for part in (sampler, linear_times, attention_times)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", action="append", choices=[part.__name__ for part in PARTS])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.tiny:
        print("no CUDA device: only --tiny runs, in the interpreter (TRITON_INTERPRET=1)", file=sys.stderr)
        return 2
    bench = Bench(device, args.quick, args.tiny)
    card = torch.cuda.get_device_name() if device == "cuda" else "interpreter"
    bench.found |= {"card": card, "torch": torch.__version__, "triton": triton.__version__}
    print(f"{card}, torch {torch.__version__}, triton {triton.__version__}")
    beside = compile_beside(args) if device == "cuda" and not args.only else []
    for part in PARTS:
        if part is small_operations:  # what follows is timed on a quiet machine
            for process in beside:
                process.wait()
        if part.__name__ not in args.only if args.only else part is linear_tiles and not args.tune:
            continue
        begin = time.perf_counter()
        print(f"{part.__name__}")
        try:
            part(bench)
        except Exception:
            traceback.print_exc(limit=8, file=sys.stdout)
            bench.failed.append(part.__name__)
        print(f"  ({time.perf_counter() - begin:.1f} s)", flush=True)
    bench.found["failed"] = bench.failed
    if args.json:
        args.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    print("failed: " + ", ".join(bench.failed) if bench.failed else "all checks passed")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
