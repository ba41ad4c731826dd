"""llama.cpp's rules for the end of a text: `n_indent` and `t_max_predict_ms`."""

from __future__ import annotations

import pytest

from outrider.server.http.dialects.llama_cpp.cutoff import Cutoff


@pytest.mark.parametrize(
    ("indent", "text", "kept"),
    [
        (4, "a\n    b\n    c", None),
        (4, "a\n    b\n  c", "a\n    b\n  "),
        (4, "a\nb", "a\n"),
        (4, "a\n\n    b", "a\n"),
        (2, "a\n\t\tb", None),
        (0, "a\nb\n\nc", None),
        (4, "no line break", None),
    ],
)
def test_a_line_with_a_smaller_indentation_ends_a_text(indent: int, text: str, kept: str | None) -> None:
    whole = Cutoff(indent, None)(text)
    assert (None if whole is None else text[:whole]) == kept
    for size in (1, 2, 3):  # of the tokens
        cutoff, found = Cutoff(indent, None), ""
        for at in range(0, len(text), size):
            piece = text[at : at + size]
            if (end := cutoff(piece)) is not None:
                found += piece[:end]
                break
            found += piece
        assert found == (text if kept is None else kept)


def test_a_line_break_after_the_time_ends_a_text() -> None:
    times = iter([10.0, 10.4, 11.0, 11.1])
    cutoff = Cutoff(0, 0.5, lambda: next(times))
    assert [cutoff(text) for text in ("a\n", "b\n", "c", "d\ne")] == [None, None, None, 3]
