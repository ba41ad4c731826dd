"""The bodies of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from outrider.server.http.dialects.base import ANY, Fields, Neutral
from outrider.server.http.protocol import Speculative
from outrider.server.http.request_translation import field_error

_TEXT_ONLY = "this server reads text only"


def only_types(known: Collection[str], what: str, why: str) -> BeforeValidator:
    """A validator for objects with a `type`, which refuses other types by name."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, Mapping) else None
        if isinstance(kind, str) and kind not in known:
            raise field_error("type", f"{what} of type {kind[:60]!r} is refused: {why}")
        return value

    return BeforeValidator(check)


class _Block(Fields):
    is_answer: ClassVar[bool] = True
    neutral: ClassVar[Mapping[str, Neutral]] = {
        "cache_control": ANY,
        "citations": ANY,
        "caller": ANY,
        "toolset_name": ANY,
    }


class TextBlock(_Block):
    type: Literal["text"]
    text: str


class TextSource(Fields):
    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


class DocumentBlock(_Block):
    """A document whose text is given."""

    type: Literal["document"]
    source: Annotated[TextSource, only_types(["text"], "a document's source", _TEXT_ONLY)]
    title: str | None = None
    context: str | None = None


class ThinkingBlock(_Block):
    """Reasoning of an earlier answer; handed to the chat template."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block):
    """Has no effect: nobody here can read it."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Block):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]


_ResultBlock: TypeAlias = Annotated[
    Annotated[TextBlock | DocumentBlock, Field(discriminator="type")],
    only_types(["text", "document"], "content", _TEXT_ONLY),
]


class ToolResultBlock(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[_ResultBlock] | None = None
    is_error: bool | None = Field(None, description="Has no effect: the content says what went wrong.")


Block: TypeAlias = (
    TextBlock | DocumentBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
)
_CheckedBlock: TypeAlias = Annotated[
    Annotated[Block, Field(discriminator="type")],
    only_types(
        ["text", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"],
        "content",
        _TEXT_ONLY,
    ),
]


class Message(Fields):
    role: Literal["user", "assistant", "system"]
    content: str | list[_CheckedBlock]


class Tool(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {
        "cache_control": ANY,
        "eager_input_streaming": ANY,
        "allowed_callers": ANY,
        "input_examples": ANY,
        "defer_loading": ((False,), "every tool is described in the prompt"),
    }

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"display": ANY}

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, description="Not enforced; max_tokens is.")


class OutputFormat(Fields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    effort: str | None = Field(None, description="Handed to the chat template, if it reads it.")
    format: OutputFormat | None = None


class ContextManagement(Fields):
    edits: list[dict[str, Any]] | None = None


class CountRequest(Fields):
    """The fields that make the prompt."""

    neutral: ClassVar[Mapping[str, Neutral]] = {
        "cache_control": ANY,
        "metadata": ANY,
        "service_tier": ANY,
        "inference_geo": ANY,
        "speed": ANY,
        "betas": ANY,
        "diagnostics": ANY,
        "workspace_id": ANY,
        "user_profile_id": ANY,
        "container": ((), "there are no containers here"),
        "mcp_servers": (([],), "this server calls no tools; describe them in tools"),
    }

    model: str | None = Field(None, description="One of /v1/models; the first when left out.")
    messages: list[Message] = Field(min_length=1)
    system: str | list[TextBlock] | None = None
    tools: (
        list[
            Annotated[
                Tool,
                only_types(["custom"], "a tool", "describe it as a custom tool with an input_schema"),
            ]
        ]
        | None
    ) = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None


class MessagesRequest(CountRequest):
    max_tokens: int = Field(ge=0, description="0: fill the prefix cache only.")
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-1, le=2**63 - 1)
    speculative: bool | Speculative | None = Field(None, description="false: plain decoding.")
