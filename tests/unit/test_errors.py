"""Hints at names that a user may have meant."""

from __future__ import annotations

import pytest

from outrider.errors import distance, nearest

FIELDS = ("metadata", "max_tokens", "min_tokens", "temperature", "include_usage", "continuous_usage_stats")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("usage", "include_usage"),  # its last word; the other has it in the middle
        ("--max-model-length", "--max-model-len"),
        ("auot", "auto"),
        ("Auto", "auto"),
        ("q4k", "q4_k"),  # not q4
        ("rum", "run"),  # not rm
        ("max_tok", "max_tokens"),  # begins so
        ("continuous_stats", "continuous_usage_stats"),  # its words in this order
    ],
)
def test_a_name_that_is_near(name: str, meant: str) -> None:
    assert (
        nearest(name, [*FIELDS, "--max-model-len", "auto", "q4", "q4_k", "rm", "run"])
        == f" (did you mean {meant!r}?)"
    )


@pytest.mark.parametrize(
    "name", ["mirostat", "max_completion_tokens", "keep_alive", "", "x", "\ud800", "_" * 100_000]
)
def test_no_guess_at_what_is_far_or_could_be_two(name: str) -> None:
    assert nearest(name, FIELDS) == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("--temprature", "--temperature"),
        ("--sede", "--seed"),
        ("--no-cvn", None),
        ("--mirage", None),
        ("-z", None),
        ("-", None),
        ("--", None),
        ("--zzz", None),
        ("--quantum", None),
        ("-seed", None),
        ("seed", None),
        ("", None),
        ("--" + "x" * 5000, None),
    ],
)
def test_flags_that_are_near(name: str, hint: str | None) -> None:
    known = ["--temperature", "--seed", "--mirostat", "-cnv", "--draft"]
    assert nearest(name, known) == ("" if hint is None else f" (did you mean {hint!r}?)")


@pytest.mark.parametrize(
    ("one", "other", "letters"),
    [("seed", "seed", 0), ("see", "seed", 1), ("sede", "seed", 1), ("abc", "", 3), ("kitten", "sitting", 3)],
)
def test_the_distance_of_texts(one: str, other: str, letters: int) -> None:
    assert distance(one, other, 9) == distance(other, one, 9) == letters
    assert distance(one, other, 2) == min(letters, 2)
