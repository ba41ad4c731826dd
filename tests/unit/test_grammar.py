"""Constraints with llguidance: what they permit, and that a draft path does not change their state."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError
from outrider.grammar import GrammarConstraint, Grammars
from outrider.models.open import open_model
from outrider.models.text.tokenizer import Tokenizer
from tests.support.models import tiny_gguf
from tests.unit.models.tokenizers_for_tests import tokenizer as spm_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": SCHEMA},
    "tight schema": {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    "object": {"structured_outputs": {"json_object": True}},
    "regex": {"regex": "([0-9]{3}-[0-9]{4}|[a-c]+x)"},
    "choice": {"choice": ["the quick brown fox", "the quick red hat", "dog"]},
    "lark": {"grammar": 'start: (word ",")* "the end"\nword: "name" | "names" | /[0-9]+/'},
    "gbnf": {"grammar": 'root ::= ("a" | "b")+ "." [0-9]*'},
    "gbnf with start": {"grammar": 'root ::= start "."\nstart ::= ("a" | "b")+'},
}


@functools.cache
def tokenizer() -> Tokenizer:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        return Tokenizer.from_data(open_model(tiny_gguf(Path(folder) / "target.gguf")).tokenizer)


@functools.cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), tokenizer().vocab_size)


def constraint(**arguments: Any) -> GrammarConstraint:
    form = SamplingParams(**arguments).structured
    assert form is not None
    return grammars().constraint(form)


def written(made: GrammarConstraint, text: str) -> TokenContext:
    """A context whose output is the text, every token of it permitted."""
    context = TokenContext([5])
    for token in tokenizer().encode(text, add_special=False):
        mask = made.allowed(context)
        assert mask is not None
        assert mask[token], (text, tokenizer().decode(context.output), tokenizer().piece(token))
        context.append(token)
    return context


@pytest.mark.parametrize(
    ("form", "text", "whole"),
    [
        ("schema", '{"name": "abc", "age": 31}', True),
        ("schema", '{"name": "abc", ', False),
        ("tight schema", '{"name":"abc","age":31}', True),
        ("object", '{"x": [1, null]}', True),
        ("regex", "123-4567", True),
        ("regex", "abcx", True),
        ("choice", "dog", True),
        ("choice", "the quick red hat", True),
        ("lark", "names,12,the end", True),
        ("gbnf", "ab.", False),
        ("gbnf with start", "ab.", True),
    ],
)
def test_texts_of_the_form_can_be_written_and_end(form: str, text: str, whole: bool) -> None:
    made = constraint(**FORMS[form])
    context = written(made, text)
    assert made.ended(context) == whole
    assert not whole or made.forced(context, 9) == []


def test_eos_is_permitted_when_the_output_is_complete() -> None:
    ends = tokenizer().eos_ids
    made = constraint(**FORMS["gbnf"])
    for text, complete in (("ab", False), ("ab.", True), ("ab.1", True)):
        mask = made.allowed(written(made, text))
        assert mask is not None
        assert [mask[eos] for eos in ends] == [complete] * len(ends)
    context = written(made, "a.")
    assert not made.ended(context)
    for eos in ends:
        assert made.ended(context.then(eos))
        assert not made.ended(context)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_else_is_permitted(form: str) -> None:
    made = constraint(**FORMS[form])
    mask = made.allowed(TokenContext([5]))
    assert mask is not None
    starts = {
        "regex": "0123456789abc",
        "choice": "td",
        "lark": "nt0123456789",
        "gbnf": "ab",
        "gbnf with start": "ab",
    }.get(form, "{")
    for token in range(tokenizer().vocab_size):
        piece = tokenizer().decode([token], skip_special=False)
        assert not mask[token] or piece[0] in starts, piece
    assert not mask[list(tokenizer().eos_ids)].any()
    assert mask.any()
    other = TokenContext([5])
    other.append(tokenizer().encode("#")[0])
    assert made.allowed(other) is None
    assert made.allowed(TokenContext([5])) is not None


def test_forced_tokens_are_the_only_ones_permitted() -> None:
    made = constraint(**FORMS["tight schema"])
    context = TokenContext([5])
    forced = made.forced(context, 99)
    assert tokenizer().decode(forced).startswith('{"na')
    assert made.forced(context, 2) == forced[:2]
    for token in forced:
        mask = made.allowed(context)
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [token]
        context = context.then(token)


def walk(form: str, data: st.DataObject) -> list[tuple[TokenContext, bytes | None, list[int], bool]]:
    """Contexts of one request as a loop would ask about them: commits, draft paths, and back."""
    made = constraint(**FORMS[form])
    base = TokenContext([5])
    seen = []
    for _ in range(data.draw(st.integers(1, 8))):
        context = base
        for _ in range(data.draw(st.integers(0, 4))):
            mask = made.allowed(context)
            if mask is None or not mask.any() or made.ended(context):
                break
            ids = np.flatnonzero(mask)
            context = context.then(int(ids[data.draw(st.integers(0, len(ids) - 1))]))
        forced, ended = made.forced(context, 99), made.ended(context)
        mask = made.allowed(context)
        frozen = TokenContext([5])
        for token in context.output:
            frozen.append(token)
        seen.append((frozen, None if mask is None else mask.tobytes(), forced, ended))
        keep: bool = data.draw(st.booleans())
        if context.path and keep:
            base.append(context.path[0])
    return seen


def fresh(form: str, context: TokenContext) -> tuple[bytes | None, list[int], bool]:
    """The answers of a constraint that has seen nothing else."""
    made = constraint(**FORMS[form])
    mask = made.allowed(context)
    return None if mask is None else mask.tobytes(), made.forced(context, 99), made.ended(context)


@settings(max_examples=60)
@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_answers_depend_on_the_output_only(form: str, data: st.DataObject) -> None:
    for context, *answers in walk(form, data):
        assert tuple(answers) == fresh(form, context)


def test_a_constraint_that_is_not_rolled_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: GrammarConstraint, length: int) -> None:
        del self._tokens[length:], self._masks[length + 1 :], self._ended[length + 1 :]

    made = constraint(**FORMS["regex"])
    monkeypatch.setattr(GrammarConstraint, "_rewind", forgets)
    context = TokenContext([5])
    a, one = (tokenizer().encode(text)[0] for text in "a1")
    made.allowed(context.then(a))
    broken = made.allowed(context.then(one))
    monkeypatch.undo()
    assert fresh("regex", context.then(one))[0] is not None
    assert broken is None


def test_masks_of_long_outputs_are_not_all_kept() -> None:
    made = constraint(regex="[ab]+")
    context = TokenContext([5])
    (a,) = tokenizer().encode("a")
    for _ in range(200):
        assert made.allowed(context) is not None
        context.append(a)
    assert sum(mask is not None for mask in made._masks) <= 65
    assert made.allowed(TokenContext([5])) is not None


def test_requests_for_the_same_form_share_the_work_but_not_the_state() -> None:
    one, other = constraint(**FORMS["choice"]), constraint(**FORMS["choice"])
    context = written(one, "dog")
    assert one.ended(context)
    assert not other.ended(TokenContext([5]))
    for number in range(40):
        constraint(regex=f"a{{{number + 1}}}")
    assert len(grammars()._compiled) == 32


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"regex": "[a-"}, "the regex cannot be used: .*unclosed"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": "root ::= foo"}, "'foo' not found"),
        ({"grammar": "nonsense"}, "the grammar cannot be used"),
        ({"json_schema": {"type": "objct"}}, "the JSON schema cannot be used: Invalid type: objct"),
        ({"json_schema": {"type": "object", "if": {}}}, "Unimplemented"),
        ({"json_schema": {"$ref": "#/definitions/x"}}, "does not exist"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"structured_outputs": {"json_object": True, "whitespace_pattern": "["}}, "the JSON schema"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_an_error_of_one_line(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        constraint(**arguments)
    assert "\n" not in str(caught.value)


def test_options_of_json() -> None:
    for more in ({}, {"additionalProperties": True}):
        schema = {"type": "object", "properties": {"a": {"properties": {"b": {}}, **more}}}
        for closed in (False, True):
            made = constraint(structured_outputs={"json": schema, "disable_additional_properties": closed})
            context = written(made, '{"a": {"')
            mask = made.allowed(context)
            assert mask is not None
            assert mask[tokenizer().encode("z")[0]] == bool(more)
    made = constraint(structured_outputs={"json_object": True, "whitespace_pattern": "_"})
    written(made, '{"a":_1')
    made = constraint(json_schema=True)
    written(made, "[1]")
    quoted = constraint(choice=['é\n"q\\'])
    assert quoted.ended(written(quoted, 'é\n"q\\'))


def test_a_model_without_eos_ends_by_the_grammar_alone() -> None:
    import copy

    plain = copy.copy(tokenizer())
    plain.eos_ids = ()
    made = Grammars(plain, plain.vocab_size).constraint(SamplingParams(regex="ab?").structured)  # type: ignore[arg-type]
    context = TokenContext([5])
    for text in "ab":
        mask = made.allowed(context)
        assert mask is not None
        assert len(mask) == plain.vocab_size
        pieces = {plain.decode([i], skip_special=False) for i in np.flatnonzero(mask).tolist()}
        assert pieces <= {text, "ab"}
        context.append(plain.encode(text)[0])
    assert made.ended(context)


def test_a_sentencepiece_vocabulary_writes_the_same_texts() -> None:
    spm = spm_tokenizer("spm")
    made = Grammars(spm, spm.vocab_size).constraint(
        SamplingParams(choice=["the hello world", "the hello there"]).structured  # type: ignore[arg-type]
    )
    context = TokenContext([5])
    generator = np.random.default_rng(3)
    while not made.ended(context):
        mask = made.allowed(context)
        assert mask is not None
        forced = made.forced(context, 3)
        ids = np.flatnonzero(mask)
        assert not forced or ids.tolist() == forced[:1]
        context.append(int(generator.choice(ids)))
    assert re.fullmatch("the hello (world|there)", spm.decode(context.output, continues=True))
    assert json.dumps(context.output)
