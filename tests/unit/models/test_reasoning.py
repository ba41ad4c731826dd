"""Thoughts and answers in the texts of each family, however a text is cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.models.text.harmony import HarmonyReader
from outrider.models.text.marks import first_mark, overlap
from outrider.models.text.reasoning import (
    FORMATS,
    LEFT,
    PARSERS,
    ReasoningFormat,
    ReasoningReader,
    ThoughtReader,
    format_of,
    opened,
)

Parts = tuple[str, str]
A = "<|channel|>analysis<|message|>"
F = "<|start|>assistant<|channel|>final<|message|>"
C = "<|channel|>commentary to=functions.f<|message|>"

# Format, whether the prompt opened the thoughts, text, (thoughts, answer).
TEXTS: list[tuple[str, bool, str, Parts]] = [
    ("think", False, "<think>\nhm, so\n</think>\n\nyes </think>", ("hm, so", "yes </think>")),
    ("think", True, "\nhm\n\nso </thin k>\n</think>\n\nyes", ("hm\n\nso </thin k>", "yes")),
    ("think", False, "no thoughts <think>at all</think>", ("", "no thoughts <think>at all</think>")),
    ("think", False, "<think>never ends \n</thi", ("never ends \n</thi", "")),
    ("think", True, "", ("", "")),
    ("think", False, " \n<thinking", ("", " \n<thinking")),
    ("think", False, "<think></think>\n\n", ("", "")),
    ("gemma4", False, "<|channel>thought\na <channel|>The answer", ("a", "The answer")),
    ("gemma4", False, "<|channel>thought\n<channel|>b", ("", "b")),
    ("mistral", False, "[THINK]a [/THIN [/THINK]b[/THINK]", ("a [/THIN", "b[/THINK]")),
    ("seed_oss", False, "<seed:think>a</think></seed:think>b", ("a</think>", "b")),
    ("granite", False, "<think>a</think>\n<response>b\n </response>\n", ("a", "b")),
    ("granite", False, "<think>a</think> b</response>", ("a", "b</response>")),
    (
        "granite",
        False,
        "<think>a</think><response>\n b </resp c </response> d",
        ("a", "b </resp c </response> d"),
    ),
    ("granite", False, "<think>a</think><response>b </respon", ("a", "b </respon")),
    ("granite", False, "<think>a</think><response>", ("a", "")),
    ("granite", False, "Here is my thought process:\na\nHere is my response:\nb", ("a", "b")),
    ("granite", False, "Here's my thought process: a Here's my response: b", ("a", "b")),
    ("granite", False, "Here is my answer", ("", "Here is my answer")),
    ("hunyuan_a13b", False, "<think>\na\n</think>\n<answer>\nb\n</answer>", ("a", "b")),
    ("ernie45", True, "a</think>\n\n<response>\nb\n</response>\n", ("a", "b")),
    ("harmony", False, f"{A}a < b<|end|>{F}yes", ("a < b", "yes")),
    ("harmony", False, f"{A} a \n<|end|><|start|>assistant{A}b<|end|>{F}c\n\n", ("a\nb", "c\n\n")),
    ("harmony", False, f"{A}never ends <|en", ("never ends <|en", "")),
    ("harmony", False, "plain <b>", ("", "plain <b>")),
    ("harmony", False, "<|channel|>final<|message|>x<|return|>", ("", "x")),
    (
        "harmony",
        False,
        "<|channel|>commentary<|message|>I look.<|end|>" + F + "It is.",
        ("", "I look.\nIt is."),
    ),
    (
        "harmony",
        False,
        f"{A}a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        '<|message|>{"x":1}<|call|>',
        ("a", f'{C}{{"x":1}}<|call|>'),
    ),
    (
        "harmony",
        False,
        f"{A}a<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{{}}",
        ("a", f"{C}{{}}"),
    ),
    ("harmony", False, f"{A}a<|end|><|start|>assis", ("a", "")),
    ("harmony", False, f"{A}a<|channel|>final<|message|>b", ("a", "b")),
]


def reader(name: str, inside: bool) -> ThoughtReader:
    made = PARSERS[name]
    return HarmonyReader() if made.channels else ReasoningReader(made, inside=inside)


def parts(made: ThoughtReader, pieces: Sequence[str]) -> Parts:
    found = [made.push(piece) for piece in pieces] + [made.finish()]
    return "".join(thought for thought, _ in found), "".join(text for _, text in found)


def cuts(text: str) -> list[list[str]]:
    """The text in one piece, in two at every place, and character by character."""
    return [[text], *([text[:at], text[at:]] for at in range(1, len(text))), list(text)]


def wrong_cuts(make: Callable[[str, bool], ThoughtReader]) -> list[tuple[str, list[str], Parts]]:
    """The ways to cut the texts that give a reader other parts than they should."""
    found = []
    for name, inside, text, expected in TEXTS:
        for pieces in cuts(text):
            if (got := parts(make(name, inside), pieces)) != expected:
                found.append((name, pieces, got))
    return found


def test_however_a_text_is_cut() -> None:
    assert wrong_cuts(reader) == []


@given(st.sampled_from(TEXTS), st.data())
def test_in_many_pieces(case: tuple[str, bool, str, Parts], data: st.DataObject) -> None:
    name, inside, text, expected = case
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert parts(reader(name, inside), pieces) == expected


@given(
    st.sampled_from([made.name for made in FORMATS]),
    st.booleans(),
    st.lists(
        st.sampled_from(["a", " ", "\n", "<", *(m for made in FORMATS for m in made.marks)]), max_size=12
    ),
)
@example("harmony", False, ["<|constrain|>"])
def test_any_row_of_marks_is_read_alike_whole_and_in_characters(
    name: str, inside: bool, row: list[str]
) -> None:
    text = "".join(row)
    assert parts(reader(name, inside), [text]) == parts(reader(name, inside), list(text))


class _Hasty(ReasoningReader):
    """A broken twin that does not wait for the rest of a mark."""

    def push(self, text: str) -> Parts:
        if self.inside and not any(mark in self._held + text for mark in self._format.closes):
            held, self._held = self._held + text, ""
            return held, ""
        return super().push(text)


def test_a_reader_that_does_not_wait_is_caught() -> None:
    wrong = wrong_cuts(
        lambda name, inside: _Hasty(PARSERS[name], inside=inside) if name == "think" else reader(name, inside)
    )
    assert wrong
    assert {name for name, _, _ in wrong} == {"think"}


class _HastyHarmony(HarmonyReader):
    """A broken twin that takes each piece for the whole text."""

    def push(self, text: str) -> Parts:
        found, rest = super().push(text), super().finish()
        return found[0] + rest[0], found[1] + rest[1]


def test_a_reader_of_channels_that_does_not_wait_is_caught() -> None:
    wrong = wrong_cuts(lambda name, inside: _HastyHarmony() if name == "harmony" else reader(name, inside))
    assert {name for name, _, _ in wrong} == {"harmony"}


def test_what_a_prompt_opens() -> None:
    think, gemma = PARSERS["qwen3"], PARSERS["gemma4"]
    assert opened(think, "<|im_start|>assistant\n<think>\n")
    assert not opened(think, "<think>\n\n</think>\n\n")
    assert not opened(think, "what does <think> do?<|im_end|>\n<|im_start|>assistant\n")
    assert opened(gemma, "<|turn>model\n<|channel>thought\n")
    assert not opened(gemma, "<|turn>model\n<|channel>thought\n<channel|>")
    assert opened(think, "and so on", continued="<think>\nlong and so on")
    assert not opened(think, "so", continued="<think>a</think>so")
    assert not opened(think, "so", continued="say <think> so")


def test_a_continued_message_in_channels() -> None:
    assert parts(HarmonyReader.after("<|message|>half", continued=True), ["way", "<|return|>"]) == ("", "way")
    assert parts(HarmonyReader.after("<|end|><|start|>assistant", continued=False), [f"{A}a"]) == ("a", "")
    begun = HarmonyReader.after(f"<|start|>assistant{A}", continued=False)
    assert begun.inside
    assert parts(begun, ["a<|end|>", F, "b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("x{{ '<think>\\n' }}", "think"),
        ("content.split('</think>')", "think"),
        ("{{ messages }} thinks", None),
        (None, None),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("<|turn>model\n<|channel>thought\n<channel|>", "gemma4"),
        ("[INST] [THINK]", "mistral"),
        ("<seed:think>", "seed_oss"),
        ("Write 'Here is my thought process:' first", "granite"),
        ("<think></think><response></response>", "granite"),
        ("<tool_response></tool_response><response>", None),
    ],
)
def test_the_format_is_chosen_by_the_template(template: str | None, expected: str | None) -> None:
    for parser in (None, "auto"):
        found = format_of(template, parser)
        assert (None if found is None else found.name) == expected
    assert {format_of(template, name) for name in LEFT} == {None}
    for name, made in PARSERS.items():
        assert format_of(template, name) is made


def test_small_parts() -> None:
    assert overlap("a</th", "</think>") == 4
    assert overlap("</think>", "</think>") == 0
    assert first_mark("a b c", ["c", "b"]) == (2, "b")
    assert first_mark("a", ["b"]) == (-1, "")
    assert isinstance(PARSERS["qwen3"], ReasoningFormat)
    assert len({made.name for made in FORMATS}) == len(FORMATS)
