"""The `outrider` command.

Exit status: 0 success; 1 a check failed (bench, demo, verify: the output changed; plan: it does not fit);
2 bad input, a model that cannot be used, or output that cannot be written, with one line on stderr;
130 interrupted; 141 the reader of the output has closed it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from outrider.cli import foreign
from outrider.cli.config_file import add_config
from outrider.cli.parser import Parser
from outrider.cli.watched_output import watched_output
from outrider.errors import OutriderError
from outrider.version import __version__

# Modules of commands, in the order of the help. One is imported when its command is asked for: all of them
# take a second.
MODULES = (
    *("run", "chat", "serve", "bench", "verify", "plan", "migrate", "train"),
    *("pull", "models", "info", "doctor", "demo", "completion"),
)
_MODULE_OF = {
    **{name: name for name in MODULES if name != "models"},
    **dict.fromkeys(("list", "ls", "rm"), "models"),
}

_READ_ALL = ("migrate", "completion")  # need the parsers of other commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit status."""
    if sys.stdin is None:  # closed by whoever started the process
        sys.stdin = open(os.devnull)  # noqa: SIM115
    with watched_output() as watched:
        try:
            status = _run(argv)
            sys.stdout.flush()
        except OutriderError as e:
            return _failed(_one_line(str(e)))
        except KeyboardInterrupt:
            return 130
        except SystemExit as e:  # --help
            status = e.code if isinstance(e.code, int) else 0
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            if not any(stream.error for stream in watched):
                raise
        except OSError as e:
            if not any(stream.error for stream in watched):
                raise
            status = 141 if isinstance(e, BrokenPipeError) else 2
        errors = [stream.error for stream in watched if stream.error is not None]
        if not errors:
            return status
        if any(isinstance(error, BrokenPipeError) for error in errors):
            return 141
        return _failed(f"the output cannot be written: {errors[0].strerror or errors[0]}")


def _run(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    args = parser(words[0] if words else None).parse_args(argv)
    args.command_line = shlex.join(["outrider", *words])
    for note in foreign.notes(args):
        print(f"outrider: note: {note}", file=sys.stderr)
    if getattr(args, "llama_offline", None):
        os.environ["OUTRIDER_OFFLINE"] = "1"
    status: int = args.run(args)
    return status


def parser(first: str | None = None) -> Parser:
    """The command line: the whole of it, or as much as one that begins with the word `first` needs."""
    if first == "--version":
        return _made(())[0]
    if first in _MODULE_OF and first not in _READ_ALL:
        return _made((_MODULE_OF[first],))[0]
    return _made(MODULES)[0]


def _made(modules: Sequence[str]) -> tuple[Parser, Mapping[str, Parser]]:
    """(a command line of these modules, its commands by name)."""
    top = Parser(prog="outrider", description="Lossless speculative decoding for large language models.")
    top.add_argument("--version", action="version", version=f"outrider {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in modules:
        importlib.import_module(f"outrider.cli.{name}").add_parser(commands)
    choices: Mapping[str, Parser] = commands.choices
    if "serve" in choices:
        importlib.import_module("outrider.cli.serve_vllm").hook(choices["serve"])
    for each in {id(command): command for command in choices.values()}.values():
        add_config(each)
        each.siblings = _all_commands
    return top, choices


@functools.cache
def _all_commands() -> Mapping[str, Parser]:
    return _made(MODULES)[1]


def _failed(text: str) -> int:
    """Say why, as far as anybody can be told."""
    with contextlib.suppress(OSError):
        print(f"outrider: error: {text}", file=sys.stderr, flush=True)
    return 2


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


if __name__ == "__main__":
    sys.exit(main())
