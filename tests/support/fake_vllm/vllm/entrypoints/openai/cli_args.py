"""The flags of the double's server."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction


def make_arg_parser(parser: ArgumentParser) -> ArgumentParser:
    """Add them."""
    add = parser.add_argument
    add("model_tag", nargs="?")
    for flag in ("--host", "--api-key", "--speculative-config", "--dtype", "--tokenizer", "--revision"):
        add(flag)
    for flag in ("--port", "--max-model-len", "--max-num-seqs", "--seed", "--max-num-batched-tokens"):
        add(flag, type=int)
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--pipeline-parallel-size", "-pp", type=int, default=1)
    add("--distributed-executor-backend", choices=["ray", "mp", "uni"])
    add("--served-model-name", nargs="+")
    add("--enforce-eager", action=BooleanOptionalAction)
    add("--disable-log-stats", action="store_true")
    return parser
