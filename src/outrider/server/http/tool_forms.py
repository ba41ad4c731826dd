"""The forms in which models write tool calls, for the parser and for grammars.

A family is the form that a model was trained on. Hermes (Qwen, Hermes and others):
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call, between ordinary text. Llama 3's
JSON: the whole answer is `{"name": …, "parameters": {…}}`, several with `;` between them, optionally after
`<|python_tag|>`. Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]NAME{…}`.
Granite 3 and Phi-4: `<|tool_call|>[{"name": …, "arguments": {…}}, …]`, or `functools[…]`. Qwen3-Coder and
Qwen3.5: `<tool_call><function=NAME><parameter=KEY>…</parameter></function></tool_call>`. Gemma 4:
`<|tool_call>call:NAME{key:…}<tool_call|>`. Pythonic (Llama 3.2 and 4): the whole answer is
`[NAME(key=…), …]`. gpt-oss: a message of its own in harmony's format.

Models write other forms too, which llama.cpp reads as well: other tags, code blocks, `<function=NAME>{…}`,
and calls without any mark. These count only if they name one of the tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.models.text.harmony import CALL, CALL_OPEN, MESSAGE
from outrider.models.text.harmony import MARKS as HARMONY_MARKS
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.tool_families import FAMILIES, TOOL_PARSERS, Family
from outrider.models.text.tool_words import CLOSE, OPEN

MISTRAL_OPEN, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
BRACKET_OPEN, BRACKET_CLOSE, FUNCTOOLS = "<|tool_call|>", "<|/tool_call|>", "functools"
GEMMA_OPEN, GEMMA_CLOSE, GEMMA_QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
PYTHON_TAG = "<|python_tag|>"
_TAGS = ("tools", "function_call", "tool", "response", "json", "JSON", "xml")


@dataclass(frozen=True, slots=True)
class Opening:
    """What may come before a call.

    mark:     its text; of FUNCTION_MARKS up to the name.
    closers:  what may follow the call and is dropped with it.
    own:      the family's own mark: a call of any name counts.
    needs_arguments: a call without arguments does not count.
    """

    mark: str
    closers: tuple[str, ...] = ()
    own: bool = False
    needs_arguments: bool = True


_HERMES = Opening(OPEN, (CLOSE,), own=True, needs_arguments=False)
_MISTRAL = Opening(MISTRAL_OPEN, own=True, needs_arguments=False)
_OTHER_TAGS = tuple(Opening(f"<{tag}>", (f"</{tag}>",)) for tag in _TAGS)
FUNCTION_MARKS = ("<function=", '<function name="')  # the name follows
_FUNCTIONS = tuple(Opening(mark, ("</function>",)) for mark in FUNCTION_MARKS)

# Openings anywhere in a text, and those at its start only; there, "" is a call without a mark.
ANYWHERE: dict[Family, tuple[Opening, ...]] = {
    "hermes": (_HERMES, *_OTHER_TAGS, *_FUNCTIONS),
    "llama3_json": _FUNCTIONS,
    "mistral": (_MISTRAL,),
    "granite": (
        Opening(BRACKET_OPEN, (BRACKET_CLOSE,), own=True, needs_arguments=False),
        Opening(FUNCTOOLS),
        _HERMES,
        *_OTHER_TAGS,
    ),
    "qwen3_coder": (_HERMES, *_OTHER_TAGS, *_FUNCTIONS),
    "gemma4": (Opening(GEMMA_OPEN, (GEMMA_CLOSE,), own=True, needs_arguments=False), _HERMES),
    "pythonic": (),
    "openai": (Opening(CALL_OPEN, (CALL,), own=True, needs_arguments=False),),
}
_BLOCKS = tuple(Opening(mark, ("```",)) for mark in ("```json", "```"))
AT_START: dict[Family, tuple[Opening, ...]] = {
    "hermes": (*_BLOCKS, Opening("")),
    "llama3_json": (Opening(PYTHON_TAG, (";",), needs_arguments=False), Opening("", (";",))),
    "mistral": (Opening(""),),
    "granite": (*_BLOCKS, Opening("")),
    "qwen3_coder": (*_BLOCKS, Opening("")),
    "gemma4": (Opening(""),),
    "pythonic": (Opening(PYTHON_START, (PYTHON_END, ";")), Opening("", (";",))),
    "openai": (),
}

# --- What grammars enforce -------------------------------------------------------------------------
# Where a grammar enforces the arguments of calls within free text, it sees a call begin by these regexes, and
# the parser reads only calls that begin so. They are in the common syntax of Python's re and Rust's regex.

BLANKS = r"[ \t\r\n]*"
NAME_KEY = rf'{BLANKS}\{{{BLANKS}\{{?{BLANKS}"name"{BLANKS}:{BLANKS}"'
ARGUMENTS_KEY = rf'"{BLANKS},{BLANKS}"(arguments|parameters)"{BLANKS}:{BLANKS}'
_ENFORCED_TAGS = r"<(tool_call|tools|function_call)>"
# What may be between two calls of one mark, and before one at the start of the answer. Where a family's calls
# may also be in a form of their own, what closes one form is dropped before another, too.
_AFTER_CALL = r"[ \t\r\n}]*(```|</(tool_call|tools|function_call)>)?[ \t\r\n;]*"
_BETWEEN = r"([ \t\r\n},;\]]|```|<[/|]*[a-z_]+\|?>)*"
CONTINUED: dict[Family, str] = dict.fromkeys(ANYWHERE, _BETWEEN)
CONTINUED |= dict.fromkeys(FAMILIES, r"[ \t\r\n}]*,?")
AFTER_CALL: dict[Family, str] = dict.fromkeys(ANYWHERE, _BETWEEN)
AFTER_CALL |= dict.fromkeys(FAMILIES, _AFTER_CALL)
_BLOCK = rf"(```(json)?{BLANKS})?"
ENFORCED_MARKS: dict[Family, str] = {
    "hermes": _ENFORCED_TAGS,
    "llama3_json": "",
    "mistral": rf"\[TOOL_CALLS\]{BLANKS}\[",  # nothing but a call comes after the mark
    "granite": rf"((<\|tool_call\|>|functools){BLANKS}\[?|{_ENFORCED_TAGS})",
    "qwen3_coder": _ENFORCED_TAGS,
    "gemma4": _ENFORCED_TAGS,
    "pythonic": "",
}
ENFORCED_STARTS: dict[Family, str] = {
    "hermes": _BLOCK,
    "llama3_json": r"(<\|python_tag\|>)?",
    "mistral": "",
    "granite": _BLOCK,
    "qwen3_coder": _BLOCK,
    "gemma4": "",
    "pythonic": r"(<\|python_start\|>)?",
}
# Of forms that are not JSON: what comes before the name, and the character after it.
OWN_STARTS: dict[Family, tuple[str, str]] = {
    "qwen3_coder": ("<function=", ">"),
    "gemma4": (rf"<\|tool_call>{BLANKS}call:", "{"),
    "pythonic": (rf"(<\|python_start\|>)?{BLANKS}\[{BLANKS}", "("),
}
_OWN_HEADS: dict[Family, str] = {  # the same as the parser sees it, up to the arguments
    "mistral": rf"\[TOOL_CALLS\] ?(NAME)(\[ARGS\])?{BLANKS}",
    "qwen3_coder": rf"(<tool_call>)?{BLANKS}<function=(NAME)>",
    "gemma4": rf"<\|tool_call>{BLANKS}call:(NAME)",
    "pythonic": rf"((<\|python_start\|>)?{BLANKS}\[{BLANKS})?(NAME)\(",
    "openai": rf"{re.escape(CALL_OPEN)}(NAME){re.escape(MESSAGE)}{BLANKS}",
}


def is_enforced(family: Family, head: str, names: Iterable[str]) -> bool:
    """Whether a grammar saw this call begin. `head` is its text from the opening to the arguments."""
    name = "|".join(map(re.escape, names))
    own = _OWN_HEADS.get(family)
    if own is not None and re.fullmatch(BLANKS + own.replace("NAME", name), head) is not None:
        return True
    if family == "openai":
        return False
    starts = [ENFORCED_STARTS[family], r"[ \t\r\n}]*,?"]
    if ENFORCED_MARKS[family]:
        starts.append(ENFORCED_MARKS[family])
    opening = "|".join(f"({start})" for start in starts)
    return re.fullmatch(rf"{BLANKS}({opening}){NAME_KEY}({name}){ARGUMENTS_KEY}", head) is not None


def family_of(template: str | None, parser: str | None = None) -> Family:
    """The form of calls: `parser` if given, else the one that a chat template's source mentions, else
    Hermes'."""
    if parser not in (None, "auto"):
        return TOOL_PARSERS[str(parser)]
    source = template or ""
    if "<function=" in source and "<parameter=" in source:
        return "qwen3_coder"
    return next((family for mark, family in _BY_TEMPLATE if mark in source), "hermes")


# The first text that a template's source has says its family.
_BY_TEMPLATE: tuple[tuple[str, Family], ...] = (
    ("<|channel|>", "openai"),
    (GEMMA_OPEN, "gemma4"),
    (OPEN, "hermes"),
    (MISTRAL_OPEN, "mistral"),
    (BRACKET_OPEN, "granite"),
    ("<|tool|>", "granite"),
    (FUNCTOOLS, "granite"),
    (PYTHON_START, "pythonic"),
    ("[func_name", "pythonic"),
    ('"parameters"', "llama3_json"),
)
_SPECIAL: dict[Family, tuple[str, ...]] = {  # marks that may be special tokens
    "hermes": (OPEN, CLOSE),
    "llama3_json": (),
    "mistral": (MISTRAL_OPEN, MISTRAL_ARGUMENTS),
    "granite": (BRACKET_OPEN, BRACKET_CLOSE, OPEN, CLOSE),
    "qwen3_coder": (OPEN, CLOSE),
    "gemma4": (GEMMA_OPEN, GEMMA_CLOSE, GEMMA_QUOTE),
    "pythonic": (PYTHON_START, PYTHON_END),
    "openai": HARMONY_MARKS,
}


def calls_are_marked(family: Family) -> bool:
    """Whether a call begins with a mark that no other text has."""
    return family not in ("llama3_json", "pythonic")


def special_marks(tokenizer: Tokenizer, family: Family) -> dict[str, int]:
    """Those of a family's marks that are special tokens, which a text leaves out by default, with their
    ids."""
    marks = _SPECIAL[family]
    return {mark: token for mark in marks if (token := special_token(tokenizer, mark)) is not None}


def special_token(tokenizer: Tokenizer, text: str) -> int | None:
    """The id of the special token with this text; None if there is none."""
    ids = tokenizer.encode(text, add_special=False)
    return ids[0] if len(ids) == 1 and tokenizer.is_special(ids[0]) else None
