"""`AsyncLLM`: requests of many tasks on one model, with an async iterator for each, as vLLM has it."""

from __future__ import annotations

import asyncio
import os
import secrets
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import Any

from outrider.config.engine import EngineConfig, parse_engine
from outrider.config.speculative import SpeculativeConfig
from outrider.decoding.sampling.params import RequestOutputKind, SamplingParams
from outrider.engine_args import EngineArgs, path
from outrider.errors import ConfigError
from outrider.generation import Generation, GenerationMaker, chat_and_tokenizer
from outrider.llm import check_neutral
from outrider.outputs import RequestOutput
from outrider.pipeline import Pipeline, build
from outrider.prompts import Prompt
from outrider.server.engine.async_engine import EngineFailed, ServerEngine, Stream
from outrider.server.engine.capacity import before_loading
from outrider.transformers_tokenizer import TransformersTokenizer

MAX_WAITING = 1 << 16  # samples that wait for a place


class AsyncLLM:
    """A model that serves the requests of any number of tasks, in a thread of its own.

    model, speculative_config, arguments: as for `LLM`.
    memory_limit: bytes for weights, caches and buffers together; None for most of the available memory.

    Raises as `LLM` does. `shutdown`, or the end of an `async with` block, ends it and frees the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
        memory_limit: int | None = None,
        **arguments: Any,
    ) -> None:
        self._load(parse_engine(path(model), speculative_config, **arguments), memory_limit)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: object) -> AsyncLLM:
        """An AsyncLLM with these arguments. Further arguments of vLLM (usage_context, stat_loggers, …) are
        ignored."""
        if not isinstance(engine_args, EngineArgs):
            raise ConfigError(f"from_engine_args needs AsyncEngineArgs, not {type(engine_args).__name__}")
        made = cls.__new__(cls)
        made._load(engine_args.create_engine_config(), None)
        return made

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline, *, memory_limit: int | None = None) -> AsyncLLM:
        """An AsyncLLM over a pipeline that is already built, which nobody else may use from then on."""
        made = cls.__new__(cls)
        made._setup(pipeline, memory_limit)
        return made

    def _load(self, config: EngineConfig, memory_limit: int | None) -> None:
        self._setup(build(config, memory_check=before_loading(memory_limit)), memory_limit)

    def _setup(self, pipeline: Pipeline, memory_limit: int | None) -> None:
        engine = ServerEngine(pipeline, max_waiting=MAX_WAITING, memory_limit=memory_limit)
        self._engine: ServerEngine | None = engine
        self._maker = GenerationMaker(pipeline, engine.context)
        self._defaults = pipeline.sampling
        self._conversations, self._tokenizer = chat_and_tokenizer(pipeline, engine.context)
        self._running: dict[str, _Running] = {}
        self._end = weakref.finalize(self, engine.stop)  # also when nobody calls shutdown
        engine.start()

    # --- Requests ------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **neutral: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt; yields an output for each step, the last one with `finished`.

        prompt:          as for `LLM.generate`.
        sampling_params: its `output_kind` says what each output holds: everything so far, what is new, or,
                         once, everything at the end.
        request_id:      of `abort`; must not be that of a running request. None for a random one.
        neutral:         lora_request, priority, … of vLLM, where they change nothing.

        The request is aborted when the iterator is closed or the task that reads it is cancelled. Raises
        PromptError and ConfigError for a request that cannot be served, EngineFailed when the engine fails.
        """
        check_neutral("generate", neutral, ("prompt", "sampling_params", "request_id"))
        engine, params = self._ready, sampling_params
        if params is None:
            params = self._defaults.params()
        if not isinstance(params, SamplingParams):
            raise ConfigError(f"sampling_params must be a SamplingParams, not {type(params).__name__}")
        name = secrets.token_hex(8) if request_id is None else str(request_id)
        if name in self._running:
            raise ConfigError(f"the request id {name!r} is that of a running request; give another")
        kind, run = params.output_kind, _Running()
        self._running[name] = run
        try:
            made = await asyncio.to_thread(self._maker.make, prompt, params.clone(), name)
            if run.aborted:
                made.abort()
                yield made.output
                return
            async with engine.submit(made.requests) as stream:
                run.stream = stream
                async for output in _outputs(made, stream, RequestOutputKind(kind)):
                    yield output
        finally:
            del self._running[name]

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End a running request, or several: their iterators yield a last output, with the finish reason
        "abort". Other ids are ignored."""
        for name in [request_id] if isinstance(request_id, str | int) else request_id:
            if (run := self._running.get(str(name))) is not None:
                run.abort()

    # --- The model and its engine --------------------------------------------------------------------------

    def get_tokenizer(self) -> TransformersTokenizer:
        """The model's tokenizer, with the calls of transformers' tokenizers."""
        return self._tokenizer

    @property
    def tokenizer(self) -> TransformersTokenizer:
        return self._tokenizer

    @property
    def errored(self) -> bool:
        """True after the engine failed or was shut down: no request can run any more."""
        return self._engine is None or not self._engine.healthy

    @property
    def is_running(self) -> bool:
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        return self.errored

    async def check_health(self) -> None:
        """Raise EngineFailed when the engine has failed, ConfigError when it was shut down."""
        if not self._ready.healthy:
            raise EngineFailed("the engine has failed; make another AsyncLLM")

    def shutdown(self, timeout: float | None = None) -> None:
        """Abort all requests, end the thread and free the model; waits for the current step. To call it again
        does nothing. timeout: vLLM's, not needed."""
        self._end()
        self._conversations.close()
        self._engine = None

    @property
    def _ready(self) -> ServerEngine:
        if self._engine is None:
            raise ConfigError("this AsyncLLM was shut down; make another")
        return self._engine

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)


AsyncLLMEngine = AsyncLLM  # vLLM's older name


class _Running:
    """A request from its arrival on. stream: None until the engine has it."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True
        if self.stream is not None:
            self.stream.cancel()


async def _outputs(
    made: Generation, stream: Stream, kind: RequestOutputKind
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of a kind, as the events of a generation come."""
    while events := await stream.batch():
        for event in events:
            made.take(event)
        if kind is RequestOutputKind.DELTA:
            yield made.news()
        elif kind is RequestOutputKind.CUMULATIVE or made.output.finished:
            yield made.so_far()
