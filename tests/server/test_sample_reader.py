"""The reader of a sample's text: reasoning, text and calls as blocks, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.models.text.reasoning import ReasoningReader
from outrider.server.http.sample_reader import BlockReader, SampleReader
from outrider.server.http.tool_parser import ToolParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
Blocks = list[tuple[str, str]]

TEXTS: list[tuple[str, bool, Blocks]] = [
    ("just text", False, [("text", "just text")]),
    ("", False, []),
    ("<think>\nhm, so\n</think>\n\nyes", False, [("reasoning", "hm, so"), ("text", "yes")]),
    ("hm\n</think>\n\nyes", True, [("reasoning", "hm"), ("text", "yes")]),
    ("<think>\n\n</think>\n\nyes", False, [("text", "yes")]),
    ("\n<think>a < b </thin k</think>c", False, [("reasoning", "a < b </thin k"), ("text", "c")]),
    ("<think>never ends \n", False, [("reasoning", "never ends")]),
    ("\n</think>", True, []),
    ("<think>x</think>\n\n", False, [("reasoning", "x")]),
    ("<thin", False, [("text", "<thin")]),
    ("<thinking is hard", False, [("text", "<thinking is hard")]),
    ("say <think>x</think>", False, [("text", "say <think>x</think>")]),
    (f"<think>use f</think>\n{CALL}", False, [("reasoning", "use f"), ("call", 'f {"x": 1}')]),
    (f"Well.\n{CALL}\n{OTHER}", False, [("text", "Well."), ("call", 'f {"x": 1}'), ("call", "g {}")]),
    (f"{CALL} then", False, [("call", 'f {"x": 1}'), ("text", "then")]),
]


def tokens(pieces: list[str]) -> list[TokenEvent]:
    return [TokenEvent("r", 1, piece, "bonus") for piece in pieces]


END = FinishEvent("r", "stop", None, "", RequestMetrics())


def reader(inside: bool, **more: Any) -> BlockReader:
    parser = ToolParser("hermes", ["f", "g"])
    return BlockReader(SampleReader(parser, reasoning=ReasoningReader(inside=inside), **more))


def read(pieces: list[str], inside: bool) -> Blocks:
    """The blocks that events add up to; each begins and ends once, one after the other."""
    blocks, found, open_block = reader(inside), Blocks(), None
    for event in blocks.read(tokens(pieces), END):
        if event.what == "begin":
            assert open_block is None
            open_block = event.block
            name = "" if event.block.call is None else event.block.call.name + " "
            found.append((event.block.kind, name))
        elif event.what == "more":
            assert event.block is open_block
            assert event.text
            found[-1] = (found[-1][0], found[-1][1] + event.text)
        else:
            assert event.block is open_block
            open_block = None
    assert open_block is None
    assert [kind for kind, _ in found] == [block.kind for block in blocks.blocks]
    return found


@pytest.mark.parametrize(("text", "inside", "expected"), TEXTS)
def test_blocks(text: str, inside: bool, expected: Blocks) -> None:
    assert read(list(text), inside) == expected


@given(st.sampled_from(TEXTS), st.data())
def test_it_does_not_matter_how_a_text_is_cut(case: tuple[str, bool, Blocks], data: st.DataObject) -> None:
    text, inside, expected = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert by_kind(read(pieces, inside)) == by_kind(expected)


def by_kind(blocks: Blocks) -> dict[str, str]:
    """The blocks of each kind as one text: of one piece, the text beside calls comes first."""
    return {kind: "".join(text for other, text in blocks if other == kind) for kind, _ in blocks}


def test_how_tokens_are_delivered_changes_nothing() -> None:
    text = f"<think>a</think>b {CALL} c"
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    whole, streamed = reader(False), reader(False)
    for _ in whole.read(tokens(pieces), END):
        pass
    for number, piece in enumerate(pieces):
        for _ in streamed.read(tokens([piece]), END if number + 1 == len(pieces) else None):
            pass
    assert [(b.kind, b.text) for b in whole.blocks] == [(b.kind, b.text) for b in streamed.blocks]
    assert whole.reasoning_tokens == streamed.reasoning_tokens > 0


def test_reasoning_tokens_are_counted_with_their_marks() -> None:
    blocks = reader(False)
    for _ in blocks.read(tokens(["<think>", "a", " b", "</think>", "c", " d"]), END):
        pass
    assert blocks.reasoning_tokens == 4


def test_one_call_only() -> None:
    blocks = reader(False, parallel=False)
    for _ in blocks.read(tokens(list(CALL + OTHER)), END):
        pass
    (block,) = blocks.blocks
    assert block.call is not None
    assert (block.call.name, json.loads(block.text)) == ("f", {"x": 1})


def test_the_last_block_ends_with_the_sample() -> None:
    blocks = reader(False)
    ends = [e.last for e in blocks.read(tokens(list(f"a{CALL}")), END) if e.what == "end"]
    assert ends == [False, True]


def test_one_read_of_many_tokens_is_what_each_of_them_brings() -> None:
    text = f"<think>a b</think>c {CALL} d {OTHER}"
    whole, by_token = reader(False).reader, reader(False).reader
    read = whole.read(tokens(list(text)), END)
    assert (read.reasoning, read.content) == ("a b", "c d")
    assert [delta["index"] for delta in read.deltas] == [0, 1]
    for delta, call in zip(read.deltas, whole.calls, strict=True):
        assert delta["function"] == {"name": call.name, "arguments": call.arguments}
    reads = list(by_token.each(tokens(list(text)), END))
    assert "".join(part.reasoning for part in reads) == read.reasoning
    assert "".join(part.content for part in reads) == read.content
    assert whole.reasoning_tokens == by_token.reasoning_tokens == len("<think>a b</think>") - len("<think")
