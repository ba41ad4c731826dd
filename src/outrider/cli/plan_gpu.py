"""The flags of `outrider plan` for graphics cards."""

from __future__ import annotations

import argparse
from dataclasses import replace

from outrider.cli.parser import integer, number
from outrider.config.quantization import KV_QUANTIZATIONS, TORCH_QUANTIZATIONS, kv_quantization
from outrider.device_memory import DTYPE_BYTES, UTILIZATION
from outrider.errors import ConfigError
from outrider.plan.cards import parse_cards
from outrider.plan.document import Pair
from outrider.plan.gpu import GpuPlace, place_on
from outrider.plan.gpu_memory import Setup

ENGINES = ("auto", "native", "torch", "vllm")
EIGHT_BITS = "fp8"  # vLLM's name


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    add = parser.add_argument_group("on graphics cards").add_argument
    add("--gpu", metavar="CARD",
        help='"RTX 4090", "H100-80GB x 2", or its numbers: "24GiB 1008GB/s"')  # fmt: skip
    add("--engine", choices=ENGINES, default="auto", metavar="NAME",
        help="what runs the models: %(choices)s (default: native; on cards torch or vllm)")  # fmt: skip
    add("-tp", "--tensor-parallel-size", dest="tensor_parallel", type=integer, metavar="N",
        help="cards that vLLM divides the target among (default: the fewest that hold it)")  # fmt: skip
    add("--draft-tensor-parallel-size", "--spec-draft-tp", dest="draft_parallel", type=integer, metavar="N",
        help="the same for the draft model: as many, or 1")  # fmt: skip
    add("--gpu-memory-utilization", dest="utilization", type=number, metavar="X",
        help=f"part of a card's memory that is used (default: {UTILIZATION})")  # fmt: skip
    add("--dtype", choices=tuple(DTYPE_BYTES), metavar="TYPE",
        help="of weights that are floats: %(choices)s (default: bfloat16)")  # fmt: skip
    add("--kv-cache-dtype", "--kv-quantization", dest="cache_dtype", default="auto", metavar="TYPE",
        help=f"of keys and values: {' or '.join(KV_QUANTIZATIONS)} with native, {EIGHT_BITS} with vLLM "
        "(default: %(default)s)")  # fmt: skip


def check(args: argparse.Namespace) -> str:
    """The engine that is meant. Raises ConfigError for flags that do not go together."""
    if args.gpu is None:
        given = {
            "--tensor-parallel-size": args.tensor_parallel,
            "--draft-tensor-parallel-size": args.draft_parallel,
            "--gpu-memory-utilization": args.utilization,
            "--dtype": args.dtype,
        }
        if args.engine not in ("auto", "native"):
            raise ConfigError(f"--engine {args.engine} is planned for graphics cards: name them with --gpu")
        if (flag := next((flag for flag, value in given.items() if value is not None), None)) is not None:
            raise ConfigError(f"{flag} is for graphics cards: name them with --gpu")
        kv_quantization(args.cache_dtype)
        if args.quantization in TORCH_QUANTIZATIONS:
            raise ConfigError(f"--quantization {args.quantization} is planned for graphics cards: use --gpu")
        return "native"
    _, count = parse_cards(args.gpu)
    several = count > 1 or args.tensor_parallel is not None
    engine = str(args.engine) if args.engine != "auto" else "vllm" if several else "torch"
    if engine == "native":
        raise ConfigError("--engine native runs on the CPU; leave out --gpu, or take --engine torch or vllm")
    for flag, value in (("--memory", args.memory), ("--threads", args.threads)):
        if value is not None:
            raise ConfigError(f"{flag} is for the CPU; --gpu-memory-utilization limits a card's memory")
    if args.utilization is not None and not 0 < args.utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization must be above 0 and at most 1, not {args.utilization}")
    if engine == "torch":
        if args.quantization not in (None, *TORCH_QUANTIZATIONS) or args.cache_dtype != "auto":
            raise ConfigError(
                "the torch engine holds weights, keys and values as --dtype says, but for "
                f"--quantization {' or '.join(TORCH_QUANTIZATIONS)}"
            )
        return engine
    if args.cache_dtype not in ("auto", EIGHT_BITS):
        raise ConfigError(
            f"vLLM's --kv-cache-dtype is auto or {EIGHT_BITS} here; {args.cache_dtype!r} is not"
        )
    if args.quantization not in (None, EIGHT_BITS):
        raise ConfigError(f"vLLM's --quantization at load is {EIGHT_BITS}; {args.quantization!r} is not")
    return engine


def place_of(args: argparse.Namespace, engine: str, pair: Pair) -> GpuPlace:
    """Where `args.gpu` puts the pair. Raises ConfigError."""
    card, count = parse_cards(args.gpu)
    assert engine in ("torch", "vllm")
    setup = Setup("torch" if engine == "torch" else "vllm", card)
    if args.utilization is not None:
        setup = replace(setup, utilization=args.utilization)
    setup = replace(
        setup,
        dtype=args.dtype or setup.dtype,
        eight_bit_weights=args.quantization == EIGHT_BITS,
        eight_bit_cache=args.cache_dtype == EIGHT_BITS,
        quantization=args.quantization if engine == "torch" else None,
    )
    return place_on(setup, count, pair, size=args.tensor_parallel, draft_size=args.draft_parallel)
