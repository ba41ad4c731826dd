"""What the handlers share: the engine, the templates, names, and slow work done beside the event loop."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from outrider.decoding.request import Request, check_prompt
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.errors import ConfigError, PromptError
from outrider.models.text.chat import ChatTemplate
from outrider.pipeline import Pipeline
from outrider.requests import RequestMaker
from outrider.server.engine.async_engine import Draining, QueueFull, ServerEngine, Stream
from outrider.server.http.errors import ApiError, bad
from outrider.server.http.guard import ANONYMOUS
from outrider.server.http.metrics import Metrics
from outrider.server.http.protocol import Sampling
from outrider.server.http.tools import OPEN, Family, family_of
from outrider.server.settings import Settings
from outrider.version import __version__

T = TypeVar("T")

THREADS = 4
KEPT_TEMPLATES = 4  # that requests brought


class Service:
    """One model, served.

    Raises ConfigError when the settings do not suit the model.
    """

    def __init__(self, pipeline: Pipeline, engine: ServerEngine, settings: Settings) -> None:
        self.pipeline, self.engine, self.settings = pipeline, engine, settings
        self.tokenizer = pipeline.tokenizer
        self.vocab_size = pipeline.vocab_size
        self.names = settings.served_names or (_short_name(pipeline),)
        self._accepted = {*self.names, pipeline.config.model}  # vLLM's clients give what the server was given
        self.created = int(time.time())
        self.fingerprint = _fingerprint(pipeline)
        self.metrics = Metrics(self.names[0], engine)
        self._maker = RequestMaker(self.tokenizer, self.vocab_size, engine.context)
        self._source = settings.chat_template or pipeline.source.chat_template
        self._template: ChatTemplate | None = None
        self._brought: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._lock = threading.Lock()  # of the templates
        self._threads = ThreadPoolExecutor(THREADS, "outrider-prepare")
        self._count = itertools.count()

    def close(self) -> None:
        """End the helpers' threads and processes; the engine is its owner's to stop."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for template in (self._template, *self._brought.values()):
                if template is not None:
                    template.close()

    @property
    def template_source(self) -> str | None:
        """The chat template that is used when a request brings none."""
        return self._source

    def family(self, brought: str | None = None) -> Family:
        """How tool calls are written."""
        return family_of(brought or self._source, self.settings.tool_call_parser)

    @functools.cached_property
    def marks_are_special(self) -> bool:
        """Whether the marks of tool calls are special tokens, which texts leave out."""
        ids = self.tokenizer.encode(OPEN, add_special=False)
        return len(ids) == 1 and self.tokenizer.is_special(ids[0])

    def check_model(self, name: str | None) -> str:
        """The name to answer under. Raises ApiError for one that is not served."""
        if name is None or name in self._accepted:
            return name or self.names[0]
        raise ApiError(
            404,
            f"the model {name[:200]!r} is not served here; there is {', '.join(map(repr, self.names))}",
            param="model",
            code="model_not_found",
        )

    async def prepare(self, work: Callable[[], T]) -> T:
        """Run work that may take long in a thread. Raises ApiError when it takes too long."""
        try:
            async with asyncio.timeout(self.settings.prepare_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            seconds = self.settings.prepare_seconds
            raise bad(
                f"the request could not be prepared within {seconds:g} seconds: make it simpler"
            ) from None

    def chat_template(self, brought: str | None = None) -> ChatTemplate:
        """The template to render with. Raises ConfigError when there is none, ApiError for one that a request
        brought and that is not trusted."""
        with self._lock:
            if brought is None:
                if self._template is None:
                    self._template = ChatTemplate(self._source, self.tokenizer)
                return self._template
            if not self.settings.trust_request_chat_template:
                raise bad(
                    "chat_template is refused: this server uses the model's own "
                    "(--trust-request-chat-template allows others)",
                    "chat_template",
                )
            if (template := self._brought.get(brought)) is None:
                if len(self._brought) >= KEPT_TEMPLATES:
                    self._brought.popitem(last=False)  # its process ends with the last rendering
                template = self._brought[brought] = ChatTemplate(brought, self.tokenizer)
            self._brought.move_to_end(brought)
            return template

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """A prompt's tokens. Raises ApiError for a text that is too long whatever its tokens are, before it
        costs anything."""
        most = self.engine.context * self._longest_piece
        if len(text) > most:
            raise bad(
                f"the prompt has {len(text)} characters; a context of {self.engine.context} tokens "
                f"cannot hold more than {most}",
                "prompt",
                "context_length_exceeded",
            )
        return self.tokenizer.encode(text, add_special=add_special)

    @functools.cached_property
    def _longest_piece(self) -> int:
        """Bytes of the longest token."""
        ids = range(self.tokenizer.vocab_size)
        return max(1, *(len(self.tokenizer.piece_bytes(i, skip_special=False)) for i in ids))

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{secrets.token_hex(16)}"

    def samples(
        self,
        name: str,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        body: Sampling,
        namespace: str,
        **fields: Any,
    ) -> list[list[Request]]:
        """The requests of every prompt. Raises ApiError, ConfigError or PromptError when one cannot be made.

        name: starts the ids. fields: of Request, beyond those of the parameters.
        """
        count, most = len(prompts) * params.n, self.settings.max_samples
        if count > most:
            raise bad(f"{count} samples are too many: a request may ask for {most} (--max-samples)", "n")
        space = _namespace(namespace, body.cache_salt)
        made = []
        for number, ids in enumerate(prompts):
            prompt = self._maker.prompt(ids, params)
            self._check(prompt, params)
            seed = self._seed(params)
            made.append(
                self._maker.samples(f"{name}-{number}", prompt, params, seed, namespace=space, **fields)
            )
        return made

    def _check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        room = self.engine.context - len(prompt)
        if prompt and (room < 1 or (params.max_tokens or 0) > room):
            wanted = (
                "" if room < 1 or params.max_tokens is None else f" and {params.max_tokens} are asked for"
            )
            raise bad(
                f"this model's maximum context length is {self.engine.context} tokens; "
                f"the prompt has {len(prompt)} tokens{wanted}",
                "max_tokens" if wanted else "prompt",
                "context_length_exceeded",
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
        """Hand requests to the engine. Raises ApiError when it does not take them."""
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
    """Whom a request shares caches with: the holders of its key, and of them those with the same salt."""
    if salt is None:
        return namespace
    return f"{namespace}-{hashlib.sha256(salt.encode('utf-8', 'replace')).hexdigest()[:24]}"


def _short_name(pipeline: Pipeline) -> str:
    """A model's name in the API: as it was named at the start, without the folders and ending of a path."""
    given = pipeline.config.model
    return Path(given).name.removesuffix(".gguf") or given if Path(given).exists() else given


def _fingerprint(pipeline: Pipeline) -> str:
    """Changes with whatever could change the text for a seed."""
    rule = getattr(pipeline.speculative, "verification", "coupled")
    parts = [__version__, pipeline.source.display_name, str(pipeline.source.weights_bytes), rule]
    if rule != "coupled":  # then the drafts have a say in which of the likely texts is drawn
        parts.append(repr(pipeline.speculative))
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def namespace_of(state: Any) -> str:
    """The namespace that the guard put into a request's state."""
    return str(getattr(state, "namespace", ANONYMOUS))
