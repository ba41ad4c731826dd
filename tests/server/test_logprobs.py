"""The offsets of tokens in the text that is sent, with a tokenizer that adds and hides BOS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.models.source import TokenizerData
from outrider.models.text.tokenizer import Tokenizer
from outrider.server.http.logprobs import LogprobsWithOffsets, TokenTexts

PIECES = ["<s>", "</s>", "<unk>", "\u2581ab", "c", "\u2581d", "<0xC3>", "<0xA9>", "\u2581", "a", "b", "d"]
TYPES = [3, 3, 2, 1, 1, 1, 6, 6, 1, 1, 1, 1]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_data(
        TokenizerData(
            kind="spm",
            tokens=tuple(PIECES),
            types=np.array(TYPES, np.int32),
            scores=-np.arange(len(PIECES), dtype=np.float32),
            bos_id=0,
            eos_ids=(1,),
            unk_id=2,
            add_bos=True,
        )
    )


def entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 1, np.array([token]), np.array([-1.0], np.float32), np.array([1]))


def offsets(made: LogprobsWithOffsets, tokens: list[int]) -> Any:
    found = made.empty()
    for token in tokens:
        made.add(found, entry(token))
    return found["text_offset"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_an_added_bos_has_no_characters(tokenizer: Tokenizer, as_ids: bool) -> None:
    made = LogprobsWithOffsets(TokenTexts(tokenizer, as_ids))
    found = made.empty()
    made.add_prompt(found, [0, 3, 4], [entry(3), entry(4)], "abc")
    assert found["text_offset"] == [0, 0, 2]
    assert found["token_logprobs"] == [None, -1.0, -1.0]
    assert offsets(made, [5, 1, 4]) == [3, 5, 5], "a space is text in an output, and EOS is hidden"


def test_a_bos_that_is_sent_has_characters(tokenizer: Tokenizer) -> None:
    made = LogprobsWithOffsets(TokenTexts(tokenizer))
    found = made.empty()
    text = tokenizer.decode([0, 3, 4], skip_special=False)
    made.add_prompt(found, [0, 3, 4], [entry(3), entry(4)], text)
    assert found["text_offset"] == [0, 3, 6]
    assert offsets(made, [4]) == [len(text)]


def test_parts_of_a_character_lie_where_it_does(tokenizer: Tokenizer) -> None:
    assert offsets(LogprobsWithOffsets(TokenTexts(tokenizer)), [4, 6, 7, 4]) == [0, 1, 1, 2]


def test_special_tokens_count_where_they_are_sent(tokenizer: Tokenizer) -> None:
    assert offsets(LogprobsWithOffsets(TokenTexts(tokenizer), skip_special=False), [1, 4]) == [0, 4]
