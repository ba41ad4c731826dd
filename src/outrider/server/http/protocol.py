"""The bodies of requests: OpenAI's fields, vLLM's additions, and Outrider's own.

An unknown field is refused, with the nearest known name. request_fields.py has the table of all fields that
are known, of other servers too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from outrider.errors import nearest
from outrider.server.http.request_fields import UNUSED, UNUSED_IN_TOOLS, Unused, refusal, shown, suggestions
from outrider.server.http.request_translation import field_error, translated


class Strict(BaseModel):
    """A model without type conversion (but a whole float counts as an integer) and without unknown fields.

    unused: fields without effect here.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    unused: ClassVar[Unused] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, data: Any) -> Any:
        return known_fields(cls, data) if isinstance(data, Mapping) else data


def known_fields(cls: type[Strict], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `data` that the model has. Raises PydanticCustomError for any other that would have an
    effect."""
    kept = {}
    known = [field.alias or name for name, field in cls.model_fields.items()]
    for name, value in data.items():
        if name in known:
            kept[name] = _whole(value) if name in _integer_fields(cls) else value
        elif name in cls.unused:
            if (reason := refusal(name, value, cls.unused)) is not None:
                raise field_error(name, reason)
        else:
            hint = nearest(str(name), [*known, *(suggestions() if cls.unused is UNUSED else ())])
            raise field_error(str(name), f"unknown field {str(name)[:80]!r}{hint}")
    return kept


@functools.cache
def _integer_fields(cls: type[Strict]) -> frozenset[str]:
    """The fields of a model that are integers, or hold them, and no floats."""
    kinds = {name: _kinds(field.annotation) for name, field in cls.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if int in found and float not in found)


def _kinds(annotation: Any) -> set[Any]:
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _kinds(parts[0])
    return set().union(*map(_kinds, parts)) if parts else {annotation}


def _whole(value: Any, depth: int = 2) -> Any:
    """16 for 16.0, which JSON schema counts as an integer; in lists and lists of lists too."""
    if isinstance(value, list) and depth and any(type(part) in (float, list) for part in value):
        return [_whole(part, depth - 1) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


class StreamOptions(Strict):
    include_usage: bool | None = Field(None, description="A last chunk with the usage of the whole request.")
    continuous_usage_stats: bool | None = Field(None, description="The usage so far in every chunk.")
    include_outrider: bool | None = Field(None, description="The same as `outrider` of the request.")
    include_obfuscation: bool | None = Field(None, description="Has no effect: nothing is padded.")


class Speculative(Strict):
    method: str | None = Field(None, description="none, auto, or a drafter that the server has.")
    num_speculative_tokens: int | None = Field(
        None,
        ge=0,
        description="Most draft tokens of a step, below the server's own limit; 0: plain decoding.",
    )


class JsonSchema(Strict):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="The schema is enforced whatever this says.")

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, data: Any) -> Any:
        known = ("name", "description", "schema", "strict")
        for name in data if isinstance(data, Mapping) else ():
            if name not in known:
                hint = nearest(str(name), known)
                raise field_error(str(name), f"unknown field {str(name)[:80]!r} in json_schema{hint}")
        return data


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | bool | None = Field(
        None, alias="schema", description="The schema itself, as llama.cpp has it."
    )


Scalar: TypeAlias = str | int | float | bool | None
TokenId = Annotated[int, Field(ge=0)]


class Sampling(Strict):
    """The fields that both generating paths share: those of SamplingParams under vLLM's names, and
    Outrider's."""

    unused = UNUSED
    path: ClassVar[str] = ""  # where such requests are sent

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        found = translated(data, frozenset(cls.model_fields))
        for other in (CompletionRequest, ChatRequest):
            for name in [n for n in found if n in other.model_fields and n not in cls.model_fields]:
                if (value := found.pop(name)) not in (None, [], {}):
                    message = f"{name}={shown(value)} is refused: it is a field of {other.path}"
                    raise field_error(name, message)
        return known_fields(cls, found)

    model: str | None = Field(None, description="One of /v1/models; the first when left out.")
    n: int | None = Field(None, ge=1)
    best_of: int | None = Field(None, ge=1, description="Must equal n: samples are not ranked.")
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = Field(None, ge=-1, description="-1: to the end of the context.")
    min_tokens: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=-1)
    logprob_token_ids: list[TokenId] | None = Field(
        None, description="Log-probabilities of these, in the place of the likeliest tokens."
    )
    logit_bias: dict[str, float | bool] | list[list[str | int | float | bool]] | None = Field(
        None, description="By token id; or pairs of a token id or a text, and a bias; false bans a token."
    )
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: Literal["left", "right"] | None = Field(None, description="The side that is cut off.")
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = Field(None, description="json, regex, choice, grammar, …")
    guided_decoding: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = Field(None, description="`token_id:N` for texts in logprobs.")
    return_token_ids: bool | None = None
    cache_salt: str | None = Field(None, description="Shares cached prefixes with the same salt only.")
    speculative: bool | Speculative | None = Field(None, description="false: plain decoding.")
    outrider: bool | None = Field(None, description="Tell how each token came about, and the metrics.")


class CompletionRequest(Sampling):
    path = "/v1/completions"

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    echo: bool | None = None
    suffix: str | None = Field(
        None, description="The text behind the gap; refused where the model cannot fill in."
    )
    logprobs: int | None = Field(None, ge=-1)
    draft_text: str | list[TokenId] | None = Field(
        None, description="What the text may be like, or its token ids: drafted from."
    )


class FunctionDefinition(Strict):
    unused = UNUSED_IN_TOOLS

    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="Arguments follow the schema under every tool_choice.")


class Tool(Strict):
    unused = UNUSED_IN_TOOLS

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction | None = None
    name: str | None = Field(None, description="The same without `function`.")

    @model_validator(mode="after")
    def _has_name(self) -> NamedTool:
        if (self.function is None) == (self.name is None):
            raise field_error("function", "a tool is named by function.name")
        return self

    @property
    def called(self) -> str:
        """The tool's name."""
        return self.function.name if self.function is not None else str(self.name)


class AllowedToolsList(Strict):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsList | None = None
    mode: Literal["auto", "required"] | None = Field(None, description="The same without `allowed_tools`.")
    tools: list[NamedTool] | None = None

    @model_validator(mode="after")
    def _has_tools(self) -> AllowedTools:
        flat = self.mode is not None and self.tools is not None
        if flat == (self.allowed_tools is not None):
            raise field_error("allowed_tools", "allowed_tools needs mode and tools")
        return self

    @property
    def called(self) -> tuple[list[str], str]:
        """The names of the tools that may be called, and the mode."""
        found = self.allowed_tools or self
        return [tool.called for tool in found.tools or ()], found.mode or "auto"


def _choice_kind(value: Any) -> str:
    if isinstance(value, str):
        return "Word"
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "AllowedTools" if kind == "allowed_tools" else "NamedTool"


ToolChoice: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")]
    | Annotated[NamedTool, Tag("NamedTool")]
    | Annotated[AllowedTools, Tag("AllowedTools")],
    Discriminator(_choice_kind),
]


class Message(BaseModel):
    """One message. Further fields are passed to the chat template."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class PredictedPart(Strict):
    type: Literal["text"]
    text: str


class Prediction(Strict):
    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def whole(self) -> str:
        """The text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Sampling):
    path = "/v1/chat/completions"

    messages: list[Message] = Field(min_length=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=-1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = Field(None, description="What the answer may be like: drafted from.")
    reasoning_effort: str | None = Field(None, description="Handed to the chat template, if it reads it.")
    include_reasoning: bool | None = Field(None, description="false: thoughts are written but not sent.")
    reasoning_format: Literal["none", "auto", "deepseek"] | None = Field(
        None, description="none: thoughts are left in the text."
    )
    echo: bool | None = Field(None, description="The last message's content in front, when it is continued.")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = Field(None, description="Refused unless the server was told to trust it.")
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(Strict):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    content: str | None = Field(None, description="llama.cpp's name for a text.")
    add_special: bool | None = Field(None, description="Of `content`; false by default.")
    parse_special: bool | None = Field(None, description="Of `content`; true by default.")
    with_pieces: bool | None = Field(None, description="Of `content`: each token's text beside its id.")
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[TokenId]
