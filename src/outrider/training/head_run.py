"""A run that makes an EAGLE-3 head for a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from outrider.errors import UnsupportedModelError
from outrider.models.eagle3.head import usual_layers
from outrider.models.formats.dequantize import dequantize
from outrider.models.source import ModelSource
from outrider.training import costs, export, head_costs, payoff, vocabulary
from outrider.training.base_run import Run
from outrider.training.head import Head
from outrider.training.head_lesson import Examples, HeadLesson, Target
from outrider.training.records import RecordStore
from outrider.training.settings import Settings, identity
from outrider.training.sizes import sizes_of
from outrider.training.states import Layout, StateStore, capture
from outrider.training.texts import Text

MIN_LAYERS = 3  # of a target: the layers that heads read are counted from both of its ends


class HeadRun(Run):
    """Trains a head on the target's hidden states."""

    records = "hidden states"
    less = "give a smaller --vocab"

    def check(self) -> None:
        """What a head needs is known once the target is loaded."""

    def check_loaded(self) -> None:
        source, count = self.source, self.source.architecture.n_layers
        if not self.pipeline.engine.caps.hidden_states or not source.tensors:
            raise UnsupportedModelError(
                f"{source.path}: its engine gives no hidden states, which heads read; none can be trained"
            )
        if count < MIN_LAYERS:
            raise UnsupportedModelError(
                f"{source.path}: has {count} layers; a head can be trained for {MIN_LAYERS} or more"
            )
        self.layers = usual_layers(count)
        self.layout = Layout(tuple(sorted({*self.layers, count})), source.architecture.hidden_size)
        self.sizes = sizes_of(source, len(self.layers))

    def identity(self) -> Mapping[str, Any]:
        return identity(self.source)

    def read(self, ids: list[int]) -> object:
        return capture(self.pipeline.engine, ids, self.layout)

    def training_speed(self, settings: Settings) -> float:
        vocab = self.source.architecture.vocab_size
        return head_costs.training_speed(self.sizes, vocab, settings, self.order.device)

    def bytes_of(self, settings: Settings) -> tuple[int, int]:
        disk = int(settings.tokens * costs.ROWS_PER_TOKEN * self.layout.record.itemsize)
        vocab = self.source.architecture.vocab_size
        return disk, head_costs.training_bytes(self.sizes, vocab, settings)

    def store(self, texts: Sequence[Text]) -> StateStore:
        return StateStore(self.folder.states, self.layout, texts)

    def train(self, texts: Sequence[Text], store: RecordStore) -> bool:
        order, settings, source, layers = self.order, self.settings, self.source, self.layers
        assert isinstance(store, StateStore)
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
        if not self.folder.checkpoint.exists():
            head.prepare(examples.deviation().to(order.device), target.norm)
        pays = payoff.of_head(source, self.sizes, ids, layers, order.threads) if order.on_cpu else None
        trainer = self.fitted(HeadLesson(head, target, examples, settings.steps), pays)
        if trainer is None:
            return False
        state = trainer.state
        learned = [text for text in texts if not text.held_out]
        made = export.Made(
            head, source, ids, layers, settings, state.history[-1], coverage,
            sum(len(text.answer) for text in learned), max(len(text.ids) for text in learned),
            state.seconds, order.license,
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
    head = Head(sizes_of(source, states), embedding, output_rows, seed).to(device)
    target = Target(
        torch.from_numpy(ids).to(device),
        norm,
        output_rows,
        spec.rms_eps,
        spec.logit_scale,
        spec.logit_softcap,
    )
    return head, target
