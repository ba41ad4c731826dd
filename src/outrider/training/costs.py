"""What a run needs, measured in a few seconds before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.base import StepEngine
from outrider.errors import ConfigError, InsufficientMemoryError
from outrider.llm import LLM
from outrider.memory import available_bytes, size
from outrider.models.sources.download import free_bytes
from outrider.training.settings import OWN, Settings

ROWS_PER_TOKEN = 1.4  # of a text with its prompt, for each token of the answer
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
    llm: LLM,
    engine: StepEngine,
    settings: Settings,
    read: Callable[[list[int]], object],
    train: Callable[[], float],
) -> Speeds:
    """A short probe of all three.

    read:  has the target compute the records of a text.
    train: tokens a second of training.
    """
    vocab = engine.vocab_size
    prompts = [{"prompt_token_ids": [(7 * i + 1) % vocab]} for i in range(SEATS)]
    params = SamplingParams(temperature=0.7, max_tokens=24, ignore_eos=True, seed=0, detokenize=False)
    began = time.perf_counter()
    llm.generate(prompts, params)
    writing = 24 * SEATS / (time.perf_counter() - began)
    count = min(128, engine.max_positions)
    began = time.perf_counter()
    read([i % vocab for i in range(count)])
    reading = count / (time.perf_counter() - began)
    # A prompt that the target writes takes about a third of the time of its answer. Beside files every other
    # one is its own.
    share = 1.0 if OWN not in settings.sources else 0.75 if settings.sources == (OWN,) else 0.86
    return Speeds(writing * share, reading, train())


def repeated(update: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Seconds of one of as many calls as fit into about so many seconds, after a first that allocates."""
    update()
    began, count = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds or not count:
        update()
        count += 1
    return taken / count


def check_room(folder: Path, disk: int, memory: int, less: str) -> None:
    """Raise ConfigError where a disk has no room, InsufficientMemoryError where the memory has none.

    less: what makes training take less memory.
    """
    if disk > (free := free_bytes(folder)):
        raise ConfigError(
            f"-o {folder}: the run takes {size(disk)} there, and {size(free)} are free; give fewer --tokens"
        )
    if memory > (available := available_bytes()):
        raise InsufficientMemoryError(
            f"training takes about {size(memory)}, and {size(available)} are free; {less}"
        )
