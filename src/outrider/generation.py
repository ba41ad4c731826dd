"""A prompt that is running: its requests, and the output as it grows. `LLM` and `AsyncLLM` share it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.decoding.events import Event, FinishEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.models.text.conversation import Conversations
from outrider.models.text.tokenizer import Tokenizer
from outrider.outputs import Chunk, CompletionOutput, RequestOutput, logprobs_of
from outrider.pipeline import BasePipeline
from outrider.prompts import Prompt, read_prompt, salt_of
from outrider.requests import RequestMaker
from outrider.transformers_tokenizer import TransformersTokenizer


def chat_and_tokenizer(pipeline: BasePipeline, context: int) -> tuple[Conversations, TransformersTokenizer]:
    """What renders a model's conversations, to be closed by the caller, and the tokenizer that users get.

    context: most tokens of prompt and output.
    """
    source = pipeline.source
    conversations = Conversations(source.chat_template, pipeline.tokenizer, source.chat_templates)
    name = pipeline.config.model
    return conversations, TransformersTokenizer(pipeline.tokenizer, conversations, context, name)


class GenerationMaker:
    """Makes the generations of one pipeline. `make` may be called from several threads.

    context: most tokens of prompt and output; None for the pipeline's.
    shared:  look drafts up in recent outputs too.
    """

    def __init__(self, pipeline: BasePipeline, context: int | None = None, *, shared: bool = True) -> None:
        self._tokenizer, self._seed, self._shared = pipeline.tokenizer, pipeline.config.seed, shared
        self._requests = RequestMaker(
            pipeline.tokenizer, pipeline.vocab_size, pipeline.context if context is None else context
        )
        self._count = itertools.count()

    def make(self, prompt: Prompt, params: SamplingParams, request_id: str | None = None) -> Generation:
        """A generation that has not begun. request_id: None for the next number.

        Raises PromptError for a prompt that cannot be read, ConfigError for structured output that cannot be
        compiled.
        """
        text, ids = read_prompt(prompt, self._tokenizer)
        number = next(self._count)
        name = str(number) if request_id is None else request_id
        if params.seed is not None:
            seed = params.seed
        else:
            seed = secrets.randbits(32) if self._seed is None else derive_seed(self._seed, number)
        ids = self._requests.prompt(ids, params)
        requests = self._requests.samples(name, ids, params, seed, namespace=self._namespace(prompt))
        samples = [
            CompletionOutput(index, "", [], [], None, None, request.seed, RequestMetrics())
            for index, request in enumerate(requests)
        ]
        for sample in samples if params.num_logprobs is not None else ():
            sample.logprobs, sample.cumulative_logprob = [], 0.0
        output = RequestOutput(name, text, ids, samples, seed)
        return Generation(requests, output, self._tokenizer if params.detokenize else None)

    def _namespace(self, prompt: Prompt) -> str | None:
        """The namespace of a prompt: prompts of the same one share recent outputs."""
        salt = salt_of(prompt)
        if not self._shared:
            return None
        return "" if salt is None else f"salt {salt}"


@dataclass(slots=True)
class _Seen:
    """How much of a sample `Generation.news` has returned."""

    tokens: int = 0
    characters: int = 0
    end: bool = False


@dataclass(slots=True, eq=False)
class Generation:
    """The requests of a prompt, one for each sample, and its output as it grows.

    tokenizer: for the text of single tokens; None when there is no text.
    """

    requests: Sequence[Request]
    output: RequestOutput
    tokenizer: Tokenizer | None
    _pieces: dict[int, list[str]] = field(default_factory=dict)
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Add an event to the output. Raises the error that ended a request."""
        index = _index(event)
        sample, pieces = self.output.outputs[index], self._pieces.setdefault(index, [])
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
        """An event as a piece of `LLM.stream`."""
        index = _index(event)
        if isinstance(event, FinishEvent):
            return Chunk(index, event.text_tail)
        logprobs = None if event.logprobs is None else logprobs_of(event.logprobs, self.tokenizer)
        return Chunk(index, event.text, event.token_id, event.kind, logprobs=logprobs)

    def so_far(self) -> RequestOutput:
        """A copy of the output as it is now."""
        return replace(self.output, outputs=[self._since(sample, _Seen()) for sample in self.output.outputs])

    def news(self) -> RequestOutput:
        """What is new since the last call: the samples that have gone on, with their new text and tokens."""
        found = []
        for sample in self.output.outputs:
            seen = self._seen.setdefault(sample.index, _Seen())
            if len(sample.token_ids) > seen.tokens or (sample.finished() and not seen.end):
                new = self._since(sample, seen)
                seen.tokens += len(new.token_ids)
                seen.characters += len(new.text)
                seen.end = sample.finished()
                found.append(new)
        return replace(self.output, outputs=found, others_running=not self.output.finished)

    def abort(self) -> None:
        """End a generation that has not begun."""
        for sample in self.output.outputs:
            sample.finish_reason = "abort"

    def _since(self, sample: CompletionOutput, seen: _Seen) -> CompletionOutput:
        """A copy of a sample without what has been seen."""
        text = "".join(self._pieces.get(sample.index, ()))
        self._pieces[sample.index] = [text]
        return replace(
            sample,
            text=text[seen.characters :],
            token_ids=sample.token_ids[seen.tokens :],
            token_kinds=sample.token_kinds[seen.tokens :],
            logprobs=None if sample.logprobs is None else sample.logprobs[seen.tokens :],
        )


def _index(event: Event) -> int:
    """Which sample of its prompt an event is of."""
    return int(event.request_id.rpartition("-")[2])
