"""Copies with edits: the position in the source is kept, and an edit that was made once is repeated."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters._lookup import MAX_MATCH, GramIndex
from outrider.drafters.copy_tracker import MIN_COPY, Copy, CopyTracker

SOURCE = list(range(100, 160))


def follow(
    text: list[int],
    new: Sequence[int],
    tracker: CopyTracker,
    index: GramIndex,
    stop_ids: Collection[int] = (),
) -> Copy | None:
    """What is expected after `new` is written."""
    text += new
    index.update()
    return tracker.update(text, index.find(text, 12), stop_ids)


class Writer:
    """Writes a text after SOURCE, or another one, and notes what is expected after each token."""

    def __init__(self, source: Sequence[int] = SOURCE, stop_ids: Collection[int] = ()) -> None:
        self.text = [*source, 1, 2]
        self.tracker, self.index, self.stop_ids = CopyTracker(), GramIndex(self.text), stop_ids

    def write(self, *new: int) -> Copy | None:
        found = None
        for token in new:
            found = follow(self.text, [token], self.tracker, self.index, self.stop_ids)
        return found


def test_new_text_is_no_copy() -> None:
    assert Writer().write(7, 8, 9, 10) is None


def test_a_copy_goes_on() -> None:
    writer = Writer()
    assert writer.write(*SOURCE[: MIN_COPY - 1]) is None
    copy = writer.write(SOURCE[MIN_COPY - 1])
    assert copy == Copy(MIN_COPY, SOURCE[MIN_COPY : MIN_COPY + MAX_MATCH], MIN_COPY)


def test_it_continues_after_a_replaced_token_where_exact_matches_find_nothing() -> None:
    writer = Writer()
    copy = writer.write(*SOURCE[:16], 7)
    assert not len(writer.index.find(writer.text, 12))
    assert copy is not None
    assert copy.path[:3] == SOURCE[17:20]
    assert copy.length == 8, "half as sure"


def test_who_goes_on_where_a_source_ends_has_copied_all_of_it() -> None:
    """A prompt's message ends with a stop token, and another one's beginning follows."""
    stop = SOURCE[20]
    for after in ([7], SOURCE[19:20]):  # another token in its place, or one that the source has nearby
        writer, endless = Writer(stop_ids={stop}), Writer()
        for each in (writer, endless):
            copy = each.write(*SOURCE[:20])
            assert copy is not None
            assert copy.path[0] == stop
        assert writer.write(*after) is None
        assert endless.write(*after) is not None
    inside = Writer(stop_ids={stop})
    copy = inside.write(*SOURCE[:17], 7)  # a change a little earlier is nothing of the kind
    assert copy is not None
    assert copy.path[0] == SOURCE[18]
    assert inside.write(8, 9) is not None
    assert inside.write(10) is None, "against the stop token"


def test_it_reports_how_much_of_the_end_matches_the_source() -> None:
    writer = Writer()
    writer.write(*SOURCE[: MIN_COPY - 1])
    assert writer.tracker.copied == 0, "not known to be a copy"
    for i in range(MIN_COPY - 1, 20):
        writer.write(SOURCE[i])
        assert writer.tracker.copied == i + 1
    writer.write(7)
    assert writer.tracker.copied == 0, "it may have ended"
    writer.write(SOURCE[21])
    assert writer.tracker.copied == 0
    for i in range(22, 30):
        writer.write(SOURCE[i])
        assert writer.tracker.copied == i - 20, "what was replaced is not copied"
    writer.write(*range(7, 27))
    assert writer.tracker.copied == 0


def test_it_finds_its_place_again_however_many_tokens_were_replaced() -> None:
    for left_out in (0, 1, 2, 4):
        for written in ([], [7], [7, 8], [7, 8, 9]):
            if not (left_out or written):
                continue
            writer = Writer()
            after = 20 + left_out
            copy = writer.write(*SOURCE[:20], *written, *SOURCE[after : after + 2])
            assert copy is not None, (left_out, written)
            assert copy.path[0] == SOURCE[after + 2], (left_out, written)


def test_a_gap_too_long_is_the_end_of_a_copy() -> None:
    writer = Writer()
    assert writer.write(*SOURCE[:20]) is not None
    assert writer.write(*range(1000, 1012)) is None


def test_a_loop_goes_round() -> None:
    writer = Writer([])
    copy = writer.write(*[5, 6, 7] * 5)
    assert copy is not None
    assert copy.path == [5, 6, 7] * (MAX_MATCH // 3)


@given(st.lists(st.integers(0, 4), max_size=120), st.lists(st.integers(1, 9), max_size=60))
def test_any_text_at_any_pace(text: list[int], paces: list[int]) -> None:
    """Whatever is written: paths are full, of the text's own tokens, and the source lies before its end."""
    grown: list[int] = []
    tracker, index = CopyTracker(), GramIndex(grown)
    rest = iter(text)
    for pace in paces:
        new = [token for _, token in zip(range(pace), rest, strict=False)]
        copy = follow(grown, new, tracker, index)
        if copy is not None:
            assert 0 <= copy.start < len(grown)
            assert 1 <= copy.length <= MAX_MATCH
            assert len(copy.path) == MAX_MATCH
            assert set(copy.path) <= set(grown)


@given(st.lists(st.integers(0, 50), min_size=30, max_size=60, unique=True), st.data())
def test_one_replaced_token_costs_one_guess(source: list[int], data: st.DataObject) -> None:
    """A copy of different tokens with one replaced: every other one after the first dozen is predicted."""
    place = data.draw(st.integers(MIN_COPY, len(source) - 2))
    changed = [*source[:place], 99, *source[place + 1 :]]
    writer = Writer(source)
    wrong = []
    for k, token in enumerate(changed):
        copy = writer.write(token)
        if k >= MIN_COPY - 1 and k + 1 < len(changed) and (copy is None or copy.path[0] != changed[k + 1]):
            wrong.append(k + 1)
    assert wrong == [place]
