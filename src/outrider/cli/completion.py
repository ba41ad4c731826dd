"""`outrider completion`: completion for shells, written from the parsers."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from outrider.cli.parser import Parser, Subparsers
from outrider.config.speculative import METHODS, VERIFICATIONS
from outrider.models.sources.bundled import BUNDLED
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.known import KNOWN

_DESCRIPTION = """\
Print a script that completes commands, flags and their values. To use it, add to the shell's start-up file:
  bash   source <(outrider completion bash)
  zsh    source <(outrider completion zsh)      (after compinit)
  fish   outrider completion fish | source"""
_WORDS = {
    "MODEL": tuple({**CATALOG, **KNOWN, **BUNDLED}),
    "METHOD": tuple(METHODS),
    "RULE": VERIFICATIONS,
}  # values by metavar
TOP_FLAGS = ("-h", "--help", "--version")
_FILES = re.compile("MODEL|FILE|DIR|PATH")  # metavars of what a file can be


class Values(NamedTuple):
    """What can follow a flag, or stand where no flag is: words, files, or any text without either."""

    words: tuple[str, ...] = ()
    files: bool = False


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
    return _SCRIPTS[shell](_commands(_subparsers_of(top)))


def commands(top: Parser) -> Mapping[str, Parser]:
    """The commands' parsers, without aliases."""
    return {command.names[0]: command.parser for command in _commands(_subparsers_of(top))}


class _Command(NamedTuple):
    names: tuple[str, ...]  # its own, and aliases, which are not offered
    help: str
    parser: Parser


def _subparsers_of(top: Parser) -> Subparsers:
    return next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))


def _commands(subparsers: Subparsers) -> list[_Command]:
    found = []
    for choice in subparsers._choices_actions:
        parser = subparsers.choices[choice.dest]
        aliases = [
            name for name, other in subparsers.choices.items() if other is parser and name != choice.dest
        ]
        found.append(_Command((choice.dest, *aliases), choice.help or "", parser))
    return found


def values(action: argparse.Action) -> Values | None:
    """The values of a flag or a positional argument; None for a switch."""
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return Values(tuple(str(choice) for choice in action.choices))
    metavar = str(action.metavar)
    return Values(_WORDS.get(metavar, ()), bool(_FILES.search(metavar)))


def _positional(parser: Parser) -> Values:
    """What may stand where no flag is."""
    found = [each for action in parser._get_positional_actions() if (each := values(action))]
    words = tuple(word for each in found for word in each.words)
    return Values(words, any(each.files for each in found))


def _flags(parser: Parser) -> Iterator[str]:
    for action in parser.flags():
        yield from action.option_strings


def _assigned(value: Values) -> str:
    """For bash and zsh: the values, as variables."""
    return f"values={shlex.quote(' '.join(value.words))} files={'1' if value.files else ''}"


def _case(parser: Parser) -> str:
    """For bash and zsh: the lines of a `case` that set `values` and `files` to what may follow a flag."""
    groups: dict[Values, list[str]] = {}
    for action in parser.flags():
        if (value := values(action)) is not None:
            groups.setdefault(value, []).extend(action.option_strings)
    return "\n".join(f"        {'|'.join(flags)}) {_assigned(value)} ;;" for value, flags in groups.items())


def _branches(found: Sequence[_Command]) -> str:
    """For bash and zsh: what each command's flags and values are."""
    return "\n".join(
        f"    {'|'.join(names)})\n"
        f"      flags={shlex.quote(' '.join(_flags(parser)))}\n"
        f"      case $before in\n{_case(parser)}\n"
        f"        *) {_assigned(_positional(parser))} ;;\n      esac ;;"
        for names, _, parser in found
    )


def _bash(found: Sequence[_Command]) -> str:
    names = " ".join(command.names[0] for command in found)
    return f"""\
# Completion of outrider for bash, written by `outrider completion bash`.
_outrider() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} flags= values= files=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    [ "${{word:0:1}}" = - ] && values={shlex.quote(" ".join(TOP_FLAGS))} || values={shlex.quote(names)}
    COMPREPLY=($(compgen -W "$values" -- "$word"))
    return
  fi
  if [ "$word" = = ]; then  # --flag=value is three words
    word=
  elif [ "$before" = = ]; then
    before=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  case ${{COMP_WORDS[1]}} in
{_branches(found)}
  esac
  if [ "${{word:0:1}}" = - ]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  else
    COMPREPLY=($(compgen -W "$values" -- "$word"))
    if [ -n "$files" ] && [ ${{#COMPREPLY[@]}} -eq 0 ]; then
      compopt -o default 2> /dev/null
    fi
  fi
}}
complete -F _outrider outrider
"""


def _zsh(found: Sequence[_Command]) -> str:
    names = "\n".join(f"    {shlex.quote(f'{command.names[0]}:{command.help}')}" for command in found)
    return f"""\
#compdef outrider
# Completion of outrider for zsh, written by `outrider completion zsh`.
_outrider() {{
  local before=${{words[CURRENT-1]}} word=${{words[CURRENT]}} command=${{words[2]}}
  local flags= values= files=
  local -a commands
  commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    if [[ $word == -* ]]; then
      compadd -- {" ".join(TOP_FLAGS)}
    else
      _describe command commands
    fi
    return
  fi
  if [[ $word == --*=* ]]; then  # --flag=value
    before=${{word%%=*}} word=${{word#*=}}
    compset -P '*='
  fi
  case $command in
{_branches(found)}
  esac
  if [[ $word == -* ]]; then
    compadd -- ${{=flags}}
  else
    [[ -n $values ]] && compadd -- ${{=values}}
    [[ -n $files ]] && _files
  fi
}}
if [[ ${{funcstack[1]-}} == _outrider ]]; then
  _outrider "$@"  # autoloaded from a folder of $fpath
elif (( $+functions[compdef] )); then
  compdef _outrider outrider
fi
"""


def _fish(found: Sequence[_Command]) -> str:
    lines = [
        "# Completion of outrider for fish, written by `outrider completion fish`.",
        "function __outrider_command",
        "  set -l given (commandline -opc)",
        '  if test (count $argv) -eq 0; test (count $given) -eq 1; else; contains -- "$given[2]" $argv; end',
        "end",
        "complete -c outrider -f",
    ]
    for flag in TOP_FLAGS:
        lines.append(f"complete -c outrider -n __outrider_command {_fish_flag(flag)}")
    for names, help_text, parser in found:
        lines.append(f"complete -c outrider -n __outrider_command -a {names[0]} -d {shlex.quote(help_text)}")
        seen = f"complete -c outrider -n '__outrider_command {' '.join(names)}'"
        lines.append(f"{seen}{_fish_values(_positional(parser))}")
        for action in parser.flags():
            spellings = " ".join(_fish_flag(flag) for flag in action.option_strings)
            value = values(action)
            takes = "" if value is None else f" -r{_fish_values(value)}"
            lines.append(f"{seen} {spellings}{takes} -d {shlex.quote(_said(action))}")
    return "\n".join(lines) + "\n"


def _fish_values(value: Values) -> str:
    words = f" -a {shlex.quote(' '.join(value.words))}" if value.words else ""
    return (" -F" if value.files else " -f") + words


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _said(action: argparse.Action) -> str:
    """The first words of a flag's help, as far as they say no default."""
    said = re.split(r" \(|;|: auto|: %", action.help or "")[0].strip()
    return "" if said.startswith("default:") else said.replace("%%", "%")


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
