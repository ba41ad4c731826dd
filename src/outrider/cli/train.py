"""`outrider train`: makes an EAGLE-3 head for a target, or distils a draft model for it. Progress goes to
stderr, the result to stdout."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

from outrider.cli import options
from outrider.cli.interrupts import interrupts
from outrider.cli.parser import Parser, Subparsers, integer, number
from outrider.errors import ConfigError

TOKENS = 200_000  # without --tokens and --hours
NEEDED = ("torch", "safetensors")

_DESCRIPTION = """\
Make an EAGLE-3 head for a target: a small drafter that reads its hidden states. Or, with a draft model, train
that one further for the target. The target answers prompts, its own or those of a file, and the draft learns
from its answers. Ctrl-C keeps what there is; the same command goes on."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `train` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "train",
        help="train an EAGLE-3 head, or a draft model, for a target",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="MODEL", help="the same as -m")
    add("-m", "--model", metavar="MODEL", help="target: path, name or reference")
    add("-o", "--output", metavar="DIR", help="folder of what is made, and of the run that makes it")
    add("-md", "--draft-model", "--model-draft", "--speculative-model", dest="model_draft", metavar="MODEL",
        help="train this draft model, of the target's vocabulary, in the place of a head")  # fmt: skip
    add("-t", "--threads", type=integer, metavar="N", help="threads (default: one for each processor)")
    add("--device", default="cpu", metavar="NAME", help="cpu (default) or cuda, for the target as well")
    add(
        "--license",
        default="other",
        metavar="ID",
        help="of what is made, for its card (default: %(default)s)",
    )
    add = parser.add_argument_group("texts").add_argument
    add("--data", action="append", metavar="FILE|self",
        help="prompts: JSON lines as for bench, or one a line; self (default): the target's own; several "
        "times for all of them")  # fmt: skip
    add("--tokens", type=integer, metavar="N", help=f"of answers (default: {TOKENS:,})")
    add("--hours", type=number, metavar="H", help="instead, as many as make the whole take so long")
    add("--temps", metavar="LIST", help="temperatures of the answers, in turn (default: 0,0.7)")
    add("--max-prompt", type=integer, metavar="N", help="most tokens of a prompt (default: 512)")
    add("--max-answer", type=integer, metavar="N", help="most tokens of an answer (default: 384)")
    add = parser.add_argument_group("training").add_argument
    add(
        "--epochs",
        type=integer,
        metavar="N",
        help="times that each text is trained on (default: 4; 3 of a draft model)",
    )
    add("--vocab", type=integer, metavar="N",
        help="ids that a head can propose (default: for 95%% of held-out answers)")  # fmt: skip
    add("--steps", type=integer, metavar="N", help="tokens of a head's draft that are trained (default: 4)")
    add("--batch", type=integer, metavar="N", help="texts of an update (default: 2; 4 of a draft model)")
    add("--rate", type=number, metavar="X",
        help="highest learning rate (default: 0.001; 0.00006 of a draft model)")  # fmt: skip
    add("--rank", type=integer, metavar="R",
        help="of the changes of a draft model's matrices (default: 16); 0: all weights change")  # fmt: skip
    add("-s", "--seed", type=integer, metavar="S", help="of texts and training (default: 0)")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 130 when interrupted. Raises OutriderError."""
    model, _ = options.target(args)
    if args.output is None:
        raise ConfigError("give a folder for what is made: -o DIR")
    if args.tokens is not None and args.hours is not None:
        raise ConfigError("give --tokens or --hours, not both")
    if args.hours is not None and not 0 < args.hours < math.inf:
        raise ConfigError(f"--hours must be above 0, not {args.hours:g}")
    for flag, value in (("--vocab", args.vocab), ("--steps", args.steps)):
        if args.model_draft is not None and value is not None:
            raise ConfigError(
                f"{flag} is of heads: a draft model keeps its vocabulary, and learns each token by itself"
            )
    if args.model_draft is None and args.rank is not None:
        raise ConfigError("--rank is of draft models: all weights of a head are trained")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"train needs {' and '.join(missing)}: pip install 'outrider[train]'")
    from outrider.training.base_run import Order
    from outrider.training.run import run as train
    from outrider.training.settings import DRAFT_DEFAULTS, OWN, Settings

    given = _given(args)
    usual = {} if args.model_draft is None else DRAFT_DEFAULTS
    settings = Settings(**{"data": OWN, "tokens": TOKENS, **usual, **given})
    with interrupts() as seen:
        done = train(
            Order(
                model=model,
                draft=args.model_draft,
                folder=Path(args.output),
                settings=settings,
                given=frozenset({*given, "data"}),
                data=tuple(args.data or (OWN,)),
                hours=args.hours,
                device=args.device,
                threads=args.threads,
                license=args.license,
                stop=lambda: bool(seen),
                say=_say,
                shown=_shown,
            )
        )
    if not done:
        _say("interrupted; the same command goes on from here")
        return 130
    what = "the head" if args.model_draft is None else "the draft model"
    print(f"{args.output}: {what} is made; use it with -md {args.output}")
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line says."""
    names = (
        *("tokens", "epochs", "seed", "vocab", "steps", "batch", "rate", "rank"),
        *("max_prompt", "max_answer"),
    )
    found = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.temps is not None:
        found["temperatures"] = tuple(options.numbers("--temps", args.temps))
    return found


def _say(text: str) -> None:
    print(f"outrider train: {text}", file=sys.stderr, flush=True)


def _shown(text: str) -> None:
    """Only on a terminal, where the next line replaces it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[Koutrider train: {text}", end="\r", file=sys.stderr, flush=True)
