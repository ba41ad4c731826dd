from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.stops import Emitter, Finish
from outrider.errors import ConfigError, PromptError


class Pieces:
    """A detokenizer with a fixed piece for each id; `late` keeps that many characters until the flush. Pieces
    that begin with "<|" are special tokens, and hidden."""

    def __init__(self, pieces: list[str], late: int = 0) -> None:
        self._pieces, self._late, self._text = pieces, late, ""

    def push(self, token_id: int) -> str:
        self._text += "" if self.hidden(token_id) else self._pieces[token_id]
        size = max(0, len(self._text) - self._late)
        done, self._text = self._text[:size], self._text[size:]
        return done

    def hidden(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        return piece if piece.startswith("<|") else ""

    def flush(self) -> str:
        return self._text


def emit(
    pieces: list[str],
    tokens: list[int],
    eos: set[int] | None = None,
    late: int = 0,
    context: int = 99,
    **arguments: Any,
) -> tuple[list[str], Finish | None]:
    params = SamplingParams(**{"max_tokens": 50, **arguments})
    request = Request("r", (0,), params, frozenset(eos or ()), Pieces(pieces, late))
    emitter = Emitter(request, context)
    texts: list[str] = []
    for token in tokens:
        text, finish = emitter.push(token)
        texts.append(text)
        if finish is not None:
            return texts, finish
    return [*texts, emitter.drain()], None


def test_text_that_cannot_be_a_stop_is_given_at_once() -> None:
    assert emit(["ab", "cd"], [0, 1], stop="xy") == (["ab", "cd", ""], None)


def test_text_that_may_become_a_stop_is_held_back() -> None:
    assert emit(["a<", "e", "x", "nd>b"], [0, 1, 2], stop="<end>") == (["a", "", "<ex", ""], None)
    assert emit(["a<", "e", "x", "nd>b"], [0, 1, 3], stop="<end>") == (["a", "", ""], Finish("stop", "<end>"))
    assert emit(["a<", "e", "x", "nd>b"], [0, 1], stop="<end>") == (["a", "", "<e"], None)


def test_the_stop_string_can_stay_in() -> None:
    found = emit(["a<", "end>b"], [0, 1], stop=["<end>"], include_stop_str_in_output=True)
    assert found == (["a", "<end>"], Finish("stop", "<end>"))


def test_the_earliest_stop_wins_then_the_first_listed() -> None:
    assert emit(["zcdab"], [0], stop=["ab", "cd"]) == (["z"], Finish("stop", "cd"))
    assert emit(["zabc"], [0], stop=["ab", "abc"]) == (["z"], Finish("stop", "ab"))
    assert emit(["zabc"], [0], stop=["abc", "ab"]) == (["z"], Finish("stop", "abc"))


def test_eos_and_stop_ids() -> None:
    pieces = ["a", "</s>", "!"]
    assert emit(pieces, [0, 1, 0], {1}) == (["a", ""], Finish("stop", None))
    assert emit(pieces, [0, 1, 0], {1}, ignore_eos=True) == (["a", "</s>", "a", ""], None)
    assert emit(pieces, [0, 2, 0], {1}, stop_token_ids=[2]) == (["a", ""], Finish("stop", 2))
    assert emit(pieces, [0, 1, 0], {1}, stop_token_ids=[1]) == (["a", ""], Finish("stop", None))
    assert emit(pieces, [1], {1}, stop_token_ids=[1], ignore_eos=True) == ([""], Finish("stop", 1))
    kept = emit(pieces, [0, 2], {1}, stop_token_ids=[2], include_stop_str_in_output=True)
    assert kept == (["a", "!"], Finish("stop", 2))


def test_held_text_comes_out_at_any_end() -> None:
    assert emit(["a<", "</s>"], [0, 1], {1}, stop="<e") == (["a", "<"], Finish("stop", None))
    assert emit(["a<"], [0, 0], stop="<e", max_tokens=2) == (["a", "<a<"], Finish("length"))
    assert emit(["abc"], [0, 0], late=2, max_tokens=2) == (["a", "bcabc"], Finish("length"))


def test_length_is_max_tokens_or_the_contexts_end() -> None:
    assert emit(["a"], [0] * 9, max_tokens=3) == (["a"] * 3, Finish("length"))
    assert emit(["a"], [0] * 9, context=5, max_tokens=None) == (["a"] * 4, Finish("length"))
    assert emit(["a"], [0] * 9, context=3, max_tokens=9, min_tokens=5) == (["a"] * 2, Finish("length"))


def test_a_stop_in_the_last_token_beats_length() -> None:
    assert emit(["a", "b"], [0, 1], stop="b", max_tokens=2) == (["a", ""], Finish("stop", "b"))
    assert emit(["a", "b"], [0, 1], {1}, max_tokens=2) == (["a", ""], Finish("stop", None))


def test_min_tokens_comes_before_any_stop() -> None:
    assert emit(["ab", "x"], [0, 0, 0], stop="ab", min_tokens=2) == (["ab", "ab", ""], Finish("stop", "ab"))
    # A stop that begins within the first tokens and ends after them counts; its beginning was held back.
    assert emit(["a", "b"], [0, 1], stop="ab", min_tokens=1) == (["", ""], Finish("stop", "ab"))
    # One that lies within them does not, not even as the held beginning of a longer one.
    assert emit(["ab", "x"], [0, 1], stop=["abc", "b"], min_tokens=1) == (["", "abx", ""], None)


def test_the_text_of_a_hidden_token_stops() -> None:
    pieces = ["a", "<|x|>", "b<"]
    stop = Finish("stop", "<|x|>")
    assert emit(pieces, [0, 1, 0], stop="<|x|>") == (["a", ""], stop)
    assert emit(pieces, [0, 1, 0], stop="<|x|>", max_tokens=2) == (["a", ""], stop)
    kept = emit(pieces, [0, 1], stop="<|x|>", include_stop_str_in_output=True)
    assert kept == (["a", "<|x|>"], stop)
    assert emit(pieces, [1, 0, 1], stop="<|x|>", min_tokens=1) == (["", "a", ""], stop)
    assert emit(pieces, [2, 0], stop="<|x|>") == (["b", "<a", ""], None)
    assert emit(pieces, [0, 1, 0], stop="x") == (["a", ""], Finish("stop", "x")), "a part of it"
    assert emit(pieces, [0, 1, 0], {1}, stop="<|x|>") == (["a", ""], Finish("stop", None)), "EOS comes first"
    ignored = emit(pieces, [0, 1, 0], {1}, stop="<|x|>", ignore_eos=True)
    assert ignored == (["a", ""], stop)


def test_a_stop_may_span_a_hidden_token_and_text() -> None:
    pieces = ["a", "<|x|>", "bc", "<|y|>", "d"]
    assert emit(pieces, [0, 1, 2], stop="a<|x|>b") == (["", "", ""], Finish("stop", "a<|x|>b"))
    assert emit(pieces, [4, 0, 1, 2], stop="<|x|>b") == (["d", "a", "", ""], Finish("stop", "<|x|>b"))
    assert emit(pieces, [0, 1, 4, 0], stop="a<|x|>b") == (["", "", "ad", "", "a"], None)
    assert emit(pieces, [1, 3, 4], stop="|><|y|>d") == (["", "", ""], Finish("stop", "|><|y|>d"))
    kept = emit(pieces, [0, 1, 2], stop="a<|x|>b", include_stop_str_in_output=True)
    assert kept == (["", "", "a<|x|>b"], Finish("stop", "a<|x|>b"))


def test_a_stop_in_the_text_that_is_sent_counts_across_a_hidden_token() -> None:
    pieces = ["za", "<|x|>", "bc"]
    assert emit(pieces, [0, 1, 2], stop="ab") == (["z", "", ""], Finish("stop", "ab"))
    assert emit(pieces, [0, 1, 0], stop="ab") == (["z", "", "az", "a"], None)
    assert emit(pieces, [0, 1, 2], stop=["<|x", "ab"]) == (["z", "a"], Finish("stop", "<|x"))


def test_many_hidden_tokens_are_not_kept() -> None:
    params = SamplingParams(max_tokens=500, stop="<|x|>y")
    emitter = Emitter(Request("r", (0,), params, frozenset(), Pieces(["<|x|>"])), 999)
    for _ in range(400):
        assert emitter.push(0) == ("", None)
    assert len(emitter._held.written) <= 5


def test_a_request_without_text() -> None:
    emitter = Emitter(Request("r", (0,), SamplingParams(max_tokens=2)), 9)
    assert emitter.remaining == 2
    assert emitter.push(5) == ("", None)
    assert emitter.push(5) == ("", Finish("length"))


def test_impossible_requests() -> None:
    with pytest.raises(PromptError, match="empty"):
        Request("r", (), SamplingParams())
    with pytest.raises(ConfigError, match="seed"):
        Request("r", (1,), SamplingParams(), seed=2**64)
    with pytest.raises(ConfigError, match="detokenizer"):
        Request("r", (1,), SamplingParams(stop="x"))


WORDS = st.text("ab<", min_size=1, max_size=4)


@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, min_size=1, max_size=12), st.integers(0, 3))
def test_streamed_text_is_the_whole_text_up_to_its_stop(
    stops: list[str], pieces: list[str], late: int
) -> None:
    texts, finish = emit(pieces, list(range(len(pieces))), late=late, stop=stops)
    whole = "".join(pieces)
    if finish is None:
        assert "".join(texts) == whole
        visible = whole[: max(0, len(whole) - late)]
        assert not any(stop in visible for stop in stops)
    else:
        text = "".join(texts)
        assert finish.stop_reason in stops
        assert whole.startswith(text + str(finish.stop_reason))
        assert not any(stop in text for stop in stops)


HIDDEN = st.sampled_from(["a", "b", "ab", "<|a|>", "<|b|>", "|>"])


@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(HIDDEN, min_size=1, max_size=8))
def test_no_stop_is_missed_with_hidden_tokens(stops: list[str], pieces: list[str]) -> None:
    texts, finish = emit(pieces, list(range(len(pieces))), stop=stops)
    shown = "".join(piece for piece in pieces if not piece.startswith("<|"))
    if finish is None:
        assert "".join(texts) == shown
        assert not any(stop in shown or stop in "".join(pieces) for stop in stops)
    else:
        assert shown.startswith("".join(texts))
        assert not any(stop in "".join(texts) for stop in stops)
