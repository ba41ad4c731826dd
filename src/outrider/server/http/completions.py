"""The dialect of /v1/completions: texts or token ids that the model continues."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.sampling.params import SamplingParams
from outrider.models.text import fim
from outrider.server.http import sampling_fields
from outrider.server.http.disconnect import while_connected
from outrider.server.http.errors import bad
from outrider.server.http.generation import Sample, respond
from outrider.server.http.generation_request import Arrival, GenerationRequest
from outrider.server.http.logprobs import LogprobsWithOffsets
from outrider.server.http.openai_answer import OpenAIAnswer
from outrider.server.http.protocol import CompletionRequest
from outrider.server.http.service import Service


async def completions(service: Service, http: HttpRequest, body: CompletionRequest) -> Response:
    """Answer one request. Raises ApiError and OutriderError."""
    arrival = service.arrival(http, body.model)
    parsing = service.workers.run_in_worker(lambda: parse(service, arrival, body))
    request = await while_connected(http, parsing)
    return await respond(service, http, request, CompletionAnswer(service, body, request))


def parse(service: Service, arrival: Arrival, body: CompletionRequest) -> GenerationRequest:
    """The inner request. Raises ApiError and OutriderError."""
    params = sampling_fields.completion_params(body, service.sampling)
    return generation(service, arrival, body, params)


def generation(
    service: Service,
    arrival: Arrival,
    body: CompletionRequest,
    params: SamplingParams,
    ids: Sequence[Sequence[int]] | None = None,
    *,
    ends: Collection[int] = (),
) -> GenerationRequest:
    """The inner request with these parameters. ids: of the prompts, in place of the request's `prompt`.
    ends: ids that end the texts, besides those that end any text. Raises ApiError and OutriderError."""
    drafting = sampling_fields.draft_fields(body, service.pipeline)
    if ids is None and body.suffix:
        ids, ends = _filling_in(service, body, body.suffix)
    elif ids is None:
        special = body.add_special_tokens is not False
        given = prompts(body)
        ids = [p if isinstance(p, list) else service.encode(p, add_special=special) for p in given]
    return service.generation_request(
        arrival,
        "cmpl",
        ids,
        params,
        stream=bool(body.stream),
        cache_salt=body.cache_salt,
        ends=ends,
        **drafting,
    )


def _filling_in(
    service: Service, body: CompletionRequest, suffix: str
) -> tuple[list[list[int]], frozenset[int]]:
    """The prompts' ids for what is between each prompt and the suffix, and the ids that end it."""
    tokens = service.fim_tokens("suffix")
    service.check_length(suffix, "suffix")
    found = []
    for prompt in prompts(body):
        if isinstance(prompt, str):
            service.check_length(prompt)
        special = body.add_special_tokens is not False
        found.append(fim.fim_prompt(service.tokenizer, tokens, prompt, suffix, add_special=special))
    return found, tokens.ends


def prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request, one by one. Raises ApiError when there is none, or an empty one without a
    suffix."""
    given = body.prompt
    several: list[Any] = given if isinstance(given, list) and not _is_ids(given) else [given]
    if not several or not (body.suffix or all(several)):
        raise bad("the prompt is empty: give some text or token ids", "prompt")
    return several


def _is_ids(given: list[Any]) -> bool:
    return bool(given) and isinstance(given[0], int)


class CompletionAnswer(OpenAIAnswer):
    """`choices` of a completion: texts, with the prompt in front when `echo` asks for it."""

    object_name = chunk_object_name = "text_completion"
    body: CompletionRequest

    def __init__(self, service: Service, body: CompletionRequest, request: GenerationRequest) -> None:
        super().__init__(service, body, request)
        self._texts = self.token_texts()
        skip = body.skip_special_tokens is not False
        self._offsets = [LogprobsWithOffsets(self._texts, skip_special=skip) for _ in self.samples]
        self._echo_only = body.max_tokens == 0  # the one token that is generated is not sent
        self._prompts = prompts(body)
        self._told: set[int] = set()  # samples whose stream has had the prompt's ids

    def num_tokens(self, sample: Sample) -> int:
        return 0 if self._echo_only else sample.num_tokens

    def _echo(self, sample: Sample) -> str:
        """The prompt's text in front of the sample, if asked for."""
        if not self.body.echo:
            return ""
        prompt = self._prompts[sample.index // (self.body.n or 1)]
        if isinstance(prompt, str) and self.body.truncate_prompt_tokens is None:
            return prompt
        ids = prompt if isinstance(prompt, list) and self.body.suffix else sample.request.prompt
        return self.service.tokenizer.decode(ids, skip_special=False)

    def _logprobs(self, sample: Sample, tokens: Sequence[TokenEvent], first: bool) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        offsets = self._offsets[sample.index]
        found = offsets.empty()
        if first and self.body.echo:
            # The engine reports a prompt's log-probabilities with its first sample only.
            first_sample = self.samples[sample.index // (self.body.n or 1) * (self.body.n or 1)]
            scores = first_sample.prompt_logprobs or ()
            offsets.add_prompt(found, sample.request.prompt, scores, self._echo(sample))
        for token in tokens if not self._echo_only else ():
            if token.logprobs is not None:
                offsets.add(found, token.logprobs)
        return found

    def _reason(self, end: FinishEvent | None) -> dict[str, Any]:
        if end is None:
            return {"finish_reason": None, "stop_reason": None}
        if self._echo_only:
            return {"finish_reason": "length", "stop_reason": None}
        return {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}

    def opening_choice(self, sample: Sample) -> dict[str, Any] | None:
        text = self._echo(sample)
        if not text:
            return None
        logprobs = self._logprobs(sample, (), first=True)
        return {"index": sample.index, "text": text, "logprobs": logprobs, **self._reason(None)}

    def empty_choice(self, sample: Sample) -> dict[str, Any]:
        return {"index": sample.index, "text": "", "logprobs": None, **self._reason(sample.end)}

    def choice(
        self, sample: Sample, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any] | None:
        text = "".join(token.text for token in tokens) + (end.text_tail if end is not None else "")
        ids = bool(self.body.return_token_ids)
        if not text and end is None and self.body.logprobs is None and not ids:
            return None
        found = {
            "index": sample.index,
            "text": "" if self._echo_only else text,
            "logprobs": self._logprobs(sample, tokens, first=False),
            **self._reason(end),
        }
        if ids:
            found["token_ids"] = [] if self._echo_only else [token.token_id for token in tokens]
            found["prompt_token_ids"] = None if sample.index in self._told else list(sample.request.prompt)
            self._told.add(sample.index)
        return found

    def whole_choice(self, sample: Sample) -> dict[str, Any]:
        text = "" if self._echo_only else "".join(sample.text)
        found = {
            "index": sample.index,
            "text": self._echo(sample) + text,
            "logprobs": self._logprobs(sample, sample.tokens, first=True),
            **self._reason(sample.end),
            **dict.fromkeys(("prompt_logprobs", "token_ids", "prompt_token_ids")),
        }
        if self.body.prompt_logprobs is not None and sample.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._texts.prompt(sample.prompt_logprobs)
        if self.body.return_token_ids:
            found["token_ids"] = [] if self._echo_only else [token.token_id for token in sample.tokens]
            found["prompt_token_ids"] = list(sample.request.prompt)
        return found
