"""A request as fields of vLLM's completions: what its sampler is to do.

Where an output ends is found here, by the same rules as for every other engine; vLLM is told enough to end
there too."""

from __future__ import annotations

from typing import Any

from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.errors import ConfigError

_NEEDED = "return_token_ids"
# Parameters that are not handed through: their neutral values, and what to do in the place of others.
_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "logprobs": ((None,), "ask the server of `outrider serve --engine vllm`"),
    "prompt_logprobs": ((None,), "ask the server of `outrider serve --engine vllm`"),
    "logprob_token_ids": ((None, ()), "ask the server of `outrider serve --engine vllm`"),
    "logits_processors": (
        (None, ()),
        "functions do not reach another process; use engine='native' or 'torch'",
    ),
}
_SAME = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p"),
    *("min_tokens", "ignore_eos"),
)


def completion_fields(request: Request, model: str, most: int, known: frozenset[str]) -> dict[str, Any]:
    """The body of a request for /v1/completions, streamed as token ids.

    most: tokens that the output may have. known: the fields of this version's completions.
    Raises ConfigError for what is not handed through, or what this version lacks.
    """
    params = request.params
    for name, (neutral, instead) in _REFUSED.items():
        if getattr(params, name) not in neutral:
            raise ConfigError(f"{name} is refused: the vLLM engine does not hand it through; {instead}")
    if _NEEDED not in known:
        raise ConfigError(f"this vLLM cannot return token ids ({_NEEDED}); use a later version")
    found: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt),
        "stream": True,
        _NEEDED: True,
        "max_tokens": most,
        "seed": request.seed % 2**63,  # vLLM's are signed
        "top_k": params.top_k if params.top_k > 0 else -1,
        "stop_token_ids": sorted(params.stop_ids(request.eos_ids)),
        **{name: getattr(params, name) for name in _SAME},
        **_optional(params),
    }
    for name in [name for name in found if name not in known and found[name] in (None, 0, 0.0, False, [])]:
        del found[name]
    if missing := sorted(found.keys() - known):
        raise ConfigError(f"this vLLM's completions have no {missing[0]}; leave it out")
    return found


def _optional(params: SamplingParams) -> dict[str, Any]:
    """The fields of parameters that are given."""
    found: dict[str, Any] = {}
    if params.logit_bias:
        found["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.allowed_token_ids is not None:
        found["allowed_token_ids"] = list(params.allowed_token_ids)
    if params.bad_words:
        found["bad_words"] = list(params.bad_words)
    if params.structured is not None:
        found["structured_outputs"] = _form(params.structured)
    return found


def _form(form: StructuredOutputsParams) -> dict[str, Any]:
    """The form of the output in vLLM's names."""
    names = ("json", "regex", "choice", "grammar", "json_object")
    found = {name: getattr(form, name) for name in names if getattr(form, name) not in (None, False)}
    if "choice" in found:
        found["choice"] = list(found["choice"])
    return found
