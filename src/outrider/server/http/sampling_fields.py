"""From the fields of a request to SamplingParams, and to the fields of Request about drafting. Pure
functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.decoding.metrics import PREDICTION
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.errors import nearest
from outrider.pipeline import Pipeline
from outrider.sampling_defaults import SamplingDefaults
from outrider.server.http.errors import bad
from outrider.server.http.protocol import ChatRequest, CompletionRequest, Sampling
from outrider.server.http.request_fields import shown

COMPLETION_TOKENS = 16  # without max_tokens, as in OpenAI's API and vLLM
BAN = -1e9  # the bias of a token that is never to be written
MAX_FORMAT_CHARS = 100_000  # of a schema, grammar, regex or list of choices, as JSON

# Fields that SamplingParams has under the same name.
_SAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("min_tokens", "prompt_logprobs", "allowed_token_ids", "bad_words", "skip_special_tokens"),
    *("spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side"),
    "logprob_token_ids",
)
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """What a server adds to the sampling fields of a request.

    max_logprobs: most log-probabilities at each position; -1 for no limit.
    defaults:     of requests without such a field.
    tokenize:     a text's token ids, without special tokens, for biases by text.
    """

    max_logprobs: int = 20
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    tokenize: Callable[[str], Sequence[int]] | None = None


def sampling_params(body: Sampling, rules: SamplingRules, **more: Any) -> SamplingParams:
    """The SamplingParams of a request. `more` has precedence over its fields.

    Raises ApiError for fields that contradict each other, ConfigError for values out of range.
    """
    given = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    if body.logit_bias is not None:
        given["logit_bias"] = biases(body.logit_bias, rules.tokenize)
    if (shape := output_format(body)) is not None:
        given["structured_outputs"] = shape
    if (predicted := _predicted(body)) is not None:
        given["draft_text"] = predicted
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad("best_of must equal n: samples are not ranked; draw n and rank them", "best_of")
    bounded("prompt_logprobs", body.prompt_logprobs, rules.max_logprobs)
    if body.logprob_token_ids:
        if more.get("logprobs") is None:
            raise bad("logprob_token_ids needs logprobs", "logprob_token_ids")
        more["logprobs"] = None  # they say which, and `logprobs` or `top_logprobs` no longer how many
    if body.stream and body.prompt_logprobs is not None:
        raise bad("prompt_logprobs are not streamed: leave stream or prompt_logprobs out", "prompt_logprobs")
    if body.stream_options is not None and not body.stream and any(body.stream_options.model_dump().values()):
        raise bad("stream_options needs stream", "stream_options")
    return SamplingParams(**{**rules.defaults.values, **given, **more})


def completion_params(body: CompletionRequest, rules: SamplingRules) -> SamplingParams:
    """SamplingParams of /v1/completions. With `echo`, `max_tokens` may be 0: one token is generated, and is
    not sent. Raises ApiError and ConfigError."""
    if body.suffix and body.truncate_prompt_tokens is not None:
        raise bad(
            "truncate_prompt_tokens is refused with suffix: it cuts off the mark that the prompt begins with"
            "; send less of prompt and suffix",
            "truncate_prompt_tokens",
        )
    if body.suffix and body.echo and body.logprobs is not None:
        raise bad(
            "echo with logprobs is refused with suffix: the model reads the suffix before it writes, so that "
            "the text has no tokens in one row; send prompt_logprobs for those of the prompt",
            "echo",
        )
    bounded("logprobs", body.logprobs, rules.max_logprobs)
    most: int | None = body.max_tokens
    if most is None:
        most = rules.defaults.completion_tokens(COMPLETION_TOKENS)
    if most == 0 and not body.echo:
        raise bad("max_tokens must be at least 1 (0 is for echo alone)", "max_tokens")
    if body.echo and body.logprobs is not None and body.stream and (body.n or 1) > 1:
        raise bad("echo with logprobs is not streamed for several samples", "echo")
    more: dict[str, Any] = {"max_tokens": _limit(most), "logprobs": body.logprobs}
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        more["prompt_logprobs"] = body.logprobs
    return sampling_params(body, rules, **more)


def chat_params(body: ChatRequest, rules: SamplingRules, **more: Any) -> SamplingParams:
    """SamplingParams of /v1/chat/completions; without a limit a sample may fill the context. Raises ApiError
    and ConfigError."""
    limits = {v for v in (body.max_tokens, body.max_completion_tokens) if v is not None}
    if len(limits) > 1:
        raise bad("max_tokens and max_completion_tokens differ; give one", "max_tokens")
    most: float | None = limits.pop() if limits else rules.defaults.values.get("max_tokens")
    if most == 0:
        name = "max_completion_tokens" if body.max_tokens is None else "max_tokens"
        raise bad(f"{name} must be at least 1", name)
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    bounded("top_logprobs", body.top_logprobs, rules.max_logprobs)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, rules, max_tokens=_limit(most), logprobs=logprobs, **more)


def _predicted(body: Sampling) -> str | Sequence[int] | None:
    """What the output may be like, as a request says; None if it does not."""
    if isinstance(body, ChatRequest):
        return None if body.prediction is None else body.prediction.whole
    return body.draft_text if isinstance(body, CompletionRequest) else None


def _limit(most: float | None) -> int | None:
    """`max_tokens` of SamplingParams; -1 is no limit."""
    return None if most is None or most < 0 else max(1, int(most))


def bounded(name: str, value: int | None, most: int) -> None:
    """Raise ApiError for more log-probabilities than `most`; -1 is no limit."""
    if value is not None and most >= 0 and not 0 <= value <= most:
        raise bad(f"{name} must be from 0 to {most}, not {value} (--max-logprobs)", name)


def output_format(body: Sampling) -> Mapping[str, Any] | None:
    """The requested structure of the output, as fields of StructuredOutputsParams; None for any text. Raises
    ApiError for two that differ."""
    found: dict[str, Mapping[str, Any]] = {}
    if (wanted := body.response_format) is not None and wanted.type != "text":
        schema = wanted.schema_
        if schema is None and wanted.json_schema is not None:
            schema = wanted.json_schema.schema_
        if schema is not None and (schema or wanted.type == "json_schema"):
            found["response_format"] = {"json": json.dumps(schema)}
        elif wanted.type == "json_object":
            found["response_format"] = {"json_object": True}
        else:
            raise bad("response_format of type json_schema needs json_schema.schema", "response_format")
    for name in ("structured_outputs", "guided_decoding"):
        if (value := getattr(body, name)) is not None:
            found[name] = value
    for name, kind in _GUIDED.items():
        if (value := getattr(body, name)) is not None:
            found[name] = {kind: value}
    if len(found) > 1 and len({StructuredOutputsParams(**shape) for shape in found.values()}) > 1:
        raise bad(f"give one of {' and '.join(found)}: the output cannot have two forms", list(found)[1])
    blanks = body.guided_whitespace_pattern
    if not found:
        if blanks is not None:
            raise bad("guided_whitespace_pattern needs guided_json", "guided_whitespace_pattern")
        return None
    name, shape = next(iter(found.items()))
    check_size(json.dumps(shape), name)
    return shape if blanks is None else {**shape, "whitespace_pattern": blanks}


def check_size(text: str, param: str) -> None:
    """Raise ApiError for a schema or grammar whose size alone would make it slow to compile."""
    if len(text) > MAX_FORMAT_CHARS:
        raise bad(
            f"the form of the output takes {len(text)} characters; at most {MAX_FORMAT_CHARS} can", param
        )


def biases(
    values: Mapping[str, float] | Sequence[Sequence[object]],
    tokenize: Callable[[str], Sequence[int]] | None = None,
) -> dict[int, float]:
    """Biases by token id: from a mapping of ids as texts, or from pairs of an id or a text and a bias. False
    bans a token. The biases of a token that is named several times are added. Raises ApiError."""
    found: dict[int, float] = {}
    if isinstance(values, Mapping) and len(wrong := [key for key in values if _token_id(key) is None]) > 1:
        named = ", ".join(repr(key[:40]) for key in wrong[:10])
        raise bad(f"logit_bias is by token id; {len(wrong)} keys are none: {named}", "logit_bias")
    for pair in values.items() if isinstance(values, Mapping) else values:
        if len(pair) != 2:
            raise bad(
                f"logit_bias is made of pairs of a token and a bias; {shown(pair)} is none", "logit_bias"
            )
        token, bias = pair
        for number in _bias_ids(token, None if isinstance(values, Mapping) else tokenize):
            found[number] = found.get(number, 0.0) + _bias(bias)
    return found


def _bias_ids(token: object, tokenize: Callable[[str], Sequence[int]] | None) -> Sequence[int]:
    """The ids that a key of logit_bias stands for."""
    if isinstance(token, str) and tokenize is not None:
        return tokenize(token)
    if (found := _token_id(token)) is None:
        raise bad(f"logit_bias is by token id; {str(token)[:40]!r} is none", "logit_bias")
    return [found]


def _token_id(token: object) -> int | None:
    text = str(int(token)) if isinstance(token, float) and token.is_integer() else str(token)
    is_id = text.isascii() and text.isdecimal() and len(text) < 10 and not isinstance(token, bool)
    return int(text) if is_id else None


def _bias(bias: object) -> float:
    if bias is False:
        return BAN
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise bad(f"a bias of logit_bias must be a number or false, not {shown(bias)}", "logit_bias")
    if not -100 <= bias <= 100:
        raise bad(f"logit_bias must be from -100 to 100, not {bias:g}", "logit_bias")
    return float(bias)


def draft_fields(body: Sampling, pipeline: Pipeline) -> dict[str, Any]:
    """Fields of Request for a body's `speculative`. A prediction is drafted from whichever drafter is chosen.
    Raises ApiError for a drafter that the server does not have."""
    wanted = body.speculative
    if wanted is None or wanted is True:
        return {}
    if wanted is False or wanted.method == "none" or wanted.num_speculative_tokens == 0:
        return {"draft_limit": 0}
    names = pipeline.drafting.names
    found: dict[str, Any] = {"draft_limit": wanted.num_speculative_tokens}
    if wanted.method not in (None, "auto"):
        if wanted.method not in names:
            hint = nearest(wanted.method, ("none", "auto", *names))
            there = f"this server has {' and '.join(names)}" if names else "this server has no drafter"
            raise bad(
                f"speculative method {wanted.method[:80]!r} is not available{hint}: {there}", "speculative"
            )
        found["drafters"] = frozenset((wanted.method, PREDICTION))
    return found
