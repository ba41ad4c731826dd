"""Prompts for filling in: which tokens a vocabulary has for it, and what is made of texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import PromptError
from outrider.models.open import open_model
from outrider.models.source import AddedPiece, TokenizerData
from outrider.models.text import fim
from outrider.models.text.infill import WINDOW, Room, infill_prompt
from outrider.models.text.tokenizer import Tokenizer
from tests.support.models import FIM_NAMES, fim_gguf, tiny_gguf, tiny_tokenizer

LETTERS = ("a", "b", "c", "ab")


def vocabulary(*names: str, **more: Any) -> TokenizerData:
    tokens = (*LETTERS, *names)
    types = np.array([1] * len(LETTERS) + [3] * len(names), np.int32)
    return TokenizerData(kind="bpe", pre="gpt-2", tokens=tokens, types=types, merges=("a b",), **more)


def tokenizer(*names: str, **more: Any) -> Tokenizer:
    return Tokenizer.from_data(vocabulary(*names, **more))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary with all bytes and Qwen's six tokens, the last six ids."""
    return Tokenizer.from_data(open_model(fim_gguf(tmp_path_factory.mktemp("fim") / "a.gguf")).tokenizer)


@pytest.fixture(scope="module")
def folder_tokenizer() -> Tokenizer:
    """The same of a tokenizer.json that does not call them special, as Qwen's does not."""
    added = tuple(AddedPiece(name, 320 + i, special=False) for i, name in enumerate(FIM_NAMES))
    data = TokenizerData(kind="json", tokenizer_json=tiny_tokenizer().to_str(), added=added)
    return Tokenizer.from_data(data)


@pytest.mark.parametrize("names", list(zip(*fim.NAMES.values(), strict=True)))
def test_every_family_is_found(names: tuple[str, str, str]) -> None:
    made = tokenizer(*names, "<|file_sep|>")
    tokens = fim.needed(fim.fim_tokens(made))
    assert (tokens.prefix, tokens.suffix, tokens.middle, tokens.ends) == (4, 5, 6, frozenset({7}))
    assert (tokens.file, tokens.repository) == (7, None)
    found = fim.fim_prompt(made, tokens, "a", "b")
    assert found == ([5, 1, 4, 0] if names[0] == "[PREFIX]" else [4, 0, 5, 1, 6])
    assert fim.fim_prompt(made, tokens, [2], "b") == fim.fim_prompt(made, tokens, "c", "b")


def test_a_vocabulary_with_two_of_the_three_has_none() -> None:
    assert fim.fim_tokens(tokenizer("<|fim_prefix|>", "<|fim_suffix|>")) is None
    assert fim.fim_tokens(tokenizer("<|fim_prefix|>", "<|fim_suffix|>", "<fim_middle>")) is None
    with pytest.raises(PromptError, match="no tokens for it") as caught:
        fim.needed(None)
    assert "\n" not in str(caught.value)


def test_what_the_file_says_comes_first() -> None:
    three = FIM_NAMES[:3]
    tokens = fim.needed(fim.fim_tokens(tokenizer(*three, fim={"middle": 3, "file": 2})))
    assert (tokens.prefix, tokens.suffix, tokens.middle, tokens.file) == (4, 5, 3, 2)
    named = {"prefix": 0, "suffix": 1, "middle": 2}
    tokens = fim.needed(fim.fim_tokens(tokenizer(fim=named)))
    assert (tokens.prefix, tokens.suffix, tokens.middle, tokens.ends) == (0, 1, 2, frozenset())
    assert fim.fim_tokens(tokenizer(fim={**named, "middle": 0})) is None, "one token cannot have two roles"
    assert fim.fim_tokens(tokenizer(fim={**named, "middle": 99})) is None
    end = fim.needed(fim.fim_tokens(tokenizer(fim={**named, "pad": 1})))
    assert end.ends == frozenset(), "a text does not end at a mark that the prompt is made of"


@given(st.dictionaries(st.sampled_from([*fim.NAMES, *fim.END_NAMES]), st.integers(-3, 12)), st.booleans())
def test_any_ids_give_possible_tokens_or_none(stated: dict[str, int], has_names: bool) -> None:
    made = tokenizer(*(FIM_NAMES if has_names else ()), fim=stated)
    tokens = fim.fim_tokens(made)
    if tokens is None:
        return
    three = {tokens.prefix, tokens.suffix, tokens.middle}
    assert len(three) == 3
    assert three.isdisjoint(tokens.ends)
    assert all(0 <= token < made.vocab_size for token in three | tokens.ends)
    prompt = fim.fim_prompt(made, tokens, "ab", "c")
    assert prompt[0] == tokens.prefix
    assert prompt[-1] == tokens.middle


def test_the_ids_of_a_file(tmp_path: Path) -> None:
    key = "tokenizer.ggml."
    new = {"fim_pre": 10, "fim_suf": 11, "fim_mid": 12, "fim_pad": 13, "fim_rep": 14, "fim_sep": 15}
    old = {"prefix": 20, "suffix": 21, "middle": 22}
    data = open_model(
        tiny_gguf(tmp_path / "new.gguf", keys={f"{key}{role}_token_id": i for role, i in new.items()})
    ).tokenizer
    assert [data.fim[role] for role in (*fim.NAMES, *fim.END_NAMES)] == [*range(10, 16)]
    assert data.eos_ids == (2, 0, 13, 14, 15), "as in llama.cpp, these three end any text"
    data = open_model(
        tiny_gguf(tmp_path / "old.gguf", keys={f"{key}{role}_token_id": i for role, i in old.items()})
    ).tokenizer
    tokens = fim.needed(fim.fim_tokens(Tokenizer.from_data(data)))
    assert (tokens.prefix, tokens.suffix, tokens.middle) == (20, 21, 22)
    assert data.eos_ids == (2, 0)


@pytest.mark.parametrize("role", ["fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix"])
@pytest.mark.parametrize("wrong", [320, 1 << 31, (1 << 32) - 2])
def test_ids_beyond_the_vocabulary_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, role: str, wrong: int
) -> None:
    key = f"tokenizer.ggml.{role}_token_id"
    data = open_model(fim_gguf(tmp_path / "a.gguf", keys={key: wrong})).tokenizer
    assert f"{key} is {wrong}, but there are 320 tokens: it is left out" in caplog.text
    assert not data.fim
    tokens = fim.needed(fim.fim_tokens(Tokenizer.from_data(data)))
    assert (tokens.prefix, tokens.suffix, tokens.middle) == (314, 315, 316), "the names are there"


def test_one_id_for_two_roles_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"tokenizer.ggml.fim_pre_token_id": 9, "tokenizer.ggml.fim_mid_token_id": 9}
    data = open_model(tiny_gguf(tmp_path / "a.gguf", keys=keys)).tokenizer
    assert "gives two of the tokens for filling in the same id (9, 9)" in caplog.text
    assert fim.fim_tokens(Tokenizer.from_data(data)) is None


def test_names_end_texts_of_a_file(tmp_path: Path) -> None:
    data = open_model(fim_gguf(tmp_path / "a.gguf")).tokenizer
    assert data.eos_ids == (2, 0, 317, 318, 319)
    tokens = fim.needed(fim.fim_tokens(Tokenizer.from_data(data)))
    assert tokens.ends == {0, 317, 318, 319}, "and the end of the text"


texts = st.lists(st.sampled_from([*FIM_NAMES, "<|fim_", "prefix|>", "x", " ", "é", "<", "|>"])).map("".join)


@given(prefix=texts, suffix=texts)
def test_marks_in_a_text_are_plain_text(
    tiny: Tokenizer, folder_tokenizer: Tokenizer, prefix: str, suffix: str
) -> None:
    for made in (tiny, folder_tokenizer):
        tokens = fim.needed(fim.fim_tokens(made))
        ids = fim.fim_prompt(made, tokens, prefix, suffix)
        marks = {tokens.prefix, tokens.suffix, tokens.middle, *tokens.ends}
        at = ids.index(tokens.suffix)
        assert [i for i in ids if i in marks] == [tokens.prefix, tokens.suffix, tokens.middle]
        assert made.decode(ids[1:at]) == prefix
        assert made.decode(ids[at + 1 : -1]) == suffix


def test_a_folders_marks_would_be_found_in_a_text(folder_tokenizer: Tokenizer) -> None:
    """What the test above guards against."""
    name = FIM_NAMES[0]
    assert folder_tokenizer.encode(name, add_special=False, parse_special=False) == [320]


def test_bos(tiny: Tokenizer) -> None:
    three = FIM_NAMES[:3]
    made = tokenizer(*three, "<s>", "</s>", bos_id=7, eos_id=8, add_bos=True, add_eos=True)
    tokens = fim.needed(fim.fim_tokens(made))
    assert fim.fim_prompt(made, tokens, "a", "b") == [7, 4, 0, 5, 1, 6]
    assert fim.fim_prompt(made, tokens, "a", "b", add_special=False) == [4, 0, 5, 1, 6]
    assert fim.bos_ids(tiny) == []
    text = json.loads(tiny_tokenizer().to_str())
    text["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    data = TokenizerData(kind="json", tokenizer_json=json.dumps(text), bos_id=1)
    assert fim.bos_ids(Tokenizer.from_data(data)) == [1]


def test_a_text_that_is_not_unicode(tiny: Tokenizer) -> None:
    tokens = fim.needed(fim.fim_tokens(tiny))
    with pytest.raises(PromptError, match="not Unicode"):
        fim.fim_prompt(tiny, tokens, "a", "\ud800")


MARKS = fim.FimTokens(1000, 1001, 1002, frozenset(), repository=1003, file=1004)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def laid_out(tokens: fim.FimTokens = MARKS, **more: Any) -> str:
    """The layout of a prompt as a text, with letters for the marks and _ for bos."""
    shown = {1000: "P", 1001: "S", 1002: "M", 1003: "R", 1004: "F", 1: "_"}
    given = {
        "before": letters("before"),
        "line": letters("line"),
        "after": letters("after"),
        "others": [("x.py", "one"), ("y.py", "two")],
        "room": Room.of(32768, 128),
        **more,
    }
    return "".join(shown.get(i) or chr(i) for i in infill_prompt(tokens, letters, **given))


def test_llama_cpps_layout() -> None:
    assert laid_out() == "Rmyproject\nFx.py\noneFy.py\ntwoFfilename\nPbeforelineSafterM"
    assert laid_out(others=[]) == "Rmyproject\nFfilename\nPbeforelineSafterM"
    plain = replace(MARKS, repository=None, file=None)
    snippet = "\n\n--- snippet ---\n\n"
    assert laid_out(plain) == f"{snippet}one{snippet}twoPbeforelineSafterM"
    assert laid_out(plain, others=[]) == "PbeforelineSafterM"
    assert laid_out(bos=[1]) == "Rmyproject\nFx.py\noneFy.py\ntwoFfilename\n_PbeforelineSafterM"
    first = replace(plain, suffix_first=True)
    assert laid_out(first, others=[]) == "SafterPbeforeline"


def test_what_has_no_room_is_left_out() -> None:
    assert laid_out(room=Room(3, 100, 0)) == "PorelineSafterM"
    assert laid_out(room=Room(0, 6, 0)) == "PlineSafM", "the line takes of the room after the gap"
    assert laid_out(room=Room(0, 0, 0)) == "PlineSM"
    assert laid_out(room=Room(6, 100, 13)) == "twoFfilename\nPbeforelineSafterM"
    assert laid_out(room=Room(6, 100, 14)) == "\ntwoFfilename\nPbeforelineSafterM"
    assert laid_out(room=Room(6, 100, 19)) == "Fy.py\ntwoFfilename\nPbeforelineSafterM"


def test_llama_cpps_shares() -> None:
    assert Room.of(32768, 128) == Room(1536, 510, 32768 - WINDOW - 256 - 3)
    assert Room.of(4096, 2048) == Room(1536, 510, 0)


@given(
    context=st.integers(1, 9000),
    output=st.none() | st.integers(0, 9000),
    sizes=st.tuples(*[st.integers(0, 10000)] * 3),
    line=st.integers(0, 40),
)
def test_a_prompt_leaves_room_for_the_output(
    context: int, output: int | None, sizes: tuple[int, int, int], line: int
) -> None:
    room = Room.of(context, output)
    before, after, others = ([7] * size for size in sizes)
    prompt = infill_prompt(
        MARKS,
        letters,
        before=before,
        line=[8] * line,
        after=after,
        others=[("a", "x" * len(others))],
        room=room,
        bos=[1],
    )
    if line <= room.after and context > 5:
        assert len(prompt) < context
    if line <= room.after and context > 2000 and output is not None:
        assert len(prompt) + min(output, context // 4) <= context
