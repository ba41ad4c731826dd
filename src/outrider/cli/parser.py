"""An argument parser that reads flags as llama.cpp does and raises ConfigErrors of one line.

A flag is read whole or not at all: `-ngl 99` is never `-n gl`, and nothing is completed. A number may follow
a short flag at once (`-n32`), `_` stands for `-` inside a long flag, as in vLLM, and a value may begin with
one `-` where no flag has that name. Flags and positional arguments may stand in any order.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias

from outrider.errors import ConfigError, nearest

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

_GLUED = re.compile(r"(-[A-Za-z]+)([-+]?\d+(?:\.\d+)?)")
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations; it raises ConfigError where argparse would exit with status 2.

    siblings: gives the parsers of all commands by name, so that a flag of another command can be told.
    expand:   called with the flags and the positional arguments of the command line; returns the flags to
              read in place of these. For `--config FILE`.
    settle:   called with the parsed arguments, to bring other spellings of a setting together.
    instead:  called with the words of the command line; returns the parser that reads it in the place of this
              one, or None. For an engine whose flags are its own.
    spelled:  the flags of the command line that was read last, as they were spelled.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.siblings: Callable[[], Mapping[str, Parser]] = dict
        self.spelled: tuple[str, ...] = ()
        self.expand: Callable[[list[str], list[str]], list[str]] = lambda flags, _: flags
        self.settle: Callable[[argparse.Namespace], None] = lambda _: None
        self.instead: Callable[[Sequence[str]], Parser | None] = lambda _: None

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but unknown arguments are refused here, where the subcommand's flags are known."""
        args = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:
            if (other := self.instead(args)) is not None:
                return other.parse_known_args(args, namespace)
            args = self._arranged(args)
        elif args and is_flag(args[0]) and args[0].split("=")[0] not in self.actions:
            self.error(f"give a command first, such as `outrider run {args[0]} …`")
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self._refuse(extra[0])
        self.settle(found)
        return found, extra

    @property
    def actions(self) -> Mapping[str, argparse.Action]:
        """What each flag does, by its name."""
        return self._option_string_actions

    def alias(self, flag: str, of: argparse.Action) -> None:
        """Let `flag` mean the same as a flag that there is; the help does not show it."""
        self._option_string_actions[flag] = of

    def flags(self) -> Iterator[argparse.Action]:
        """The flags that the help shows."""
        for action in self._actions:
            if action.option_strings and action.help != argparse.SUPPRESS:
                yield action

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        return []  # else argparse would cut a short flag in pieces, or complete it

    # --- Arranging ---------------------------------------------------------------------------------

    def _arranged(self, args: list[str]) -> list[str]:
        """The same command line in a form that argparse reads in one way only: flags with `=`, then `--` and
        the positional arguments."""
        flags, words = self._split(args)
        flags = self.expand(flags, words)
        self.spelled = tuple(dict.fromkeys(flag.partition("=")[0] for flag in flags if is_flag(flag)))
        return [*flags, "--", *words] if words else flags

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        """(flags with their values, positional arguments). Raises ConfigError for a flag that there is
        not."""
        flags: list[str] = []
        words: list[str] = []
        rest = Words(args)
        while rest.next is not None:
            word = rest.take()
            if word == "--":
                words += rest.take_all()
            elif not is_flag(word) or (" " in word and self.named(word.partition("=")[0]) is None):
                words.append(word)
            else:
                flags += self.take_flag(word, rest)
        return flags, words

    def take_flag(self, word: str, rest: Words) -> list[str]:
        """A flag and its values, which are taken from `rest`. Raises ConfigError for an unknown flag."""
        name, equals, value = word.partition("=")
        if word not in self.actions:
            name = self.named(name) or ""
            if not name and (glued := _GLUED.fullmatch(word)) and self._takes_one(glued[1]):
                return [f"{glued[1]}={glued[2]}"]
            if not name:
                self._refuse(word)
            if equals:
                switched = self._switched(name, value)
                return [f"{name}={value}"] if switched is None else switched
        else:
            name = word
        action = self.actions[name]
        if action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
            most = action.nargs if isinstance(action.nargs, int) else None
            return [name, *rest.take_values(most)]
        optional = action.nargs == "?"
        if not (optional or self._takes_one(name)) or rest.next is None:
            return [name]
        following = rest.next
        if optional:
            taken = not is_flag(following) and (action.choices is None or following in action.choices)
        else:
            taken = not is_flag(following) or (
                (" " in following or following[:2] != "--")
                and self.named(following.partition("=")[0]) is None
            )
        return [f"{name}={rest.take()}"] if taken else [name]

    def _switched(self, name: str, value: str) -> list[str] | None:
        """A switch with `=true` or `=false`, as vLLM takes it, as the flags to say so; else None."""
        if self.actions[name].nargs != 0 or value.lower() not in ("true", "false"):
            return None
        if value.lower() == "true":
            return [name]
        opposite = f"--no-{name[2:]}"
        return [opposite] if opposite in self.actions else []

    def _takes_one(self, flag: str) -> bool:
        return flag in self.actions and self.actions[flag].nargs is None

    def named(self, flag: str) -> str | None:
        """The flag's name as the parser has it; None for one that it has not."""
        for name in (flag, "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag):
            if name in self.actions:
                return name
        return None

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """As argparse's, but for `--` as the value of a flag, which argparse leaves out."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's, with a hint at the choice that is near."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = nearest(str(value), [str(choice) for choice in action.choices or ()])
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None

    # --- Refusing ----------------------------------------------------------------------------------

    def _refuse(self, word: str) -> NoReturn:
        name = word.split("=", 1)[0]
        if not name.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        others = [other for other, parser in self.siblings().items() if parser.has(name)]
        if others:
            self.error(f"unknown flag {name}: it is a flag of `outrider {others[0]}`")
        self.error(f"unknown flag {name}{nearest(name, self.suggestions())}")

    def has(self, flag: str) -> bool:
        """Whether the help shows this flag."""
        return any(flag in action.option_strings for action in self.flags())

    def suggestions(self) -> list[str]:
        """The flags that may be suggested: all but those of which values are refused for what they are."""
        return [
            flag for flag, action in self.actions.items() if not getattr(action, "never_suggested", False)
        ]


class Words:
    """The words of a command line, one after the other, with a look at the next one."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words, self._at = words, 0

    @property
    def next(self) -> str | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def take(self) -> str:
        self._at += 1
        return self._words[self._at - 1]

    def take_all(self) -> list[str]:
        return [self.take() for _ in range(len(self._words) - self._at)]

    def take_values(self, most: int | None) -> list[str]:
        """The words up to the next flag, at most `most`."""
        found: list[str] = []
        while self.next is not None and not is_flag(self.next) and (most is None or len(found) < most):
            found.append(self.take())
        return found


def is_flag(word: str) -> bool:
    """Whether a word looks like a flag: with a `-` before it, but neither that alone nor a number, and
    without blanks but in a value after `=`."""
    name = word.partition("=")[0]
    return word[:1] == "-" and word != "-" and " " not in name and _NUMBER.fullmatch(word) is None


def number(text: str) -> float:
    """A float for argparse. NaN and infinity are accepted; the check of the range reports them."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None


def context_size(text: str) -> int:
    """A number of tokens for argparse, also as vLLM reads it: 8k is 8,000, 8K is 8,192, 25.6k is 25,600, and
    auto is -1, as long as fits."""
    if text.strip() == "auto":
        return -1
    match = re.fullmatch(r"(\d+)([KMGT])|(\d+(?:\.\d+)?)([kmgt])", text.strip())
    if match is None:
        return integer(text)
    if match[1]:
        return int(match[1]) << 10 * (1 + "KMGT".index(match[2]))
    return int(Decimal(match[3]) * 1000 ** (1 + "kmgt".index(match[4])))


def integer(text: str) -> int:
    """A decimal int for argparse."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}") from None
