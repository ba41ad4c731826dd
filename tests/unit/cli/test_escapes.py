"""Escape sequences of `-e`, as llama.cpp reads them."""

from __future__ import annotations

import pytest

from outrider.cli.escapes import unescaped


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (r"a\nb", "a\nb"),
        (r"\t\r\'\"\\", "\t\r'\"\\"),
        (r"\\n", r"\n"),
        (r"\x41\x42c", "ABc"),
        (r"\xc3\xa4", "ä"),  # bytes of UTF-8 that stand together
        (r"\xff", "\ufffd"),
        (r"\x4", r"\x4"),
        (r"\q", r"\q"),
        ("ends in \\", "ends in \\"),
        ("ä — 😀", "ä — 😀"),
        ("", ""),
    ],
)
def test_escapes(text: str, meaning: str) -> None:
    assert unescaped(text) == meaning
