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

import difflib
import re
from collections.abc import Iterable


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
    """Return ` (did you mean X?)` for the known name that `name` is close to, or an empty string. Close is a
    name with few letters changed, or the only one that has the words of `name` at its beginning or end."""
    names = list(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.7) or _with_words(name, names)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _with_words(name: str, known: list[str]) -> list[str]:
    """The known name that begins or ends with the words of `name`, if it is the only one."""
    words = re.split(r"[-_.]", name[:80].lower())
    parts = {other: re.split(r"[-_.]", other.lower()) for other in known}
    size = len(words)
    found = [other for other, own in parts.items() if words in (own[:size], own[-size:])]
    return found if len(found) == 1 else []
