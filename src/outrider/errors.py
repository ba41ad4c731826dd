"""The tree of errors. Every error that a user can cause is an `OutriderError` whose text is one line.

    OutriderError
    ├── ConfigError (ValueError)
    ├── PromptError (ValueError)
    └── ModelError
        ├── ModelNotFoundError (FileNotFoundError)
        ├── ModelFileError
        ├── UnsupportedModelError
        ├── VocabularyMismatchError
        ├── InsufficientMemoryError
        └── DownloadError

The command line prints the line and exits with status 2; the server answers with a 4xx status. Any other
exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_NAME = 80  # letters of a name that could be a mistyped one


class OutriderError(Exception):
    """Base of every error that Outrider raises on purpose. `str(error)` is one line, fit to print."""


class ConfigError(OutriderError, ValueError):
    """An argument, a flag or a configuration key is unknown, out of range or contradictory."""


class PromptError(OutriderError, ValueError):
    """The prompt cannot be used: it is empty, too long for the context, or has impossible ids."""


class ModelError(OutriderError):
    """A model cannot be found, read or used: the base of the errors below."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """A model reference or path names nothing that exists."""

    def __str__(self) -> str:  # FileNotFoundError would print "[Errno None]" for odd arguments
        return " ".join(str(a) for a in self.args)


class ModelFileError(ModelError):
    """A model file is damaged, truncated or inconsistent with itself."""


class UnsupportedModelError(ModelError):
    """A valid model file has an architecture, tensor type or option that no engine here supports."""


class VocabularyMismatchError(ModelError):
    """The draft's tokens are not the target's. Names the first id that differs and both pieces."""


class InsufficientMemoryError(ModelError):
    """The estimate made before loading says that the models and caches do not fit."""


class DownloadError(ModelError):
    """A model could not be downloaded, or the downloaded file does not match its checksum."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for the known name that was meant by `name`, or an empty string.

    It is the name with the fewest letters changed, if these are few, of several one that differs in marks
    between words only or begins with `name`; or else the only one that has the words of `name` at its
    beginning or end, begins with `name`, or has its words in this order. A flag is not near one with another
    number of dashes, nor near one of a single letter.
    """
    wanted = name.lower()
    letters = len(wanted.lstrip("-"))
    names = [
        other for other in known if _dashes(other) == _dashes(name) and (other[:1] != "-" or len(other) > 2)
    ]
    if not letters or letters > MAX_NAME:
        return ""
    most = 1 + letters // 5 if letters > 2 else 0
    distances = [(distance(wanted, other.lower(), most + 1), other) for other in names]
    least = min([far for far, _ in distances], default=most + 1)
    nearby = [other for far, other in distances if far == least]
    found = min(nearby, key=lambda other: (*_unlike(wanted, other.lower()), other), default="")
    if least > most:
        found = _with_words(wanted, names)
    return f" (did you mean {found!r}?)" if found else ""


def _unlike(name: str, other: str) -> tuple[int, int]:
    """Which of two names that differ in as many letters was rather meant: the lower."""
    longer = abs(len(other) - len(name))
    if "".join(_words(name)) == "".join(_words(other)):
        return 0, longer
    return 1 if other.startswith(name) else 2, longer


def _dashes(name: str) -> int:
    """How many dashes a flag begins with, at most 2."""
    return len(name[:2]) - len(name[:2].lstrip("-"))


def _with_words(name: str, known: list[str]) -> str:
    """The known name that has the words of `name`, if by one of the rules there is only one."""
    words = _words(name)
    parts = {other: _words(other) for other in known}
    size = len(words)
    for found in (
        [other for other, own in parts.items() if words in (own[:size], own[-size:])],
        [other for other in parts if len(name) > 2 and other.lower().startswith(name)],
        [other for other, own in parts.items() if size > 1 and _in_order(words, own)],
    ):
        if found:
            return found[0] if len(found) == 1 else ""
    return ""


def _words(name: str) -> list[str]:
    return re.split(r"[-_.]", name.lower())


def _in_order(words: list[str], all_words: list[str]) -> bool:
    rest = iter(all_words)
    return all(word in rest for word in words)


def distance(one: str, other: str, most: int) -> int:
    """How many letters must be added, left out, replaced or swapped with the next one to make one text of
    the other; counted up to `most`. (Optimal string alignment.)"""
    if abs(len(one) - len(other)) >= most:
        return most
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        two_before, before, row = before, row, [i]
        for j, b in enumerate(other, start=1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b):
                least = min(least, two_before[j - 2] + 1)
            row.append(least)
    return min(row[-1], most)
