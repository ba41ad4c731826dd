"""The error tree. Every error a user can cause is an `OutriderError` whose text is one clear line.

The command line prints that line and exits with status 2; the server turns it into a 4xx answer.
Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OutriderError(Exception):
    """Base of every error that Outrider raises on purpose. `str(error)` is one line, fit to print."""


class ConfigError(OutriderError, ValueError):
    """An argument, a flag or a configuration key is unknown, out of range or contradictory."""


class PromptError(OutriderError, ValueError):
    """The prompt cannot be used: it is empty, too long for the context, or has impossible ids."""


class ModelError(OutriderError):
    """Something about a model: the base of the errors below."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """A model reference or path leads nowhere."""

    def __str__(self) -> str:  # FileNotFoundError would print "[Errno None]" for odd arguments
        return " ".join(str(a) for a in self.args)


class ModelFileError(ModelError):
    """A model file is damaged, truncated or inconsistent with itself."""


class UnsupportedModelError(ModelError):
    """A sound model file holds an architecture, tensor type, or option that no engine here runs."""


class VocabularyMismatchError(ModelError):
    """The draft's tokens are not the target's. Names the first id that differs and both pieces."""


class InsufficientMemoryError(ModelError):
    """The estimate made before loading says that the models and caches do not fit."""


class DownloadError(ModelError):
    """A model could not be fetched, or what came is not what its checksum promised."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for the known name closest to `name`, or an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""
