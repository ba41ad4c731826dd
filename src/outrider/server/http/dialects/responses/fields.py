"""The bodies of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter

from outrider.server.http.dialects.base import ANY, Fields, Neutral
from outrider.server.http.protocol import Speculative
from outrider.server.http.request_translation import field_error

_STATUS: Mapping[str, Neutral] = {"status": ANY, "caller": ANY, "namespace": ANY, "phase": ANY}
_INCLUDABLE = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class _Sent(Fields):
    is_answer: ClassVar[bool] = True


class TextPart(_Sent):
    neutral: ClassVar[Mapping[str, Neutral]] = {
        "annotations": ANY,
        "logprobs": ANY,
        "prompt_cache_breakpoint": ANY,
    }

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(_Sent):
    type: Literal["refusal"]
    refusal: str


def _part_type(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind not in ("input_text", "output_text", "text", "refusal"):
        raise field_error("type", f"content of type {kind[:60]!r} is refused: this server reads text only")
    return value


Part: TypeAlias = Annotated[
    Annotated[TextPart | RefusalPart, Field(discriminator="type")], BeforeValidator(_part_type)
]


class MessageItem(_Sent):
    neutral: ClassVar[Mapping[str, Neutral]] = _STATUS

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None


class FunctionCallItem(_Sent):
    neutral: ClassVar[Mapping[str, Neutral]] = _STATUS

    type: Literal["function_call"]
    call_id: str
    name: str = Field(min_length=1)
    arguments: str
    id: str | None = None


class FunctionCallOutputItem(_Sent):
    neutral: ClassVar[Mapping[str, Neutral]] = {**_STATUS, "name": ANY}

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]
    id: str | None = None


class SummaryText(Fields):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Fields):
    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(_Sent):
    """Reasoning of an earlier answer; handed to the chat template."""

    neutral: ClassVar[Mapping[str, Neutral]] = {**_STATUS, "encrypted_content": ANY}

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None


class ItemReference(Fields):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] | None = None
    id: str


_ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _item_type(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return getattr(value, "type", None) or "message"
    kind = value.get("type")
    if kind is None:
        return "item_reference" if set(value) == {"id"} else "message"
    return kind if isinstance(kind, str) else None


def _known_item(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind not in _ITEMS:
        known = ", ".join(_ITEMS)
        raise field_error("type", f"an item of type {kind[:60]!r} is refused: this server knows {known}")
    return value


Item: TypeAlias = Annotated[
    Annotated[
        Annotated[MessageItem, Tag("message")]
        | Annotated[FunctionCallItem, Tag("function_call")]
        | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
        | Annotated[ReasoningItem, Tag("reasoning")]
        | Annotated[ItemReference, Tag("item_reference")],
        Discriminator(_item_type),
    ],
    BeforeValidator(_known_item),
]
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


class FunctionTool(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {
        "allowed_callers": ANY,
        "output_schema": ANY,
        "defer_loading": ((False,), "every tool is described in the prompt"),
    }

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _tool_type(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind != "function":
        raise field_error(
            "type", f"a tool of type {kind[:60]!r} is refused: this server calls none itself; use function"
        )
    return value


class NamedFunction(Fields):
    type: Literal["function"]
    name: str


class AllowedTools(Fields):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="The schema is enforced whatever this says.")


class TextConfig(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"verbosity": (("medium",), "say it in the instructions")}

    format: TextFormat | None = None


class Reasoning(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {
        "summary": ANY,  # the reasoning itself is in the answer
        "generate_summary": ANY,
        "context": ANY,
        "mode": (("standard",), "there is one mode"),
    }

    effort: str | None = Field(None, description="Handed to the chat template, if it reads it.")


class StreamOptions(Fields):
    include_obfuscation: bool | None = Field(None, description="Has no effect: nothing is padded.")


SAME_IN_CHATS = (
    *("temperature", "top_p", "top_k", "seed", "stream", "prediction", "min_p", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "ignore_eos"),
    *("include_stop_str_in_output", "structured_outputs", "cache_salt"),
)


class PromptRequest(Fields):
    """The fields that make the prompt."""

    neutral: ClassVar[Mapping[str, Neutral]] = {
        "truncation": (("disabled",), "nothing is left out of a conversation here"),
        "conversation": ((), "use previous_response_id"),
        "personality": ANY,
    }

    model: str | None = Field(None, description="One of /v1/models; the first when left out.")
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Annotated[FunctionTool, BeforeValidator(_tool_type)]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None


class ResponsesRequest(PromptRequest):
    neutral: ClassVar[Mapping[str, Neutral]] = {
        **PromptRequest.neutral,
        "user": ANY,
        "safety_identifier": ANY,
        "prompt_cache_key": ANY,
        "prompt_cache_retention": ANY,
        "prompt_cache_options": ANY,
        "service_tier": ANY,
        "max_tool_calls": ANY,  # of tools that a server calls itself
        "access_programs": ANY,
        "background": ((False,), "answer in the request, or stream"),
        "background_options": ((), "there are no background responses"),
        "prompt": ((), "there are no stored prompts; use instructions"),
        "context_management": (([],), "nothing is left out of a conversation here"),
        "moderation": ((), "this server judges nothing"),
        "image": ((), "this server reads text only"),
        "top_logprobs": ((0,), "use /v1/chat/completions"),
        "request_id": ANY,
        "session_id": ANY,
        "include_reasoning": ANY,
        "spaces_between_special_tokens": ANY,
        "priority": ((0,), "requests are served in the order in which they come"),
        "watermarking": ((False,), "no text is marked"),
        "enable_response_messages": ((False,), "/tokenize shows a conversation's tokens"),
        "vllm_xargs": (({},), "there are no plug-ins to read them"),
        "kv_transfer_params": (({},), "there is one server only"),
    }

    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    include: list[_INCLUDABLE] | None = Field(None, description="Has no effect: reasoning is not encrypted.")
    metadata: dict[str, str] | None = None
    store: bool | None = Field(None, description="Keep the response in memory for a while; true by default.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prediction: dict[str, Any] | None = Field(None, description="As in /v1/chat/completions.")
    speculative: bool | Speculative | None = Field(None, description="false: plain decoding.")
    # Of vLLM and SGLang, with the meaning that they have in /v1/chat/completions.
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
