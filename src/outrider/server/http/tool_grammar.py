"""Grammars of tool calls, in Lark's syntax with llguidance's extensions.

The schema of each tool is a document of its own in the grammar, so that pointers in it lead where they lead
in the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.errors import ConfigError
from outrider.json_schema import prepared
from outrider.models.text.harmony import CHANNEL, CONSTRAIN, MESSAGE
from outrider.models.text.tool_families import Family
from outrider.models.text.tool_words import CLOSE, OPEN
from outrider.server.http.argument_rules import COMPACT
from outrider.server.http.errors import ApiError, bad
from outrider.server.http.protocol import Tool
from outrider.server.http.request_fields import shown
from outrider.server.http.thought_grammar import mark_of
from outrider.server.http.tool_forms import BRACKET_OPEN, MISTRAL_OPEN, calls_are_marked
from outrider.server.http.tools import ToolUse

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_LINE_NUMBERS = re.compile(r"^at [0-9]+\([0-9]+\): |\s+[0-9]+ \|.*", re.DOTALL)  # of a grammar, in errors
ANY_ARGUMENTS = {"type": "object"}
_OTHER_TYPES = ("array", "string", "number", "integer", "boolean", "null")


def call_grammar(use: ToolUse, family: Family, marks: Mapping[str, int] | None = None) -> str:
    """The calls that a forced answer consists of.

    marks: the ids of marks that are special tokens.
    Raises ApiError for a schema that cannot be enforced.
    """
    return "\n".join(["start: calls", *_calls(use, family, marks or {}, use.tools)])


def formed_grammar(use: ToolUse, family: Family, marks: Mapping[str, int], form: str) -> str:
    """Either calls or the form that a request wants its content to have, `form` as the right side of a rule.
    Arguments of tools that are not strict are any object. Raises ApiError as `call_grammar` does."""
    strict = [tool for tool in use.tools if tool.function.strict]
    return "\n".join(["start: calls | form", f"form: {form}", *_calls(use, family, marks, strict)])


def form_rule(form: Mapping[str, Any]) -> str | None:
    """The right side of a rule for the form that a request asks for, or None. Raises ConfigError."""
    from outrider.grammar import lark_rule

    return lark_rule(StructuredOutputsParams(**form))


def blamed(use: ToolUse, form: Mapping[str, Any] | None, error: ConfigError) -> ApiError | ConfigError:
    """The error for a request whose grammar cannot be compiled: it names the form or the tool that is at
    fault, not the grammar that was made of them. Other errors stay as they are."""
    from outrider.grammar import form_fault, schema_fault

    if not str(error).startswith("the grammar cannot be used"):
        return error
    if form is not None and not use.forced and (fault := form_fault(StructuredOutputsParams(**form))):
        return ConfigError(fault)
    if not use.tools:
        return error
    for tool in use.tools:
        if (use.forced or tool.function.strict) and (fault := schema_fault(arguments_schema(tool))):
            return refused(tool, fault)
    told = _LINE_NUMBERS.split(str(error).partition(": ")[2])
    return bad(
        f"the tools cannot be used together: {next(filter(None, told), 'their grammar fails')}", "tools"
    )


def refused(tool: Tool, fault: str) -> ApiError:
    """The error for a tool's schema that cannot be enforced."""
    return bad(f"the parameters of the tool {tool.function.name!r} cannot be used: {fault}", "tools")


def _calls(use: ToolUse, family: Family, marks: Mapping[str, int], strict: Sequence[Tool]) -> list[str]:
    """The rule `calls` and those that it needs."""
    if family == "openai":
        return _channel_calls(use, marks, strict)
    bare = not calls_are_marked(family)
    key = "parameters" if bare else "arguments"
    rules = ["call: " + " | ".join(f"call{n}" for n in range(len(use.tools)))]
    for n, tool in enumerate(use.tools):
        head = f'{{"name": "{tool.function.name}", "{key}": '
        rules.append(f"call{n}: {json.dumps(head)} arguments{n} {json.dumps('}')}")
    rules += schemas(use, strict)
    opening, closing = mark_of(OPEN, marks), mark_of(CLOSE, marks)
    if family in ("hermes", "qwen3_coder", "gemma4"):  # of the latter two, whose parsers read it too
        one, several = "marked", '("\\n" marked)*'
        rules.append(f'marked: {opening} "\\n" call "\\n" {closing}')
    elif not bare:
        begin = BRACKET_OPEN if family == "granite" else MISTRAL_OPEN
        one, several = f'{mark_of(begin, marks)} " "? "[" call', '(", " call)*'
        return [f'calls: {one} {several if use.parallel else ""} "]"', *rules]
    else:
        one, several = "call", '("; " call)*'
    return [f"calls: {one} {several if use.parallel else ''}", *rules]


def _channel_calls(use: ToolUse, marks: Mapping[str, int], strict: Sequence[Tool]) -> list[str]:
    """The same in harmony's format, where a message has one call and ends the answer."""
    channel, message = mark_of(CHANNEL, marks), mark_of(MESSAGE, marks)
    rules = ["calls: " + " | ".join(f"call{n}" for n in range(len(use.tools)))]
    for n, tool in enumerate(use.tools):
        head = json.dumps(f"commentary to=functions.{tool.function.name} ")
        kind = f'{mark_of(CONSTRAIN, marks)} "json"'
        rules.append(f"call{n}: {channel} {head} {kind} {message} arguments{n}")
    return [*rules, *schemas(use, strict)]


def schemas(use: ToolUse, strict: Sequence[Tool]) -> list[str]:
    """The rules `arguments0` and so on: any object for a tool that is not among the strict ones."""
    rules = []
    for n, tool in enumerate(use.tools):
        schema = enforced_schema(tool) if tool in strict else ANY_ARGUMENTS
        rules.append(f"arguments{n}: %json {json.dumps({**schema, 'x-guidance': COMPACT})}")
    return rules


def enforced_schema(tool: Tool) -> dict[str, Any]:
    """A tool's schema as llguidance takes it. Raises ApiError."""
    try:
        found: dict[str, Any] = prepared(arguments_schema(tool))
        return found
    except ConfigError as error:
        raise refused(tool, str(error)) from None


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """A tool's schema, of an object. Raises ApiError where it says that the arguments are something else."""
    given = tool.function.parameters or _NO_ARGUMENTS
    kinds = given.get("type", "object")
    several = kinds if isinstance(kinds, list) else [kinds]
    if "object" in several:
        return {**given, "type": "object"}
    if all(kind in _OTHER_TYPES for kind in several):
        raise refused(tool, f"a call's arguments are an object, not of the type {shown(kinds)}")
    return given
