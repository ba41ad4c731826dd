"""What the endpoints share: the model, its engine, and the way from a prompt to the engine's requests."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest

from outrider.decoding.request import Request, check_prompt
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.errors import ConfigError, PromptError
from outrider.models.text import fim
from outrider.pipeline import Pipeline
from outrider.requests import DOUBLE_BOS, RequestMaker
from outrider.server.engine.async_engine import Draining, QueueFull, ServerEngine, Stream
from outrider.server.http.chat_templates import ChatTemplates
from outrider.server.http.errors import ApiError, bad
from outrider.server.http.generation_request import Arrival, GenerationRequest
from outrider.server.http.guard import namespace_of
from outrider.server.http.metrics import Metrics
from outrider.server.http.sampling_fields import SamplingRules
from outrider.server.http.served_model import ServedModel
from outrider.server.http.worker_pool import WorkerPool
from outrider.server.settings import Settings

logger = logging.getLogger(__name__)


class Service:
    """One model, served.

    model:     its names.
    templates: its chat templates.
    sampling:  what is added to the sampling fields of requests.
    workers:   threads in which requests are translated.
    metrics:   of this server.
    Raises ConfigError when the settings do not suit the model.
    """

    def __init__(self, pipeline: Pipeline, engine: ServerEngine, settings: Settings) -> None:
        self.pipeline, self.engine, self.settings = pipeline, engine, settings
        self.tokenizer = pipeline.tokenizer
        self.vocab_size = pipeline.vocab_size
        self.model = ServedModel(pipeline, settings.served_names)
        self.templates = ChatTemplates(
            self.tokenizer,
            settings.chat_template or pipeline.source.chat_template,
            named=None if settings.chat_template else pipeline.source.chat_templates,
            trust_requests=settings.trust_request_chat_template,
            tool_call_parser=settings.tool_call_parser,
            reasoning_parser=settings.reasoning_parser,
            variables=settings.template_variables,
        )
        self.workers = WorkerPool(settings.prepare_seconds)
        self.metrics = Metrics(self.model.names[0], engine)
        self.sampling = SamplingRules(
            settings.max_logprobs if settings.max_logprobs < self.vocab_size else -1,
            pipeline.sampling,
            lambda text: self.tokenizer.encode(text, add_special=False, parse_special=False),
        )
        self._maker = RequestMaker(self.tokenizer, self.vocab_size, engine.context)
        self._count = itertools.count()  # of samples without a seed of their own

    def close(self) -> None:
        """End the worker threads and the template processes; the caller stops the engine."""
        self.workers.close()
        self.templates.close()

    def arrival(self, http: HttpRequest, model: str | None) -> Arrival:
        """Call first for every request. Raises ApiError (404) for a model that is not served."""
        timer = self.metrics.timer()
        return Arrival(self.model.check_name(model), namespace_of(http.state), timer)

    def encode(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        """A prompt's token ids. Raises ApiError for a text that is too long however it is tokenized, without
        tokenizing it."""
        self.check_length(text)
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def check_length(self, text: str, param: str = "prompt") -> None:
        """Raise ApiError for a text that is too long however it is tokenized. param: its field."""
        if len(text) > (most := self.most_characters):
            context = self.engine.context
            raise ApiError(
                400,
                f"the {param} has {len(text)} characters; a context of {context} tokens "
                f"cannot hold more than {most}",
                param=param,
                code="context_length_exceeded",
                figures={"n_ctx": context},
            )

    def fim_tokens(self, param: str) -> fim.FimTokens:
        """The model's tokens for filling in. Raises ApiError, naming the field that asks for it, for a model
        that has none."""
        try:
            return fim.needed(self._fim_tokens)
        except PromptError as error:
            raise bad(f"{param} is refused: {error}", param) from None

    @property
    def fills_in(self) -> bool:
        """Whether the model has tokens for filling in between two texts."""
        return self._fim_tokens is not None

    @functools.cached_property
    def _fim_tokens(self) -> fim.FimTokens | None:
        return fim.fim_tokens(self.tokenizer)

    @functools.cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest token, which has at most that many characters."""
        ids = range(self.tokenizer.vocab_size)
        return max(1, *(len(self.tokenizer.piece_bytes(i, skip_special=False)) for i in ids))

    @property
    def most_characters(self) -> int:
        """A longer text does not fit the context."""
        return self.engine.context * self.longest_piece

    def generation_request(
        self,
        arrival: Arrival,
        id_prefix: str,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        stream: bool,
        cache_salt: str | None,
        ends: Collection[int] = (),
        **fields: Any,
    ) -> GenerationRequest:
        """The inner request; compiles a grammar where there is one, so call it in a worker thread.

        id_prefix:  of the answer's id: "cmpl", say.
        prompts:    token ids, not truncated yet.
        params:     of every sample; each prompt has `params.n`.
        cache_salt: requests share cached prefixes only with requests of the same salt.
        ends:       ids that end the texts, besides those that end any text of the model.
        fields:     of Request, beyond those of the parameters.
        Raises ApiError, ConfigError or PromptError for a request that cannot be served.
        """
        count, most = len(prompts) * params.n, self.settings.max_samples
        if count > most:
            raise bad(f"{count} samples are too many: a request may ask for {most} (--max-samples)", "n")
        if isinstance(params.draft_text, str):  # what goes beyond the context is not even tokenized
            params.draft_text = params.draft_text[: self.most_characters]
        name = f"{id_prefix}-{secrets.token_hex(16)}"
        space = _namespace(arrival.namespace, cache_salt)
        made, warnings = [], dict[str, None]()
        for number, ids in enumerate(prompts):
            prompt = self._maker.prompt(ids, params)
            self._check(prompt)
            warnings.update(dict.fromkeys(self._warnings(prompt, params)))
            seed = self._seed(params)
            made.append(
                self._maker.samples(
                    f"{name}-{number}", prompt, params, seed, ends=ends, namespace=space, **fields
                )
            )
        for warning in warnings:
            if warning != DOUBLE_BOS:  # that is logged once
                logger.info("%s: %s", name, warning)
        return GenerationRequest(
            id=name, arrival=arrival, prompts=made, stream=stream, warnings=tuple(warnings)
        )

    def _warnings(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[str]:
        """What is done otherwise than the request says, or is likely not what was meant."""
        context = self.engine.context
        room = context - len(prompt)
        if params.max_tokens is not None and params.max_tokens > room:
            yield (
                f"max_tokens is {params.max_tokens}, and after the prompt's {len(prompt)} tokens the context "
                f"of {context} has room for {room}: the text ends there"
            )
        if self._maker.doubles_bos(prompt):
            yield DOUBLE_BOS

    def _check(self, prompt: Sequence[int]) -> None:
        """Raise ApiError for a prompt that leaves no room for output, is empty, or has impossible ids."""
        if len(prompt) >= self.engine.context:
            context = self.engine.context
            raise ApiError(
                400,
                f"this model's maximum context length is {context} tokens; "
                f"the prompt has {len(prompt)} tokens",
                param="prompt",
                code="context_length_exceeded",
                figures={"n_prompt_tokens": len(prompt), "n_ctx": context},
            )
        try:
            check_prompt(prompt, self.vocab_size, self.engine.context)
        except PromptError as error:
            raise bad(str(error), "prompt") from None

    def _seed(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed
        base = self.pipeline.config.seed
        return secrets.randbits(32) if base is None else derive_seed(base, next(self._count))

    def submit(self, requests: Sequence[Request]) -> Stream:
        """Queue samples in the engine. Raises ApiError when it does not take them: 429 when its queue is
        full, 503 when it is stopping, 400 for a request that it can never run."""
        try:
            return self.engine.submit(requests)
        except QueueFull as error:
            wait = {"Retry-After": str(max(1, round(error.retry_after)))}
            raise ApiError(429, str(error), code="server_busy", headers=wait) from None
        except Draining as error:
            raise ApiError(503, str(error), code="server_stopping", headers={"Retry-After": "10"}) from None
        except (ConfigError, PromptError) as error:
            raise bad(str(error)) from None


def _namespace(namespace: str, salt: str | None) -> str:
    """The namespace of a request's caches: one for each key, and within it one for each salt."""
    if salt is None:
        return namespace
    return f"{namespace}-{hashlib.sha256(salt.encode('utf-8', 'replace')).hexdigest()[:24]}"
