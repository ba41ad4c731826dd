"""Digests of the logits that forward passes compute: for changes of the engine that must not change a bit.

    python benchmarks/pass_digests.py --record FILE [--tiny]
    python benchmarks/pass_digests.py --compare FILE [--tiny]

--record writes {instruction set: {case: SHA-256 of the logits, float32}}, for every instruction set that this
processor has. --compare computes the same again and exits with 1, naming the first case that differs. A case
is a model, a type of key-value cache and a way to cut tokens into passes: prefill in chunks, single steps, a
chain and a tree of drafted tokens, several sequences in one pass, some rows only, parts of the vocabulary
only. The models are tiny random ones of every weight type and architecture, and those real ones that lie on
this machine. Either takes one to two minutes.

How tokens are cut into passes changes no bit either (docs/kernels.md), and neither does the instruction set;
tests/native asserts that. This file holds today's code against a recording of yesterday's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from tests.support.models import Dims, tiny_gguf, tiny_hf
from tests.support.real import real_model

from outrider.decoding.types import FloatArray
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeCache, NativeModel
from outrider.errors import ConfigError
from outrider.models.open import open_model
from outrider.models.quantization import quantized
from outrider.models.source import ModelSource
from outrider.models.weight_types import BLOCKS, SUPPORTED_TYPES

forward_subset = NativeModel.forward_subset  # a pass that computes some panels of the vocabulary only

ISAS = ("portable", "avx2", "avxvnni", "avx512", "amx", "neon")
ODD = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32)  # a tail block, an odd number of groups
LONG = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32, context=1024)
WINDOWS = replace(LONG, layers=3, window=40)  # of two layers in three, see tiny_models
REAL: dict[str, tuple[str | None, ...]] = {  # model: quantizations at load
    "smollm2": (None, "q3"),
    "qwen-coder-0.5b": (None, "q3"),
    "qwen-coder-1.5b": (None,),
    "gemma-3-270m": (None,),
}
SLOW = ("portable",)  # instruction sets that the real models run few tokens with
THREADS = 2
TREE = [-1, -1, 0, 0, 1, 2, 2, 5, 3, 7]  # parents: two roots, branches at three depths

Digests = dict[str, dict[str, str]]
Load = Callable[[str, str], NativeModel]  # of an instruction set and a type of cache


class Passes:
    """Forward passes of one model over tokens that its vocabulary's size decides."""

    def __init__(self, model: NativeModel) -> None:
        self.model = model
        random = np.random.default_rng(7)
        self.tokens = [int(i) for i in random.integers(0, model.vocab_size, 600)]
        self.more = [int(i) for i in random.integers(0, model.vocab_size, 600)]

    def item(
        self,
        cache: NativeCache,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
    ) -> ForwardItem:
        n = len(tokens)
        above = np.arange(-1, n - 1) if parents is None else np.array(parents)
        wanted = np.arange(n) if rows is None else np.array(rows)
        return ForwardItem(cache, np.array(tokens, np.int32), above.astype(np.int32), wanted.astype(np.int32))

    def prefill(self, count: int, chunk: int, rows: Sequence[int] | None = None) -> FloatArray:
        """Logits of the first `count` tokens, `chunk` in a pass."""
        cache = self.model.new_cache(count)
        parts = [self.tokens[i : min(i + chunk, count)] for i in range(0, count, chunk)]
        found = [self.model.forward([self.item(cache, part, rows=rows)])[0] for part in parts]
        cache.close()
        return np.concatenate(found)

    def after(self, count: int, tokens: Sequence[int], parents: Sequence[int] | None) -> list[FloatArray]:
        """Logits of drafted tokens after a prompt, and of what follows when their last path is kept."""
        cache = self.model.new_cache(count + len(tokens) + 2)
        self.model.forward([self.item(cache, self.tokens[:count], rows=())])
        scores = self.model.forward([self.item(cache, tokens, parents)])[0]
        above = [*range(-1, len(tokens) - 1)] if parents is None else parents
        path = [len(tokens) - 1]
        while above[path[0]] >= 0:
            path.insert(0, above[path[0]])
        cache.keep(count, [count + node for node in path])
        following = self.model.forward([self.item(cache, self.tokens[-2:])])[0]
        cache.close()
        return [scores, following]

    def together(self, sizes: Sequence[int]) -> list[FloatArray]:
        """Several sequences in one pass: a whole prompt each, then drafts of some lengths and a prefill."""
        caches = [self.model.new_cache(64) for _ in sizes]
        prompts = [self.tokens[10 * i : 10 * i + n] for i, n in enumerate(sizes)]
        first = self.model.forward([self.item(c, p) for c, p in zip(caches, prompts, strict=True)])
        work = [self.item(c, self.tokens[40 : 41 + 3 * i]) for i, c in enumerate(caches[:-1])]
        work.append(self.item(caches[-1], self.tokens[60:72], rows=()))
        second = self.model.forward(work)
        third = self.model.forward([self.item(caches[-1], self.tokens[72:73])])
        for cache in caches:
            cache.close()
        return [*first, *second, *third]

    def subset(self, count: int) -> list[FloatArray]:
        """Logits of some panels of the vocabulary: few, many, the first and the last."""
        last = (self.model.vocab_size - 1) // self.model.vocab_block_size
        cache = self.model.new_cache(count)
        found = []
        for panels in ([0, last], [*range(0, last, 3)], [*range(last // 2)], [last]):
            cache.truncate(0)
            work = [self.item(cache, self.tokens[:count], rows=[0, count - 1])]
            found += forward_subset(self.model, work, np.array(panels, np.int32))
        cache.close()
        return found


def cases(passes: Passes, small: bool) -> Iterator[tuple[str, list[FloatArray]]]:
    """(name, logits) of the ways to cut tokens into passes; `small` leaves out those of many tokens."""
    tokens = passes.tokens
    for chunk in (1, 11) if small else (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 16, 17, 20, 33, 64):
        yield f"prefill in chunks of {chunk}", [passes.prefill(12 if small else 64, chunk)]
    yield "last row of each chunk", [passes.prefill(12, 6, [5])]
    yield "rows out of order", [passes.prefill(12, 12, [8, 2, 11])]
    yield "chain of 8", passes.after(9, tokens[100:108], None)
    yield "tree of 10", passes.after(9, tokens[100:110], TREE)
    yield "sequences in one pass", passes.together((3, 5) if small else (7, 23, 1, 16))
    yield "panels of the vocabulary", passes.subset(3 if small else 20)
    if not small:
        star = [-1] * 12
        chains = [-1, *range(9), -1, *range(10, 19)]  # two chains of ten
        yield "tree of 12 roots", passes.after(30, tokens[100:112], star)
        yield "tree of two chains", passes.after(30, tokens[100:120], chains)


def slow_cases(passes: Passes) -> Iterator[tuple[str, list[FloatArray]]]:
    """The fewest that go through everything, for slow kernels and large models."""
    yield "tree of 10 after two tokens", passes.after(2, passes.tokens[100:110], TREE)


def long_cases(passes: Passes) -> Iterator[tuple[str, list[FloatArray]]]:
    """Contexts of several spans of attention (256 positions)."""
    for chunk in (5, 100, 250, 600):
        yield f"600 tokens in chunks of {chunk}", [passes.prefill(600, chunk)]
    yield (
        "tree across a span's end",
        passes.after(507, passes.tokens[100:109], [-1, -1, *range(1, 8)]),
    )


def past_windows(passes: Passes, count: int) -> Iterator[tuple[str, list[FloatArray]]]:
    """A text that is longer than the window of a model's layers and what their caches hold beyond it: a draft
    that is rolled back across the window's edge, and a path of a tree that is kept there."""
    cache = passes.model.new_cache(count + 200)
    found = []
    text = [*passes.tokens, *passes.more]
    for at in range(0, count, 100):
        found += passes.model.forward([passes.item(cache, text[at : min(at + 100, count)], rows=[0])])
    for tokens in (1, 1, 40, 24):  # drafted in several passes, and rejected together
        found += passes.model.forward([passes.item(cache, passes.tokens[:tokens])])
    cache.truncate(count - 20)
    found += passes.model.forward([passes.item(cache, passes.more[:10], TREE)])
    cache.keep(count - 20, [count - 20, count - 18, count - 15])
    for token in passes.more[20:60]:
        found += passes.model.forward([passes.item(cache, [token])])
    cache.close()
    yield f"drafts rolled back after {count} tokens", found


def digest(arrays: Sequence[FloatArray]) -> str:
    """SHA-256 of the arrays' shapes and bits."""
    found = hashlib.sha256()
    for array in arrays:
        assert array.dtype == np.float32
        found.update(repr(array.shape).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def tiny_models(folder: Path) -> Iterator[tuple[str, ModelSource, bool]]:
    """(name, source, whether its context is long): each weight type, architecture and format."""
    for kind in SUPPORTED_TYPES:
        for arch in ("llama", "qwen2"):
            tied = arch == "llama"
            dims = None if BLOCKS[kind][0] == 256 else ODD
            path = folder / f"{arch}-{kind}.gguf"
            yield (
                f"tiny {arch} gguf {kind}",
                open_model(tiny_gguf(path, arch=arch, types=kind, dims=dims, tied=tied)),
                False,
            )
    mixed = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"}
    parts = ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up")
    types = {**dict.fromkeys(parts, "Q4_K"), **mixed}
    yield "tiny llama gguf mixed", open_model(tiny_gguf(folder / "mixed.gguf", types=types)), False
    for arch in ("llama", "qwen2", "mistral"):
        for dtype in ("F32", "F16", "BF16"):
            tied = dtype != "F16"
            path = folder / f"{arch}-{dtype}"
            yield (
                f"tiny {arch} folder {dtype}",
                open_model(tiny_hf(path, arch=arch, dtype=dtype, tied=tied)),
                False,
            )
    wide = Dims(hidden=256, ffn=512)
    floats = open_model(tiny_hf(folder / "wide", dims=wide, tied=False))
    for name in ("q8_0", "q4_k", "q4", "q3"):
        yield f"tiny llama folder {name} at load", quantized(floats, name), False
    for kind in ("F32", "Q4_0"):
        path = tiny_gguf(folder / f"long-{kind}.gguf", types=kind, dims=LONG)
        yield f"tiny llama gguf {kind}, long", open_model(path), True
    pattern = {"gemma3.attention.sliding_window_pattern": 3}
    path = tiny_gguf(folder / "windows.gguf", arch="gemma3", types="Q8_0", dims=WINDOWS, keys=pattern)
    yield "tiny gemma3 gguf, windows", open_model(path), True
    path = tiny_hf(folder / "windows", arch="mistral", dims=LONG, config={"sliding_window": 60})
    yield "tiny mistral folder, a window", open_model(path), True


def real_models() -> Iterator[tuple[str, ModelSource]]:
    """(name, source) of the real models that lie on this machine."""
    for name, quantizations in REAL.items():
        path = real_model(name)
        if path is None:
            print(f"{name} is not on this machine: left out", file=sys.stderr)
            continue
        for quantization in quantizations:
            label = f"{name} {quantization} at load" if quantization else name
            yield label, quantized(open_model(path), quantization)


def usable_isas(source: ModelSource) -> list[str]:
    """The instruction sets that this processor has."""
    found = []
    for isa in ISAS:
        try:
            NativeModel.load(source, threads=1, isa=isa)
        except ConfigError:
            continue
        found.append(isa)
    return found


def digests(tiny_only: bool) -> Iterator[tuple[str, str, str]]:
    """(instruction set, case, digest) of everything."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = [*tiny_models(Path(folder))]
        isas = usable_isas(tiny[0][1])
        for isa in isas:
            for name, source, is_long in tiny:
                for kv_dtype in ("f16", "f32"):
                    passes = Passes(NativeModel.load(source, threads=THREADS, isa=isa, kv_dtype=kv_dtype))
                    for case, logits in long_cases(passes) if is_long else cases(passes, small=False):
                        yield isa, f"{name}, {kv_dtype} cache: {case}", digest(logits)
                    for case, logits in past_windows(passes, 400) if is_long else ():
                        yield isa, f"{name}, {kv_dtype} cache: {case}", digest(logits)
        for name, source in () if tiny_only else real_models():
            for isa in isas:
                passes = Passes(NativeModel.load(source, threads=THREADS, isa=isa))
                for case, logits in slow_cases(passes) if isa in SLOW else cases(passes, small=True):
                    yield isa, f"{name}: {case}", digest(logits)
                windows = any(layer.window for layer in source.architecture.layers)
                for case, logits in past_windows(passes, 1000) if windows and isa not in SLOW else ():
                    yield isa, f"{name}: {case}", digest(logits)


def compare(recorded: Mapping[str, Mapping[str, str]], tiny_only: bool) -> int:
    """0 where every case that both have is the same; else 1, at the first that is not."""
    seen = 0
    for isa, case, found in digests(tiny_only):
        wanted = recorded.get(isa, {}).get(case)
        if wanted is None:
            print(f"not recorded: {isa}: {case}", file=sys.stderr)
        elif wanted != found:
            print(f"differs: {isa}: {case}", file=sys.stderr)
            return 1
        else:
            seen += 1
    everything = sum(map(len, recorded.values()))
    print(f"{seen} cases are the same bit for bit; {everything - seen} more are recorded")
    return 0 if seen else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--record", type=Path, metavar="FILE")
    task.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--tiny", action="store_true", help="leave out the real models")
    args = parser.parse_args()
    if args.compare:
        return compare(json.loads(args.compare.read_text("utf-8")), args.tiny)
    found: Digests = {}
    for isa, case, value in digests(args.tiny):
        found.setdefault(isa, {})[case] = value
    args.record.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{sum(map(len, found.values()))} cases of {', '.join(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
