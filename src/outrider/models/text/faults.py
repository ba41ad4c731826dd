"""What the `tokenizers` package raises over a file that it cannot use."""

from __future__ import annotations


def fault(error: BaseException) -> str:
    """What is wrong, on one line of 200 characters at most. The package raises plain Exception, and a
    PanicException, which is none; anything else (an interrupt) is raised again."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return " ".join(str(error).split())[:200]
