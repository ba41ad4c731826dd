"""What all runs have: the order, the loaded target, its texts and what it computes over them, and progress.

Each part goes on where an earlier start of the same run stopped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.config.engine import parse_engine
from outrider.llm import LLM
from outrider.memory import size
from outrider.pipeline import Pipeline, build
from outrider.training import costs
from outrider.training.payoff import Payoff
from outrider.training.progress import EVALUATIONS, Evaluation
from outrider.training.prompts import Asked, opening
from outrider.training.records import RecordStore
from outrider.training.settings import OWN, RunFolder, Settings, digest_of
from outrider.training.texts import Text, TextStore, Writer
from outrider.training.trainer import Lesson, Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for.

    draft:    the draft model that is trained; None for a head.
    settings: those of a new run; `given` names those that the command line says.
    data:     files of prompts, and "self" for those that the target writes.
    hours:    in place of `settings.tokens`; None takes these.
    device:   of training, and of the target where it is a GPU: "cpu", "cuda", ….
    threads:  of the target's engine and of training; None: their own choice.
    stop:     asked all the time; once it says True, the run ends as soon as it can go on later.
    say:      a line for the user. shown: the same, of one that the next replaces.
    """

    model: str
    draft: str | None = None
    folder: Path
    settings: Settings
    given: frozenset[str]
    data: tuple[str, ...]
    hours: float | None
    device: str
    threads: int | None
    license: str
    stop: Callable[[], bool]
    say: Callable[[str], object]
    shown: Callable[[str], object]

    @property
    def on_cpu(self) -> bool:
        return self.device.startswith("cpu")


def _pipeline(order: Order) -> Pipeline:
    """The target, without a drafter: many texts share its passes."""
    config = parse_engine(
        order.model,
        {"method": "none"},
        engine="native" if order.on_cpu else "torch",
        device=None if order.on_cpu else order.device,
        max_num_seqs=costs.SEATS,
        threads=order.threads,
    )
    return build(config)


class Run(ABC):
    """A run on a loaded target.

    records: what the target's records of the texts are called.
    less:    what makes training take less memory, in words.
    """

    records: str
    less: str

    def __init__(self, order: Order, prompts: list[str]) -> None:
        self.order, self.folder = order, RunFolder(order.folder)
        self.check()
        self.pipeline = _pipeline(order)
        self.source = self.pipeline.source
        self.check_loaded()
        self._llm = LLM.from_pipeline(self.pipeline, shared=False)
        own = opening(self._llm.render_chat) if OWN in order.data else None
        self._asked = Asked(own, tuple(prompts))
        data = [OWN] * (own is not None) + [digest_of(prompts)] * bool(prompts)
        self.settings = self._begin(replace(order.settings, data=" and ".join(data)))

    def run(self) -> bool:
        """Returns whether the draft is made."""
        with self._llm:
            texts = self._texts()
            store = None if texts is None else self._records(texts)
        del self.pipeline, self._llm  # training needs the memory
        return store is not None and texts is not None and self.train(texts, store)

    # --- What is trained ---------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raise OutriderError, before anything is loaded, where training is impossible."""

    @abstractmethod
    def check_loaded(self) -> None:
        """The same with the loaded target."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """What tells the run's models from others."""

    @abstractmethod
    def read(self, ids: list[int]) -> object:
        """Have the target compute the records of a text, to see how long it takes."""

    @abstractmethod
    def training_speed(self, settings: Settings) -> float:
        """Tokens a second."""

    @abstractmethod
    def bytes_of(self, settings: Settings) -> tuple[int, int]:
        """(of disk, of memory) that the run takes, about."""

    @abstractmethod
    def store(self, texts: Sequence[Text]) -> RecordStore: ...

    @abstractmethod
    def train(self, texts: Sequence[Text], store: RecordStore) -> bool:
        """Train, and write the files. Returns False where it was stopped."""

    # --- The parts ---------------------------------------------------------------------------------

    def _begin(self, settings: Settings) -> Settings:
        """Say what it will take, and note the run in its folder. Raises ConfigError where there is no
        room."""
        order, folder, models = self.order, self.folder, self.identity()
        known = folder.known() is not None
        if known:
            settings = folder.begin(models, settings, order.given)
        speeds = costs.measure(
            self._llm, self.pipeline.engine, settings, self.read, lambda: self.training_speed(settings)
        )
        if not known and order.hours is not None:
            settings = replace(settings, tokens=speeds.tokens(order.hours, settings))
        disk, memory = self.bytes_of(settings)
        writing, reading, training = speeds.seconds(settings.tokens, settings)
        order.say(
            f"{settings.tokens:,} tokens of answers: about {_time(writing)} to write, {_time(reading)} to "
            f"read, {_time(training)} to train on them {settings.epochs} times; "
            f"disk {size(disk)}, memory {size(memory)} beside the target's"
        )
        there = sum(path.stat().st_size for path in folder.files if path.exists())
        costs.check_room(order.folder, max(0, disk - there), memory, self.less)
        return settings if known else folder.begin(models, settings, order.given)

    def _texts(self) -> list[Text] | None:
        """All texts; None where it was stopped."""
        order, wanted = self.order, self.settings.tokens
        store = TextStore(self.folder.texts)
        began, before = time.monotonic(), store.tokens

        def shown(tokens: int) -> None:
            rate = (tokens - before) / max(1e-9, time.monotonic() - began)
            order.shown(f"texts: {tokens:,} of {wanted:,} tokens, {rate:.0f} a second")

        Writer(self._llm, self._asked, self.settings).write(store, order.stop, shown)
        if store.tokens < wanted:
            if order.stop():
                return None
            order.say(f"the prompts gave {store.tokens:,} tokens, fewer than the {wanted:,} asked for")
        order.say(f"{len(store.texts):,} texts, {store.tokens:,} tokens of answers to train on")
        return store.texts

    def _records(self, texts: Sequence[Text]) -> RecordStore | None:
        """The records of all texts; None where it was stopped."""
        order = self.order
        store = self.store(texts)
        costs.check_room(order.folder, store.missing_bytes, 0, self.less)

        def shown(_: int) -> None:
            order.shown(f"{self.records}: {store.done_rows:,} of {store.rows:,} tokens")

        store.fill(self.pipeline.engine, order.stop, shown)
        return store if store.whole else None

    def fitted(self, lesson: Lesson, payoff: Payoff | None) -> Trainer | None:
        """The trainer of a lesson, at its end; None where it was stopped."""
        trainer = Trainer(
            lesson,
            self.settings,
            checkpoint=self.folder.checkpoint,
            shown=_Shown(self.order, payoff),
        )
        return trainer if trainer.run(self.order.stop) else None


class _Shown:
    """Prints the evaluations, and once that more training no longer pays."""

    def __init__(self, order: Order, payoff: Payoff | None) -> None:
        self._order, self._payoff = order, payoff
        self._said = False

    def __call__(self, trainer: Trainer, evaluation: Evaluation) -> None:
        acceptance, likeness = evaluation.held.acceptance, evaluation.held.likeness
        positions = " ".join(f"{100 * share:.0f}%" for share in acceptance.by_position)
        found = [f"accepted {positions}, {acceptance.tokens_per_pass:.2f} tokens a pass"]
        if likeness is not None:
            found.insert(
                0,
                f"likeliest token the target's {100 * likeness.agreement:.1f}%, drawn ones accepted "
                f"{100 * likeness.mean_overlap:.1f}%",
            )
        if self._payoff is not None:
            found.append(self._payoff.words(acceptance))
        left = ""
        if evaluation.updates:
            remaining = trainer.state.seconds / evaluation.updates * (trainer.updates - evaluation.updates)
            left = f", loss {evaluation.loss:.3f}, {_time(remaining)} left"
        self._order.say(
            f"trained on {evaluation.tokens:,} of {trainer.all_tokens:,} tokens{left}; held out: "
            + ", ".join(found)
        )
        if not trainer.pays and not self._said:
            self._said = True
            self._order.say(
                f"the last {EVALUATIONS} evaluations gained little: more of this training does not pay; more "
                "--tokens may"
            )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
