from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import VocabularyMismatchError
from outrider.models.source import TokenizerData
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.vocabulary import compare_vocabularies, ensure_compatible
from tests.unit.models.tokenizers_for_tests import CASES, model, tokenizer_data


def vocabulary(*tokens: str, unused: tuple[int, ...] = (), **changes: object) -> TokenizerData:
    types = np.ones(len(tokens), np.int32)
    types[list(unused)] = 5
    data = TokenizerData(kind="bpe", pre="gpt-2", tokens=tokens, types=types)
    return dataclasses.replace(data, **changes)  # type: ignore[arg-type]


ABC = ("a", "b", "c")


@pytest.mark.parametrize(
    "draft",
    [
        vocabulary(*ABC),
        vocabulary(*ABC, "[PAD3]", "[PAD4]"),
        vocabulary(*ABC, "<|extra|>", "<|more|>", unused=(3, 4)),
        vocabulary(*ABC, "", ""),
    ],
)
def test_padding_does_not_count(draft: TokenizerData) -> None:
    target = vocabulary(*ABC, "[PAD3]")
    for match in (compare_vocabularies(target, draft), compare_vocabularies(draft, target)):
        assert match.compatible
        assert match.first_difference is None
        assert match.common_size == 3
    match = ensure_compatible(target, draft)
    assert (match.target_size, match.draft_size) == (4, len(draft.tokens))


def test_unused_ids_inside_the_list() -> None:
    target = vocabulary("a", "x", "c", unused=(1,))
    assert compare_vocabularies(target, vocabulary("a", "[PAD1]", "c")).compatible
    assert compare_vocabularies(target, vocabulary("a", "y", "c", unused=(1,))).common_size == 3
    assert not compare_vocabularies(target, vocabulary("a", "x", "c")).compatible


def test_the_first_difference_is_named() -> None:
    target, draft = vocabulary("a", "b", "c", "d"), vocabulary("a", "b", "X", "Y")
    match = compare_vocabularies(target, draft)
    assert not match.compatible
    assert match.common_size == 2
    with pytest.raises(VocabularyMismatchError) as error:
        ensure_compatible(target, draft)
    message = str(error.value)
    assert "id 2 is 'c' in the target and 'X' in the draft" in message
    assert "--spec ngram" in message
    assert "\n" not in message


def test_a_token_that_only_one_model_has() -> None:
    match = compare_vocabularies(vocabulary(*ABC, "<think>"), vocabulary(*ABC, "[PAD3]"))
    assert match.common_size == 3
    assert "id 3 is '<think>' in the target and no token in the draft" in str(match.first_difference)
    with pytest.raises(VocabularyMismatchError, match=r"no token in the target and 'x' in the draft"):
        ensure_compatible(vocabulary("a"), vocabulary("a", "x"))


letters = st.lists(st.sampled_from("abcdef"), max_size=6, unique=True)


@given(letters, letters)
def test_against_the_definition(left: list[str], right: list[str]) -> None:
    match = compare_vocabularies(vocabulary("x", *left), vocabulary("x", *right))
    assert match.compatible == (left == right)
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    assert match.common_size == same + 1


def test_roles_are_reported_not_refused() -> None:
    target = vocabulary(*ABC, bos_id=0, eos_ids=(1,), add_bos=True)
    assert ensure_compatible(target, target).role_differences == ()
    found = ensure_compatible(target, vocabulary(*ABC, bos_id=0, eos_ids=(1,))).role_differences
    assert found == ("only the target adds bos to a prompt",)
    found = ensure_compatible(
        target, vocabulary(*ABC, bos_id=2, eos_ids=(1, 2), add_bos=True)
    ).role_differences
    assert found == (
        "the bos token added to a prompt is 0 in the target, 2 in the draft",
        "a text ends at the ids [1] in the target, [1, 2] in the draft",
    )
    found = ensure_compatible(
        target, vocabulary(*ABC, add_eos=True, eos_ids=(1,), add_bos=True)
    ).role_differences
    assert found == (
        "the bos token added to a prompt is 0 in the target, None in the draft",
        "only the draft adds eos to a prompt",
    )


def test_tokenizers_compare_as_their_data() -> None:
    data = tokenizer_data(CASES["bpe-qwen2"])
    other = tokenizer_data(CASES["spm"])
    made = Tokenizer.from_data(data)
    assert compare_vocabularies(made, data) == compare_vocabularies(data, data)
    assert compare_vocabularies(made, Tokenizer.from_data(other)) == compare_vocabularies(data, other)
    assert not compare_vocabularies(made, other).compatible


class Counted(str):
    """A token that counts how often one is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_large_vocabulary_is_compared_once() -> None:
    tokens = tuple(Counted(f"token{n}") for n in range(151_665))
    others = tuple(Counted(token) for token in tokens)
    target = vocabulary(*tokens, *(f"[PAD{n}]" for n in range(151_665, 151_936)))
    draft = vocabulary(*others, *(f"[PAD{n}]" for n in range(151_665, 152_064)))
    before = Counted.comparisons
    match = compare_vocabularies(target, draft)
    assert match.compatible
    assert match.common_size == 151_665
    assert 151_665 <= Counted.comparisons - before <= 4 * 151_665


@pytest.mark.pair
def test_the_qwen_pair() -> None:
    files = [f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf" for size in ("1.5b", "0.5b")]
    target, draft = (model(file).tokenizer for file in files)
    match = ensure_compatible(target, draft)
    assert (match.common_size, match.target_size, match.role_differences) == (151_665, 151_936, ())
    tokens = list(draft.tokens)
    tokens[1000], tokens[2000] = tokens[2000], tokens[1000]
    with pytest.raises(VocabularyMismatchError, match="id 1000 is"):
        ensure_compatible(target, dataclasses.replace(draft, tokens=tuple(tokens)))
