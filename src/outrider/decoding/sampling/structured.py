"""The parameters of structured output, under vLLM's names. A `Constraint` turns them into token masks."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from outrider.errors import ConfigError
from outrider.value_checks import flag, only_known, strings

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_UNSUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "backend": ((None, "auto", "guidance", "llguidance"), "llguidance is the only one here"),
    "backend_was_auto": ((False, True), "it is vLLM's own"),
    "structural_tag": ((None,), "write it as a grammar"),
}
_known = partial(only_known, elsewhere=_UNSUPPORTED)


@_known
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """One form that the output must have; exactly one of the first five is given.

    json:        a JSON schema, as text or as an object (a pydantic model's class too): the output is JSON
                 that the schema accepts. Stored as text. outrider/json_schema.py says how it is read.
    regex:       the whole output matches it (the syntax of Rust's regex crate).
    choice:      the output is one of these texts.
    grammar:     a context-free grammar, in Lark's syntax as llguidance extends it or llama.cpp's GBNF.
    json_object: any JSON object.
    disable_fallback: there is no other backend to fall back on; both values mean the same.
    disable_any_whitespace: JSON without whitespace between tokens.
    disable_additional_properties: both values mean the same, as objects are closed: those that name
                 properties have no others unless the schema says `"additionalProperties": true`.
    whitespace_pattern: a regex of the whitespace that JSON may have between tokens.

    Raises ConfigError for an unknown keyword or an invalid value. Schema, regex and grammar are compiled, and
    errors in them raised, when a request is made.
    """

    json: str | Mapping[str, Any] | type | None = None
    regex: str | None = None
    choice: Iterable[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ConfigError(f"structured output needs one of {', '.join(_KINDS)}; {found} is given")
        for name in ("disable_fallback", "disable_any_whitespace", "disable_additional_properties"):
            flag(name, getattr(self, name))
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name} must be a text that is not empty, not {value!r}")
        if self.json_object is not None:
            flag("json_object", self.json_object)
        if self.choice is not None:
            if isinstance(self.choice, str):
                raise ConfigError(f"choice must be a list of texts, not {self.choice!r}")
            choice = strings("choice", self.choice)
            if not choice:
                raise ConfigError("choice is empty: there is nothing to say")
            object.__setattr__(self, "choice", choice)
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))


@_known
@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedDecodingParams(StructuredOutputsParams):
    """`StructuredOutputsParams` under vLLM's older name."""


def structured(
    outputs: object, guided: object, plain: Mapping[str, object | None]
) -> StructuredOutputsParams | None:
    """The form that the parameters ask for, or None. Raises ConfigError when they ask for two that differ.

    outputs, guided: `structured_outputs` and `guided_decoding`: params, their fields as a mapping, or None.
    plain:           `json_schema`, `regex`, `choice` and `grammar`, by name.
    """
    given: dict[str, object] = {
        name: value
        for name, value in (("structured_outputs", outputs), ("guided_decoding", guided), *plain.items())
        if value is not None
    }
    if not given:
        return None
    forms = [
        _form({"json" if n == "json_schema" else n: v} if n in plain else v, n) for n, v in given.items()
    ]
    if any(form != forms[0] for form in forms):
        raise ConfigError(f"give one of {' and '.join(given)}: the output cannot have two forms")
    return forms[0]


def _form(value: object, name: str) -> StructuredOutputsParams:
    if isinstance(value, Mapping):
        return StructuredOutputsParams(**{str(key): part for key, part in value.items()})
    if not isinstance(value, StructuredOutputsParams):
        raise ConfigError(f"{name} must be a StructuredOutputsParams, not {type(value).__name__}")
    arguments = {f.name: getattr(value, f.name) for f in fields(StructuredOutputsParams)}
    return StructuredOutputsParams(**arguments)


def _schema(schema: object) -> str:
    """A JSON schema as text."""
    if callable(make := getattr(schema, "model_json_schema", None)):  # a pydantic model
        schema = make()
    try:
        found = json_module.loads(schema) if isinstance(schema, str) else schema
        text = json_module.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the JSON schema is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(found, Mapping | bool):
        raise ConfigError(f"a JSON schema must be an object or a boolean, not {text[:40]}")
    return text
