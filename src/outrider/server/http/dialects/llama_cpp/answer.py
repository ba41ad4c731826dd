"""Answers of llama.cpp's /completion: one document for each prompt, whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.decoding.sampling.params import SamplingParams
from outrider.server.http.dialects.llama_cpp.fields import Generating
from outrider.server.http.dialects.llama_cpp.translate import cutoff
from outrider.server.http.errors import ApiError
from outrider.server.http.generation import Answer, Sample
from outrider.server.http.generation_request import GenerationRequest
from outrider.server.http.logprobs import TokenTexts, number
from outrider.server.http.service import Service
from outrider.server.http.sse import event

_ABSENT = object()
_NO_SLOT = -1  # any request may run in any place
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


def error_document(error: ApiError) -> dict[str, Any]:
    """An error in the form of this dialect."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    if error.code == "context_length_exceeded":
        kind = "exceed_context_size_error"
    return {"error": {"code": error.status, "message": error.message, "type": kind, **error.figures}}


def generation_settings(params: SamplingParams, seed: int | None) -> dict[str, Any]:
    """The parameters of a sample under llama.cpp's names. seed: that it is drawn with; None if it is not
    known yet."""
    most = -1 if params.max_tokens is None else params.max_tokens
    stop = params.stop
    return {
        "n_predict": most,
        "max_tokens": most,
        "seed": -1 if seed is None else seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": [stop] if isinstance(stop, str) else list(stop or ()),
        "ignore_eos": params.ignore_eos,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in (params.logit_bias or {}).items()],
        "n_probs": params.logprobs or 0,
    }


class LlamaAnswer(Answer):
    """Documents of the samples.

    is_list: a whole answer is a list, of one sample too.
    """

    def __init__(
        self, service: Service, body: Generating, request: GenerationRequest, *, is_list: bool
    ) -> None:
        super().__init__(request)
        self._service, self._is_list = service, is_list or len(self.samples) > 1
        self._silent = body.n_predict == 0  # the prompt alone is wanted; the one token is not sent
        self._tokens = bool(body.return_tokens)  # in a whole answer too
        self._fields = body.response_fields or ()
        for sample in self.samples:
            sample.cutoff = cutoff(body)
        self._texts = TokenTexts(service.tokenizer)
        self._newline: set[int] = set()  # samples with a line break in their text

    def document(self) -> Any:
        found = []
        for sample in self.samples:
            text = "".join(sample.text)
            if "\n" in text:
                self._newline.add(sample.index)
            tokens = sample.tokens if self._tokens else ()
            document = self._ended(sample, "" if self._silent else text, tokens)
            found.append(self._chosen({**document, **self._probabilities(sample.tokens)}))
        return found if self._is_list else found[0]

    def chunks(self, sample: Sample, tokens: Sequence[TokenEvent]) -> Iterator[bytes]:
        end = sample.end
        text = "".join(token.text for token in tokens) + (end.text_tail if end is not None else "")
        if "\n" in text:
            self._newline.add(sample.index)
        if self._silent:
            text, tokens = "", ()
        if text or tokens:
            yield event(
                {
                    "index": sample.index,
                    "content": text,
                    "tokens": [token.token_id for token in tokens],
                    "stop": False,
                    "id_slot": _NO_SLOT,
                    "tokens_predicted": sample.num_tokens,
                    "tokens_evaluated": len(sample.request.prompt),
                    **self._probabilities(tokens),
                }
            )
        if end is not None:
            yield event(self._chosen(self._ended(sample, "", ())))

    def closing(self) -> Iterator[bytes]:
        return iter(())

    def failure(self, error: ApiError) -> Iterator[bytes]:
        yield event(error_document(error))

    def _ended(self, sample: Sample, text: str, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """The document of a sample that has ended."""
        end, prompt = sample.end, sample.request.prompt
        assert end is not None
        written = 0 if self._silent else sample.num_tokens
        word = end.stop_reason if isinstance(end.stop_reason, str) and not self._silent else ""
        limit = self._silent or end.finish_reason == "length"
        return {
            "index": sample.index,
            "content": text,
            "tokens": [token.token_id for token in tokens] if not self._silent else [],
            "id_slot": _NO_SLOT,
            "stop": True,
            "model": self.request.arrival.model,
            "tokens_predicted": written,
            "tokens_evaluated": len(prompt),
            "generation_settings": generation_settings(sample.request.params, sample.request.seed),
            "prompt": self._service.tokenizer.decode(prompt, skip_special=False),
            "has_new_line": sample.index in self._newline and not self._silent,
            "truncated": limit and self._fills_context(sample),
            "stop_type": "limit" if limit else "word" if word else "eos",
            "stopping_word": word,
            "tokens_cached": len(prompt) + written,
            "timings": _timings(end, len(prompt), written),
        }

    def _fills_context(self, sample: Sample) -> bool:
        """Whether a sample ended for want of room, before its own limit."""
        most = sample.request.params.max_tokens
        full = len(sample.request.prompt) + sample.num_tokens >= self._service.engine.context
        return full and (most is None or sample.num_tokens < most)

    def _chosen(self, document: dict[str, Any]) -> dict[str, Any]:
        """The members that the request asks for, those of objects within under their whole path; all of them
        if it names none."""
        if not self._fields:
            return document
        found: dict[str, Any] = {}
        for path in self._fields:
            value: Any = document
            for name in path.split("/"):
                value = value.get(name, _ABSENT) if isinstance(value, dict) else _ABSENT
            if value is not _ABSENT:
                found[path] = value
        return found

    def _probabilities(self, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        if self._silent or not any(token.logprobs is not None for token in tokens):
            return {}
        entries = [self._entry(t.logprobs) for t in tokens if t.logprobs is not None]
        return {"completion_probabilities": entries}

    def _entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True)
        return {
            **self._token(entry.token, entry.logprob),
            "top_logprobs": [self._token(token, logprob) for token, logprob in top],
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._service.tokenizer.piece_bytes(token, skip_special=False)
        return {"id": token, "token": self._texts.text(token), "bytes": list(raw), "logprob": number(logprob)}


def _timings(end: FinishEvent, prompt: int, written: int) -> dict[str, Any]:
    times = end.metrics
    first = times.first_token or times.arrived
    read, wrote = 1e3 * (first - times.arrived), 1e3 * ((times.last_token or first) - first)
    new = prompt - times.cached_tokens
    return {
        "cache_n": times.cached_tokens,
        **_rates("prompt", new, new, read),
        **_rates("predicted", written, max(0, written - 1), wrote),  # the first one is there at the start
        "draft_n": times.drafts.num_draft_tokens,
        "draft_n_accepted": times.drafts.num_accepted_tokens,
    }


def _rates(name: str, count: int, timed: int, milliseconds: float) -> dict[str, Any]:
    """timed: the tokens of which the time is."""
    return {
        f"{name}_n": count,
        f"{name}_ms": milliseconds,
        f"{name}_per_token_ms": milliseconds / timed if timed else 0.0,
        f"{name}_per_second": 1e3 * timed / milliseconds if milliseconds > 0 else 0.0,
    }
