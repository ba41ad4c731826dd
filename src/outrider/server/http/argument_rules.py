"""Grammars of arguments that are not written as JSON, made of a tool's JSON schema, in Lark's syntax.

`GemmaRules` and `PythonRules` are for forms with a spelling of their own for every value, `TagRules` for
Qwen3-Coder's tags, whose values are texts as they are, or JSON. All raise ConfigError, in words that can
follow "cannot be used: ", for a schema that they cannot hold a model to.
"""

from __future__ import annotations

import json
import keyword
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from outrider.errors import ConfigError
from outrider.json_schema import at
from outrider.server.http.request_fields import shown
from outrider.server.http.thought_grammar import mark_of
from outrider.server.http.tool_forms import GEMMA_QUOTE

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_RULES = 4000  # of one tool
_DEFINITIONS = ("$defs", "definitions")
_ASIDE = ("title", "description", "default", "examples", "$comment", "$schema", "deprecated", *_DEFINITIONS)
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OBJECT = ("properties", "required", "additionalProperties")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems")
_KNOWN = {*_ASIDE, *_NUMERIC, *_SIZES, *_OBJECT, "type", "enum", "const", "anyOf", "items"}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
# As regexes, in the common syntax of Python's re and Rust's regex.
_INTEGER = r"-?(0|[1-9][0-9]{0,17})"
_NUMBER = _INTEGER + r"(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?"  # none that is infinite as a float
_CHARACTER = r"(.|\n)"
_ANY_TEXT = _CHARACTER + "*"
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_GEMMA_KEY = re.compile(r"[^\s{}\[\],:<]([^{}\[\],:<\n]{0,98}[^\s{}\[\],:<])?")
_TAG_KEY = re.compile(r"[^\s<>]([^<>\n]{0,98}[^\s<>])?")
_VALUE_END = "</parameter>"
_ANY_VALUE = rf"{_ANY_TEXT}<\/parameter>"
_AFTER_VALUE = rf"{_ANY_TEXT}<\/parameter>{_CHARACTER}+"


class MemberRules(ABC):
    """Rules for the members of an object.

    prefix:   of the names of the rules, which are `rules` in the end.
    document: the schema of the arguments, as json_schema.prepared returns it.
    """

    separator = ", "

    def __init__(self, prefix: str, document: Any) -> None:
        self.rules: list[str] = []
        self._prefix, self._document = prefix, document

    @abstractmethod
    def member(self, name: str, schema: Any) -> str:
        """A part of a rule: a member with its name."""

    @abstractmethod
    def other_member(self, names: Sequence[str], schema: Any) -> str:
        """The same with any name but these."""

    def arguments(self) -> str:
        """The name of a rule for the members of the whole object."""
        schema = self.resolved(self._document)
        if not isinstance(schema, dict) or "anyOf" in schema or _listed(schema) is not None:
            refuse("a choice between whole objects")
        return self.members(schema)

    def members(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule for an object's members without its brackets, in the order of `properties`."""
        check(schema)
        listed, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if not isinstance(listed, dict) or not isinstance(required, list):
            refuse("properties in this shape")
        for name in required:
            if name not in listed:
                refuse(f"required: {shown(name)}, which is none of the properties,")
        comma = json.dumps(self.separator)
        first = rest = '""'  # the members from one on: without another before them, and after one
        if more is not False:
            extra = self.add(self.other_member(list(listed), more))
            rest = f"({comma} {extra})*"
            first = f"({extra} {rest})?"
        for name, part in reversed(listed.items()):
            one = self.add(self.member(name, part))
            without = "" if name in required else f" | {first}"
            first = self.add(f"{one} {rest}{without}")
            rest = self.add(f"({comma} {one}){'?' if without else ''} {rest}")
        return self.add(first)

    def resolved(self, schema: Any) -> Any:
        """A schema without a pointer, or an `allOf` of one, around it."""
        for _ in range(20):
            kept = {k: v for k, v in schema.items() if k not in _ASIDE} if isinstance(schema, dict) else {}
            if set(kept) == {"$ref"}:
                schema = at(self._document, pointer := kept["$ref"])
                if schema is None:
                    refuse(f"the pointer {shown(pointer)}")
            elif set(kept) == {"allOf"} and isinstance(kept["allOf"], list) and len(kept["allOf"]) == 1:
                schema = kept["allOf"][0]
            else:
                break
        return {} if schema is True else schema

    def add(self, body: str, attributes: str = "", *, terminal: bool = False) -> str:
        """Add a rule; returns its name."""
        if len(self.rules) >= MAX_RULES:
            raise ConfigError("it has too many parts")
        name = f"{self._prefix}_{len(self.rules)}"
        name = name.upper() if terminal else name
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def add_terminal(self, regex: str, but: str) -> str:
        """Add a terminal for texts that match one regex and not another, if that is not empty."""
        return self.add(f"/{regex}/" + (f" & ~/{but}/" if but else ""), terminal=True)

    def add_lazy(self, regex: str, but: str) -> str:
        """The same, ending where it first matches."""
        return self.add(self.add_terminal(regex, but), "[lazy]")


class ValueRules(MemberRules):
    """Rules for all values of a schema, in one spelling."""

    def __init__(self, prefix: str, document: Any) -> None:
        super().__init__(prefix, document)
        self._made: dict[str, str] = {}  # names of rules by their schemas' JSON: pointers may lead back

    @abstractmethod
    def text(self, least: int, most: int | None) -> str:
        """The right side of a rule for a text of so many characters."""

    @abstractmethod
    def literal(self, value: Any) -> str:
        """The right side of a rule for one value, which is no array or object."""

    @abstractmethod
    def key(self, name: str) -> str:
        """A member's name and what parts it from the value, as a part of a rule."""

    @abstractmethod
    def other_key(self, names: Sequence[str]) -> str:
        """The same for any name but these."""

    def member(self, name: str, schema: Any) -> str:
        return f"{self.key(name)} {self.value(schema)}"

    def other_member(self, names: Sequence[str], schema: Any) -> str:
        return f"{self.other_key(names)} {self.value(schema)}"

    def value(self, schema: Any) -> str:
        """The name of a rule for a value."""
        known = json.dumps(schema)
        if known not in self._made:
            place = len(self.rules)
            self._made[known] = name = self.add("")
            self.rules[place] = f"{name}: {self._value(self.resolved(schema))}"
        return self._made[known]

    def _value(self, schema: Any) -> str:
        """The right side of a rule."""
        if not isinstance(schema, dict):
            refuse("a schema that no value matches")
        check(schema)
        if "anyOf" in schema:
            if {*schema} - {"anyOf", *_ASIDE}:
                refuse("anyOf beside other keywords")
            return " | ".join(self.value(part) for part in schema["anyOf"])
        kinds = _types(schema)
        if (listed := _listed(schema)) is not None:
            return " | ".join(self.literal(value) for value in _fitting(listed, kinds))
        return " | ".join(self._of_type(kind, schema) for kind in kinds)

    def _of_type(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "object":
            return f'"{{" {self.members(schema)} "}}"'
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self.text(*_lengths(schema))
        if kind in ("boolean", "null"):
            return " | ".join(map(self.literal, [True, False] if kind == "boolean" else [None]))
        return self._number(kind, schema)

    def _number(self, kind: str, schema: Mapping[str, Any]) -> str:
        if bounds := {key: schema[key] for key in _NUMERIC if key in schema}:
            return f"%json {json.dumps({'type': kind, **bounds})}"
        return f"/{_INTEGER if kind == 'integer' else _NUMBER}/"

    def _array(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if isinstance(schema.get("items"), list):
            refuse("items as a list")
        if most == 0 and not least:
            return '"[" "]"'
        item, upper = self.value(schema.get("items", True)), "" if most is None else str(most - 1)
        several = f"{item} ({json.dumps(self.separator)} {item}){{{max(0, least - 1)},{upper}}}"
        return f'"[" {several} "]"' if least else f'"[" ({several})? "]"'


class GemmaRules(ValueRules):
    """`key:<|"|>text<|"|>,other:[1,true]`. marks: the ids of marks that are special tokens."""

    separator = ","

    def __init__(self, prefix: str, document: Any, marks: Mapping[str, int]) -> None:
        super().__init__(prefix, document)
        self._quote, self._is_token = mark_of(GEMMA_QUOTE, marks), GEMMA_QUOTE in marks

    def text(self, least: int, most: int | None) -> str:
        text = _repeated(_CHARACTER, least, most)
        if self._is_token:
            return f"{self._quote} /{text}/ {self._quote}"
        end = re.escape(GEMMA_QUOTE)
        return f"{self._quote} {self.add_lazy(text + end, f'{_ANY_TEXT}{end}{_CHARACTER}+')}"

    def literal(self, value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(json.dumps(value))
        if GEMMA_QUOTE in value:
            refuse(f"the text {shown(value)}")
        return f"{self._quote} {json.dumps(value)} {self._quote}"

    def key(self, name: str) -> str:
        if not _GEMMA_KEY.fullmatch(name):
            refuse(f"the property {shown(name)}")
        return json.dumps(f"{name}:")

    def other_key(self, names: Sequence[str]) -> str:
        return f'{self.add_terminal(_NAME, _any_of(names))} ":"'


class PythonRules(ValueRules):
    """`key='text', other=[1, True]`, with dictionaries within."""

    def __init__(self, prefix: str, document: Any) -> None:
        super().__init__(prefix, document)
        self._depth = 0  # of objects: the members of the outermost one are keyword arguments

    def members(self, schema: Mapping[str, Any]) -> str:
        self._depth += 1
        name = super().members(schema)
        self._depth -= 1
        return name

    def text(self, least: int, most: int | None) -> str:
        return f"/{self._texts(least, most)}/"

    def literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{json.dumps(repr(value))} | {json.dumps(json.dumps(value, ensure_ascii=False))}"
        return json.dumps(repr(value))

    def key(self, name: str) -> str:
        if self._depth > 1:
            return f'({self.literal(name)}) ": "'
        if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name):
            refuse(f"the property {shown(name)}")
        return json.dumps(f"{name}=")

    def other_key(self, names: Sequence[str]) -> str:
        if self._depth == 1:
            return f'{self.add_terminal(_NAME, _any_of([*names, *keyword.kwlist]))} "="'
        for name in names:
            if not re.fullmatch(r"[\w .:/-]*", name):  # it could be written in two ways
                refuse(f"the property {shown(name)} beside any others")
        quoted = [quote + name + quote for name in names for quote in "'\""]
        return f'{self.add_terminal(self._texts(0, None), _any_of(quoted))} ": "'

    def _texts(self, least: int, most: int | None) -> str:
        return "|".join(
            quote + _repeated(rf"([^{quote}\\\x00-\x1f\x7f]|\\[\\'\"nrt])", least, most) + quote
            for quote in "'\""
        )


class TagRules(MemberRules):
    """`<parameter=KEY>\\nVALUE\\n</parameter>\\n` for each member.

    given: the schema as the request has it, by which the parser knows the properties that are texts.
    """

    separator = ""

    def __init__(self, prefix: str, document: Any, given: Mapping[str, Any]) -> None:
        super().__init__(prefix, document)
        found = given.get("properties")
        self._given: Mapping[str, Any] = found if isinstance(found, Mapping) else {}

    def member(self, name: str, schema: Any) -> str:
        if not _TAG_KEY.fullmatch(name):
            refuse(f"the property {shown(name)}")
        head, wanted = json.dumps(f"<parameter={name}>"), self._given.get(name)
        if isinstance(wanted, Mapping) and wanted.get("type") == "string":
            return f'{head} {self._text(self.resolved(schema))} "\\n"'
        return f'{head} "\\n" {self._json(schema)} "\\n{_VALUE_END}\\n"'

    def other_member(self, names: Sequence[str], schema: Any) -> str:
        head = f'"<parameter=" {self.add_terminal(_NAME, _any_of(names))} ">"'
        if schema in (True, {}):  # a text that is not JSON is a text
            return f'{head} {self.add_lazy(_ANY_VALUE, "")} "\\n"'
        return f'{head} "\\n" {self._json(schema)} "\\n{_VALUE_END}\\n"'

    def _text(self, schema: Any) -> str:
        """A part of a rule for a text and its end."""
        check(schema)
        if (listed := _listed(schema)) is not None:
            values = [json.dumps(f"\n{value}\n{_VALUE_END}") for value in _fitting(listed, ["string"])]
            if any(_VALUE_END in str(value) for value in listed):
                refuse(f"a text with {_VALUE_END}")
            return f"({' | '.join(values)})"
        least, most = _lengths(schema)
        if not least and most is None:
            return self.add_lazy(_ANY_VALUE, "")
        text = _repeated(_CHARACTER, least, most)
        return self.add_lazy(rf"\n{text}\n<\/parameter>", _AFTER_VALUE)

    def _json(self, schema: Any) -> str:
        """A value as JSON: a document of its own, to which the definitions are added."""
        if not isinstance(schema, dict):
            schema = {} if schema is True else {"not": {}}
        for pointer in _pointers(schema):
            if not pointer.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)):
                refuse(f"the pointer {shown(pointer)}")
        document = self._document if isinstance(self._document, dict) else {}
        definitions = {name: document[name] for name in _DEFINITIONS if name in document}
        return "%json " + json.dumps({**definitions, **schema, "x-guidance": COMPACT})


def refuse(what: str) -> NoReturn:
    """Raises ConfigError."""
    raise ConfigError(
        f"{what} cannot be enforced in the form in which this model writes calls: "
        'leave it out, or use tool_choice "required"'
    )


def check(schema: Mapping[str, Any]) -> None:
    """Refuse what the rules do not know. Raises ConfigError."""
    for key in schema:
        if key not in _KNOWN:
            refuse(key)
    for key in _SIZES:
        if type(size := schema.get(key, 0)) is not int or size < 0:
            refuse(f"{key}: {shown(size)}")
    if not isinstance(schema.get("anyOf", []), list):
        refuse("anyOf in this shape")


def _lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    return schema.get("minLength", 0), schema.get("maxLength")


def _types(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("type", list(_TYPES))
    kinds = found if isinstance(found, list) else [found]
    for kind in kinds:
        if kind not in (*_TYPES, "integer"):
            refuse(f"the type {shown(kind)}")
    return kinds


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None when it lists none."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _fitting(values: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    """Those values that are of one of these types."""
    found = [value for value in values if any(_is(value, kind) for kind in kinds)]
    if not found:
        refuse("a schema that no value matches")
    if any(isinstance(value, dict | list) for value in found):
        refuse("an enum of arrays or objects")
    return found


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return type(value) is int
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _pointers(schema: Any) -> Iterator[str]:
    """All pointers within a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for part in schema.values():
            yield from _pointers(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _pointers(part)


def _repeated(one: str, least: int, most: int | None) -> str:
    return f"{one}*" if not least and most is None else f"{one}{{{least},{'' if most is None else most}}}"


def _any_of(texts: Sequence[str]) -> str:
    """A regex for these texts."""
    return "|".join(re.escape(text).replace("/", r"\/").replace("\\ ", " ") for text in texts)
