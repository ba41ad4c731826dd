"""An argument parser that raises ConfigErrors of one line, which suggest the nearest known flag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from outrider.errors import ConfigError, nearest

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations; it raises ConfigError where argparse would exit with status 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but unknown arguments are refused here, where the subcommand's flags are known."""
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self._refuse(extra)
        return found, extra

    def _refuse(self, extra: Sequence[str]) -> NoReturn:
        name = extra[0].split("=", 1)[0]
        if name.startswith("-"):
            self.error(f"unknown flag {name}{nearest(name, self._option_string_actions)}")
        self.error(f"unexpected argument {name!r}")


def number(text: str) -> float:
    """A float for argparse. NaN and infinity are accepted; the check of the range reports them."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None


def integer(text: str) -> int:
    """A decimal int for argparse."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}") from None
