"""Values of the flags about a server that runs, which `bench`, `plan` and `verify` share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from outrider.errors import ConfigError

KEY = "OUTRIDER_API_KEY"  # the variable, unless --api-key-env names another


def api_key(args: argparse.Namespace) -> str:
    """The server's key, "" for none. Raises ConfigError where the named variable is not set."""
    key = os.environ.get(args.api_key_env or KEY, "")
    if args.api_key_env and not key:
        raise ConfigError(f"--api-key-env: the variable {args.api_key_env!r} is not set")
    return key


def answer_seconds(args: argparse.Namespace, usual: float) -> float:
    """Seconds for an answer. Raises ConfigError for none."""
    seconds: float = usual if args.timeout is None else args.timeout
    if not 0 < seconds < 1e6:
        raise ConfigError(f"--timeout must be above 0 seconds, not {seconds:g}")
    return seconds


def refuse_local(args: argparse.Namespace, names: Iterable[str]) -> None:
    """Raise ConfigError for flags (by their dests) about models that this process would load, and for
    positional arguments."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and value is not False:  # 0 was given, too
            raise ConfigError(
                f"--{name.replace('_', '-')} has no meaning with --endpoint, whose server runs already"
            )
    if args.words:
        raise ConfigError(f"unexpected argument {args.words[0]!r}: -m names the model to ask for")
