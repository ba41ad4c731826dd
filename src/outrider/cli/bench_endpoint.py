"""The flags of `outrider bench` for a server that runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

from outrider.cli import options
from outrider.cli.bench_output import check_writable, now, output, write
from outrider.cli.parser import number
from outrider.cli.server_flags import KEY, answer_seconds, api_key, refuse_local
from outrider.errors import ConfigError
from outrider.version import __version__

if TYPE_CHECKING:
    from outrider.bench.endpoint import Load

WORKLOADS = ("chat", "code", "edit")
LIMIT = 4  # prompts of each
TIMEOUT = 300.0
_LOCAL = (
    *("model_draft", "methods", "seeds", "temps", "quantization", "kv_quantization", "threads"),
    *("draft", "spec", "speculative_config", "draft_quantization", "weights_cache"),
)  # dests of what is about models that this process would load
_Number = TypeVar("_Number", int, float)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    add = parser.add_argument_group("a server that runs, instead").add_argument
    add(
        "--endpoint",
        metavar="URL",
        help="with OpenAI's API, such as http://127.0.0.1:8000: its times, throughput and acceptance; -m "
        "then names the model to ask for",
    )
    add("--against", metavar="URL", help="a server to compare it with, in turn")
    add(
        "--clients",
        metavar="LIST",
        help="clients at a time, each with its next prompt when it has its answer, such as 1,4 (default: 1)",
    )
    add(
        "--rate",
        metavar="LIST",
        help="instead or besides, requests a second that arrive at random (a Poisson process), such as 0.5,2",
    )
    add("--timeout", type=number, metavar="S", help=f"seconds an answer (default: {TIMEOUT:g})")
    add("--api-key-env", metavar="NAME", help=f"variable with the key (default: {KEY})")


def asked(args: argparse.Namespace) -> bool:
    """Whether a server is to be measured. Raises ConfigError for its flags without one."""
    if args.endpoint is not None:
        return True
    for name in ("against", "clients", "rate", "timeout", "api_key_env"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is about a server that runs: give --endpoint too")
    return False


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns 0. Raises OutriderError."""
    from outrider.bench import endpoint, endpoint_page, endpoint_report, workloads
    from outrider.engines.vllm.upstream import Upstream

    refuse_local(args, _LOCAL)
    if args.synthetic or args.cost_curve or args.raw:
        flag = "--synthetic" if args.synthetic else "--cost-curve" if args.cost_curve else "--raw"
        raise ConfigError(f"{flag} has no meaning with --endpoint, whose server answers conversations")
    if options.sampling(args).temperature:
        raise ConfigError("--endpoint measures at temperature 0; leave --temp out")
    runs, limit = 1 if args.runs is None else args.runs, LIMIT if args.limit is None else args.limit
    for flag, value in (("--runs", runs), ("--limit", limit)):
        if value < 1:
            raise ConfigError(f"{flag} must be at least 1, not {value}")
    seconds = answer_seconds(args, TIMEOUT)
    items = [item for name in args.workload or WORKLOADS for item in workloads.load(name)[:limit]]
    loads = _loads(args, len(items))
    key = api_key(args)
    places = [Upstream(url, key) for url in (args.endpoint, args.against) if url is not None]
    check_writable(args)
    settings = endpoint.Settings(items, loads, args.model, args.n_predict, runs, seconds)
    with tqdm(file=sys.stderr, disable=not sys.stderr.isatty(), bar_format="{desc}", leave=False) as bar:
        document = asyncio.run(endpoint.measure(places, settings, bar.set_description_str))
    document |= {"command": args.command_line, "created": now(), "outrider": __version__}
    output(document, endpoint_report.text, args.json)
    if args.plot is not None:
        write("--plot", args.plot, endpoint_page.html(document))
    return 0


def _loads(args: argparse.Namespace, prompts: int) -> list[Load]:
    """Raises ConfigError."""
    from outrider.bench.endpoint import Load

    clients = "1" if args.clients is None and args.rate is None else args.clients
    found = [Load(clients=n) for n in _numbers("--clients", clients, int)]
    if found and (most := max(load.clients for load in found)) > prompts:
        raise ConfigError(
            f"{most} clients need as many prompts, and there are {prompts}: raise --limit, or name more "
            "workloads"
        )
    return found + [Load(rate=rate) for rate in _numbers("--rate", args.rate, float)]


def _numbers(flag: str, text: str | None, kind: Callable[[str], _Number]) -> list[_Number]:
    found = []
    for part in [] if text is None else text.split(","):
        try:
            value = kind(part)
        except ValueError:
            value = kind("0")
        if not 0 < value < 1e6:
            raise ConfigError(f"{flag} must be numbers above 0 with commas between, not {part.strip()!r}")
        found.append(value)
    return found
