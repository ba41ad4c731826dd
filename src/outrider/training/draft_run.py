"""A run that distils a draft model for a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from outrider.engines.torch.weights import load_weights, unsupported
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.formats.rewriting import check_rewritable
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.vocabulary import ensure_compatible
from outrider.opening import fetch
from outrider.training import draft_costs, draft_files, payoff
from outrider.training.base_run import Run
from outrider.training.draft import Draft
from outrider.training.draft_lesson import DraftLesson, Examples
from outrider.training.probabilities import ProbabilityStore, capture, record_of
from outrider.training.progress import worse
from outrider.training.records import RecordStore
from outrider.training.settings import Settings, identity
from outrider.training.texts import Text


class DraftRun(Run):
    """Trains a draft model on the target's probabilities."""

    records = "probabilities"
    less = "take a smaller draft model, or a smaller --max-answer"

    def check(self) -> None:
        """The draft model, by its files alone."""
        order = self.order
        target = open_model(fetch(order.model, None, True))
        draft = open_model(fetch(str(order.draft), None, True))
        draft = draft.for_context(target.architecture.max_positions)
        ensure_compatible(Tokenizer.from_data(target.tokenizer), draft.tokenizer)
        check_trainable(draft)
        self.draft = draft

    def check_loaded(self) -> None:
        """Any target will do that has texts."""

    def identity(self) -> Mapping[str, Any]:
        return {**identity(self.source), "draft": identity(self.draft)}

    def read(self, ids: list[int]) -> object:
        at = max(1, len(ids) // 4)
        text = Text(0, tuple(ids[:at]), tuple(ids[at:]), 0.0, False)
        return capture(self.pipeline.engine, text, self.pipeline.vocab_size)

    def training_speed(self, settings: Settings) -> float:
        return draft_costs.training_speed(self.draft.architecture, settings, self.order.device)

    def bytes_of(self, settings: Settings) -> tuple[int, int]:
        checkpoints, memory = draft_costs.training_bytes(self.draft, settings)
        return checkpoints + settings.tokens * record_of().itemsize, memory

    def store(self, texts: Sequence[Text]) -> ProbabilityStore:
        return ProbabilityStore(self.folder.probabilities, texts, self.pipeline.vocab_size)

    def train(self, texts: Sequence[Text], store: RecordStore) -> bool:
        order, settings, source = self.order, self.settings, self.draft
        assert isinstance(store, ProbabilityStore)
        spec = source.architecture
        longest = min(max(len(text.ids) for text in texts), spec.max_positions)
        examples = Examples(texts, store, spec.vocab_size, longest)
        pays = payoff.of_draft(self.source, source, order.threads) if order.on_cpu else None
        weights = load_weights(source, torch.device(order.device), torch.float32)
        draft = Draft(spec, weights, longest, rank=settings.rank, seed=settings.seed)
        trainer = self.fitted(DraftLesson(draft, examples, settings), pays)
        if trainer is None:
            return False
        first, last = trainer.state.history[0], trainer.state.history[-1]
        if worse(first.held, last.held):
            order.say(
                "the draft model is less like its target than it was: give a lower --rate, or more --tokens"
            )
        values = draft.arrays()
        if not all(np.isfinite(rows).all() for rows in values.values()):
            raise ConfigError(f"the weights are no numbers any more: give a --rate below {settings.rate:g}")
        made = draft_files.Made(
            target=self.source.display_name,
            source=source,
            values=values,
            settings=settings,
            first=first,
            last=last,
            tokens=sum(len(text.answer) for text in texts if not text.held_out),
            seconds=trainer.state.seconds,
            license=order.license,
        )
        draft_files.write(order.folder, made)
        return True


def check_trainable(draft: ModelSource) -> None:
    """Raise UnsupportedModelError, naming it, for a part that cannot be trained, or not be written again."""
    if (missing := unsupported(draft.architecture)) is not None or not draft.tensors:
        raise UnsupportedModelError(
            f"{draft.path}: cannot be trained: {missing or 'its family is not known'}"
        )
    for i in range(draft.architecture.n_layers):
        biases = [f"blk.{i}.attn_{part}.bias" in draft.tensors for part in "qkv"]
        if any(biases) and not all(biases):
            raise UnsupportedModelError(
                f"{draft.path}: cannot be trained: layer {i} has a bias for some of q, k and v only"
            )
    check_rewritable(draft)
