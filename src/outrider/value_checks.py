"""Checks of single values that a user gives: configuration, sampling parameters.

Each check raises ConfigError with one line that names the parameter and the value. Those that return
something return the value in the type that the code works with. This module imports errors only, so that
every part of the package may use it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

from outrider.errors import ConfigError, nearest

T = TypeVar("T")

Neutral: TypeAlias = Callable[[Any], bool]
"""Whether a value of a parameter that is not supported changes nothing, so that it can be accepted."""


def only(*values: object) -> Neutral:
    """True for None and for values equal to one of `values` and of the same type (1 is not True)."""
    return lambda v: v is None or any(type(v) is type(w) and v == w for w in values)


def anything(_: object) -> bool:
    return True


def only_known(
    cls: type[T],
    elsewhere: Mapping[str, tuple[tuple[object, ...], str]] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> type[T]:
    """Class decorator: a dataclass raises ConfigError for an unknown keyword and names the nearest known one.

    elsewhere: keywords of other systems that are not supported here: for each the values that change
               nothing, which are accepted, and the reason that any other value is refused with.
    renamed:   other systems' names of the parameters here, for the error's text; None is accepted.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    init = cls.__init__

    @functools.wraps(init)
    def checked(self: T, /, *args: Any, **kwargs: Any) -> None:
        for name in [name for name in kwargs if name not in known]:
            if renamed is not None and name in renamed:
                if kwargs.pop(name) is not None:
                    raise ConfigError(f"{cls.__name__} has no argument {name!r}: use {renamed[name]!r}")
                continue
            if elsewhere is None or name not in elsewhere:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}{nearest(name, known)}")
            neutral, reason = elsewhere[name]
            value = kwargs.pop(name)
            if not any(value is n or (type(value) is type(n) and value == n) for n in neutral):
                raise ConfigError(f"{name}={value!r} cannot be honoured: {reason}")
        init(self, *args, **kwargs)

    setattr(cls, "__init__", checked)  # noqa: B010 (mypy refuses the plain assignment)
    return cls


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def positive(name: str, value: object) -> None:
    if not (is_int(value) and isinstance(value, int) and value >= 1):
        shown = "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
        raise ConfigError(f"{name} must be a whole number of at least 1, not {shown}")


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """An integer of any type with `__index__`, from `low` to `high`; None is no bound."""
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
    """One string or several, none of them empty; () for None."""
    if value is None:
        return ()
    several = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    for text in several:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{name} must be strings that are not empty, not {text!r}")
    return several


def token_ids(name: str, values: Any) -> tuple[int, ...]:
    """Several ids of at least 0."""
    try:
        if isinstance(values, bytes):  # whose elements are integers too
            raise TypeError
        found = tuple(integer(name, value) for value in values)
    except TypeError:
        raise ConfigError(f"{name} must be a list of token ids, not {values!r}") from None
    for token in found:
        if token < 0:
            raise ConfigError(f"{name} has the id {token}; token ids start at 0")
    return found


def logit_biases(values: Any) -> dict[int, float]:
    """Finite biases by token id."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"logit_bias must map token ids to numbers, not {values!r}")
    tokens = token_ids("logit_bias", values)
    return {i: number(f"logit_bias[{i}]", v) for i, v in zip(tokens, values.values(), strict=True)}


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        hint = nearest(str(value), known)
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}{hint}")


def path_or_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be a path or a name, not {value!r}")
