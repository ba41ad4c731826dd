"""`outrider chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from outrider.cli import options
from outrider.cli.chat_session import COMMANDS, HINT, Answer, MessageReader, Next, Session, load
from outrider.cli.chat_terminal import Console, PlainConsole, TerminalConsole
from outrider.cli.colours import add_colour, wanted
from outrider.cli.escapes import unescaped
from outrider.cli.foreign import add_foreign
from outrider.cli.interrupts import interrupts
from outrider.cli.parser import Parser, Subparsers, integer
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import OutriderError
from outrider.outputs import Chunk
from outrider.pipeline import BasePipeline

_DESCRIPTION = """\
Talk to a model in the terminal. /help lists the commands: system message, answer again, save and load,
temperature, speculation on and off with its speed-up, tokens coloured by their source.
Where stdin is no terminal, every line is a message and the answers go to stdout."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `chat` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_models(parser, prompt=True)
    group = parser.add_argument_group("conversation")
    options.add_prompt(group)
    group.add_argument("-n", "--n-predict", type=integer, default=-1, metavar="N",
                       help="most tokens of an answer (default: as many as the context holds)")  # fmt: skip
    group.add_argument("--load", type=Path, metavar="FILE", help="go on with a conversation that /save saved")
    group.add_argument("--no-history", action="store_true", help="keep no file of what was typed")
    add_colour(group)
    options.add_speculation(parser)
    options.add_sampling(parser, temperature=0.8)
    options.add_form(parser)
    add_foreign(parser, "chat")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0. Raises OutriderError."""
    model, words = options.target(args, most_words=2)
    options.take_prompt(args, words)
    return run_with(args, model)


def run_with(args: argparse.Namespace, model: str) -> int:
    """Chat with a model, with the flags of `chat` or of `run`. Returns 0. Raises OutriderError."""
    args.n_predict = -1 if args.n_predict is None else args.n_predict
    session = Session(options.text_params(args), system=options.system_prompt(args))
    config = options.engine(args, options.speculation(args), model)
    template = options.chat_template(args)
    first = _first(args)
    if (saved := getattr(args, "load", None)) is not None:
        load(session, saved)

    from outrider.cli.chat_model import ChatModel

    made = ChatModel(config, template)
    session.model, session.max_context, session.switchable = made.name, made.context, made.switchable
    session.speculation = made.switchable
    session.colors = wanted(args.color)
    console: Console = PlainConsole()
    if sys.stdin.isatty() and sys.stdout.isatty():
        console = TerminalConsole(session.status, list(COMMANDS), _history(args))
        if not os.environ.get("NO_COLOR"):
            session.thoughts = lambda: made.thoughts
        console.say(f"{made.name}, {made.context} tokens of context. {HINT}.")
    return converse(session, made, console, first)


class Model(Protocol):
    """What answers, see `ChatModel`."""

    @property
    def last(self) -> Answer | None: ...

    def answer(
        self,
        messages: Sequence[Mapping[str, str]],
        params: SamplingParams,
        *,
        speculation: bool,
        salt: str,
        cancelled: Callable[[], bool],
    ) -> Iterator[Chunk]: ...


def converse(session: Session, model: Model, console: Console, first: str | None = None) -> int:
    """Read, answer, and so on until the input ends or /quit. Returns 0."""
    reader = MessageReader()
    while True:
        try:
            text, first = (_message(reader, console) if first is None else first), None
        except EOFError:
            return 0
        except KeyboardInterrupt:
            if not console.interactive:
                raise
            reader = MessageReader()
            console.say("Ctrl-D ends the chat")
            continue
        outcome = session.take(text)
        if outcome.text:
            console.say(outcome.text)
        if outcome.next is Next.QUIT:
            return 0
        if outcome.next is Next.ANSWER:
            _answer(session, model, console)


def _message(reader: MessageReader, console: Console) -> str:
    """The next message or command. Raises EOFError."""
    while True:
        try:
            line = console.read(going_on=reader.waiting)
        except EOFError:
            if not reader.waiting:
                raise
            return reader.rest()
        if "\n" in line and not reader.waiting and not line.startswith('"""'):
            return line  # typed or pasted as a whole
        for part in line.split("\n"):
            if (found := reader.feed(part)) is not None:
                return found


def _answer(session: Session, model: Model, console: Console) -> None:
    """Let the model answer. Ctrl-C stops it; what it has said stays in the conversation."""
    pieces: list[str] = []
    try:
        with interrupts() as interrupted:
            for chunk in model.answer(
                session.conversation(),
                session.answer_params(),
                speculation=session.speculation,
                salt=session.salt,
                cancelled=lambda: bool(interrupted),
            ):
                pieces.append(chunk.text)
                console.write(session.painted(chunk))
    except KeyboardInterrupt:  # the second one, before the step was done
        pass
    except OutriderError as error:
        session.unanswered()
        console.say(f"outrider: error: {error}; /clear begins a new conversation")
        return
    console.write("\n")
    answer = model.last
    if answer is None:
        answer = Answer("".join(pieces), len(pieces), None, 0, session.speculation, stopped=True)
    session.answered(answer)
    console.say(session.report(answer))


def rendered(
    pipeline: BasePipeline, template: str | None, messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Messages as a prompt for `LLM.stream`, by a template or the model's own. Raises OutriderError."""
    from outrider.cli.chat_model import Renderer

    return Renderer(pipeline, template).prompt(messages)


def _first(args: argparse.Namespace) -> str | None:
    """The first message, from -p or -f; -p - means that all of them come from stdin anyway."""
    if args.file is not None:
        text = options.read_file("-f", args.file).removesuffix("\n")
        return unescaped(text) if args.escape else text
    if args.prompt in (None, "-"):
        return None
    return unescaped(args.prompt) if args.escape else str(args.prompt)


def _history(args: argparse.Namespace) -> Path | None:
    from outrider.models.sources.download import cache_root

    return None if getattr(args, "no_history", False) else cache_root() / "chat_history"
