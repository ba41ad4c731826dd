"""The model of `outrider chat`: the same weights with speculation and without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider import memory
from outrider.cli.chat_session import Answer
from outrider.config.engine import EngineConfig
from outrider.config.speculative import NoneConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.models.text.chat import ChatTemplate
from outrider.models.text.reasoning import ThoughtReader, format_of, reader_after
from outrider.outputs import Chunk
from outrider.pipeline import BasePipeline, Pipeline, build_all

PREFIX_BYTES = 1 << 30  # most that the caches of earlier turns may take


class ChatModel:
    """Answers conversations. What earlier turns computed is kept, so that a turn costs its own tokens only.

    template: source of a chat template for the model's own.
    Raises OutriderError, also for a model without a chat template.
    """

    def __init__(self, config: EngineConfig, template: str | None = None) -> None:
        choice = config.speculative
        self.switchable = not isinstance(choice, NoneConfig)
        pipelines = build_all(config, [choice, NoneConfig()] if self.switchable else [choice])
        self._renderer = Renderer(pipelines[0], template)
        self._pipelines = {True: pipelines[0], False: pipelines[-1]}
        self._llms = {on: LLM.from_pipeline(made) for on, made in self._pipelines.items()}
        self.name, self.context = pipelines[0].source.display_name, pipelines[0].context
        self.last: Answer | None = None
        self.thoughts: ThoughtReader | None = None  # of the answer that is being written
        self._keep_prefixes(pipelines[0])

    def _keep_prefixes(self, pipeline: Pipeline) -> None:
        engine, spec = pipeline.engine, pipeline.source.architecture
        share = getattr(engine, "share_prefixes", None)
        if share is not None:
            most = min(PREFIX_BYTES, memory.available_bytes() // 4)
            with contextlib.suppress(ConfigError):  # caches that cannot be shared
                share(min(most, 2 * memory.prefix_bytes(spec, pipeline.context)))

    def answer(
        self,
        messages: Sequence[Mapping[str, str]],
        params: SamplingParams,
        *,
        speculation: bool,
        salt: str,
        cancelled: Callable[[], bool],
    ) -> Iterator[Chunk]:
        """The answer's pieces as they come; then `last` tells of it. Earlier turns are taken from the cache,
        and drafts looked up in them, where they had the same `salt`. Raises PromptError for a conversation
        that the context does not hold."""
        self.last = None
        controller = self._pipelines[speculation].drafting.controller
        controller.take_account()
        prompt = {**self._renderer.prompt(messages), "cache_salt": salt}
        self.thoughts = self._renderer.thoughts(prompt["prompt_token_ids"])
        if self.thoughts is not None:  # their marks may be special tokens
            params = replace(params, skip_special_tokens=False)
        output = None
        for chunks in self._llms[speculation].stream(prompt, params, cancelled=cancelled):
            yield from chunks
            output = chunks[-1].output
        assert output is not None, "a stream ends with its output"
        sample, account = output.outputs[0], controller.take_account()
        self.last = Answer(
            text=sample.text,
            tokens=len(sample.token_ids),
            tokens_per_s=sample.metrics.to_dict()["decode_tokens_per_s"],
            context=len(output.prompt_token_ids) + len(sample.token_ids),
            speculation=speculation and self.switchable,
            speedup=None if account is None else account.measured,
            stopped=sample.finish_reason == "abort",
            full=sample.finish_reason == "length",
        )


class Renderer:
    """Puts conversations into the chat template: the given one, or the model's own."""

    def __init__(self, pipeline: BasePipeline, template: str | None = None) -> None:
        self._tokenizer = pipeline.tokenizer
        self._source = template or pipeline.source.chat_template
        self._template = ChatTemplate(self._source, pipeline.tokenizer)

    def thoughts(self, prompt: Sequence[int]) -> ThoughtReader | None:
        """What parts the thoughts of the answer to a prompt; None for a model without thoughts between two
        marks."""
        made = format_of(self._source, tokenizer=self._tokenizer)
        return None if made is None or made.channels else reader_after(made, self._tokenizer, prompt)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The prompt for `LLM.stream`. Raises PromptError or ConfigError as `ChatTemplate.render` does."""
        text = self._template.render(messages)
        return {"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special=False)}
