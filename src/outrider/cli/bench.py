"""`outrider bench`: the speed-up of speculation over plain decoding on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from outrider.bench import report, workloads
from outrider.bench.workloads import Item
from outrider.cli import bench_endpoint, options
from outrider.cli.bench_output import STDOUT, check_writable, now, output, write
from outrider.cli.foreign import add_foreign
from outrider.cli.parser import Parser, Subparsers, integer
from outrider.config.speculative import (
    METHODS,
    NoneConfig,
    SpeculativeConfig,
    WithDraft,
    parse_speculative,
)
from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.base import LanguageModel
from outrider.errors import ConfigError, nearest

TEMPERATURE = 0.0
PLOT_ROUNDS = 5  # of the cost curve

_DESCRIPTION = """\
Measure drafters against plain decoding on the same prompts, with their steps interleaved, and check
that the tokens are the same. Speed-ups count decoding only, without the prompt's prefill.
Or, with --cost-curve, measure what a pass of the target over n tokens costs; with --synthetic, how fast
models of given shapes are; with --endpoint, how fast a running server answers."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `bench` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "bench",
        help="measure speculation against plain decoding",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser)
    group = parser.add_argument_group("what is measured")
    add = group.add_argument
    what = f"of {', '.join(METHODS)} (default: none, suffix, auto and, with -md, draft_model)"
    add("--methods", metavar="LIST", help=what)
    add(
        "--workload",
        action="append",
        metavar="NAME|FILE",
        help=f"{', '.join(workloads.EVERY)}, or a JSON-lines file, also one of MT-Bench or Spec-Bench; "
        f"may be repeated (default: the first {len(workloads.BUILT_IN)})",
    )
    add("--temps", metavar="LIST", help="several temperatures in one run, such as 0,0.7")
    add(
        "--cost-curve",
        action="store_true",
        help="instead, what a target pass over 1 to 32 tokens costs, at a context of -c tokens (default 256)",
    )
    add(
        "--synthetic",
        action="store_true",
        help="instead, the speed of models that are not here: -m and -md are shapes such as "
        "llama-3.1-8b:q4_k_m, weights are random, and draft tokens are accepted as --acceptance says",
    )
    add(
        "--acceptance",
        metavar="LIST",
        default="0.6,0.7,0.8,0.9",
        help="of --synthetic: probabilities that a draft token is accepted, or names of profiles that were "
        "recorded with real pairs, such as qwen-coder-code (default: %(default)s)",
    )
    add("--runs", type=integer, metavar="K", help="runs of each method (default: 3; of --cost-curve: 7)")
    add(
        "--seeds",
        type=integer,
        metavar="K",
        help="texts of each prompt above temperature 0, each with its own seed (default: 1)",
    )
    add("--limit", type=integer, metavar="N", help="only the first N prompts of each workload")
    add("--raw", action="store_true", help="prompts as they are, without the model's chat template")
    add(
        "-n", "--n-predict", type=integer, default=128, metavar="N", help="most tokens (default: %(default)s)"
    )
    options.add_draft_length(group)
    add(
        "--json",
        type=Path,
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="print one JSON document instead of a table; with FILE, write it there and print the table",
    )
    add(
        "--plot",
        type=Path,
        metavar="FILE.html",
        help="also write a page with plots, the cost curve among them (needs the extra 'plots')",
    )
    bench_endpoint.add_flags(parser)
    options.add_sampling(parser, temperature=TEMPERATURE)
    add_foreign(parser, "bench")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 1 when a method changed the tokens."""
    if bench_endpoint.asked(args):
        return bench_endpoint.run(args)
    if args.synthetic:
        from outrider.cli.bench_synthetic import synthetic

        return synthetic(args)
    if args.cost_curve:
        return cost_curve(args)
    args.runs = 3 if args.runs is None else args.runs
    params = options.sampling(args)
    params = replace(params, seed=0 if params.seed is None else params.seed)
    args.seeds = 1 if args.seeds is None else args.seeds
    limit = 1 if args.limit is None else args.limit
    for flag, value in (("--runs", args.runs), ("--seeds", args.seeds), ("--limit", limit)):
        if value < 1:
            raise ConfigError(f"{flag} must be at least 1, not {value}")
    temperatures = _temperatures(args)
    choices = _choices(args)
    items = _items(args.workload or workloads.BUILT_IN, args.limit)
    texts = [workloads.texts_per_prompt(args.seeds, t) for t in temperatures]
    workloads.texts_of(items, params.seed or 0, max(texts))  # raises before anything is loaded
    # Interleaved runs hold one sequence for each method.
    config = replace(options.engine(args, NoneConfig()), max_num_seqs=len(choices))
    check_writable(args)

    from outrider.bench.runner import measure
    from outrider.pipeline import build_all

    models: list[LanguageModel] = []  # the target first

    def watch(model: LanguageModel) -> LanguageModel:
        models.append(model)
        return model

    pipelines = {p.speculative.method: p for p in build_all(config, choices, wrap=watch)}
    total = len(items) * args.runs * sum(texts)
    with tqdm(total=total, unit="prompt", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def show(item: Item) -> None:
            bar.set_description(item.id)
            bar.update()

        document = measure(
            pipelines,
            items,
            params,
            temperatures=temperatures,
            runs=args.runs,
            seeds=args.seeds,
            raw=args.raw,
            on_text=show,
        )
    document["settings"] = settings(
        params, choices, runs=args.runs, seeds=args.seeds, raw=args.raw, temperatures=temperatures
    ) | {"command": args.command_line, "created": now()}
    if args.plot is not None:
        _add_cost_curve(document, models[0], config.threads)
    output(document, report.text, args.json)
    if args.plot is not None:
        from outrider.bench import page

        write("--plot", args.plot, page.html(document))
    same = all(m["identical"] for w in document["workloads"] for m in w["methods"].values())
    return 0 if same else 1


def _add_cost_curve(document: dict[str, Any], target: LanguageModel, threads: int | None) -> None:
    """Measure the target's cost curve, if the native engine runs it, and add it to the document."""
    from outrider.bench import cost_curve as curve
    from outrider.engines.native import NativeModel

    if isinstance(target, NativeModel) and target.max_positions > max(curve.WIDTHS):
        context = min(curve.CONTEXT, target.max_positions - max(curve.WIDTHS))
        measured = curve.measure(target, threads=threads, context=context, rounds=PLOT_ROUNDS)
        document["cost_curve"] = measured | {"rounds": PLOT_ROUNDS}


def cost_curve(args: argparse.Namespace) -> int:
    """`--cost-curve`: T(n) of the target alone, as a table or as JSON."""
    for flag, value in (
        *(("-md", args.model_draft), ("--methods", args.methods), ("--workload", args.workload)),
        *(("--limit", args.limit), ("--seeds", args.seeds), ("--raw", args.raw or None)),
        *(("--draft", args.draft), ("--temps", args.temps), ("--plot", args.plot)),
    ):
        if value is not None:
            raise ConfigError(f"{flag} has no meaning with --cost-curve, which times the target alone")
    rounds = 7 if args.runs is None else args.runs
    if rounds < 1:
        raise ConfigError(f"--runs must be at least 1, not {rounds}")
    check_writable(args)

    from outrider.bench import cost_curve as curve
    from outrider.engines.native import NativeModel
    from outrider.pipeline import load_target

    context = options.sizes(args)[0] or curve.CONTEXT
    args.ctx_size = 0
    config = options.engine(args, NoneConfig())
    model = load_target(config)
    if not isinstance(model, NativeModel):
        raise ConfigError("--cost-curve measures the native engine")
    with tqdm(
        total=rounds * len(curve.WIDTHS), unit="pass", file=sys.stderr, disable=not sys.stderr.isatty()
    ) as bar:
        document = curve.measure(
            model, threads=config.threads, context=context, rounds=rounds, on_pass=bar.update
        )
    output(document, curve.text, args.json)
    return 0


def settings(
    params: SamplingParams,
    choices: Sequence[SpeculativeConfig],
    *,
    runs: int,
    raw: bool,
    seeds: int = 1,
    temperatures: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The settings of a measurement, for its document. Of several temperatures, `temperature` is the
    first."""
    drafts = [c.num_speculative_tokens for c in choices if not isinstance(c, NoneConfig)]
    temperatures = temperatures or [params.temperature]
    return {
        "max_tokens": params.max_tokens,
        "temperature": temperatures[0],
        "temperatures": list(temperatures),
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": params.seed,
        "ignore_eos": params.ignore_eos,
        "num_speculative_tokens": max(drafts, default=0),
        "runs": runs,
        "seeds": seeds,
        "raw": raw,
        "seconds": "decoding, from the end of prefill to the last token",
    }


def _temperatures(args: argparse.Namespace) -> list[float]:
    if args.temps is None:
        return [args.temp]
    if args.temp != TEMPERATURE:
        raise ConfigError("give either --temp or --temps, not both")
    found = list(dict.fromkeys(_number("--temps", text) for text in args.temps.split(",")))
    for temperature in found:
        SamplingParams(temperature=temperature)  # raises ConfigError if it is out of range
    return found


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag} must be numbers separated by commas, not {text.strip()!r}") from None


def _choices(args: argparse.Namespace) -> list[SpeculativeConfig]:
    """The configurations of the methods to measure, the baseline first."""
    if args.draft is not None and args.draft < 1:
        raise ConfigError(f"--draft must be at least 1, not {args.draft}")
    if args.methods is None:
        names = ["none", "suffix", *(["draft_model"] if args.model_draft else []), "auto"]
    else:
        names = list(dict.fromkeys(["none", *(n.strip() for n in args.methods.split(","))]))
    found = []
    for name in names:
        if name not in METHODS:
            raise ConfigError(
                f"unknown method {name!r}{nearest(name, METHODS)}; choose of {', '.join(METHODS)}"
            )
        given: dict[str, Any] = {"method": name, "num_speculative_tokens": args.draft}
        if name == "ngram":
            given |= {
                "prompt_lookup_max": args.prompt_lookup_max,
                "prompt_lookup_min": args.prompt_lookup_min,
            }
        if name in ("draft_model", "eagle3"):
            if args.model_draft is None:
                raise ConfigError(f"the method {name!r} needs -md MODEL")
            given["model"] = args.model_draft
        if name == "auto":
            given["model"] = args.model_draft
        found.append(parse_speculative(given))
    if args.model_draft is not None and not any(isinstance(c, WithDraft) for c in found):
        raise ConfigError("-md is given, but --methods has none of 'draft_model', 'eagle3' and 'auto'")
    return found


def _items(names: Sequence[str], limit: int | None) -> list[Item]:
    items: dict[str, Item] = {}
    for name in names:
        taken: dict[str, int] = {}
        for item in workloads.load(name):
            taken[item.workload] = taken.get(item.workload, 0) + 1
            if limit is not None and taken[item.workload] > limit:
                continue
            if item.id in items:
                raise ConfigError(f"two prompts of the workloads have the id {item.id!r}")
            items[item.id] = item
    return list(items.values())
