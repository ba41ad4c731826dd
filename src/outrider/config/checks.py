"""Checks of single values in a configuration. Each raises ConfigError in one line that names the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from outrider.errors import ConfigError, nearest

Neutral: TypeAlias = Callable[[Any], bool]
"""Whether a value of a setting that nothing here reads changes nothing, so that it may be given."""

QUANTIZATIONS = ("q8_0", "q4_k")  # of float models, at load (models/quantization.py)
LIGHT_QUANTIZATIONS = ("q3", "q4")  # of any draft model, from the lightest up
DRAFT_QUANTIZATIONS = ("auto", *LIGHT_QUANTIZATIONS)  # what to ask for; the first is the usual one


def is_(*values: object) -> Neutral:
    """True for None and for values equal to one of `values` and of the same type (1 is not True)."""
    return lambda v: v is None or any(type(v) is type(w) and v == w for w in values)


def anything(_: object) -> bool:
    return True


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def positive(name: str, value: object) -> None:
    if not (is_int(value) and isinstance(value, int) and value >= 1):
        shown = "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
        raise ConfigError(f"{name} must be a whole number of at least 1, not {shown}")


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        hint = nearest(str(value), known)
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}{hint}")


def text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be a path or a name, not {value!r}")


def quantization(name: object, *, draft: bool = False) -> None:
    """Refuse all but QUANTIZATIONS and, for a draft model, DRAFT_QUANTIZATIONS."""
    known = (*QUANTIZATIONS, *DRAFT_QUANTIZATIONS) if draft else QUANTIZATIONS
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known)
        also = (
            f", {' and '.join(DRAFT_QUANTIZATIONS)} any draft; 'stored' leaves it as it is" if draft else ""
        )
        raise ConfigError(
            f"quantization={name!r} is refused{hint}: {' and '.join(QUANTIZATIONS)} quantize a float model "
            f"when it is loaded{also}; for any other type choose a file that is stored so"
        )
