"""The `outrider` command.

Exit status: 0 success; 1 a check failed (bench, demo, verify: the output changed); 2 bad input or a model
that cannot be used, with one line on stderr; 130 interrupted; 141 the reader of stdout has closed it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from outrider.cli import bench, demo, pull, run, serve, verify
from outrider.cli.parser import Parser
from outrider.errors import OutriderError
from outrider.version import __version__

COMMANDS = (run, serve, bench, verify, pull, demo)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # characters outside the terminal's encoding must not raise
            stream.reconfigure(errors="replace")
    try:
        args = parser().parse_args(argv)
        args.command_line = shlex.join(["outrider", *(sys.argv[1:] if argv is None else argv)])
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except OutriderError as e:
        print(f"outrider: error: {_one_line(str(e))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of stdout has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail
        return 141


def parser() -> Parser:
    """The whole command line."""
    top = Parser(prog="outrider", description="Lossless speculative decoding for large language models.")
    top.add_argument("--version", action="version", version=f"outrider {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add_parser(commands)
    return top


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


if __name__ == "__main__":
    sys.exit(main())
