"""Rewrites a JSON schema so that llguidance enforces what the schema means, or says what cannot be enforced.

- `format` is an annotation unless it is one that can be enforced; others are dropped.
- A schema without `type` whose keywords are about one type only is of that type: `{"properties": …}` is an
  object, as its authors mean it, though JSON Schema would let a number through.
- Objects with `properties`, even without any in it, are closed, as in llama.cpp and xgrammar: models go on
  with invented keys without end otherwise. `"additionalProperties": true` opens one.
- `uniqueItems` is enforced over short enums, `propertyNames` where the names are an enum or have a pattern,
  `minProperties` where no name can come twice. Elsewhere they are refused.
- `oneOf` becomes `anyOf` where no two of its schemas can match the same value.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from outrider.errors import ConfigError

Schema: TypeAlias = dict[str, Any]

# The formats that llguidance enforces.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
MAX_ARRAYS = 2000  # different arrays, in a whole schema, that `uniqueItems` is written out as
MAX_COPIED = 200_000  # characters of definitions that are copied to where they are combined with others

_PARTS = ("additionalItems", "contains", "unevaluatedItems", "additionalProperties")
_PART_LISTS = ("prefixItems", "items")
_PART_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_CHOICES = ("anyOf", "oneOf")
_COMBINED = ("allOf", *_CHOICES)
_OF_TYPE = {
    "object": (
        *("properties", "patternProperties", "additionalProperties", "required", "propertyNames"),
        *("minProperties", "maxProperties"),
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_TYPED = ("type", "enum", "const", "$ref", "$dynamicRef", "not", "if")
_REMARKS = ("title", "description", "default", "examples", "$comment")


def prepared(schema: Any) -> Any:
    """A copy of a JSON schema (an object or a boolean) for llguidance. Pointers lead where they led.

    Raises ConfigError, in words that can follow "cannot be used: ", for what cannot be enforced.
    """
    if not isinstance(schema, dict):
        return schema
    try:
        return _Rewriter(schema).root
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None


@dataclass(slots=True)
class _Told:
    """What is told of an object's properties.

    names:  those that are named.
    all:    they are said to be all, by `properties` or `patternProperties`, if these name none even.
    opened: it is said what others there may be.
    """

    names: dict[str, None] = field(default_factory=dict)
    all: bool = False
    opened: bool = False


class _Rewriter:
    """Rewrites a copy of one document, `root`. What a pointer of a combination leads to is copied from the
    document as it was given, where nothing is closed."""

    def __init__(self, schema: Schema) -> None:
        text = json.dumps(schema)  # (a copy in which no two places share an object, which Python's may)
        self._given, self.root = json.loads(text), json.loads(text)
        self._done: dict[int, Schema] = {}  # rewritten parts by id; they are kept, so that no id is reused
        self._copied = self._arrays = 0
        self._rewrite(self.root)
        for part in _grows(self._done):  # pointers may lead outside the usual places of definitions
            self._rewrite(at(self.root, part.get("$ref")))

    def _rewrite(self, schema: Any, *, closed: bool = True, beside: _Told | None = None) -> None:
        """Rewrite a schema in place.

        closed: close it if it is an object; not for a part of a schema that is closed as a whole.
        beside: what is told of the properties of an object besides what it tells itself.
        """
        if not isinstance(schema, dict) or id(schema) in self._done:
            return
        self._done[id(schema)] = schema
        if schema.get("format", "date") not in FORMATS:
            del schema["format"]
        if schema.get("unevaluatedProperties") is False:  # what closing does
            del schema["unevaluatedProperties"]
        if isinstance(pointer := schema.get("$ref"), str) and pointer.startswith("#"):
            schema["$ref"] = quote(pointer, safe="#/%~!$&'()*+,;=:@?")  # as URIs have it
        _infer_type(schema)
        self._restrict_names(schema)
        _check_count(schema)
        self._list_unique_arrays(schema)
        for part in _parts(schema):
            self._rewrite(part)
        self._combine(schema, closed, copy.deepcopy(beside) or _Told())
        self._decide_one_of(schema)

    # --- Closing -----------------------------------------------------------------------------------

    def _combine(self, schema: Schema, closed: bool, told: _Told) -> None:
        """Rewrite the schemas with which this one is combined, and close what they describe together."""
        for key in _COMBINED:
            if isinstance(schema.get(key), list):
                schema[key] = [{} if part is True else part for part in schema[key]]
        choices = [key for key in _CHOICES if isinstance(schema.get(key), list)]
        own = _tells(schema)
        if "$ref" in schema and (own or told.names or told.all or not closed or choices or "allOf" in schema):
            self._copy_reference(schema)
        parts = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        if len(parts) == 1 and not (own or told.names or told.all or choices):
            self._rewrite(parts[0], closed=closed)
            return
        told.opened |= not closed or _is_opened(schema) or bool(choices and "patternProperties" in schema)
        told.all |= own
        told.names.update(_own_names(schema) if told.all or told.names or parts else {})
        for part in parts:
            self._collect(part, told)
        for part in parts:
            self._rewrite(part, closed=False)
        if len(choices) == 1:
            for part in schema[choices[0]]:
                self._rewrite(part, closed=not told.opened, beside=told)
            return
        for part in itertools.chain.from_iterable(schema[key] for key in choices):
            self._collect(part, told)
            self._rewrite(part, closed=False)
        if not told.opened and (told.all or told.names):
            _close(schema, told.names)

    def _collect(self, schema: Any, told: _Told, chain: tuple[str, ...] = ()) -> None:
        """Add what a schema, not yet rewritten, and those combined with it tell."""
        if not isinstance(schema, dict):
            return
        told.names.update(_own_names(schema))
        told.all |= _tells(schema)
        told.opened |= _is_opened(schema) or "patternProperties" in schema
        for part in itertools.chain.from_iterable(_list(schema, key) for key in _COMBINED):
            self._collect(part, told, chain)
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer not in chain:
            self._collect(at(self._given, pointer), told, (*chain, pointer))

    def _copy_reference(self, schema: Schema) -> None:
        """Replace `$ref` by a copy of an object's schema, which is not closed, under `allOf`."""
        target = at(self._given, schema["$ref"])
        if not isinstance(target, dict):
            return
        told = _Told()
        self._collect(target, told)
        if not (told.opened or told.all or told.names):
            return
        self._count_copied(target)
        parts = [copy.deepcopy(target), *_list(schema, "allOf")]
        _replace(schema, {"$ref": ("allOf", parts)} if "allOf" not in schema else {"allOf": ("allOf", parts)})
        schema.pop("$ref", None)

    def _count_copied(self, schema: Any, times: int = 1) -> None:
        self._copied += len(json.dumps(schema)) * times
        if self._copied > MAX_COPIED:
            raise ConfigError("it combines too many or too large definitions")

    # --- Keywords that llguidance does not have ---------------------------------------------------------

    def _restrict_names(self, schema: Schema) -> None:
        """Write `propertyNames` as `properties` or `patternProperties`."""
        keys = self._target(schema.get("propertyNames"))
        if keys is True or (isinstance(keys, dict) and keys.get("type", "string") == "string"):
            told = {} if keys is True else {k: v for k, v in keys.items() if k not in ("type", *_REMARKS)}
            if not told:
                schema.pop("propertyNames", None)
                return
            if "properties" in schema or "patternProperties" in schema:
                return
            value, listed = schema.get("additionalProperties", True), _values(told)
            if listed is not None and all(isinstance(name, str) for name in listed):
                self._count_copied(value, len(listed))
                schema["properties"] = {name: copy.deepcopy(value) for name in listed}
            elif set(told) == {"pattern"}:
                schema["patternProperties"] = {told["pattern"]: value}
            else:
                return
            del schema["propertyNames"]
            schema["additionalProperties"] = False

    def _list_unique_arrays(self, schema: Schema) -> None:
        """Write an array with `uniqueItems` as an enum of all such arrays."""
        if schema.get("uniqueItems") in (None, False) or not _may_be(schema, "array"):
            schema.pop("uniqueItems", None)
            return
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not isinstance(least, int) or not isinstance(most, int | float):
            return  # llguidance says what is wrong
        if most <= 1:
            del schema["uniqueItems"]
            return
        values = _values(self._target(schema.get("items")))
        others = {*_types(schema)} - {"array", "null"}
        if values is None or others or _list(schema, "prefixItems"):
            raise ConfigError(
                "uniqueItems cannot be enforced: leave it out, or let the items be an enum of a few values"
            )
        most = min(most, len(values))
        count = sum(math.perm(len(values), size) for size in range(least, int(most) + 1))
        self._arrays += count
        if self._arrays > MAX_ARRAYS or not count:
            raise ConfigError(
                f"uniqueItems allows {count} different arrays here; from 1 to {MAX_ARRAYS} can be enforced"
            )
        sizes = range(least, int(most) + 1)
        arrays: list[Any] = [list(p) for size in sizes for p in itertools.permutations(values, size)]
        if "null" in _types(schema):
            arrays.append(None)
        for key in ("type", "items", "minItems", "maxItems", "uniqueItems", "prefixItems"):
            schema.pop(key, None)
        schema["enum"] = arrays

    def _target(self, schema: Any) -> Any:
        """What a schema that is only a pointer leads to, else the schema."""
        for _ in range(8):
            if not isinstance(schema, dict) or set(schema) - {"$ref", *_REMARKS} or "$ref" not in schema:
                break
            schema = at(self._given, schema["$ref"])
        return schema

    def _decide_one_of(self, schema: Schema) -> None:
        parts = _list(schema, "oneOf")
        if not parts or "anyOf" in schema:
            return
        found = [at(self.root, p["$ref"]) if isinstance(p, dict) and "$ref" in p else p for p in parts]
        tagged = "discriminator" in schema  # OpenAPI: the value of one property says which schema is meant
        if tagged or (len(parts) < 50 and all(_disjoint(a, b) for a, b in itertools.combinations(found, 2))):
            _replace(schema, {"oneOf": ("anyOf", parts)})


def _close(schema: Schema, names: Iterable[str]) -> None:
    """Allow no properties but those that the schema has and those with these names."""
    if not _may_be(schema, "object") or not isinstance(schema.setdefault("properties", {}), dict):
        return
    for name in names:
        schema["properties"].setdefault(name, True)
    schema["additionalProperties"] = False


def _replace(schema: Schema, changes: Mapping[str, tuple[str, Any]]) -> None:
    """Replace members in their places: the order of keywords decides the order of properties."""
    items = [changes.get(key, (key, value)) for key, value in schema.items()]
    schema.clear()
    schema.update(items)


def _is_opened(schema: Schema) -> bool:
    return "additionalProperties" in schema or "unevaluatedProperties" in schema


def _tells(schema: Schema) -> bool:
    """Whether a schema says which properties there are."""
    return "properties" in schema or "patternProperties" in schema


def _own_names(schema: Schema) -> dict[str, None]:
    """The properties that a schema names itself, in order."""
    named, wanted = schema.get("properties"), schema.get("required")
    names = [*(named if isinstance(named, dict) else ()), *(wanted if isinstance(wanted, list) else ())]
    return dict.fromkeys(name for name in names if isinstance(name, str))


def _infer_type(schema: Schema) -> None:
    if any(key in schema for key in _TYPED):
        return
    kinds = [kind for kind, keys in _OF_TYPE.items() if any(key in schema for key in keys)]
    combined = [part for key in _COMBINED for part in _list(schema, key)]
    if combined and not (
        kinds == ["object"]
        and "properties" in schema
        and all(isinstance(p, dict) and p.get("type", "object") == "object" for p in combined)
    ):
        return
    if len(kinds) == 1:
        schema["type"] = kinds[0]


def _check_count(schema: Schema) -> None:
    """Refuse a least number of properties that one name, written several times, would reach."""
    least, required = schema.get("minProperties"), schema.get("required")
    if not isinstance(least, int) or isinstance(least, bool):
        return
    listed = "properties" in schema and schema.get("additionalProperties", False) is False
    free = not listed or "patternProperties" in schema
    if free and least > 1 + (len(required) if isinstance(required, list) else 0):
        raise ConfigError(
            f"minProperties: {least} cannot be enforced where any name is allowed, as one could come twice: "
            "name the properties, or leave it out"
        )


def _disjoint(one: Any, other: Any) -> bool:
    """Whether it is plain that no value matches both schemas."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one is False or other is False
    kinds, others = set(_types(one)), set(_types(other))
    if kinds and others and not kinds & others:
        return not {"integer", "number"} <= kinds | others
    values, theirs = _values(one), _values(other)
    if values is not None and theirs is not None:
        return not any(value in theirs for value in values)
    return kinds == others == {"object"} and (_told_apart(one, other) or _told_apart(other, one))


def _told_apart(one: Schema, other: Schema) -> bool:
    """Whether a property that the first object must have is missing in the second or has other values."""
    named, there = one.get("properties"), other.get("properties")
    if not isinstance(named, dict) or not isinstance(there, dict):
        return False
    closed = other.get("additionalProperties") is False and "patternProperties" not in other
    for name in _list(one, "required"):
        if not isinstance(name, str):
            continue
        values, theirs = _values(named.get(name)), _values(there.get(name))
        if closed and name not in there:
            return True
        if values is not None and theirs is not None and not any(value in theirs for value in values):
            return True
    return False


def _values(schema: Any) -> list[Any] | None:
    """The values that a schema lists, without repetition; None when it lists none."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list({json.dumps(value, sort_keys=True): value for value in schema["enum"]}.values())
    listed: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
    return listed.get(str(schema.get("type")))


def _types(schema: Schema) -> tuple[str, ...]:
    kinds = schema.get("type")
    found = kinds if isinstance(kinds, list) else [kinds]
    return tuple(kind for kind in found if isinstance(kind, str))


def _may_be(schema: Schema, kind: str) -> bool:
    return not _types(schema) or kind in _types(schema)


def _list(schema: Schema, key: str) -> Sequence[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else ()


def _parts(schema: Schema) -> Iterator[Any]:
    """The schemas within a schema, but for those with which it is combined."""
    for key in (*_PARTS, "items"):
        yield schema.get(key)
    for key in _PART_LISTS:
        yield from _list(schema, key)
    for key in _PART_MAPS:
        found = schema.get(key)
        yield from found.values() if isinstance(found, dict) else ()


def _grows(found: dict[int, Schema]) -> Iterator[Schema]:
    """The values of a dict that may grow meanwhile."""
    known = 0
    while known < len(found):
        fresh = list(found.values())[known:]
        known += len(fresh)
        yield from fresh


def at(document: Any, pointer: object) -> Any:
    """What a pointer within a document (`#`, `#/$defs/…`) leads to; None for any other and if there is
    nothing."""
    if not isinstance(pointer, str) or not pointer.startswith("#") or pointer[1:2] not in ("", "/"):
        return None
    for step in unquote(pointer[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and name.isascii() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document
