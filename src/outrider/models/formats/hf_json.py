"""Reads untrusted JSON files: limited in size, without NaN or duplicate keys, with typed getters."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from outrider.errors import ModelFileError, ModelNotFoundError
from outrider.models.families import shown
from outrider.models.foreign import HEAD_BYTES, LFS_POINTER, describe_file
from outrider.models.formats.mapped import map_file

logger = logging.getLogger("outrider")


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text of a regular file. Raises ModelFileError when it has more than `limit` bytes, is not
    UTF-8 or is a Git LFS pointer, ModelNotFoundError when there is none."""
    data = map_file(path)
    if data[: len(LFS_POINTER)] == LFS_POINTER:
        raise ModelFileError(f"{path}: is {describe_file(data[:HEAD_BYTES], len(data))}")
    if len(data) > limit:
        raise ModelFileError(f"{path}: has {len(data)} bytes; at most {limit} are read")
    try:
        return data[:].decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not UTF-8 text") from error


def parse_object(path: Path, text: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises ModelFileError for broken or too deep JSON, NaN, or repeated keys."""

    def refuse(constant: str) -> NoReturn:
        raise ModelFileError(f"{path}: holds {constant}, which is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise ModelFileError(f"{path}: the key {shown(twice)} appears twice")
        return found

    try:
        value = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError as error:
        raise ModelFileError(f"{path}: is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
        what = (
            describe_file(text[:HEAD_BYTES].encode(errors="replace"), len(text)) if text[:1] == "<" else None
        )
        why = "the file is empty" if not text.strip() else f"it is {what}" if what else error
        raise ModelFileError(f"{path}: is not valid JSON: {why}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: is not a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class Section:
    """A JSON object of the file `path`.

    The getters treat null like an absent key. They raise ModelFileError, which names the key, when the key is
    absent and has no default, and when its value has another type or is out of range.
    """

    path: Path
    values: dict[str, Any]

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from low to high inclusive."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "an integer")
        if not low <= value <= high:
            raise ModelFileError(f"{self.path}: {key} is not between {low} and {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ModelFileError(f"{self.path}: {key} is too large")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string that can be encoded (JSON may hold lone surrogates, which cannot)."""
        value = self._get(key, default)
        if not isinstance(value, str) or not encodes(value):
            raise self._wrong(key, "a string")
        return value

    def section(self, key: str) -> Section | None:
        """The object at `key`, or None when there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Section(self.path, value)

    def ids(self, key: str, vocab_size: int) -> list[int]:
        """Token ids given as a number, a list, or not at all. Those that no token has are left out, with a
        warning: they can neither be read nor generated."""
        value = self.values.get(key)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in found):
            raise ModelFileError(f"{self.path}: {key} is not made of token ids")
        inside = [entry for entry in found if 0 <= entry < vocab_size]
        if outside := [entry for entry in found if not 0 <= entry < vocab_size]:
            logger.warning(
                "%s: %s has the id %s, but the model has %d tokens: it is left out",
                self.path, key, shown(str(outside[0]) if abs(outside[0]) < 1 << 64 else "…"), vocab_size,
            )  # fmt: skip
        return inside

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelFileError(f"{self.path}: {key} is missing")
        return value

    def _wrong(self, key: str, wanted: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {key} is not {wanted}")


def read_section(path: Path, limit: int) -> Section:
    """The JSON object in the file `path`."""
    return Section(path, parse_object(path, read_text(path, limit)))


def read_optional(path: Path, limit: int) -> Section:
    """Like `read_section`, with an empty object for a file that is not there."""
    try:
        return read_section(path, limit)
    except ModelNotFoundError:
        return Section(path, {})


def encodes(text: str) -> bool:
    """Whether a text is valid Unicode, which JSON does not ask for: it may hold half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
