"""Typed access to the key/value pairs of a GGUF file: a value of the wrong type is an error by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError
from outrider.models.formats.shared_strings import current

# Strings stay bytes until they are asked for: not every string of a file has to be valid UTF-8.
Value: TypeAlias = int | float | bool | bytes | npt.NDArray[Any] | tuple[bytes, ...]
D = TypeVar("D")


class _Required:
    """Stands for "no default": the key must be there."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """Key/value pairs of `path`. Every getter raises ModelFileError, naming the key, for a missing key
    without a default and for a value of another type or out of range."""

    path: Path
    pairs: Mapping[str, Value]

    def __contains__(self, key: object) -> bool:
        return key in self.pairs

    def is_array(self, key: str) -> bool:
        """Whether the key is there and is an array."""
        return isinstance(self.pairs.get(key), np.ndarray | tuple)

    @overload
    def integer(self, key: str, low: int, high: int) -> int: ...
    @overload
    def integer(self, key: str, low: int, high: int, default: D) -> int | D: ...
    def integer(self, key: str, low: int, high: int, default: Any = REQUIRED) -> Any:
        """An integer of any width, from low to high inclusive."""
        if self._absent(key, default):
            return default
        value = self.pairs[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "an integer")
        if not low <= value <= high:
            raise ModelFileError(f"{self.path}: {key} is {value}, not between {low} and {high}")
        return value

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: D) -> float | D: ...
    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A finite floating-point number."""
        if self._absent(key, default):
            return default
        value = self.pairs[key]
        if not isinstance(value, float):
            raise self._wrong(key, "a floating-point number")
        if not math.isfinite(value):
            raise ModelFileError(f"{self.path}: {key} is {value}, not a finite number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        if self._absent(key, default):
            return default
        value = self.pairs[key]
        if not isinstance(value, bool):
            raise self._wrong(key, "a truth value")
        return value

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: D) -> str | D: ...
    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """A string that is valid UTF-8."""
        if self._absent(key, default):
            return default
        value = self.pairs[key]
        if not isinstance(value, bytes):
            raise self._wrong(key, "a string")
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: {key} is not UTF-8") from error

    def pieces(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """An array of strings. A byte that is not UTF-8 is written `\\xNN`: a real text never yields such
        a piece, and a replacement character would make different pieces equal."""
        if self._absent(key, REQUIRED if default is None else default):
            return default or ()
        value = self.pairs[key]
        if not isinstance(value, tuple):
            raise self._wrong(key, "an array of strings")
        known = current()
        return _decoded(value) if known is None else known.texts(value, _decoded)

    def array(self, key: str, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
        """An array of integers or of floats, as `dtype` says, copied as that type (integers that do not fit
        wrap, floats become infinite); None when absent."""
        if key not in self.pairs:
            return None
        value = self.pairs[key]
        kinds = "iu" if np.issubdtype(dtype, np.integer) else "f"
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._wrong(key, "an array of integers" if kinds == "iu" else "an array of floats")
        with np.errstate(over="ignore"):
            return value.astype(dtype)

    def _absent(self, key: str, default: object) -> bool:
        if key in self.pairs:
            return False
        if default is REQUIRED:
            raise ModelFileError(f"{self.path}: the key {key} is missing")
        return True

    def _wrong(self, key: str, wanted: str) -> ModelFileError:
        value = self.pairs[key]
        kind = "an array" if isinstance(value, np.ndarray | tuple) else type(value).__name__
        return ModelFileError(f"{self.path}: {key} is {kind}, not {wanted}")


def _decoded(strings: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple([raw.decode(errors="backslashreplace") for raw in strings])
