"""Checks of values that a user gives. Each returns the value made plain, or raises ConfigError."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from outrider.errors import ConfigError, nearest

T = TypeVar("T")


def only_known(
    cls: type[T], elsewhere: Mapping[str, tuple[tuple[object, ...], str]] | None = None
) -> type[T]:
    """Make a dataclass answer an unknown keyword with a ConfigError that names the nearest known one.

    elsewhere: keywords of other systems that are not here: the values that change nothing, and why any
               other is refused.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    init = cls.__init__

    @functools.wraps(init)
    def checked(self: T, /, *args: Any, **kwargs: Any) -> None:
        for name in [name for name in kwargs if name not in known]:
            if elsewhere is None or name not in elsewhere:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}{nearest(name, known)}")
            neutral, reason = elsewhere[name]
            value = kwargs.pop(name)
            if not any(value is n or (type(value) is type(n) and value == n) for n in neutral):
                raise ConfigError(f"{name}={value!r} cannot be honoured: {reason}")
        init(self, *args, **kwargs)

    setattr(cls, "__init__", checked)  # noqa: B010 (mypy refuses the plain assignment)
    return cls


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, not {value!r}") from None
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ConfigError(f"{name} must be {bounds}, not {number}")
    return number


def number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False
) -> float:
    """A finite float from `low` (or, when `above`, more than `low`) to `high`."""
    try:
        found = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"{name} must be a finite number, not {value!r}")
    if found < low or found > high or (above and found == low):
        bounds = f"{'above' if above else 'at least'} {low:g}"
        bounds += "" if math.isinf(high) else f" and at most {high:g}"
        raise ConfigError(f"{name} must be {bounds}, not {found:g}")
    return found


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return value


def strings(name: str, value: Any) -> tuple[str, ...]:
    """One string or several, none of them empty; None is none."""
    if value is None:
        return ()
    several = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    for text in several:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{name} must be strings that are not empty, not {text!r}")
    return several


def ids(name: str, values: Any) -> tuple[int, ...]:
    try:
        found = tuple(integer(name, value) for value in values)
    except TypeError:
        raise ConfigError(f"{name} must be a list of token ids, not {values!r}") from None
    for token in found:
        if token < 0:
            raise ConfigError(f"{name} has the id {token}; token ids start at 0")
    return found


def biases(values: Any) -> dict[int, float]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"logit_bias must map token ids to numbers, not {values!r}")
    tokens = ids("logit_bias", values)
    return {i: number(f"logit_bias[{i}]", v) for i, v in zip(tokens, values.values(), strict=True)}
