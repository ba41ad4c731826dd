"""What the answers of OpenAI's two generating paths share: head, chunks, usage and the `outrider` objects."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.server.http.errors import ApiError
from outrider.server.http.generation import Answer, Sample
from outrider.server.http.generation_request import GenerationRequest
from outrider.server.http.logprobs import TokenTexts
from outrider.server.http.protocol import Sampling
from outrider.server.http.service import Service
from outrider.server.http.sse import DONE, event


def prediction_usage(samples: Sequence[Sample]) -> dict[str, int] | None:
    """How many tokens of a prediction are in the output, and how many were drafted from it and are not, of
    the samples that have ended; None without a prediction."""
    if all(sample.request.params.draft_text is None for sample in samples):
        return None
    ended = [sample.end.metrics for sample in samples if sample.end is not None]
    return {
        "accepted_prediction_tokens": sum(metrics.accepted_prediction_tokens for metrics in ended),
        "rejected_prediction_tokens": sum(metrics.rejected_prediction_tokens for metrics in ended),
    }


class OpenAIAnswer(Answer):
    """Subclasses write the elements of `choices`, one for each sample."""

    object_name = ""  # `object` of a whole answer
    chunk_object_name = ""  # `object` of a chunk

    def __init__(self, service: Service, body: Sampling, request: GenerationRequest) -> None:
        super().__init__(request)
        self.service, self.body = service, body
        self._created = int(time.time())
        self._opened: set[int] = set()  # samples of which something was sent
        options = body.stream_options
        always = service.settings.usage_in_streams
        self._usage_at_end = always or bool(options and options.include_usage)
        continuous = always or bool(options and options.continuous_usage_stats)
        self._usage_in_chunks = self._usage_at_end and continuous
        self._explains = bool(body.outrider or (options and options.include_outrider))

    def token_texts(self) -> TokenTexts:
        """How texts of tokens are written in log-probabilities."""
        as_ids = self.body.return_tokens_as_token_ids
        default = self.service.settings.tokens_as_ids
        return TokenTexts(self.service.tokenizer, default if as_ids is None else as_ids)

    # --- Elements of `choices` ---------------------------------------------------------------------

    @abstractmethod
    def whole_choice(self, sample: Sample) -> dict[str, Any]:
        """The choice of a whole answer."""

    @abstractmethod
    def opening_choice(self, sample: Sample) -> dict[str, Any] | None:
        """The choice of the chunk before a sample's first token; None for no such chunk."""

    @abstractmethod
    def choice(
        self, sample: Sample, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any] | None:
        """The choice of a chunk; None when the tokens brought nothing that is sent."""

    @abstractmethod
    def empty_choice(self, sample: Sample) -> dict[str, Any]:
        """The choice of a chunk without text, which is sent for its `outrider` object."""

    def opening_members(self, sample: Sample) -> dict[str, Any]:
        """Further members of the chunk with a sample's opening choice."""
        return {}

    def num_tokens(self, sample: Sample) -> int:
        """Tokens of a sample that count as completion tokens."""
        return sample.num_tokens

    def token_details(self) -> dict[str, int]:
        """Members of `completion_tokens_details`, besides those of a prediction."""
        return {}

    # --- Answer ------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        choices = []
        for sample in self.samples:
            choice = self.whole_choice(sample)
            if self._explains:
                choice["outrider"] = self._explained(sample, sample.tokens, sample.end)
            choices.append(choice)
        # Null as in vLLM's answers, where OpenAI's clients look for them.
        absent = {"service_tier": None, "kv_transfer_params": None}
        return {**self._head(self.object_name), **absent, "choices": choices, "usage": self._usage()}

    def chunks(self, sample: Sample, tokens: Sequence[TokenEvent]) -> Iterator[bytes]:
        if sample.index not in self._opened:
            self._opened.add(sample.index)
            if (opening := self.opening_choice(sample)) is not None:
                yield self._chunk(opening, None, unsent=len(tokens), **self.opening_members(sample))
        choice = self.choice(sample, tokens, sample.end)
        explained = self._explained(sample, tokens, sample.end) if self._explains else None
        if choice is not None or explained is not None:
            yield self._chunk(choice or self.empty_choice(sample), explained)

    def closing(self) -> Iterator[bytes]:
        if self._usage_at_end:
            yield event({**self._head(self.chunk_object_name), "choices": [], "usage": self._usage()})
        yield DONE

    def failure(self, error: ApiError) -> Iterator[bytes]:
        yield event(error.document())
        yield DONE

    # --- Parts -------------------------------------------------------------------------------------

    def _chunk(
        self, choice: dict[str, Any], explained: dict[str, Any] | None, unsent: int = 0, **members: Any
    ) -> bytes:
        """unsent: tokens that the sample has taken, and that a later chunk brings."""
        chunk = {**self._head(self.chunk_object_name), "choices": [choice], **members}
        if self._usage_at_end:
            chunk["usage"] = self._usage(unsent) if self._usage_in_chunks else None
        if explained is not None:
            chunk["outrider"] = explained
        return event(chunk)

    def _head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.request.id,
            "object": object_name,
            "created": self._created,
            "model": self.request.arrival.model,
            "system_fingerprint": self.service.model.fingerprint,
        }

    def _usage(self, unsent: int = 0) -> dict[str, Any]:
        prompt, completion = sum(self.request.prompt_sizes), sum(map(self.num_tokens, self.samples))
        completion = max(0, completion - unsent)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        # The later samples of a prompt find in the prefix cache what the first one computed: not counted.
        by_id = {sample.request.request_id: sample.end for sample in self.samples}
        groups = ([by_id[sample.request_id] for sample in samples] for samples in self.request.prompts)
        cached = [min((end.metrics.cached_tokens for end in ends if end), default=0) for ends in groups]
        usage["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
        if details := {**self.token_details(), **(prediction_usage(self.samples) or {})}:
            usage["completion_tokens_details"] = details
        return usage

    def _explained(
        self, sample: Sample, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any]:
        """Where tokens came from; at the end also the seed, the metrics, and warnings if there are any."""
        explained: dict[str, Any] = {
            "index": sample.index,
            "tokens": [self._origin(sample, token) for token in tokens],
        }
        if end is not None:
            explained["seed"] = sample.request.seed
            explained["metrics"] = end.metrics.to_dict()
            if self.request.warnings:
                explained["warnings"] = list(self.request.warnings)
        return explained

    def _origin(self, sample: Sample, token: TokenEvent) -> dict[str, Any]:
        plain = self.service.pipeline.drafting.drafter is None or sample.request.draft_limit == 0
        origin = {"id": token.token_id, "text": token.text, "kind": "plain" if plain else token.kind}
        if (source := getattr(token, "source", None)) is not None:
            origin["source"] = source
        return origin
