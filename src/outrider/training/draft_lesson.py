"""What a draft model learns from: the target's probabilities at its answers' tokens (distillation).

The texts are the target's own, as the draft model will meet them, and what is wanted at each place are the
target's probabilities rather than the one token that it drew (DistillSpec, Zhou et al. 2024). The loss is the
forward Kullback-Leibler divergence. The total variation distance is what acceptance depends on, but where a
draft model is far off its gradient is almost nothing; the divergence bounds it (Pinsker) and has a gradient
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider.training.draft import Draft
from outrider.training.probabilities import ProbabilityStore
from outrider.training.progress import Acceptance, Held, Likeness, chains
from outrider.training.schedule import evaluations
from outrider.training.settings import Settings
from outrider.training.texts import Text, divided


@dataclass(frozen=True, slots=True)
class Example:
    """A text as a draft model reads it: all tokens but the last.

    tokens: int64[n].
    first:  the first of them after which a token of the answer follows; there are n - first such places.
    ids:    int64[n - first, k], what the target finds likeliest there, the likeliest first.
    probs:  float32[n - first, k], how likely. What they lack to 1 belongs to all other ids together. 0 for an
            id that the draft model does not have; the likeliest one stands there again.
    """

    tokens: Tensor
    first: int
    ids: Tensor
    probs: Tensor


class Examples:
    """The texts of a run, and the records of their answers, as examples.

    vocab_size, longest: of the draft model: ids, and tokens of a text.
    """

    def __init__(self, texts: Sequence[Text], store: ProbabilityStore, vocab_size: int, longest: int) -> None:
        self._texts, self._store, self._vocab_size = texts, store, vocab_size
        self.training, self.held_out = divided(
            texts, lambda text: len(text.ids) <= longest and max(text.ids) < vocab_size
        )

    def rows(self, index: int) -> int:
        return len(self._texts[index].ids) - 1

    def last(self, index: int) -> int:
        """The last token of a text."""
        return self._texts[index].ids[-1]

    def __getitem__(self, index: int) -> Example:
        text, records = self._texts[index], self._store.of(index)
        ids, probs = np.array(records["ids"], np.int64), np.array(records["probs"], np.float32)
        foreign = ids >= self._vocab_size
        probs[foreign] = 0.0
        ids = np.where(foreign, ids[:, :1], ids).clip(max=self._vocab_size - 1)
        return Example(
            torch.tensor(text.ids[:-1], dtype=torch.int64),
            len(text.prompt) - 1,
            torch.from_numpy(ids),
            torch.from_numpy(probs),
        )


def divergence(logits: Tensor, example: Example) -> Tensor:
    """float32[n]: how far the draft's probabilities are from the target's at each place of the answer, in
    nats. All ids beyond the recorded ones count as one.

    logits: float32[n, vocab].
    """
    wanted, rest_wanted = example.probs, (1 - example.probs.sum(-1)).clamp_min(0)
    known = logits.gather(-1, example.ids).masked_fill(wanted == 0, -torch.inf)
    others = torch.logsumexp(logits.scatter(-1, example.ids, -torch.inf), -1)
    total = torch.logaddexp(torch.logsumexp(known, -1), others)
    # x log x is 0 at 0, and so is the target's share of what it gives nothing.
    logs = torch.where(wanted > 0, known - total[:, None], 0.0)
    cross = (wanted * logs).sum(-1) + rest_wanted * (others - total)
    entropy = torch.xlogy(wanted, wanted).sum(-1) + torch.xlogy(rest_wanted, rest_wanted)
    return entropy - cross


def loss_of(draft: Draft, example: Example) -> Tensor:
    """The mean over the places of the answer."""
    return divergence(draft.logits(example.tokens, example.first), example).mean()


class DraftLesson:
    """A draft model, and what it learns from; see `Lesson`.

    settings.steps is the length of the drafts whose acceptance is told.
    """

    def __init__(self, draft: Draft, examples: Examples, settings: Settings) -> None:
        self.draft, self.examples, self._steps = draft, examples, settings.steps
        self.training = examples.training
        self.rows = examples.rows
        trained, tested = (sum(map(self.rows, each)) for each in (self.training, examples.held_out))
        self.evaluations = evaluations(settings.epochs * trained, tested)
        self.parameters: Mapping[str, Tensor] = draft.parameters
        numbers = [*self.training, *examples.held_out]
        self.tag = torch.tensor([[i, self.rows(i), examples.last(i)] for i in numbers])

    def loss(self, index: int) -> Tensor:
        return loss_of(self.draft, self._example(index))

    def held(self) -> Held:
        steps = self._steps
        acceptance, likeness = Acceptance(0, (0,) * steps), Likeness(0, 0, 0.0)
        with torch.no_grad():
            for index in self.examples.held_out:
                example = self._example(index)
                logits = self.draft.logits(example.tokens, example.first)
                agreed = (logits.argmax(-1) == example.ids[:, 0]) & (example.probs[:, 0] > 0)
                shares = torch.softmax(logits, -1).gather(-1, example.ids)
                overlap = torch.minimum(shares, example.probs).sum()
                likeness += Likeness(len(agreed), int(agreed.sum()), float(overlap))
                acceptance += chains(agreed.cpu().numpy(), steps)
        return Held(acceptance, likeness)

    def _example(self, index: int) -> Example:
        made, device = self.examples[index], self.draft.device
        if device.type == "cpu":
            return made
        return Example(made.tokens.to(device), made.first, made.ids.to(device), made.probs.to(device))
