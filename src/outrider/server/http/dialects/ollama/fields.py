"""The bodies of Ollama's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from outrider.server.http.dialects.base import ANY, Fields, Neutral
from outrider.server.http.protocol import Speculative

_TEXT_ONLY: Neutral = (([],), "this server reads text only")


class Options(Fields):
    """`options`. Those of the machine change nothing here: the server's flags choose them."""

    neutral: ClassVar[Mapping[str, Neutral]] = {
        **dict.fromkeys(
            (
                *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "vocab_only", "use_mmap"),
                *("use_mlock", "num_thread", "num_keep", "logits_all", "mirostat_tau", "mirostat_eta"),
                *("penalize_newline", "num_gqa", "rope_frequency_base", "rope_frequency_scale"),
                "embedding_only",
            ),
            ANY,
        ),
        "typical_p": ((1,), "use min_p"),
        "tfs_z": ((1,), "use min_p"),
        "mirostat": ((0,), "use min_p"),
    }

    num_predict: int | None = Field(None, ge=-2, description="-1 and -2: to the end of the context.")
    num_ctx: int | None = Field(None, ge=1, description="Has no effect: the server's flags choose it.")
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="Negative: a random one.")
    stop: str | list[str] | None = None
    repeat_penalty: float | None = Field(None, gt=0)
    repeat_last_n: int | None = Field(None, ge=-1, description="0: no penalty; else all tokens count.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)


class CalledFunction(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"index": ANY, "description": ANY}

    name: str = Field(min_length=1)
    arguments: dict[str, Any] | str | None = Field(None, description="JSON as text, too, as in OpenAI's API.")


class ToolCall(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"type": ANY}

    id: str | None = None
    function: CalledFunction


class Message(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"images": _TEXT_ONLY, "name": ANY}

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = Field(None, description="Handed to the chat template.")
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Function(Fields):
    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    type: Literal["function"] | None = None
    function: Function


class Generating(Fields):
    """The fields that both generating paths share."""

    neutral: ClassVar[Mapping[str, Neutral]] = {
        "keep_alive": ANY,  # the model stays loaded
        "truncate": ANY,
        "shift": ANY,
        "logprobs": ((False,), "use /v1/chat/completions"),
        "top_logprobs": ((0,), "use /v1/chat/completions"),
    }

    model: str | None = Field(None, description="One of /api/tags; the first when left out.")
    stream: bool | None = Field(None, description="true by default.")
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    speculative: bool | Speculative | None = Field(None, description="false: plain decoding.")


class OllamaChatRequest(Generating):
    messages: list[Message] | None = None
    tools: list[Tool] | None = None


class OllamaGenerateRequest(Generating):
    neutral: ClassVar[Mapping[str, Neutral]] = {
        **Generating.neutral,
        "images": _TEXT_ONLY,
        "context": (([],), "send the conversation to /api/chat"),
        **dict.fromkeys(("width", "height", "steps"), ((), "this server writes text only")),
        "template": (("",), "the model's own chat template is used; raw: true uses none"),
    }

    prompt: str | None = None
    suffix: str | None = Field(None, description="The text behind the gap that is filled in.")
    system: str | None = None
    raw: bool | None = None


class OllamaShowRequest(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = dict.fromkeys(
        ("verbose", "system", "template", "options"), ANY
    )

    model: str | None = None
    name: str | None = None
