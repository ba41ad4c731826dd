"""`outrider completion`: completion for shells, written from the parsers."""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Iterator, Mapping

from outrider.cli.parser import Parser, Subparsers
from outrider.models.sources.catalog import CATALOG

_DESCRIPTION = """\
Print a script that completes commands, flags and their values. To use it, add to the shell's start-up file:
  bash   source <(outrider completion bash)
  zsh    source <(outrider completion zsh)
  fish   outrider completion fish | source"""
_MODEL_METAVARS = ("MODEL",)


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `completion` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for a shell",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="which shell")
    parser.set_defaults(run=functools.partial(run, subparsers))
    return parser


def run(subparsers: Subparsers, args: argparse.Namespace) -> int:
    """Print the script for these commands; returns 0."""
    print(_SCRIPTS[args.shell](_commands(subparsers)), end="")
    return 0


def script(shell: str, top: Parser) -> str:
    """The completion script of one shell for a whole command line."""
    return _SCRIPTS[shell](commands(top))


def commands(top: Parser) -> Mapping[str, Parser]:
    """The commands' parsers, without aliases."""
    return _commands(next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)))


def _commands(subparsers: Subparsers) -> Mapping[str, Parser]:
    names = [choice.dest for choice in subparsers._choices_actions]
    return {name: subparsers.choices[name] for name in names}


def values(action: argparse.Action) -> list[str] | None:
    """The values of a flag: a list of words, [] for a file or any text; None for a switch."""
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    return list(CATALOG) if action.metavar in _MODEL_METAVARS else []


def _flags(parser: Parser) -> Iterator[tuple[argparse.Action, str]]:
    for action in parser.flags():
        for flag in action.option_strings:
            yield action, flag


def _words(parser: Parser) -> list[str]:
    """What may stand where no flag is: the choices of positional arguments, or models."""
    found: list[str] = []
    for action in parser._get_positional_actions():
        found += values(action) or []
    return found


def _case(parser: Parser) -> str:
    """For bash and zsh: the lines of a `case` that set `values` to the words that may follow a flag."""
    groups: dict[str, list[str]] = {}
    for action, flag in _flags(parser):
        words = values(action)
        if words:
            groups.setdefault(" ".join(words), []).append(flag)
        elif words is not None:
            groups.setdefault("", []).append(flag)
    return "\n".join(
        f"          {'|'.join(flags)}) values={shlex.quote(words)}; known=1 ;;"
        for words, flags in groups.items()
    )


def _branches(parsers: Mapping[str, Parser]) -> str:
    """For bash and zsh: what each command's flags and words are."""
    found = []
    for name, parser in parsers.items():
        flags = " ".join(flag for _, flag in _flags(parser))
        found.append(
            f"    {name})\n"
            f"      flags={shlex.quote(flags)}\n"
            f"      words={shlex.quote(' '.join(_words(parser)))}\n"
            f"      case $before in\n{_case(parser)}\n      esac ;;"
        )
    return "\n".join(found)


def _bash(parsers: Mapping[str, Parser]) -> str:
    return f"""\
# Completion of outrider for bash, written by `outrider completion bash`.
_outrider() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} flags= words= values= known=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {shlex.quote(" ".join([*parsers, "--help", "--version"]))} -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{_branches(parsers)}
  esac
  if [ -n "$known" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
    [ ${{#COMPREPLY[@]}} -gt 0 ] || compopt -o default 2> /dev/null
  elif [ "${{word:0:1}}" = - ]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ ${{#COMPREPLY[@]}} -gt 0 ] || compopt -o default 2> /dev/null
  fi
}}
complete -F _outrider outrider
"""


def _zsh(parsers: Mapping[str, Parser]) -> str:
    names = "\n".join(f"    {shlex.quote(f'{name}:{_help(parser)}')}" for name, parser in parsers.items())
    return f"""\
#compdef outrider
# Completion of outrider for zsh, written by `outrider completion zsh`.
_outrider() {{
  local before=${{words[CURRENT-1]}} word=${{words[CURRENT]}} command=${{words[2]}}
  local flags= values= known= plain=
  local -a commands
  commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $command in
{_branches(parsers).replace("words=", "plain=")}
  esac
  if [[ -n $known ]]; then
    [[ -n $values ]] && compadd -- ${{=values}}
    _files
  elif [[ $word == -* ]]; then
    compadd -- ${{=flags}}
  else
    [[ -n $plain ]] && compadd -- ${{=plain}}
    _files
  fi
}}
(( $+functions[compdef] )) && compdef _outrider outrider
"""


def _fish(parsers: Mapping[str, Parser]) -> str:
    lines = ["# Completion of outrider for fish, written by `outrider completion fish`."]
    for name, parser in parsers.items():
        help_text = shlex.quote(_help(parser))
        lines.append(f"complete -c outrider -n __fish_use_subcommand -f -a {name} -d {help_text}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        if words := _words(parser):
            lines.append(f"complete -c outrider {seen} -a {shlex.quote(' '.join(words))}")
        for action in parser.flags():
            spellings = " ".join(_fish_flag(flag) for flag in action.option_strings)
            words = values(action) or []
            takes = "" if values(action) is None else " -r"
            choices = f" -f -a {shlex.quote(' '.join(words))}" if action.choices else ""
            lines.append(
                f"complete -c outrider {seen} {spellings}{takes}{choices} -d {shlex.quote(_said(action))}"
            )
    return "\n".join(lines) + "\n"


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _help(parser: Parser) -> str:
    return " ".join((parser.description or "").split("\n")[0].split()).rstrip(".")


def _said(action: argparse.Action) -> str:
    """The first words of a flag's help, as far as they need no values."""
    return (action.help or "").split(" (")[0].split(";")[0].replace("%(default)s", "").replace("%%", "%")


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
