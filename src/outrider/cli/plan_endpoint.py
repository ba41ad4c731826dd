"""The flags of `outrider plan` for a server that runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from tqdm import tqdm

from outrider.cli.parser import integer, number
from outrider.cli.server_flags import KEY, answer_seconds, api_key, refuse_local
from outrider.errors import ConfigError

WORKLOADS = ("chat", "code", "edit")
TIMEOUT = 300.0
_OTHERS = (
    *("model_draft", "quantization", "memory", "threads", "gpu", "candidates", "tensor_parallel"),
    *("draft_parallel", "utilization", "dtype"),
)  # dests of what is about models that are not served


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    add = parser.add_argument_group("a server that runs, instead").add_argument
    add("--endpoint", metavar="URL",
        help="with OpenAI's API, such as http://127.0.0.1:8000: what runs there, how fast it is with one "
        "client, and what its speculation is worth; -m then names the model to ask for")  # fmt: skip
    add("--against", metavar="URL", help="a server of the same model without speculation")
    add(
        "--rounds",
        type=integer,
        default=2,
        metavar="K",
        help="times that each prompt is asked (default: %(default)s)",
    )
    add("-n", "--n-predict", type=integer, default=96, metavar="N",
        help="most tokens of an answer (default: %(default)s)")  # fmt: skip
    add("--timeout", type=number, metavar="S", help=f"seconds an answer (default: {TIMEOUT:g})")
    add("--api-key-env", metavar="NAME", help=f"variable with the key (default: {KEY})")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns 0. Raises OutriderError."""
    from outrider.bench import workloads
    from outrider.engines.vllm.upstream import Upstream
    from outrider.plan import endpoint

    if args.endpoint is None:
        raise ConfigError("--against is what --endpoint is measured against: give that too")
    refuse_local(args, _OTHERS)
    for flag, value in (("--rounds", args.rounds), ("-n", args.n_predict)):
        if value < 1:
            raise ConfigError(f"{flag} must be at least 1, not {value}")
    seconds, key = answer_seconds(args, TIMEOUT), api_key(args)
    server = Upstream(args.endpoint, key)
    plain = None if args.against is None else Upstream(args.against, key)
    items = [item for name in WORKLOADS for item in workloads.load(name)[:2]]
    with tqdm(file=sys.stderr, disable=not sys.stderr.isatty(), bar_format="{desc}", leave=False) as bar:
        found = asyncio.run(
            endpoint.survey(
                server, plain, items, model=args.model, max_tokens=args.n_predict, rounds=args.rounds,
                seconds=seconds, progress=bar.set_description_str,
            )
        )  # fmt: skip
    print(json.dumps(found, ensure_ascii=False) if args.json else endpoint.text(found))
    return 0
