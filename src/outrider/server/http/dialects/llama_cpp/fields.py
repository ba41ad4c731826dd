"""The bodies of llama.cpp's own API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, Strict, model_validator

from outrider.server.http.dialects.base import ANY, Fields, Neutral
from outrider.server.http.protocol import Speculative
from outrider.server.http.request_fields import LLAMA, UNUSED
from outrider.server.http.request_translation import field_error

_Id: TypeAlias = Annotated[int, Field(ge=0)]
_Bias: TypeAlias = Annotated[tuple[_Id | str, float | bool], Strict(False)]


class Generating(Fields):
    """The fields that both generating paths share."""

    # What means nothing at /v1/completions means nothing here.
    neutral: ClassVar[Mapping[str, Neutral]] = {
        **{name: (accepted, why) for name, (whose, accepted, why) in UNUSED.items() if LLAMA in whose},
        "t_max_prompt_ms": ANY,  # llama.cpp does not use it either
        "stream_options": ANY,  # counts are in the last document anyway
    }
    renamed: ClassVar[Mapping[str, str]] = {
        "max_tokens": "n_predict",
        "max_completion_tokens": "n_predict",
        "n": "n_cmpl",
        "logprobs": "n_probs",
    }

    @model_validator(mode="before")
    @classmethod
    def _under_one_name(cls, data: Any) -> Any:
        """llama.cpp takes OpenAI's names here too."""
        if not isinstance(data, Mapping):
            return data
        found = {name: value for name, value in data.items() if name not in cls.renamed}
        for name, own in cls.renamed.items():
            if data.get(name) is None:
                continue
            if found.get(own, data[name]) not in (None, data[name]):
                raise field_error(name, f"{own} and {name} differ; give one")
            found[own] = data[name]
        return found

    model: str | None = Field(None, description="One of /v1/models; the first when left out.")
    n_cmpl: int | None = Field(None, ge=1, description="Samples of each prompt.")
    n_predict: int | None = Field(None, ge=-2, description="-1: to the end of the context, the default.")
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-1, le=2**64 - 1, description="-1 and 2^32 - 1: a random one.")
    repeat_penalty: float | None = Field(None, gt=0)
    repeat_last_n: int | None = Field(None, ge=-1, description="0: no penalty; else all tokens count.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    logit_bias: list[_Bias] | dict[str, float | bool] | None = None
    n_probs: int | None = Field(None, ge=0)
    grammar: str | None = Field(None, description="GBNF.")
    json_schema: dict[str, Any] | None = None
    return_tokens: bool | None = None
    stream: bool | None = None
    n_indent: int | None = Field(
        None, ge=0, description="A new line that is indented by fewer blanks ends the text."
    )
    t_max_predict_ms: float | None = Field(
        None, description="After so long, a line break ends the text; 0 or less: no limit."
    )
    speculative: bool | Speculative | None = Field(None, description="false: plain decoding.")
    speculative_n_max: int | None = Field(
        None, ge=0, alias="speculative.n_max", description="Most draft tokens of a step; 0: plain decoding."
    )
    cache_prompt: bool | None = Field(None, description="false: share no cached prefix.")
    response_fields: list[str] | None = Field(
        None, description="The members that the answer has, with / for those of an object within."
    )


class TextPrompt(Fields):
    """A prompt as an object, in which other servers take media besides."""

    neutral: ClassVar[Mapping[str, Neutral]] = {"multimodal_data": UNUSED["multimodal_data"][1:]}

    prompt_string: str


Prompt: TypeAlias = str | TextPrompt | list[_Id | str]


class LlamaCompletionRequest(Generating):
    prompt: Prompt | list[Prompt]
    samplers: str | list[str] | None = Field(None, description="Those that it leaves out are off.")


class OtherFile(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"time": ANY}  # editors send when they saw it

    text: str
    filename: str | None = None


class LlamaInfillRequest(Generating):
    neutral: ClassVar[Mapping[str, Neutral]] = {**Generating.neutral, "samplers": ANY}

    input_prefix: str | list[_Id | str] = Field(description="The text before the gap.")
    input_suffix: str | list[_Id | str] = Field(description="The text after the gap.")
    input_extra: list[OtherFile] | None = Field(None, description="Other files, the most important last.")
    prompt: str | None = Field(None, description="What is behind input_prefix: the line up to the gap.")
