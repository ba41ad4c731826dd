"""A run from the target to the head's files: texts, hidden states, training, export.

Each part goes on where an earlier start of the same run stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from outrider.config.engine import parse_engine
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.llm import LLM
from outrider.memory import size
from outrider.models.eagle3.head import usual_layers
from outrider.models.formats.dequantize import dequantize
from outrider.models.source import ModelSource
from outrider.pipeline import Pipeline, build
from outrider.training import costs, export, vocabulary
from outrider.training.head import Head
from outrider.training.progress import EVALUATIONS
from outrider.training.prompts import opening, read_prompts
from outrider.training.settings import RunFolder, Settings, digest_of, identity
from outrider.training.states import Layout, StateStore, rows_of
from outrider.training.texts import Text, TextStore, Writer
from outrider.training.trainer import Evaluation, Examples, Target, Trainer

MIN_LAYERS = 3  # of a target: the layers that heads read are counted from both of its ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for.

    settings: those of a new run; `given` names those that the command line says.
    data:     "self" or a file of prompts.
    hours:    in place of `settings.tokens`; None takes these.
    device:   of training, and of the target where it is a GPU: "cpu", "cuda", ….
    threads:  of the target's engine and of training; None: their own choice.
    stop:     asked all the time; once it says True, the run ends as soon as it can go on later.
    say:      a line for the user. shown: the same, of one that the next replaces.
    """

    model: str
    folder: Path
    settings: Settings
    given: frozenset[str]
    data: str
    hours: float | None
    device: str
    threads: int | None
    license: str
    stop: Callable[[], bool]
    say: Callable[[str], object]
    shown: Callable[[str], object]


def run(order: Order) -> bool:
    """Do it, or as much as there is time for. Returns whether the head is made. Raises OutriderError."""
    _check_device(order.device)
    prompts = None if order.data == "self" else read_prompts(order.data)
    RunFolder(order.folder).known()  # a damaged one is told before anything is loaded
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    return _Run(order, prompts).run()


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ConfigError(f"--device {device!r} cannot be used: {reason}") from None


def _pipeline(order: Order) -> Pipeline:
    """The target, without a drafter: many texts share its passes."""
    gpu = not order.device.startswith("cpu")
    config = parse_engine(
        order.model,
        {"method": "none"},
        engine="torch" if gpu else "native",
        device=order.device if gpu else None,
        max_num_seqs=costs.SEATS,
        threads=order.threads,
    )
    return build(config)


def _layers(pipeline: Pipeline) -> tuple[int, ...]:
    """The target's layers that the head reads. Raises UnsupportedModelError for a target without these."""
    source, count = pipeline.source, pipeline.source.architecture.n_layers
    if not pipeline.engine.caps.hidden_states or not source.tensors:
        raise UnsupportedModelError(
            f"{source.path}: its engine gives no hidden states, which a head reads; no head can be trained"
        )
    if count < MIN_LAYERS:
        raise UnsupportedModelError(
            f"{source.path}: has {count} layers; a head can be trained for {MIN_LAYERS} or more"
        )
    return usual_layers(count)


class _Run:
    """A run on a loaded target."""

    def __init__(self, order: Order, prompts: list[str] | None) -> None:
        self._order, self._folder = order, RunFolder(order.folder)
        self._pipeline = _pipeline(order)
        self._source = self._pipeline.source
        self._layers = _layers(self._pipeline)
        spec = self._source.architecture
        self._layout = Layout(tuple(sorted({*self._layers, spec.n_layers})), spec.hidden_size)
        self._llm = LLM.from_pipeline(self._pipeline, shared=False)
        self._asked = opening(self._llm.render_chat) if prompts is None else prompts
        data = "self" if prompts is None else digest_of(prompts)
        self._settings = self._begin(replace(order.settings, data=data))

    def run(self) -> bool:
        with self._llm:
            texts = self._texts()
            store = None if texts is None else self._states(texts)
        del self._pipeline, self._llm  # training needs the memory
        return store is not None and texts is not None and self._train(texts, store)

    def _begin(self, settings: Settings) -> Settings:
        """Say what it will take, and note the run in its folder. Raises ConfigError where there is no
        room."""
        order, folder, source = self._order, self._folder, self._source
        sizes = export.sizes_of(source, len(self._layers))
        known = folder.known() is not None
        if known:
            settings = folder.begin(identity(source), settings, order.given)
        speeds = costs.measure(
            self._llm,
            self._pipeline.engine,
            self._layout,
            sizes=sizes,
            settings=settings,
            device=order.device,
        )
        if not known and order.hours is not None:
            settings = replace(settings, tokens=speeds.tokens(order.hours, settings))
        disk = int(settings.tokens * costs.ROWS_PER_TOKEN * self._layout.record.itemsize)
        memory = costs.training_bytes(sizes, source.architecture.vocab_size, settings)
        writing, reading, training = speeds.seconds(settings.tokens, settings)
        order.say(
            f"{settings.tokens:,} tokens of answers: about {_time(writing)} to write, {_time(reading)} to "
            f"read, {_time(training)} to train on them {settings.epochs} times; "
            f"disk {size(disk)}, memory {size(memory)} beside the target's"
        )
        there = folder.states.stat().st_size if folder.states.exists() else 0
        costs.check_room(order.folder, max(0, disk - there), memory)
        return settings if known else folder.begin(identity(source), settings, order.given)

    def _texts(self) -> list[Text] | None:
        """All texts; None where it was stopped."""
        order, wanted = self._order, self._settings.tokens
        store = TextStore(self._folder.texts)
        began, before = time.monotonic(), store.tokens

        def shown(tokens: int) -> None:
            rate = (tokens - before) / max(1e-9, time.monotonic() - began)
            order.shown(f"texts: {tokens:,} of {wanted:,} tokens, {rate:.0f} a second")

        Writer(self._llm, self._asked, self._settings).write(store, order.stop, shown)
        if store.tokens < wanted:
            if order.stop():
                return None
            order.say(f"the prompts gave {store.tokens:,} tokens, fewer than the {wanted:,} asked for")
        order.say(f"{len(store.texts):,} texts, {store.tokens:,} tokens of answers to train on")
        return store.texts

    def _states(self, texts: Sequence[Text]) -> StateStore | None:
        """The records of all texts; None where it was stopped."""
        order = self._order
        store = StateStore(self._folder.states, self._layout, texts)
        costs.check_room(order.folder, store.missing_bytes, 0)
        done = sum(rows_of(text) for text in texts[: store.done])

        def shown(rows: int) -> None:
            nonlocal done
            done += rows
            order.shown(f"hidden states: {done:,} of {store.rows:,} tokens")

        store.fill(self._pipeline.engine, order.stop, shown)
        return store if store.done == len(texts) else None

    def _train(self, texts: Sequence[Text], store: StateStore) -> bool:
        order, settings, source, layers = self._order, self._settings, self._source, self._layers
        vocab_size = source.architecture.vocab_size
        counts, tested = (
            vocabulary.counted([t.answer for t in texts if t.held_out == held], vocab_size)
            for held in (False, True)
        )
        ids = vocabulary.chosen(counts, settings.vocab, settings.coverage, tested)
        covered, coverage = (vocabulary.coverage(each, ids) for each in (counts, tested))
        order.say(
            f"output: {len(ids):,} ids, {100 * covered:.1f}% of the answers' tokens, {100 * coverage:.1f}% "
            "of held-out ones"
        )
        order_of = [store.layout.taps.index(layer) for layer in layers]
        examples = Examples(texts, store, order_of, settings.steps)
        head, target = made_head(source, ids, len(layers), settings.seed, order.device)
        if not self._folder.checkpoint.exists():
            head.prepare(examples.deviation().to(order.device), target.norm)
        trainer = Trainer(
            head, target, examples, settings, checkpoint=self._folder.checkpoint, shown=_Shown(order)
        )
        if not trainer.run(order.stop):
            return False
        state = trainer.state
        answers = sum(len(text.answer) for text in texts if not text.held_out)
        made = export.Made(
            head, source, ids, layers, settings, state.history[-1], coverage, answers, state.seconds,
            order.license,
        )  # fmt: skip
        export.write(order.folder, made)
        return True


def made_head(
    source: ModelSource, ids: vocabulary.Ids, states: int, seed: int, device: str
) -> tuple[Head, Target]:
    """A new head, and what its target computes from the last layer's output."""
    spec = source.architecture
    embedding = torch.from_numpy(dequantize(source.tensors["token_embd.weight"]))
    output = source.tensors.get("output.weight")
    rows = embedding.numpy() if output is None else dequantize(output)
    output_rows = torch.from_numpy(np.ascontiguousarray(rows[ids])).to(device)
    norm = torch.from_numpy(dequantize(source.tensors["output_norm.weight"])).to(device)
    head = Head(export.sizes_of(source, states), embedding, output_rows, seed).to(device)
    target = Target(
        torch.from_numpy(ids).to(device),
        norm,
        output_rows,
        spec.rms_eps,
        spec.logit_scale,
        spec.logit_softcap,
    )
    return head, target


class _Shown:
    """Prints the evaluations, and once that more training no longer pays."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._said = False

    def __call__(self, trainer: Trainer, evaluation: Evaluation) -> None:
        acceptance, state = evaluation.acceptance, trainer.state
        positions = " ".join(f"{100 * share:.0f}%" for share in acceptance.by_position)
        left = ""
        if evaluation.updates:
            remaining = state.seconds / evaluation.updates * (trainer.updates - evaluation.updates)
            left = f", loss {evaluation.loss:.3f}, {_time(remaining)} left"
        self._order.say(
            f"trained on {evaluation.tokens:,} of {trainer.all_tokens:,} tokens{left}; held out: accepted "
            f"{positions}, {acceptance.tokens_per_pass:.2f} tokens a pass"
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
