"""Prompts for filling in, by the names of a vocabulary's tokens."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import PromptError
from outrider.models.source import TokenizerData
from outrider.models.text import fim
from outrider.models.text.tokenizer import Tokenizer

LETTERS = ("a", "b", "c", "ab")


def tokenizer(*names: str) -> Tokenizer:
    tokens = (*LETTERS, *names)
    types = np.array([1] * len(LETTERS) + [3] * len(names), np.int32)
    return Tokenizer.from_data(
        TokenizerData(kind="bpe", pre="gpt-2", tokens=tokens, types=types, merges=("a b",))
    )


@pytest.mark.parametrize("names", list(zip(*fim.NAMES.values(), strict=True)))
def test_every_family_is_found(names: tuple[str, str, str]) -> None:
    made = tokenizer(*names, "<|file_sep|>")
    tokens = fim.needed(fim.fim_tokens(made))
    assert (tokens.prefix, tokens.suffix, tokens.middle, tokens.ends) == (4, 5, 6, frozenset({7}))
    found = fim.fim_prompt(made, tokens, "a", "b")
    assert found == ([5, 1, 4, 0] if names[0] == "[PREFIX]" else [4, 0, 5, 1, 6])
    assert fim.fim_prompt(made, tokens, [2], "b") == fim.fim_prompt(made, tokens, "c", "b")


def test_a_vocabulary_with_two_of_the_three_has_none() -> None:
    assert fim.fim_tokens(tokenizer("<|fim_prefix|>", "<|fim_suffix|>")) is None
    with pytest.raises(PromptError, match="no tokens for filling in"):
        fim.needed(None)
