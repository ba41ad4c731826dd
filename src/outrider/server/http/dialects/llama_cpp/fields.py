"""The bodies of llama.cpp's own API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import Field, Strict, model_validator

from outrider.server.http.dialects.base import ANY, Fields, Neutral
from outrider.server.http.protocol import Speculative
from outrider.server.http.request_translation import field_error

_Id: TypeAlias = Annotated[int, Field(ge=0)]
_Bias: TypeAlias = Annotated[tuple[_Id | str, float | bool], Strict(False)]
_MIN_P = "use min_p and temperature"


class Generating(Fields):
    """The fields that both generating paths share."""

    neutral: ClassVar[Mapping[str, Neutral]] = {
        **dict.fromkeys(
            (
                *("cache_prompt", "id_slot", "n_keep", "timings_per_token", "response_fields"),
                *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
                *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "n_discard"),
                *("speculative.n_min", "speculative.p_min"),
                "t_max_prompt_ms",  # llama.cpp does not use it either
            ),
            ANY,
        ),
        "typical_p": ((1,), _MIN_P),
        "dynatemp_range": ((0,), _MIN_P),
        "mirostat": ((0,), _MIN_P),
        "xtc_probability": ((0,), _MIN_P),
        "top_n_sigma": ((-1, 0), _MIN_P),
        "min_keep": ((0, 1), _MIN_P),
        "dry_multiplier": ((0,), "use the penalties"),
        "post_sampling_probs": ((False,), "probabilities are the model's own"),
        "return_progress": ((False,), "the stream begins with the first token"),
        "grammar_lazy": ((False,), "a grammar holds from the first token on"),
        "grammar_triggers": (([],), "a grammar holds from the first token on"),
        "preserved_tokens": (([],), "special tokens are left out of the text"),
        "lora": (([],), "there are no adapters here"),
        "image_data": (([],), "this server reads text only"),
        "multimodal_data": (([],), "this server reads text only"),
    }

    model: str | None = Field(None, description="One of /v1/models; the first when left out.")
    n_cmpl: int | None = Field(None, ge=1, description="Samples of each prompt.")
    n: int | None = Field(None, ge=1, description="The same.")
    n_predict: int | None = Field(None, ge=-2, description="-1: to the end of the context, the default.")
    max_tokens: int | None = Field(None, ge=-2, description="The same.")
    samplers: list[str] | str | None = Field(None, description="Filters that it leaves out are off.")
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-1, le=2**63 - 1, description="-1 and 2^32 - 1: a random one.")
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
    n_draft: int | None = Field(None, alias="speculative.n_max", ge=0, description="0: plain decoding.")

    @model_validator(mode="after")
    def _one_of_two_names(self) -> Self:
        for name, other in (("n_predict", "max_tokens"), ("n_cmpl", "n")):
            values = {value for value in (getattr(self, name), getattr(self, other)) if value is not None}
            if len(values) > 1:
                raise field_error(other, f"{name} and {other} differ; give one")
            setattr(self, name, next(iter(values), None))
        return self


class LlamaCompletionRequest(Generating):
    prompt: str | list[_Id | str] | list[list[_Id | str]]


class OtherFile(Fields):
    neutral: ClassVar[Mapping[str, Neutral]] = {"time": ANY}  # editors send when they saw it

    text: str
    filename: str | None = None


class LlamaInfillRequest(Generating):
    input_prefix: str | list[_Id | str] = Field(description="The text before the gap.")
    input_suffix: str | list[_Id | str] = Field(description="The text after the gap.")
    input_extra: list[OtherFile] | None = Field(None, description="Other files, the most important last.")
    prompt: str | None = Field(None, description="What is behind input_prefix: the line up to the gap.")
