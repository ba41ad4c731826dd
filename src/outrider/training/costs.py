"""What a run needs, measured in a few seconds before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.base import StepEngine
from outrider.errors import ConfigError, InsufficientMemoryError
from outrider.llm import LLM
from outrider.memory import available_bytes, size
from outrider.models.sources.download import free_bytes
from outrider.training.head import Head, HeadSizes
from outrider.training.settings import Settings
from outrider.training.states import Layout, capture
from outrider.training.trainer import Example, Target, loss_of

ROWS_PER_TOKEN = 1.4  # of a text with its prompt, for each token of the answer
USUAL_ROWS = 8192  # of the output, before it is known
SEATS = 12  # texts that the target writes at once
_SECONDS = 3.0  # of the measurement of training


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second: of answers that the target writes, of its passes over texts, of training."""

    writing: float
    reading: float
    training: float

    def seconds(self, tokens: int, settings: Settings) -> tuple[float, float, float]:
        """For so many tokens of answers: of writing, reading, training."""
        rows = tokens * ROWS_PER_TOKEN
        return tokens / self.writing, rows / self.reading, settings.epochs * rows / self.training

    def tokens(self, hours: float, settings: Settings) -> int:
        """Of answers that fit into so many hours."""
        return max(1, int(hours * 3600 / sum(self.seconds(1, settings))))


def measure(
    llm: LLM, engine: StepEngine, layout: Layout, *, sizes: HeadSizes, settings: Settings, device: str
) -> Speeds:
    """A short probe of all three."""
    vocab = engine.vocab_size
    prompts = [{"prompt_token_ids": [(7 * i + 1) % vocab]} for i in range(SEATS)]
    params = SamplingParams(temperature=0.7, max_tokens=24, ignore_eos=True, seed=0, detokenize=False)
    began = time.perf_counter()
    llm.generate(prompts, params)
    writing = 24 * SEATS / (time.perf_counter() - began)
    count = min(128, engine.max_positions)
    began = time.perf_counter()
    capture(engine, [i % vocab for i in range(count)], layout)
    reading = count / (time.perf_counter() - began)
    # A prompt that the target writes takes about a third of the time of its answer.
    share = 0.75 if settings.data == "self" else 1.0
    return Speeds(writing * share, reading, training_speed(sizes, vocab, settings, device))


def training_speed(sizes: HeadSizes, vocab: int, settings: Settings, device: str) -> float:
    """Tokens a second of an update, on numbers of no meaning."""
    count, rows = 256, min(settings.vocab or USUAL_ROWS, vocab)
    output = torch.full((rows, sizes.hidden), 0.01, device=device)
    head = Head(sizes, output, output).to(device)
    target = Target(
        torch.arange(rows, device=device), torch.ones(sizes.hidden, device=device), output, sizes.eps
    )
    example = Example(
        torch.ones((count, sizes.states * sizes.hidden), device=device),
        torch.zeros(count + 1, dtype=torch.int64, device=device),
        torch.ones((count, sizes.hidden), device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        count // 4,
        count // 4 + settings.steps,
    )

    def update() -> float:
        began = time.perf_counter()
        loss_of(head, target, example, settings.steps).backward()
        return time.perf_counter() - began

    update()  # the first one allocates
    taken = [update()]
    while sum(taken) < _SECONDS:
        taken.append(update())
    return count * len(taken) / sum(taken)


def training_bytes(sizes: HeadSizes, vocab: int, settings: Settings) -> int:
    """Of memory that training takes beside the target: matrices of the target as float32, the head with its
    gradient and two moments, and what a text of the usual length leaves behind."""
    rows = min(settings.vocab or USUAL_ROWS, vocab)
    attention = sizes.hidden * sizes.head_dim * (3 * sizes.heads + 4 * sizes.kv_heads)
    weights = sizes.hidden * (sizes.states * sizes.hidden + 3 * sizes.ffn) + attention
    length = settings.max_prompt + settings.max_answer
    activations = settings.steps * length * (4 * rows + 8 * sizes.ffn + 2 * sizes.heads * length)
    return 4 * ((vocab + 2 * rows) * sizes.hidden + 4 * weights + activations)


def check_room(folder: Path, disk: int, memory: int) -> None:
    """Raise ConfigError where a disk has no room, InsufficientMemoryError where the memory has none."""
    if disk > (free := free_bytes(folder)):
        raise ConfigError(
            f"-o {folder}: hidden states take {size(disk)}, and {size(free)} are free; give fewer --tokens"
        )
    if memory > (available := available_bytes()):
        raise InsufficientMemoryError(
            f"training takes about {size(memory)}, and {size(available)} are free; give a smaller --vocab"
        )
