"""`outrider migrate`: the Outrider command for a command of vLLM or llama.cpp, and what it cannot do."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import sys
from typing import Any

from outrider.cli.foreign_flags import LLAMA
from outrider.cli.migrate_flags import (
    ADDED,
    DROPPED,
    KEPT,
    MISSING,
    RENAMED,
    Fate,
    Migration,
    spelled,
    without_secrets,
)
from outrider.cli.migrate_words import Started, Word, shell_words, started
from outrider.cli.parser import Parser, Subparsers
from outrider.errors import ConfigError

_DESCRIPTION = """\
Print the Outrider command for a command of vLLM (vllm serve, python -m vllm.entrypoints.openai.api_server) or
of llama.cpp (llama-server, llama-cli, llama-speculative, …). The command goes to stdout, and to stderr goes
what became of each flag. Nothing is run, and no file is read.
Exit status: 1 if a flag has no counterpart, so that the answers or the serving would differ."""

# Environment variables: those that mean the same here, and what others are called.
_SAME_VARIABLES = ("HF_", "HUGGING", "CUDA_", "OUTRIDER_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_RENAMED_VARIABLES = {"VLLM_API_KEY": "OUTRIDER_API_KEY", "LLAMA_API_KEY": "OUTRIDER_API_KEY"}
_FLAGS_IN_VARIABLES = "LLAMA_ARG_"  # before the names of llama.cpp's flags

_SAMPLING = (
    "requests that say nothing of sampling get the model's recommended values, else vLLM's defaults; "
    "llama-server's are --temp 0.8 --top-k 40 --top-p 0.95 --min-p 0.05"
)
_TEMPLATE = (
    "llama-cli of today puts a prompt into the model's chat template if it has one; add --chat for that"
)
_CONFIG = "--config: a key of the file that is unknown here is an error when the command starts"


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `migrate` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "migrate",
        help="translate a command of vLLM or llama.cpp",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="COMMAND",
        help="the command, in quotes or after --; without one, or with -, it is read from stdin",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=functools.partial(run, subparsers))
    return parser


def run(subparsers: Subparsers, args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 1 if something has no counterpart, else 0. Raises
    ConfigError."""
    found = document(_words(args.words), subparsers)
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(found["command"], flush=True)
        print(text(found), file=sys.stderr)
    return 0 if found["complete"] else 1


def document(words: list[Word], subparsers: Subparsers) -> dict[str, Any]:
    """What `--json` prints. `flags` has for each flag of theirs, and for what was added: `theirs`, `outcome`
    ("kept", "renamed", "dropped", "added" or "no counterpart"), `here` and `reason`, as texts."""
    theirs = started(words)
    command = _command(theirs)
    parser = subparsers.choices[command]
    migration = Migration(theirs, command, parser)
    fates = [*migration.fates, *_added(theirs, command, migration)]
    variables, environment = _environment(theirs)
    positional = migration.positional
    if any(word.startswith("-") for word in positional):
        positional = ["--", *positional]
    flags = [word for fate in fates for word in fate.here]
    arguments = [*flags, *positional] if positional[:1] == ["--"] else [*positional, *flags]
    fates += variables
    return {
        "command": " ".join([*environment, spelled(["outrider", command, *arguments])]),
        "program": theirs.program,
        "arguments": [command, *arguments],
        "environment": environment,
        "flags": [
            {
                "theirs": spelled(fate.theirs),
                "outcome": fate.outcome,
                "here": spelled(without_secrets(fate.here)) or None,
                "reason": fate.reason or None,
            }
            for fate in fates
        ],
        "notes": _notes(theirs, command, migration),
        "complete": not any(fate.outcome == MISSING for fate in fates),
    }


def text(found: dict[str, Any]) -> str:
    """What became of each flag, one line each; those that are kept together, and what is missing last."""
    lines = [("from", found["program"])]
    kept = [flag["theirs"].partition(" ")[0] for flag in found["flags"] if flag["outcome"] == KEPT]
    lines += [(KEPT, " ".join(kept))] if kept else []
    for outcome in (RENAMED, ADDED, DROPPED, MISSING):
        for flag in found["flags"]:
            if flag["outcome"] == outcome:
                here = f" → {flag['here']}" if outcome == RENAMED and flag["here"] else ""
                shown = flag["here"] if outcome == ADDED else flag["theirs"]
                lines.append((outcome, f"{shown}{here}" + (f": {flag['reason']}" if flag["reason"] else "")))
    lines += [("note", note) for note in found["notes"]]
    return "\n".join(f"{name:<15} {line}" for name, line in lines)


def _words(given: list[str]) -> list[Word]:
    """The words of their command: of one argument, of several, or of stdin."""
    if not given or given == ["-"]:
        if not given and sys.stdin.isatty():
            return []
        try:
            return shell_words(sys.stdin.buffer.read(1 << 20).decode("utf-8"))
        except ValueError:
            raise ConfigError("the command on stdin is not UTF-8 text") from None
    return shell_words(given[0]) if len(given) == 1 else [Word(word) for word in given]


def _command(theirs: Started) -> str:
    """The Outrider command: a program that takes a prompt chats without one, or if it is told to."""
    if theirs.program not in ("llama-cli", "llama-completion"):
        return theirs.command
    names = {word.partition("=")[0] for word in theirs.words}
    once = names & {"-st", "--single-turn", "-no-cnv", "--no-conversation"}
    asked = names & {"-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"}
    prompt = names & {"-p", "--prompt", "-f", "--file"}
    return "chat" if not once and (asked or not prompt) else "run"


def _added(theirs: Started, command: str, migration: Migration) -> list[Fate]:
    """Their defaults where ours are others, as flags."""
    found = []
    if theirs.command == "serve":
        if theirs.of == LLAMA and not migration.has("port"):
            found.append(Fate([], ADDED, ["--port", "8080"], "llama-server's default"))
        if theirs.of != LLAMA and not migration.has("host"):
            found.append(Fate([], ADDED, ["--host", "0.0.0.0"], "vLLM listens on every network"))
    if theirs.of == LLAMA and command == "run":
        if not migration.has("n_predict"):
            found.append(Fate([], ADDED, ["-n", "-1"], "llama.cpp's default"))
        if not migration.has("escape") and "\\" in "".join(migration.values("prompt")):
            found.append(Fate([], ADDED, ["-e"], "llama.cpp reads \\n and the like in prompts"))
    return found


def _environment(theirs: Started) -> tuple[list[Fate], list[str]]:
    """(what became of the variables, those in front of the Outrider command)."""
    fates, kept = [], []
    for name, value in theirs.environment:
        own = name if name.upper().startswith(_SAME_VARIABLES) else _RENAMED_VARIABLES.get(name)
        if own is not None:
            kept.append(f"{own}={value.text if value.text == value.variable else shlex.quote(value.text)}")
            here = [] if own == name else [own]
            fates.append(Fate([name], RENAMED if here else KEPT, here))
        elif name.startswith(_FLAGS_IN_VARIABLES):
            fates.append(Fate([name], MISSING, reason="flags are not read from variables; give the flag"))
        else:
            fates.append(Fate([name], DROPPED, reason="the variable is not read here"))
    return fates, kept


def _notes(theirs: Started, command: str, migration: Migration) -> list[str]:
    sampling = ("default_temperature", "default_top_k", "default_top_p", "default_min_p")
    found = []
    if theirs.program == "llama-server" and not migration.has(*sampling):
        found.append(_SAMPLING)
    if theirs.program == "llama-cli" and command == "run" and not migration.has("chat", "single_turn"):
        found.append(_TEMPLATE)
    if migration.has("config"):
        found.append(_CONFIG)
    return found
