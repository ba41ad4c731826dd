"""What a head learns from: its target's texts as examples, the loss, and the held-out texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from outrider.training.head import Head
from outrider.training.precision import mixed_precision, products
from outrider.training.progress import Acceptance, Held, accepted
from outrider.training.schedule import EVALUATIONS
from outrider.training.states import StateStore
from outrider.training.texts import Text, divided

DECAY = 0.8  # of the weight of each step of the training-time test, as in EAGLE-3


@dataclass(frozen=True, slots=True)
class Example:
    """A text as a head reads it; n tokens have n - 2 rows, since something must follow what a row reads.

    states:   float[rows, states * hidden], the target's, in the order in which the head reads them.
    tokens:   int64[n - 1], of which row r reads the one at r, in step k that at r + k.
    last:     float[n - 2, hidden], the output of the target's last layer after each of `tokens` but the last.
    likeliest: int64[n - 2], what the target finds likeliest to follow these tokens.
    first:    the first row whose draft reaches the answer.
    answer:   the first of `tokens` after which a token of the answer follows.
    """

    states: Tensor
    tokens: Tensor
    last: Tensor
    likeliest: Tensor
    first: int
    answer: int


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What turns the last layer's output into logits of the head's ids.

    ids: int64[rows], ascending. norm: float[hidden], output: float[rows, hidden].
    """

    ids: Tensor
    norm: Tensor
    output: Tensor
    eps: float
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, last: Tensor) -> Tensor:
        """float[n, rows]."""
        normed = last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm
        with products(last.device, mixed=False):  # a logit of 20 in bfloat16 may be off by 0.06
            found = F.linear(normed, self.output) * self.scale
        return found if self.softcap is None else self.softcap * torch.tanh(found / self.softcap)


class Examples:
    """The texts of a run, and the records of their tokens, as examples.

    order: for each state that the head reads, which of the layout's taps it is.
    """

    def __init__(self, texts: Sequence[Text], store: StateStore, order: Sequence[int], steps: int) -> None:
        self._texts, self._store, self._order, self._steps = texts, store, list(order), steps
        self.training, self.held_out = divided(texts, lambda text: len(text.ids) > steps + 2)

    def rows(self, index: int) -> int:
        return len(self._texts[index].ids) - 2

    def __getitem__(self, index: int) -> Example:
        text, records = self._texts[index], self._store.of(index)
        count = len(text.ids) - 2
        states = np.asarray(records["states"][:, self._order][:count], np.float32).reshape(count, -1)
        answer = max(0, len(text.prompt) - 2)
        return Example(
            torch.from_numpy(states),
            torch.tensor(text.ids[1:], dtype=torch.int64),
            torch.from_numpy(np.asarray(records["states"][1:, -1], np.float32)),
            torch.from_numpy(np.asarray(records["likeliest"][1:], np.int64)),
            max(0, answer - self._steps + 1),
            answer,
        )

    def deviation(self, texts: int = 32) -> Tensor:
        """float[states * hidden]: the root mean square of the columns, over the first texts."""
        found = [self[i].states.double().pow(2) for i in self.training[:texts]]
        return torch.cat(found).mean(0).sqrt().float()


def losses(
    head: Head, target: Target, example: Example, steps: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each step of the training-time test: the mean loss of a text, the head's logits,
    float[rows - first, ids], and bool[rows - first], whether the text goes on so far.

    The loss is the cross entropy to the target's probabilities on the head's ids, where the target's
    likeliest token is one of them.
    """
    count, first = len(example.states), example.first
    with torch.no_grad():
        wanted = torch.softmax(target.logits(example.last[first:]), dim=-1)
        known = torch.isin(example.likeliest[first:], target.ids)
    padded = F.pad(example.tokens, (0, steps))  # what lies behind the text's end is masked
    given = head.unroll(example.states[None], padded[None], steps, first)
    place = torch.arange(first, count, device=wanted.device)
    for k, rows in enumerate(given):
        logits = head.logits(rows[0]).float()
        there = count - first - k  # the draft's token k is judged by what the target wants k tokens on
        usable = torch.zeros(count - first, dtype=torch.bool, device=wanted.device)
        usable[:there] = place[:there] + k >= example.answer
        counted = usable[:there] & known[k:]
        each = torch.logsumexp(logits[:there], -1) - (logits[:there] * wanted[k:]).sum(-1)
        mean = (each * counted).sum() / counted.sum().clamp_min(1)
        yield mean, logits, usable


def loss_of(head: Head, target: Target, example: Example, steps: int) -> Tensor:
    """The weighted mean over the steps."""
    weights = [DECAY**k for k in range(steps)]
    parts = [mean for mean, _, _ in losses(head, target, example, steps)]
    return torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum() / sum(weights)


class HeadLesson:
    """A head, and what it learns from; see `Lesson`.

    mixed: whether products are of bfloat16; None: where the device has them.
    """

    evaluations = EVALUATIONS

    def __init__(
        self, head: Head, target: Target, examples: Examples, steps: int, *, mixed: bool | None = None
    ) -> None:
        self.head, self.target, self.examples, self._steps = head, target, examples, steps
        device = target.output.device
        self._mixed = mixed_precision(device) if mixed is None else mixed
        self.training = examples.training
        self.rows = examples.rows

    @property
    def tag(self) -> Tensor:
        return self.target.ids

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return dict(self.head.named_parameters())

    def loss(self, index: int) -> Tensor:
        with self._products():
            return loss_of(self.head, self.target, self._example(index), self._steps)

    def held(self) -> Held:
        steps = self._steps
        total = Acceptance(0, (0,) * steps)
        with torch.no_grad(), self._products():
            for index in self.examples.held_out:
                example = self._example(index)
                wanted = F.pad(example.likeliest[example.first :], (0, steps), value=-1)
                right, possible = [], []
                for k, (_, logits, usable) in enumerate(losses(self.head, self.target, example, steps)):
                    found = logits.argmax(-1)
                    same = self.target.ids[found] == wanted[k : k + len(found)]
                    right.append(same.cpu().numpy())
                    possible.append(usable.cpu().numpy())
                total += accepted(right, possible)
        return Held(total)

    def _products(self) -> torch.autocast:
        return products(self.target.output.device, self._mixed)

    def _example(self, index: int) -> Example:
        made, device = self.examples[index], self.target.output.device
        if device.type == "cpu":
            return made
        return Example(
            made.states.to(device),
            made.tokens.to(device),
            made.last.to(device),
            made.likeliest.to(device),
            made.first,
            made.answer,
        )
