"""`--config FILE`: a YAML mapping from flags' names to values, as in vLLM. The command line comes first.

No error shows a value of the file: it may be a key.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from outrider.cli.parser import Parser
from outrider.errors import ConfigError, nearest

MAX_BYTES = 1 << 20
FLAG = "--config"


def add_config(parser: Parser) -> None:
    """Add `--config FILE` to a command."""
    parser.add_argument(
        FLAG,
        metavar="FILE",
        help="flags from a YAML file, one `name: value` a line; those given here come first",
    )
    parser.expand = functools.partial(inserted, parser)


def inserted(parser: Parser, flags: Sequence[str], words: Sequence[str]) -> list[str]:
    """The flags of the command line, with those of its `--config` file before them.

    A flag that the command line has, in whatever spelling, is not taken from the file; nor is the model where
    `words`, the positional arguments, begin with it. Raises ConfigError.
    """
    names = [flag.partition("=")[2] for flag in flags if flag.startswith(f"{FLAG}=")]
    if not names:
        return list(flags)
    if len(names) > 1:
        _refuse(names[1], "give one file")
    heads = [flag.split("=", 1)[0] for flag in flags]
    given = {_setting(parser.actions[head]) for head in heads if head in parser.actions}
    found: list[str] = []
    for key, value in read(names[0]).items():
        action = _action(parser, key, names[0])
        if _setting(action) in given or (action.dest == "model" and words and not _takes_prompt(parser)):
            continue
        found += arguments(key, value, action, names[0])
    return [*found, *flags]


def read(name: str) -> Mapping[str, Any]:
    """The file's mapping. Raises ConfigError, in one line, for a file that is none."""
    import yaml  # only this needs it

    class Loader(yaml.SafeLoader):
        """Plain data, without references, which could grow without bound."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.MarkedYAMLError(problem="references (*name) are not read", problem_mark=mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            """With keys as they are written: `yes` is a flag's name, too."""
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="a key must be a name", problem_mark=key.start_mark)
            return {key.value: self.construct_object(value, deep=True) for key, value in node.value}

    try:
        with Path(name).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            _refuse(name, f"it is larger than {MAX_BYTES >> 20} MB")
        value = yaml.load(text.decode("utf-8"), Loader)
    except OSError as error:
        _refuse(name, f"it cannot be read: {error.strerror}")
    except (UnicodeDecodeError, RecursionError):
        _refuse(name, "it is not YAML text")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        _refuse(name, f"it is not YAML{place}: {getattr(error, 'problem', None) or 'it cannot be read'}")
    if not isinstance(value, dict):
        _refuse(name, "it must be a mapping from flags to values, such as `port: 8000`")
    return value


def arguments(key: str, value: Any, action: argparse.Action, name: str) -> list[str]:
    """The flag with its value, as it would stand on the command line; none where it is off."""
    flag = action.option_strings[0] if not key.startswith("-") else key
    if value is None:
        return []
    if isinstance(value, list) and _repeats(action):
        texts = [_text(part, key, name) for part in value]
        if action.nargs in ("+", "*") or isinstance(action.nargs, int):
            return [flag, *texts] if texts else []
        return [f"{flag}={text}" for text in texts]
    if isinstance(value, bool):
        return _switch(flag, value, action)
    if action.nargs == 0:
        _refuse(name, f"{key} must be true or false")
    if action.nargs in ("+", "*"):
        return [flag, _text(value, key, name)]
    return [f"{flag}={_text(value, key, name)}"]


def _switch(flag: str, value: bool, action: argparse.Action) -> list[str]:
    """true and false (in YAML also on, off, yes and no)."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return [next(name for name in action.option_strings if name.startswith("--no-") != value)]
    if action.nargs == 0 or (action.nargs == "?" and value):
        return [flag] if value else []
    words = ("on", "off") if action.choices and "on" in action.choices else ("true", "false")
    return [f"{flag}={words[0] if value else words[1]}"]


def _repeats(action: argparse.Action) -> bool:
    kinds = (argparse._AppendAction, argparse._ExtendAction)
    return isinstance(action, kinds) or action.nargs in ("+", "*") or isinstance(action.nargs, int)


def _text(value: Any, key: str, name: str) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    if not isinstance(value, str | int | float):
        _refuse(name, f"{key} has a value of a kind that no flag takes; put it in quotes")
    text = str(value)
    if "\0" in text:
        _refuse(name, f"{key} holds a NUL")
    return text


def _action(parser: Parser, key: str, name: str) -> argparse.Action:
    """What a key's flag does; the name is a flag's without its dashes, `_` standing for `-` too."""
    plain = key.strip("-").replace("_", "-")
    flags = [flag for flag in (key, f"--{plain}", f"-{plain}") if flag in parser.actions]
    if not flags or parser.actions[flags[0]].dest in ("config", "help"):
        guess = nearest(f"--{plain}", parser.suggestions()).replace("'--", "'")
        _refuse(name, f"unknown key {key[:80]!r}{guess}")
    return parser.actions[flags[0]]


def _setting(action: argparse.Action) -> str:
    """What an action sets, whatever its spelling."""
    return action.option_strings[0] if action.dest == argparse.SUPPRESS else action.dest


def _takes_prompt(parser: Parser) -> bool:
    """Whether a single positional argument is a prompt where the file names the model."""
    return "--prompt" in parser.actions


def _refuse(name: str, why: str) -> NoReturn:
    raise ConfigError(f"--config {name!r}: {why}")
