"""A minimal whole engine: it decodes without speculation in its own loop, and is a `Runner` without
StepLoop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig
from outrider.decoding.context import TokenContext
from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request, check_prompt
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.stops import Emitter
from outrider.engines.base import ForwardItem, LanguageModel
from outrider.engines.runner import Runner, WholeEngine
from outrider.errors import ConfigError
from outrider.models.source import ModelSource
from outrider.models.text.tokenizer import Tokenizer
from outrider.pipeline import ModelLoader, WholeBackend


class OneByOne:
    """Implements WholeEngine and, as it has only one runner, Runner. A step gives each request one token."""

    def __init__(self, model: LanguageModel, context: int, vocab_size: int) -> None:
        self._model, self._tokens = model, vocab_size
        self.vocab_size, self.max_positions = model.vocab_size, context
        self._running: dict[str, Iterator[Event]] = {}
        self._outbox: list[Event] = []

    def runner(self) -> Runner:
        return self

    def draft_totals(self) -> None:
        """It never drafts."""

    @property
    def unfinished(self) -> bool:
        return bool(self._running or self._outbox)

    def add(self, request: Request) -> None:
        if request.request_id in self._running:
            raise ConfigError(f"request id {request.request_id!r} is already in use")
        check_prompt(request.prompt, self.vocab_size, self.max_positions)
        self._running[request.request_id] = self._decode(request)

    def abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self._outbox.append(FinishEvent(request_id, "abort", None, "", RequestMetrics()))

    def step(self) -> list[Event]:
        events, self._outbox = self._outbox, []
        for request_id, decoding in list(self._running.items()):
            events.append(next(decoding))
            if isinstance(events[-1], FinishEvent):
                del self._running[request_id]
        return events

    def close(self) -> None:
        self._running.clear()
        self._outbox.clear()

    def _decode(self, request: Request) -> Iterator[Event]:
        context, emitter = TokenContext(request.prompt), Emitter(request, self.max_positions)
        sampler = Sampler(request.params, self._tokens, request.eos_ids, request.seed)
        metrics = RequestMetrics()
        cache, new = self._model.new_cache(self.max_positions), list(request.prompt)
        while True:
            ids, last = np.array(new, np.int32), np.array([len(new) - 1], np.int32)
            parents = np.arange(-1, len(new) - 1, dtype=np.int32)
            (logits,) = self._model.forward([ForwardItem(cache, ids, parents, last)])
            new = [sampler.token(logits[0], context)]
            text, finish = emitter.push(new[0])
            context.append(new[0])
            metrics.num_tokens += 1
            yield TokenEvent(request.request_id, new[0], text, "bonus")
            if finish is not None:
                yield FinishEvent(request.request_id, finish.reason, finish.stop_reason, "", metrics)
                return


def backend(load: ModelLoader) -> WholeBackend:
    """For `pipeline.ENGINES`."""

    def build(config: EngineConfig, source: ModelSource, context: int) -> WholeEngine:
        if not isinstance(config.speculative, NoneConfig | AutoConfig):
            raise ConfigError(f"engine {config.engine!r} does not speculate: use the method 'none'")
        size = Tokenizer.from_data(source.tokenizer).vocab_size
        return OneByOne(load(source, config.threads), context, size)

    return WholeBackend(build)
