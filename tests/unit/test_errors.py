"""Hints at names that a user may have meant."""

from __future__ import annotations

import pytest

from outrider.errors import nearest

FIELDS = ("metadata", "max_tokens", "min_tokens", "temperature", "include_usage", "continuous_usage_stats")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("usage", "include_usage"),  # its last word; the other has it in the middle
        ("--max-model-length", "--max-model-len"),
        ("auot", "auto"),
    ],
)
def test_a_name_that_is_near(name: str, meant: str) -> None:
    assert nearest(name, [*FIELDS, "--max-model-len", "auto"]) == f" (did you mean {meant!r}?)"


@pytest.mark.parametrize(
    "name", ["mirostat", "max_completion_tokens", "keep_alive", "", "x", "\ud800", "_" * 100_000]
)
def test_no_guess_at_what_is_far_or_could_be_two(name: str) -> None:
    assert nearest(name, FIELDS) == ""
