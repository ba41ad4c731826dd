"""The families of forms in which models write tool calls; server/http/tool_forms.py describes them."""

from __future__ import annotations

from typing import Literal, TypeAlias

Family: TypeAlias = Literal[
    "hermes", "llama3_json", "mistral", "granite", "qwen3_coder", "gemma4", "pythonic", "openai"
]
FAMILIES: tuple[Family, ...] = ("hermes", "llama3_json", "mistral")  # all of whose calls are JSON with a name
# By the names of vLLM's --tool-call-parser.
TOOL_PARSERS: dict[str, Family] = {
    **{family: family for family in FAMILIES},
    **dict.fromkeys(("granite", "granite-20b-fc", "phi4_mini_json"), "granite"),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), "qwen3_coder"),
    **dict.fromkeys(("pythonic", "llama4_pythonic"), "pythonic"),
    **{"granite4": "hermes", "llama4_json": "llama3_json", "gemma4": "gemma4", "openai": "openai"},
}
