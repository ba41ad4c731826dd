"""`outrider demo`: the default model on three prompts, plainly and with speculation, side by side."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.bench import stats, workloads
from outrider.bench.workloads import Item
from outrider.cli.parser import Parser, Subparsers, integer
from outrider.config.engine import EngineConfig
from outrider.config.speculative import DraftModelConfig, NgramConfig, NoneConfig, SpeculativeConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError

MODEL = "smollm2"
PAIR = ("qwen-coder-1.5b", "qwen-coder-0.5b")
PROMPTS = ("chat-tea", "code-primes", "edit-port")  # a question, code, and an edit that copies its prompt
PAIR_TOKENS = 96


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `demo` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "demo",
        help="show what speculation does, on the default model",
        description="Generate on three prompts, plainly and with speculation, and compare tokens and time.",
    )
    parser.add_argument(
        "-n", "--n-predict", type=integer, default=200, metavar="N", help="most tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--no-pair", action="store_true", help="leave out the Qwen pair even when it is there"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 1 when speculation changed a token."""
    if args.n_predict < 1:
        raise ConfigError(f"-n must be at least 1, not {args.n_predict}")
    ngram = NgramConfig(num_speculative_tokens=5, prompt_lookup_max=4, prompt_lookup_min=2)
    same = _show(MODEL, [NoneConfig(), ngram], args.n_predict)
    pair = None if args.no_pair else present_pair()
    if pair is not None:
        target, draft = map(str, pair)
        choices: list[SpeculativeConfig] = [NoneConfig(), ngram]
        choices.append(DraftModelConfig(draft, num_speculative_tokens=4))
        same &= _show(target, choices, min(args.n_predict, PAIR_TOKENS))
    return 0 if same else 1


def present_pair() -> tuple[Path, Path] | None:
    """The Qwen target and draft, if they lie in the cache or in OUTRIDER_DEV_MODELS; fetches nothing."""
    from outrider.models.sources.catalog import CATALOG
    from outrider.models.sources.download import cache_root
    from outrider.models.sources.pypi import catalog_path

    found = []
    for name in PAIR:
        model = CATALOG[name]
        places = [catalog_path(model, cache_root())]
        if folder := os.environ.get("OUTRIDER_DEV_MODELS"):
            places.append(Path(folder) / model.file_name)
        there = [p for p in places if p.is_file() and p.stat().st_size == model.size]
        if not there:
            return None
        found.append(there[0])
    return found[0], found[1]


def _show(model: str, choices: Sequence[SpeculativeConfig], max_tokens: int) -> bool:
    """Generate with every choice, the first of which is plain decoding, and print the comparison."""
    from outrider.bench.race import Contestant, race
    from outrider.bench.runner import prompt_of
    from outrider.pipeline import build_all

    config = EngineConfig(model, max_num_seqs=len(choices))
    pipelines = build_all(config, choices)
    contestants = {p.speculative.method: Contestant(p) for p in pipelines}
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    print(
        f"\n{pipelines[0].source.display_name}, up to {max_tokens} tokens a prompt, temperature 0", flush=True
    )
    items = [item for w in workloads.BUILT_IN for item in workloads.load(w) if item.id in PROMPTS]
    ratios: dict[str, list[float]] = {method: [] for method in contestants}
    same = True
    for item in items:
        prompt = prompt_of(pipelines[0], item.prompt, raw=False)
        _progress(item)
        runs = race(contestants, prompt, params)
        _progress(None)
        plain = next(iter(runs.values()))
        print(f"\n[{item.workload}] {_short(item.prompt)}\n> {_short(plain.output.outputs[0].text, 300)}")
        for method, one in runs.items():
            identical = one.token_ids == plain.token_ids
            same &= identical
            ratios[method].append(plain.seconds / one.seconds)
            count, rate = len(one.token_ids), one.output.metrics.to_dict()["acceptance_rate"]
            print(
                f"  {method:<12} {count:>4} tokens  {count / one.seconds:7.1f} tokens/s"
                f"  ×{ratios[method][-1]:.2f}  {'identical' if identical else 'DIFFERENT'}"
                + ("" if rate is None else f"  ({rate:.0%} of the drafted tokens accepted)"),
                flush=True,
            )
    means = ", ".join(f"{m} ×{stats.geomean(r):.2f}" for m, r in ratios.items() if m != "none")
    print(
        f"\nSpeed-up, geometric mean of the three: {means}. Tokens {'the same' if same else 'NOT the same'}."
    )
    return same


def _progress(item: Item | None) -> None:
    if sys.stderr.isatty():
        line = "" if item is None else f"{item.id} …"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _short(text: str, limit: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
