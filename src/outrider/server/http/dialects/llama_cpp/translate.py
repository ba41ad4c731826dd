"""From a request of llama.cpp's /completion or /infill to the inner one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from outrider.models.text.fim import FimTokens, bos_ids, plain_ids
from outrider.models.text.infill import Room, infill_prompt
from outrider.server.http.dialects import inner
from outrider.server.http.dialects.llama_cpp.cutoff import Cutoff
from outrider.server.http.dialects.llama_cpp.fields import (
    Generating,
    LlamaCompletionRequest,
    LlamaInfillRequest,
    TextPrompt,
)
from outrider.server.http.errors import bad
from outrider.server.http.protocol import CompletionRequest
from outrider.server.http.sampling_fields import bounded
from outrider.server.http.service import Service

_RANDOM = (-1, 2**32 - 1)  # seeds that stand for a random one
_NEVER = -100.0  # the bias of `false`


def text_request(service: Service, body: Generating, ends: Collection[int] = ()) -> CompletionRequest:
    """The inner request; its prompts are encoded by `encode` or `encode_infill`. ends: ids that end a text,
    besides those that end any text of the model. Raises ApiError."""
    drafting = body.speculative
    bounded("n_probs", body.n_probs, service.sampling.max_logprobs)
    most = body.n_predict
    return inner.text_request(
        {
            "model": body.model,
            "prompt": "in place of the ids that `encode` gives",
            "n": body.n_cmpl,
            "max_tokens": None if most is None or most < 0 else max(1, most),
            "temperature": body.temperature,
            "top_k": body.top_k,
            "top_p": body.top_p,
            "min_p": body.min_p,
            "seed": None if body.seed in _RANDOM else body.seed,
            "repetition_penalty": None if body.repeat_last_n == 0 else body.repeat_penalty,
            "presence_penalty": body.presence_penalty,
            "frequency_penalty": body.frequency_penalty,
            "stop": body.stop,
            "ignore_eos": body.ignore_eos,
            "logit_bias": _biases(service, body, ends),
            "logprobs": body.n_probs or None,
            "grammar": body.grammar or None,
            "json_schema": body.json_schema or None,
            "stream": body.stream,
            "speculative": drafting
            if isinstance(drafting, bool | None)
            else drafting.model_dump(exclude_none=True),
            "speculative.n_max": body.speculative_n_max,
            "cache_prompt": body.cache_prompt,
            "samplers": body.samplers if isinstance(body, LlamaCompletionRequest) else None,
        }
    )


def encode(service: Service, body: LlamaCompletionRequest) -> list[list[int]]:
    """The token ids of each prompt. A prompt may mix ids and texts. Raises ApiError."""
    given = body.prompt
    prompts = [_parts(prompt) for prompt in (given if is_list(body) else [given])]
    if not prompts or not all(parts and parts != [""] for parts in prompts):
        raise bad("the prompt is empty: give some text or token ids", "prompt")
    return [_ids(service, parts) for parts in prompts]


def encode_infill(service: Service, body: LlamaInfillRequest, tokens: FimTokens) -> list[list[int]]:
    """The token ids of the prompt, of which as much is taken as has room. Raises ApiError."""
    output = None if body.n_predict is None or body.n_predict < 0 else body.n_predict
    room = Room.of(service.engine.context, output)
    longest = service.longest_piece

    def encode(text: str) -> list[int]:
        return plain_ids(service.tokenizer, tokens, text)

    # No text is tokenized beyond what the tokens that have room could cover.
    def end(text: str, most: int) -> str:
        return text[max(0, len(text) - most * longest) :]

    def ids(given: str | Sequence[int | str], cut: Callable[[str], str]) -> list[int]:
        parts = [given] if isinstance(given, str) else given
        return [i for part in parts for i in ([part] if isinstance(part, int) else encode(cut(part)))]

    line = body.prompt or ""
    service.check_length(line)
    prompt = infill_prompt(
        tokens,
        encode,
        before=ids(body.input_prefix, lambda text: end(text, room.before)),
        line=encode(line),
        after=ids(body.input_suffix, lambda text: text[: room.after * longest]),
        others=[
            ("tmp" if other.filename is None else other.filename, end(other.text, room.others))
            for other in body.input_extra or ()
        ],
        room=room,
        bos=bos_ids(service.tokenizer),
    )
    return [prompt]


def cutoff(body: Generating) -> Cutoff | None:
    """The rules for the end of one sample's text; None for a request without any."""
    limit = body.t_max_predict_ms
    seconds = None if limit is None or limit <= 0 else limit / 1000
    return Cutoff(body.n_indent or 0, seconds) if body.n_indent or seconds is not None else None


def is_list(body: LlamaCompletionRequest) -> bool:
    """Whether the request has several prompts, or a list of one: the answer is then a list."""
    given = body.prompt
    return isinstance(given, list) and not any(isinstance(part, int) for part in given)


def _parts(prompt: Any) -> Sequence[int | str]:
    """The texts and ids that a prompt is made of."""
    if isinstance(prompt, TextPrompt):
        return [prompt.prompt_string]
    return [prompt] if isinstance(prompt, str) else prompt


def _ids(service: Service, parts: Sequence[int | str]) -> list[int]:
    found: list[int] = []
    for place, part in enumerate(parts):
        found += [part] if isinstance(part, int) else service.encode(part, add_special=place == 0)
    return found


def _biases(service: Service, body: Generating, ends: Collection[int]) -> dict[str, float] | None:
    """Biases by token id. A text stands for each of its tokens, `false` for never. With `ignore_eos` the
    tokens that end a text are not written, as in llama.cpp."""
    given = body.logit_bias or {}
    banned = (*service.tokenizer.eos_ids, *ends) if body.ignore_eos else ()
    found: dict[str, float] = {str(token): _NEVER for token in banned}
    for key, value in given.items() if isinstance(given, dict) else given:
        bias = (0.0 if value else _NEVER) if isinstance(value, bool) else value
        text = isinstance(key, str) and not (key.isascii() and key.isdecimal())
        ids = service.encode(str(key), add_special=False) if text else [int(key)]
        found |= {str(token): bias for token in ids}
    return found or None
