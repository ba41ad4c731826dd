"""JSON schemas as they are enforced: what a schema accepts after it was rewritten, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from outrider.errors import ConfigError
from outrider.grammar import schema_fault
from outrider.json_schema import FORMATS, prepared

BYTES = LLTokenizer("byte")
TEXT = {"type": "string"}
X = {"$defs": {"X": {"properties": {"a": TEXT}, "required": ["a"]}}}
EMPTY = {"$defs": {"X": {"type": "object", "properties": {}}}}
TO_X = {"$ref": "#/$defs/X"}


def tagged(tag: str, *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": tag}, tag: TEXT}, "required": [*required]}


def accepts(schema: Any, value: Any) -> bool:
    """Whether a value, or a text, can be written byte by byte and then end."""
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(prepared(schema))), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_str(value if isinstance(value, str) else json.dumps(value))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # A type follows from the keywords.
        ({"properties": {"a": TEXT}}, [{"a": "x"}, {}], ["5", "[]", '"a"', "null"]),
        ({"items": TEXT}, [["a"]], ["5", {}, [1]]),
        ({"pattern": "^a$"}, ['"a"'], ["5", '"b"']),
        ({"minimum": 3}, ["3", "4.5"], ["2", '"x"']),
        ({"properties": {"a": TEXT}, "anyOf": [{"required": ["a"]}]}, [{"a": "x"}], ["5", {}]),
        ({"properties": {"a": TEXT}, "minLength": 2}, ["5"], []),  # about two types: neither is meant
        ({"type": ["object", "null"], "properties": {"a": TEXT}}, [{"a": "x"}, "null"], ["5", {"b": 1}]),
        ({}, ["5", {"a": 1}], []),
        # Objects are closed.
        ({"properties": {"a": TEXT}, "additionalProperties": True}, [{"a": "x", "b": 1}], []),
        ({"properties": {"a": TEXT}, "additionalProperties": TEXT}, [{"a": "x", "b": "y"}], [{"b": 1}]),
        ({"properties": {}}, [{}], [{"a": 1}]),
        ({"type": "object"}, [{"a": 1}], ["5"]),
        ({"properties": {"a": {"properties": {"b": TEXT}}}}, [{"a": {"b": "x"}}], [{"a": {"c": 1}}]),
        ({"items": {"properties": {"b": TEXT}}}, [[{"b": "x"}]], [[{"c": 1}]]),
        (
            {"properties": {"a": TEXT}, "required": ["a", "b"]},
            [{"a": "x", "b": 5}],
            [{"a": "x"}, {"a": "x", "b": 1, "c": 1}],
        ),
        (
            {"properties": {"a": TEXT}, "patternProperties": {"^x": TEXT}},
            [{"a": "b", "xa": "c"}],
            [{"z": "1"}],
        ),
        ({"properties": {"a": TEXT}, "unevaluatedProperties": False}, [{"a": "x"}], [{"b": 1}]),
        # Pointers and recursion.
        ({**X, **TO_X}, [{"a": "x"}], [{"a": "x", "b": 1}, {}]),
        (
            {**X, "properties": {"n": {"$ref": "#"}, "x": TO_X}},
            [{"n": {"n": {}}, "x": {"a": "b"}}],
            [{"n": {"z": 1}}, {"x": {"a": "b", "z": 1}}],
        ),
        ({"$ref": "#/x/y~1z", "x": {"y/z": {"properties": {"a": TEXT}}}}, [{"a": "x"}], [{"b": 1}, "5"]),
        # Closed together with what they are combined with.
        (
            {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
            [{"a": "x", "b": "y"}, {}],
            [{"c": 1}],
        ),
        (
            {**X, "allOf": [TO_X, {"properties": {"b": TEXT}}]},
            [{"a": "x", "b": "y"}],
            [{"b": "y"}, {"a": "x", "c": 1}],
        ),
        ({"allOf": [{"properties": {}}, {"properties": {}}]}, [{}], [{"a": 1}]),
        ({"allOf": [{"type": "object"}, {"properties": {}}]}, [{}], [{"a": 1}]),
        ({"allOf": [{"type": "object"}, {"type": "object"}]}, [{"a": 1}], ["5"]),
        ({"allOf": [{"properties": {}}, {"additionalProperties": True}]}, [{"a": 1}], ["5"]),
        ({"properties": {}, "anyOf": [{"type": "object"}, {"required": []}]}, [{}], [{"a": 1}]),
        ({"properties": {}, "allOf": [{"properties": {}}], "anyOf": [{"type": "object"}]}, [{}], [{"a": 1}]),
        ({**EMPTY, **TO_X, "properties": {"b": TEXT}}, [{"b": "x"}, {}], [{"c": 1}]),
        ({**EMPTY, "allOf": [TO_X, TO_X]}, [{}], [{"a": 1}]),
        ({**EMPTY, "allOf": [TO_X, {"properties": {"b": TEXT}}]}, [{"b": "x"}], [{"a": 1}]),
        ({**X, "allOf": [TO_X]}, [{"a": "x"}], [{"a": "x", "c": 1}]),
        ({**X, **TO_X, "properties": {"b": TEXT}}, [{"a": "x", "b": "y"}], [{"b": "y"}, {"a": "x", "c": 1}]),
        ({**X, "allOf": [TO_X, {"additionalProperties": True}]}, [{"a": "x", "c": 1}], [{"c": 1}]),
        (
            {"anyOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
            [{"a": "x"}, {"b": "x"}],
            [{"a": "x", "b": "x"}],
        ),
        (
            {"properties": {"c": TEXT}, "anyOf": [{**tagged("a", "a")}, {**tagged("b", "b")}]},
            [{"c": "1", "k": "a", "a": "x"}, {"b": "x"}],
            [{"c": "1"}, {"a": "x", "b": "x"}, {"a": "x", "d": 1}],
        ),
        (
            {"properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            [{"a": "x"}, {"a": "x", "b": "y"}],
            [{}, {"a": "x", "z": 1}],
        ),
        ({"anyOf": [{"properties": {"a": TEXT}}, {"type": "null"}]}, [{"a": "x"}, "null"], [{"b": 1}]),
        # oneOf
        (
            {"oneOf": [tagged("a", "k"), tagged("b", "k")]},
            [{"k": "a", "a": "x"}, {"k": "b"}],
            [{"k": "a", "b": "x"}],
        ),
        (
            {
                "$defs": {"A": tagged("a", "k"), "B": tagged("b", "k")},
                "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
            },
            [{"k": "b", "b": "x"}],
            [{"k": "b", "a": "x"}],
        ),
        (
            {"oneOf": [tagged("a"), tagged("b")], "discriminator": {"propertyName": "k"}},
            [{"k": "a"}],
            [{"k": "c"}],
        ),
        (
            {"oneOf": [TEXT, {"type": "integer"}, {"enum": [None, True]}]},
            ['"x"', "5", "null"],
            ["5.5", "false"],
        ),
        # Remarks
        ({"type": "string", "format": "password"}, ['"x"'], ["5"]),
        ({"format": "int64"}, ['"x"', "5"], []),
        ({"type": "string", "format": "date"}, ['"2024-02-01"'], ['"x"']),
        (
            {"properties": {"format": {"type": "string", "format": "path"}}},
            [{"format": "x"}],
            [{"format": 5}],
        ),
        # Arrays without repetition, names, counts
        (
            {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
            [[], ["a"], ["c", "a", "b"], '["a" , "b"]'],
            [["a", "a"], ["d"]],
        ),
        (
            {
                "$defs": {"E": {"enum": [1, 2]}},
                "items": {"$ref": "#/$defs/E"},
                "uniqueItems": True,
                "minItems": 1,
            },
            [[1], [2, 1]],
            [[], [1, 1]],
        ),
        (
            {"type": ["array", "null"], "items": {"type": "boolean"}, "uniqueItems": True},
            [[True, False], "null"],
            [[True, True]],
        ),
        ({"items": TEXT, "uniqueItems": True, "maxItems": 1}, [["a"], []], [["a", "b"]]),
        ({"items": TEXT, "uniqueItems": False}, [["a", "a"]], []),
        (
            {"additionalProperties": {"type": "integer"}, "propertyNames": {"enum": ["r", "g"]}},
            [{"r": 1, "g": 2}, {}],
            [{"x": 1}, '{"r": 1, "r": 2}'],
        ),
        (
            {"additionalProperties": {"type": "integer"}, "propertyNames": {"pattern": "^x"}},
            [{"xa": 1}],
            [{"r": 1}, {"xa": "1"}],
        ),
        ({"type": "object", "propertyNames": {"type": "string", "title": "Key"}}, [{"a": 1}], []),
        ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
        (
            {"properties": {"a": TEXT, "b": TEXT}, "required": ["a"], "minProperties": 2},
            [{"a": "x", "b": "y"}],
            [{"a": "x"}],
        ),
        (
            {"properties": {"a": TEXT, "b": TEXT}, "maxProperties": 1},
            [{"a": "x"}, {}],
            [{"a": "x", "b": "y"}],
        ),
    ],
)
def test_what_a_schema_accepts(schema: Any, good: list[Any], bad: list[Any]) -> None:
    before = copy.deepcopy(schema)
    for value in good:
        assert accepts(schema, value), value
    for value in bad:
        assert not accepts(schema, value), value
    assert schema == before


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"items": TEXT, "uniqueItems": True}, "uniqueItems cannot be enforced: leave it out"),
        ({"items": {"enum": [*range(9)]}, "uniqueItems": True}, "uniqueItems allows .* different arrays"),
        ({"items": {"enum": [1]}, "uniqueItems": True, "minItems": 2}, "allows 0 different"),
        ({"type": "object", "minProperties": 2}, "minProperties: 2 cannot be enforced"),
        ({"additionalProperties": TEXT, "required": ["a"], "minProperties": 3}, "minProperties: 3"),
        ({"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]}, "use anyOf"),
        ({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"not": {"type": "string"}}, "not"),
        ({"allOf": [{"$ref": "#"}], "properties": {"a": TEXT}}, "too deeply|too many"),
        ({"$ref": "#/$defs/none"}, "'/\\$defs/none' does not exist"),
        ({"propertyNames": {"maxLength": 3}, "type": "object"}, "propertyNames"),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: Any, words: str) -> None:
    fault = schema_fault(schema)
    assert fault is not None
    assert re.search(words, fault), fault
    assert "\n" not in fault


def unshared(schema: Any) -> Any:
    """A copy in which no two parts are the same object, as JSON has it."""
    return json.loads(json.dumps(schema))


def test_bombs_are_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(ConfigError, match="too deeply"):
        prepared(deep)
    wide = {"properties": {f"p{n}": TEXT for n in range(2000)}}
    many = {"$defs": {"X": wide}, "allOf": [TO_X] * 50}
    with pytest.raises(ConfigError, match="too many or too large"):
        prepared(unshared(many))
    names = {"enum": [str(n) for n in range(5000)]}
    with pytest.raises(ConfigError, match="too many or too large"):
        prepared({"propertyNames": names, "additionalProperties": wide})
    unique = {"items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True}
    with pytest.raises(ConfigError, match="uniqueItems"):
        prepared(unshared({"properties": {f"p{n}": unique for n in range(2000)}}))


def test_the_formats_are_those_of_llguidance() -> None:
    known = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
    others = (
        "password",
        "path",
        "binary",
        "uri-reference",
        "iri",
        "regex",
        "json-pointer",
        "idn-email",
        "byte",
        "int32",
    )
    for name in (*known, *others):
        schema = {"type": "string", "format": name}
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        assert (not LLMatcher.validate_grammar(grammar)) == (name in FORMATS), name


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"properties": 5},
        {"allOf": 1, "anyOf": {}, "required": "a"},
        {"items": [TEXT], "$ref": 3},
        {"type": 7, "uniqueItems": "x"},
        {"enum": {}, "oneOf": [1, 2]},
        {"$ref": "#/%zz~2"},
        {"$ref": "#anchor"},
        {"$ref": "other.json#/x", "properties": {}},
        {"propertyNames": False},
    ],
)
def test_odd_schemas_do_no_harm(schema: Any) -> None:
    before = copy.deepcopy(schema)
    with contextlib.suppress(ConfigError):
        prepared(schema)
    assert schema == before
    if isinstance(schema, dict):
        schema_fault(schema)


# Schemas of objects that have `properties`, from a few names or none.
LEAVES = st.sampled_from(
    [TEXT, {"type": "integer"}, {"enum": ["v", 1]}, {"$ref": "#/$defs/A"}, {"$ref": "#"}]
)
OBJECTS = st.builds(
    lambda names, required, value: {
        "type": "object",
        "properties": dict.fromkeys(names, value),
        "required": required,
    },
    st.lists(st.sampled_from("pqr"), max_size=3, unique=True),
    st.lists(st.sampled_from("pq"), max_size=1),
    LEAVES,
)
PARTS = st.recursive(
    OBJECTS | st.just({"$ref": "#/$defs/A"}) | st.just({"$ref": "#/$defs/B"}),
    lambda inner: (
        st.builds(
            lambda key, parts: {key: parts},
            st.sampled_from(["allOf", "anyOf"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.builds(lambda one, other: {**one, "allOf": [other]}, OBJECTS, inner)
    ),
    max_leaves=4,
)


def written(grammar: str, value: Any) -> bool:
    """Whether a grammar allows the value as it is written."""
    matcher, tokens = LLMatcher(BYTES, grammar, log_level=0), BYTES.tokenize_str(json.dumps(value))
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@given(PARTS, OBJECTS, PARTS)
def test_closing_only_takes_properties_away(root: Any, a: Any, b: Any) -> None:
    schema = {**root, "$defs": {"A": a, "B": b}}
    opened = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    fault = schema_fault(schema)
    if LLMatcher.validate_grammar(opened) or (fault and "too" in fault):
        return
    values: list[Any] = [{}, {"p": "v"}, {"q": 1}, {"p": "v", "q": "v"}, {"p": 1, "r": 1}, {"p": {}, "q": {}}]
    for value in values:
        if fault is None and accepts(schema, value):
            # Closing may change the order of properties, of which llguidance allows one.
            orders = [dict(order) for order in itertools.permutations(value.items())]
            assert any(written(opened, order) for order in orders), value
    if fault is None:
        assert not accepts(schema, {"p": "v", "q": "v", "r": "v", "z": 1})
