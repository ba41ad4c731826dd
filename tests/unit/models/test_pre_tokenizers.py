"""The pre-tokenizers against the patterns that the models' own tokenizer.json files publish.

llama.cpp's regular expressions, which ours follow, differ from these beyond ASCII; within it they must agree.
tests/unit/models/test_tokenizer_reference.py compares with llama.cpp itself on all texts.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from outrider.models.text.pre_tokenizers import PRE_TOKENIZERS
from tests.unit.models.tokenizers_for_tests import TEXTS

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

LLAMA3 = WORDS % r"\p{N}{1,3}"
QWEN2 = WORDS % r"\p{N}"
QWEN35 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
SEED = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
)
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
)


def split(*patterns: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


DIGITS = pre_tokenizers.Digits(individual_digits=True)
PUBLISHED = {
    "llama-bpe": split(LLAMA3),
    "smaug-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
    "megrez": split(QWEN2),
    "qwen35": split(QWEN35),
    "seed-coder": split(SEED),
    "tekken": split(TEKKEN),
    "gpt-4o": split(GPT4O),
    "llama4": split(GPT4O),
    "deepseek-v3": split(r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3),
    "deepseek-coder": [
        *split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
        DIGITS,
    ],
    "deepseek-llm": split(r"[\r\n]", r"\s?[A-Za-z]+", r"\s?[!-/:-~]+", r"\s+$", r"\p{N}+"),
    "falcon": [
        pre_tokenizers.Punctuation("contiguous"),
        gpt2(),  # the file then cuts digits from a blank before them, which llama.cpp does not
        *split("[0-9][0-9][0-9]"),
    ],
    "gpt-2": [gpt2()],
    "mpt": [gpt2()],
    "olmo": [gpt2()],
    "smollm": [DIGITS, gpt2()],
    "starcoder": [DIGITS, gpt2()],
    "refact": [DIGITS, gpt2()],
    "command-r": [DIGITS, gpt2()],
    "viking": split(r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"),
}
ASCII = st.text(st.characters(max_codepoint=127), max_size=40) | st.lists(
    st.sampled_from(
        ["don't", "WE'LL", "camelCase", "HTTPServer", "  ", "\n\n", "\r\n ", "\t", "12345", "3.14", "a/b/"]
        + [text for text in TEXTS if text.isascii()]
    ),
    max_size=5,
).map("".join)  # fmt: skip


def ends(steps: list[Any], text: str) -> list[int]:
    """Where the words of a text end."""
    return [end for _, (_, end) in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", PUBLISHED)
def test_ascii_is_split_as_published(name: str) -> None:
    ours = split(*PRE_TOKENIZERS[name].expressions)

    @settings(max_examples=150)
    @given(ASCII)
    def holds(text: str) -> None:
        assert ends(ours, text) == ends(PUBLISHED[name], text)

    holds()


def test_the_comparison_tells_pre_tokenizers_apart() -> None:
    text = "HTTPServer don't 12345 (x)\n\nfoo/bar/\n"
    found = {name: tuple(ends(split(*made.expressions), text)) for name, made in PRE_TOKENIZERS.items()}
    assert len(set(found.values())) >= 9
    assert found["tekken"] != found["gpt-4o"] != found["llama-bpe"]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_no_text_is_lost(name: str) -> None:
    steps = split(*PRE_TOKENIZERS[name].expressions)

    @settings(max_examples=40)
    @given(st.text(max_size=30) | st.sampled_from(TEXTS))
    def holds(text: str) -> None:
        spans = [span for _, span in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]
        assert all(first[1] == second[0] for first, second in pairwise(spans))
        assert [*spans[:1], *spans[-1:]] == ([] if not text else [spans[0], (spans[-1][0], len(text))])

    holds()
