"""Grammars that begin after the thoughts: what they accept before, within and after them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.grammar import lark_grammar
from outrider.models.text.reasoning import FORMATS, PARSERS, Stage
from outrider.server.http.thought_grammar import deferred, in_final

SPECIAL = ("<end>", "<think>", "</think>", "<other>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>")
IDS = {text: 256 + n for n, text in enumerate(SPECIAL)}
FORMS: list[tuple[dict[str, Any], str, str]] = [  # a form, a text of it, and another text
    ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}, '{"a": 1}', '{"a": "b"}'),
    ({"regex": "[0-9]+/start"}, "12/start", "x"),
    ({"choice": ["start", "no"]}, "start", "maybe"),
    ({"grammar": 'start: "start" WORD\n// start here\nWORD: /[a-z]+start/'}, "startastart", "begin"),
    ({"grammar": 'root ::= start "."\nstart ::= ("a" | "b")+'}, "ab.", "ab"),
]


class _Bytes(SimpleNamespace):
    """Bytes as tokens, and special ones after them."""

    tokens = [bytes([n]) for n in range(256)] + [text.encode() for text in SPECIAL]
    special_token_ids = list(IDS.values())  # noqa: RUF012
    eos_token_id, bos_token_id = IDS["<end>"], None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENS = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[IDS["<end>"]])


def ids(text: str, special: Sequence[str]) -> list[int]:
    """A text as tokens, with these as special ones."""
    pattern = "(" + "|".join(map(re.escape, special)) + ")" if special else "(?!)"
    parts = re.split(pattern, text)
    return [i for part in parts for i in ([IDS[part]] if part in special else list(part.encode()))]


def accepts(grammar: str, text: str, special: Sequence[str] = ()) -> bool:
    """Whether a text can be written token by token and then end."""
    matcher = LLMatcher(TOKENS, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = ids(text, special)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def made(name: str, stage: Stage, form: dict[str, Any], special: Sequence[str] = ()) -> str:
    grammar = lark_grammar(StructuredOutputsParams(**form))
    marks = {mark: IDS[mark] for mark in special}
    form_of = PARSERS[name]
    if form_of.channels and stage != "answer":
        grammar = in_final(grammar, marks)
    others = [i for text, i in IDS.items() if text != "<end>"]
    return deferred(grammar, form_of, stage, marks, others)


@pytest.mark.parametrize("special", [(), ("<think>", "</think>")])
@pytest.mark.parametrize(("form", "right", "wrong"), FORMS)
def test_the_form_holds_after_the_thoughts(
    form: dict[str, Any], right: str, wrong: str, special: Sequence[str]
) -> None:
    thoughts = f'hm {{"a": é}} < </thin\n{right}\n'
    for stage, head in (("thoughts", ""), ("open", "<think>"), ("open", "<think>\n")):
        grammar = made("qwen3", stage, form, special)  # type: ignore[arg-type]
        for blanks in ("", "\n\n", " "):
            assert accepts(grammar, f"{head}{thoughts}</think>{blanks}{right}", special)
            assert not accepts(grammar, f"{head}{thoughts}</think>{blanks}{wrong}", special)
        assert not accepts(grammar, f"{head}{thoughts}", special), "thoughts are no answer"
        assert not accepts(grammar, f"{head}{thoughts}</think>", special)
    assert accepts(made("qwen3", "open", form, special), right, special)
    assert not accepts(made("qwen3", "open", form, special), wrong, special)
    closed = made("qwen3", "answer", form, special)
    assert accepts(closed, right, special)
    assert not accepts(closed, f"<think>{thoughts}</think>{right}", special)


def test_a_grammar_that_is_not_deferred_is_caught() -> None:
    form, right, _ = FORMS[0]
    plain = lark_grammar(StructuredOutputsParams(**form))
    assert not accepts(plain, f"<think>hm</think>{right}")


def test_special_tokens_within_thoughts() -> None:
    special = ("<think>", "</think>", "<other>")
    grammar = made("qwen3", "thoughts", FORMS[0][0], ("<think>", "</think>"))
    assert accepts(grammar, 'a <other> b<other></think>{"a": 1}', special)
    assert not accepts(grammar, 'a</think><other>{"a": 1}', special)


@pytest.mark.parametrize("name", [form.name for form in FORMATS if not form.channels])
def test_every_format(name: str) -> None:
    one = PARSERS[name]
    grammar = made(name, "open", {"choice": ["yes"]})
    for opening in one.opens:
        for closing in one.closes:
            assert accepts(grammar, f"{opening}\nhm\n{closing}\nyes")
            assert not accepts(grammar, f"{opening}\nhm\n{closing}\nno")
    assert accepts(grammar, "yes")


@pytest.mark.parametrize("special", [(), SPECIAL[4:]])
def test_channels(special: Sequence[str]) -> None:
    grammar = made("openai_gptoss", "open", {"choice": ["yes"]}, special)
    final = "<|channel|>final<|message|>"
    thought = "<|channel|>analysis<|message|>hm < a<|end|><|start|>assistant"
    said = "<|channel|>commentary<|message|>I look<|end|><|start|>assistant"
    for head in ("", thought, thought + said + thought):
        assert accepts(grammar, f"{head}{final}yes", special)
        assert not accepts(grammar, f"{head}{final}no", special)
        assert not accepts(grammar, f"{head}yes", special)
    assert accepts(made("openai_gptoss", "answer", {"choice": ["yes"]}, special), "yes", special)


def test_texts_and_regexes_with_the_name_of_the_first_rule() -> None:
    grammar = deferred('start: "start" /start/ # start\n', PARSERS["qwen3"], "thoughts", {}, [])
    assert '"start" /start/ # start' in grammar
    assert json.dumps("start") in grammar
    assert accepts(grammar, "</think>startstart")
