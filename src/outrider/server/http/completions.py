"""/v1/completions: texts or token ids that are gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.request import Request
from outrider.server.http import sampling_fields as prepare
from outrider.server.http.errors import bad
from outrider.server.http.generation import Answer, Choice, respond
from outrider.server.http.logprobs import Offsets, Texts
from outrider.server.http.protocol import CompletionRequest
from outrider.server.http.service import Service


async def completions(service: Service, http: HttpRequest, body: CompletionRequest) -> Response:
    """Answer one request. Raises ApiError and OutriderError."""
    return await respond(service, http, body, CompletionAnswer, lambda *who: _requests(service, body, *who))


def _requests(service: Service, body: CompletionRequest, name: str, namespace: str) -> list[list[Request]]:
    params = prepare.completion_params(body, service.settings.max_logprobs)
    fields = prepare.speculation(body, service.pipeline)
    special = body.add_special_tokens is not False
    ids = [p if isinstance(p, list) else service.encode(p, add_special=special) for p in prompts(body.prompt)]
    return service.samples(name, ids, params, body, namespace, **fields)


def prompts(given: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """The prompts of a request, one by one. Raises ApiError when there is none, or an empty one."""
    several: list[Any] = given if isinstance(given, list) and not _is_ids(given) else [given]
    if not several or not all(several):
        raise bad("the prompt is empty: give some text or token ids", "prompt")
    return several


def _is_ids(given: list[Any]) -> bool:
    return bool(given) and isinstance(given[0], int)


class CompletionAnswer(Answer):
    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"
    body: CompletionRequest

    def __init__(self, service: Service, body: CompletionRequest, *more: Any) -> None:
        super().__init__(service, body, *more)
        self._texts = Texts(service.tokenizer, bool(body.return_tokens_as_token_ids))
        self._offsets = {choice.index: Offsets(self._texts) for choice in self.choices.values()}
        self._hidden = body.max_tokens == 0  # echo alone
        self._given = prompts(body.prompt)

    def counted(self, choice: Choice) -> int:
        return 0 if self._hidden else choice.count

    def _echo(self, choice: Choice) -> str:
        """The prompt's text in front of the sample, if asked for."""
        if not self.body.echo:
            return ""
        prompt = self._given[choice.index // (self.body.n or 1)]
        if isinstance(prompt, str) and self.body.truncate_prompt_tokens is None:
            return prompt
        return self.service.tokenizer.decode(choice.request.prompt, skip_special=False)

    def _logprobs(self, choice: Choice, tokens: Sequence[TokenEvent], first: bool) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        offsets = self._offsets[choice.index]
        found = offsets.empty()
        if first and self.body.echo:
            # n samples of a prompt share the report that came with the first.
            number = choice.index // (self.body.n or 1) * (self.body.n or 1)
            owner = next(c for c in self.choices.values() if c.index == number)
            offsets.unknown(found, choice.request.prompt[0])
            for entry in owner.prompt_logprobs or ():
                offsets.add(found, entry)
        for token in tokens if not self._hidden else ():
            if token.logprobs is not None:
                offsets.add(found, token.logprobs)
        return found

    def _reason(self, end: FinishEvent | None) -> dict[str, Any]:
        if end is None:
            return {"finish_reason": None, "stop_reason": None}
        if self._hidden:
            return {"finish_reason": "length", "stop_reason": None}
        return {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        text = self._echo(choice)
        if not text:
            return None
        logprobs = self._logprobs(choice, (), first=True)
        return {"index": choice.index, "text": text, "logprobs": logprobs, **self._reason(None)}

    def nothing(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, **self._reason(choice.end)}

    def piece(
        self, choice: Choice, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any] | None:
        text = "".join(token.text for token in tokens) + (end.text_tail if end is not None else "")
        ids = bool(self.body.return_token_ids)
        if not text and end is None and self.body.logprobs is None and not ids:
            return None
        found = {
            "index": choice.index,
            "text": "" if self._hidden else text,
            "logprobs": self._logprobs(choice, tokens, first=False),
            **self._reason(end),
        }
        if ids:
            found["token_ids"] = [] if self._hidden else [token.token_id for token in tokens]
        return found

    def whole(self, choice: Choice) -> dict[str, Any]:
        text = "" if self._hidden else "".join(choice.text)
        found = {
            "index": choice.index,
            "text": self._echo(choice) + text,
            "logprobs": self._logprobs(choice, choice.tokens, first=True),
            **self._reason(choice.end),
        }
        if self.body.prompt_logprobs is not None and choice.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._texts.prompt(choice.prompt_logprobs)
        if self.body.return_token_ids:
            found["token_ids"] = [] if self._hidden else [token.token_id for token in choice.tokens]
            found["prompt_token_ids"] = list(choice.request.prompt)
        return found
