"""Describes exceptions of the `tokenizers` package."""

from __future__ import annotations


def describe_error(error: BaseException) -> str:
    """The error's message on one line of at most 200 characters.

    The package raises plain Exception, and PanicException, which derives from BaseException only. Any other
    error that is no Exception, such as KeyboardInterrupt, is raised again.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return " ".join(str(error).split())[:200]
