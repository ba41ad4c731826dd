from __future__ import annotations

import codecs
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.models.text.detokenizer import IncrementalDetokenizer
from outrider.models.text.pieces import byte_alphabet
from tests.support.calls import calls_of
from tests.unit.models.tokenizers_for_tests import TEXTS, tokenizer

BPE = tokenizer("bpe-qwen2")
SPM = tokenizer("spm")
BYTE = {
    True: {b: BPE.pieces.texts.index(char) for b, char in enumerate(byte_alphabet())},
    False: {b: SPM.pieces.texts.index(f"<0x{b:02X}>") for b in range(256)},
}

ids_of_any_kind = st.lists(
    st.integers(-3, BPE.vocab_size + 3)
    | st.binary(max_size=5).map(lambda data: [BYTE[True][b] for b in data])
    | st.sampled_from(["\U0001f468\u200d\U0001f469", "日本", "é", " ", "a"]).map(
        lambda text: [BYTE[True][b] for b in text.encode()[:-1]]
    ),
    max_size=30,
).map(lambda parts: [i for part in parts for i in (part if isinstance(part, list) else [part])])


@settings(max_examples=250)
@given(ids_of_any_kind, st.booleans(), st.booleans(), st.booleans())
def test_pushes_together_are_decode(ids: list[int], bpe: bool, skip: bool, continues: bool) -> None:
    made = BPE if bpe else SPM
    stream = IncrementalDetokenizer(made, skip_special=skip, continues=continues)
    parts = [stream.push(i) for i in ids]
    parts.append(stream.flush())
    wanted = made.decode(ids, skip_special=skip, continues=continues)
    assert "".join(parts) == wanted
    assert stream.text == wanted
    assert all(part.encode() for part in parts if part)  # whole characters only


@settings(max_examples=200)
@given(st.binary(max_size=24))
def test_sentence_piece_byte_tokens(data: bytes) -> None:
    stream = IncrementalDetokenizer(SPM, continues=True)
    text = "".join(stream.push(BYTE[False][b]) for b in data) + stream.flush()
    assert text == data.decode(errors="replace")


@pytest.mark.parametrize("name", ["bpe-qwen2", "spm", "spm-no-prefix"])
def test_texts_come_back(name: str) -> None:
    made = tokenizer(name)
    for text in TEXTS:
        stream = IncrementalDetokenizer(made, skip_special=False)
        ids = made.encode(text, add_special=False)
        assert "".join(map(stream.push, ids)) + stream.flush() == made.decode(ids, skip_special=False)


def test_a_character_comes_with_its_last_byte() -> None:
    stream = IncrementalDetokenizer(BPE)
    first, second, third = (BYTE[True][b] for b in "€".encode())
    assert [stream.push(i) for i in (first, second, third)] == ["", "", "€"]
    assert stream.push(first) == ""
    assert stream.push(BYTE[True][0x41]) == "\ufffdA"  # certain only now
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"
    assert stream.text == "€\ufffdA\ufffd"


def test_special_and_unknown_ids_interrupt_nothing() -> None:
    stream = IncrementalDetokenizer(BPE)
    first, second, third = (BYTE[True][b] for b in "€".encode())
    special = BPE.eos_ids[0]
    assert [stream.push(i) for i in (first, special, second, 10**9, third)] == ["", "", "", "", "€"]


def test_leading_blank() -> None:
    ids = SPM.encode("  two", add_special=False)
    assert "".join(map(IncrementalDetokenizer(SPM).push, ids)) == "  two"
    assert "".join(map(IncrementalDetokenizer(SPM, continues=True).push, ids)) == "   two"


def test_a_long_text_takes_no_more_for_a_token() -> None:
    """No push goes over the text so far, in Python or by making a copy of it."""

    def push() -> str:
        return stream.push(token)

    stream = IncrementalDetokenizer(BPE)
    token = BPE.encode("word", add_special=False)[0]
    first = min(calls_of(push) for _ in range(5))
    for _ in range(300_000 - 5):
        push()
    assert min(calls_of(push) for _ in range(5)) == first
    assert min(bytes_of(push) for _ in range(5)) < 10_000
    assert len(stream.text) == 300_010 * len(BPE.piece(token)), "1.2 MB"


def bytes_of(action: Callable[[], object]) -> int:
    """The most memory that `action` takes at a time, beyond what is held before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_decoder_per_token_would_fail() -> None:
    """The broken twin: decoding token by token cuts characters, and the property above would see it."""
    ids = [BYTE[True][b] for b in "日".encode()]
    wrong = "".join(codecs.decode(BPE.piece_bytes(i), "utf-8", "replace") for i in ids)
    assert wrong != BPE.decode(ids)
