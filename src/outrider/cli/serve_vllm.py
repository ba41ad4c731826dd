"""`outrider serve --engine vllm`: vLLM's server as a child process, with Outrider's in front of it.

Its flags are Outrider's own for models, speculation, addresses, keys and limits, and all that the installed
vLLM
has: those are handed on as they are given.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from outrider.cli import options, serve
from outrider.cli.config_file import add_config
from outrider.cli.parser import Parser, Words, integer, is_flag, number
from outrider.config.vllm import ENGINE, VllmConfig, parse_vllm, parse_vllm_speculative
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.engines.vllm.launch import Launcher
    from outrider.engines.vllm.upstream import Upstream
    from outrider.server.run import Listening
    from outrider.server.settings import Settings

PLAIN_KEY = "OUTRIDER_PLAIN_REPLICA_KEY"
SELF_CHECKS = ("refuse", "strict", "off")
_FLAG = "--engine"
_default = "default: %(default)s"
_OLD_FLAGS = {
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "--speculative-max-model-len": "max_model_len",
    "--speculative-disable-by-batch-size": "disable_by_batch_size",
    "--spec-decoding-acceptance-method": "acceptance_method",
}  # of older versions of vLLM: their keys
_HELP = {  # of flags that other engines have, too
    "model": "target: a folder, or a name on the hub",
    "model_draft": "draft model or head: a folder, or a name on the hub",
    "engine": "vllm",
    "threads": "threads of vLLM's build for CPUs (OMP_NUM_THREADS)",
    "dtype": "of vLLM's weights",
    "gpu_memory_utilization": "the part of a card's memory that vLLM uses",
    "quantization": "of the target, as vLLM names it",
    "spec": "a method of the installed vLLM, auto (its choice by the draft, or ngram without one) or none",
    "draft": "most draft tokens per step (default: 5, or what the draft's own files say)",
    "verification": "acceptance rule: rejection or block (default: vLLM's)",
    "draft_quantization": "of the draft, as vLLM names it",
    **dict.fromkeys(("device", "exact", "weights_cache"), argparse.SUPPRESS),
}
_DESCRIPTION = """\
Serve a model with vLLM, started and watched by Outrider: its speculation checked and measured, with
Outrider's errors, keys, metrics and /v1/outrider/status. Flags that are not named here are vLLM's own."""


class PassingParser(Parser):
    """A parser that keeps flags that it does not know, each with the words behind it, for another program.

    passed: these groups of words, of the command line that was read last.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.passed: list[list[str]] = []

    def _arranged(self, args: list[str]) -> list[str]:
        self.passed = []
        return super()._arranged(args)

    def take_flag(self, word: str, rest: Words) -> list[str]:
        if word in self.actions or self.named(word.partition("=")[0]) is not None:
            return super().take_flag(word, rest)
        group = [word]
        while rest.next is not None and not is_flag(rest.next):
            group.append(rest.take())
        self.passed.append(group)
        return []


def chosen(words: Sequence[str]) -> bool:
    """Whether a command line of `serve` names this engine."""
    pairs = zip(words, [*words[1:], ""], strict=False)
    return any(word == f"{_FLAG}={ENGINE}" or (word, after) == (_FLAG, ENGINE) for word, after in pairs)


def make_parser(prog: str) -> Parser:
    """The parser of `serve --engine vllm`; `args.run` is `run`."""
    parser = PassingParser(
        prog=f"{prog} --engine {ENGINE}",
        usage=f"{prog} --engine {ENGINE} MODEL [flags] [vLLM's flags]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser)
    options.add_speculation(parser)
    for action in parser._actions:
        action.help = _HELP.get(action.dest, action.help)
    _add_engine(parser)
    _add_guard(parser)
    serve.add_address(parser)
    serve.add_keys(parser)
    serve.add_connection_limits(parser.add_argument_group("limits").add_argument)
    add_config(parser)

    def keep(args: argparse.Namespace) -> None:
        args.passed = parser.passed

    parser.settle = keep
    parser.set_defaults(run=run)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("engine").add_argument
    add("-np", "--parallel", "--max-num-seqs", dest="max_num_seqs", type=integer, metavar="N",
        help="most sequences in a pass (default: vLLM's own)")  # fmt: skip
    add("-s", "--seed", type=integer, metavar="S", help="of vLLM")
    add("--tokenizer", metavar="MODEL", help="take another model's tokenizer")
    add("--revision", metavar="NAME", help="branch, tag or commit of a hub repository")
    add("--vllm-python", metavar="FILE",
        help="the Python that has vLLM (also OUTRIDER_VLLM_PYTHON; default: this one)")  # fmt: skip
    add("--vllm-log", metavar="FILE", help="write vLLM's own output there (default: stderr, prefixed)")
    add("--vllm-start-timeout", type=number, default=1800, metavar="S",
        help=f"seconds in which vLLM must be ready ({_default})")  # fmt: skip
    for flag, key in _OLD_FLAGS.items():
        kind = str if key == "acceptance_method" else integer
        more = ("-spec-draft-tp",) if key == "draft_tensor_parallel_size" else ()
        add(flag, *more, dest=f"old_{key}", type=kind, help=argparse.SUPPRESS)


def _add_guard(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what speculation is worth").add_argument
    add("--self-check", choices=SELF_CHECKS, default=SELF_CHECKS[0],
        help="a few texts at the start, with speculation and scored without: refuse requests that this vLLM "
        f"samples wrongly, strict: do not start then, or off ({_default})")  # fmt: skip
    add("--plain-replica", metavar="URL",
        help="a server of the same model without speculation, to measure against (its key: "
        f"{PLAIN_KEY})")  # fmt: skip
    add("--worth-share", type=number, default=0.01, metavar="X",
        help=f"share of requests that are asked again for the measurement ({_default})")  # fmt: skip
    add("--never-slower", action="store_true",
        help="start vLLM anew with fewer draft tokens, or none, when speculation costs time")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises OutriderError, also when vLLM ends by itself."""
    from outrider.server.run import bind
    from outrider.server.settings import Settings

    settings, at = Settings(**serve.connection_settings(args)), serve.listening(args)
    if not 0 <= args.worth_share <= 1:
        raise ConfigError(f"--worth-share must be from 0 to 1, not {args.worth_share:g}")
    if not args.vllm_start_timeout > 0:
        raise ConfigError(f"--vllm-start-timeout must be more than 0, not {args.vllm_start_timeout:g}")
    with _log(args.vllm_log) as log:
        launcher = make_launcher(args, log)
        plain = _plain(args)
        with bind(at.host, at.port) as place:  # fails early if the port is taken
            _serve(args, launcher, plain, settings=settings, at=at, place=place)
    return 0


def make_launcher(args: argparse.Namespace, log: Callable[[str], object] | None) -> Launcher:
    """What starts vLLM by the parsed flags. Raises ConfigError for what the installed version cannot do."""
    from outrider.engines.vllm.installed import installed
    from outrider.engines.vllm.launch import Launcher
    from outrider.engines.vllm.translate import passed_flags

    version = installed(args.vllm_python)
    passed, words = passed_flags(args.passed, version)
    args.words = [*args.words, *words]
    return Launcher(config(args), version, passed, log)


def config(args: argparse.Namespace) -> VllmConfig:
    """vLLM's configuration of the parsed flags. Raises ConfigError."""
    model, _ = options.target(args)
    context, threads = args.ctx_size, options.sizes(args)[1]
    served = serve.served_names(args)
    choice = {name: value for name, value in options.engine_choice(args).items() if name != "engine"}
    return parse_vllm(
        model,
        _speculation(args) or None,
        threads=threads,
        max_model_len=context or None,
        max_num_seqs=args.max_num_seqs,
        seed=args.seed,
        tokenizer=args.tokenizer,
        revision=args.revision,
        quantization=args.quantization,
        kv_quantization=args.kv_quantization,
        weights_cache=args.weights_cache,
        served_model_name=list(served) or None,
        **choice,
    )


def _speculation(args: argparse.Namespace) -> dict[str, Any]:
    """vLLM's `speculative_config` of the flags; {} without any. Raises ConfigError."""
    old = {key: getattr(args, f"old_{key}") for key in _OLD_FLAGS.values()}
    return parse_vllm_speculative(options.given_speculation(args, **old))


def _plain(args: argparse.Namespace) -> Upstream | None:
    """What is measured against. Raises ConfigError."""
    from outrider.engines.vllm.upstream import Upstream

    if args.plain_replica is None:
        if args.never_slower:
            raise ConfigError(
                "--never-slower needs a server without speculation to measure against: --plain-replica URL"
            )
        return None
    return Upstream(args.plain_replica, os.environ.get(PLAIN_KEY, ""))


def _serve(
    args: argparse.Namespace,
    launcher: Launcher,
    plain: Upstream | None,
    *,
    settings: Settings,
    at: Listening,
    place: socket.socket,
) -> None:
    """Start vLLM, check it, and serve until a signal or its end."""
    from outrider.engines.vllm.process import VllmError
    from outrider.engines.vllm.starting import started
    from outrider.server.proxy.app import create_proxy
    from outrider.server.proxy.backend import Backend
    from outrider.server.proxy.guarded import About, Guarded
    from outrider.server.run import Server

    version = launcher.version
    names = settings.served_names or (launcher.config.model,)
    with stopping_on_signals() as stopped:
        launch, outcome = started(
            launcher,
            names[0],
            mode=args.self_check,
            seconds=args.vllm_start_timeout,
            stopped=stopped.is_set,
            say=serve.say,
        )
    why = (
        f"{version} {version.switch_words()}, and there is no plain replica (--plain-replica URL): "
        "what speculation is worth is not measured"
    )
    if launch.speculative and plain is None:
        serve.say(why)
    backend = Backend(launch.child, start_seconds=args.vllm_start_timeout, drain_seconds=at.shutdown_seconds)
    guarded = Guarded(
        backend,
        launch,
        About(names, launcher.config.model, version.version, why),
        outcome,
        launch=launcher,
        plain=plain,
        share=args.worth_share,
        never_slower=args.never_slower,
    )
    try:
        server = Server(create_proxy(guarded, settings), backend, settings, at)
        backend.on_failure = lambda: setattr(server, "should_exit", True)
        keys = bool(settings.api_keys)
        server.on_ready = lambda base: serve.say(
            serve.ready(base, names[0], chat=False, page=False, keys=keys)
        )
        logging.getLogger("outrider").setLevel(logging.INFO)
        server.run([place])
    finally:
        backend.stop()
    if backend.failure is not None:
        raise VllmError(backend.failure)


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, while vLLM starts."""
    stopped = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _log(name: str | None) -> Iterator[Callable[[str], object] | None]:
    """What takes vLLM's lines: a file's writer, or None for stderr. Raises ConfigError."""
    if name is None:
        yield None
        return
    try:
        file = Path(name).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--vllm-log: {name!r} cannot be written: {reason}") from None
    with file:

        def write(line: str) -> None:
            with contextlib.suppress(OSError, ValueError):
                file.write(f"{line}\n")

        yield write


def hook(parser: Parser) -> None:
    """Let `serve` read command lines of this engine with its own parser."""
    parser.instead = lambda words: make_parser(parser.prog) if chosen(words) else None
