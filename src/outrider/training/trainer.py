"""Fits a head to its target's texts: loss, updates of the weights, checkpoints, and the held-out texts."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from outrider.errors import ConfigError, ModelFileError
from outrider.training.head import Head
from outrider.training.progress import Acceptance, accepted, pays
from outrider.training.settings import Settings
from outrider.training.states import StateStore
from outrider.training.texts import Text

DECAY = 0.8  # of the weight of each step of the training-time test, as in EAGLE-3
BETAS = (0.9, 0.95)
CLIP = 0.5  # most length of a gradient
WARM_UP = 0.05  # of the updates
LAST_RATE = 0.1  # of the highest learning rate, at the end
EVALUATIONS = 20  # in a whole training
MOST_HELD_OUT = 48  # texts
SAVE_SECONDS = 60.0


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
        found = F.linear(normed, self.output) * self.scale
        return found if self.softcap is None else self.softcap * torch.tanh(found / self.softcap)


class Examples:
    """The texts of a run, and the records of their tokens, as examples.

    order: for each state that the head reads, which of the layout's taps it is.
    """

    def __init__(self, texts: Sequence[Text], store: StateStore, order: Sequence[int], steps: int) -> None:
        self._texts, self._store, self._order, self._steps = texts, store, list(order), steps
        usable = [i for i, text in enumerate(texts) if len(text.ids) > steps + 2]
        self.training = [i for i in usable if not texts[i].held_out]
        self.held_out = [i for i in usable if texts[i].held_out][:MOST_HELD_OUT]
        if not self.training or not self.held_out:
            raise ConfigError(
                "there are too few texts to train on some and test on others: give more --tokens"
            )

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
    """For each step of the training-time test: the mean loss of a text, what the head finds likeliest,
    int64[rows - first] places in its output, and bool[rows - first], whether the text goes on so far.

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
        logits = head.logits(rows[0])
        there = count - first - k  # the draft's token k is judged by what the target wants k tokens on
        usable = torch.zeros(count - first, dtype=torch.bool, device=wanted.device)
        usable[:there] = place[:there] + k >= example.answer
        counted = usable[:there] & known[k:]
        each = torch.logsumexp(logits[:there], -1) - (logits[:there] * wanted[k:]).sum(-1)
        mean = (each * counted).sum() / counted.sum().clamp_min(1)
        yield mean, logits.detach().argmax(-1), usable


def loss_of(head: Head, target: Target, example: Example, steps: int) -> Tensor:
    """The weighted mean over the steps."""
    weights = [DECAY**k for k in range(steps)]
    parts = [mean for mean, _, _ in losses(head, target, example, steps)]
    return torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum() / sum(weights)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """updates: of the weights so far; tokens: trained on so far, epochs counted; loss: of the texts since the
    evaluation before."""

    updates: int
    tokens: int
    loss: float
    acceptance: Acceptance


@dataclass(slots=True)
class State:
    """What a checkpoint has beside the weights."""

    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0  # the sum since the last evaluation, of `texts` texts
    texts: int = 0
    history: list[Evaluation] = field(default_factory=list)


class Trainer:
    """Trains a head on a run's examples. Equal settings and examples give equal weights, on the CPU bit for
    bit, however often it was interrupted.

    shown: told of each evaluation.
    """

    def __init__(
        self,
        head: Head,
        target: Target,
        examples: Examples,
        settings: Settings,
        *,
        checkpoint: Path,
        shown: Callable[[Trainer, Evaluation], object] = lambda *_: None,
    ) -> None:
        self.head, self.target, self.examples, self.settings = head, target, examples, settings
        self._checkpoint, self._shown = checkpoint, shown
        self._device = target.output.device
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in head.parameters() if p.ndim == 2], "weight_decay": 0.01},
                {"params": [p for p in head.parameters() if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=settings.rate,
            betas=BETAS,
        )
        self.state = State()
        self.per_epoch = -(-len(examples.training) // settings.batch)
        self.updates = self.per_epoch * settings.epochs
        self._every = max(1, self.updates // EVALUATIONS)
        if checkpoint.exists():
            self._load()

    @property
    def all_tokens(self) -> int:
        """To train on, epochs counted."""
        return self.settings.epochs * sum(map(self.examples.rows, self.examples.training))

    @property
    def pays(self) -> bool:
        """Whether more training still makes a difference."""
        parts = [(e.updates / self.updates, e.acceptance.tokens_per_pass) for e in self.state.history]
        return pays(parts)

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until `stop` says so. Keeps a checkpoint. Returns whether it is the end."""
        if not self.state.history:
            self._evaluate()
        began = saved = time.monotonic()
        before = self.state.seconds
        while self.state.updates < self.updates and not stop():
            self._update()
            now = time.monotonic()
            self.state.seconds = before + now - began
            if self.state.updates % self._every == 0 or self.state.updates == self.updates:
                self._evaluate()
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = now
        self.save()
        return self.state.updates == self.updates

    def _update(self) -> None:
        """One update of the weights, from one batch of texts."""
        epoch, number = divmod(self.state.updates, self.per_epoch)
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(self.examples.training)
        batch = order[number * self.settings.batch : (number + 1) * self.settings.batch]
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.zero_grad(set_to_none=True)
        for index in batch:
            loss = loss_of(self.head, self.target, self._example(int(index)), self.settings.steps)
            (loss / len(batch)).backward()
            self.state.loss += float(loss.detach())
            self.state.texts += 1
            self.state.tokens += self.examples.rows(int(index))
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), CLIP)
        self._optimizer.step()
        self.state.updates += 1

    def _rate(self) -> float:
        """Rises to the highest, then falls along a cosine."""
        warm = max(1, int(WARM_UP * self.updates))
        at = self.state.updates
        if at < warm:
            return self.settings.rate * (at + 1) / warm
        part = (at - warm) / max(1, self.updates - warm)
        return self.settings.rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * part)) / 2)

    def _example(self, index: int) -> Example:
        made = self.examples[index]
        if self._device.type == "cpu":
            return made
        return Example(
            made.states.to(self._device),
            made.tokens.to(self._device),
            made.last.to(self._device),
            made.likeliest.to(self._device),
            made.first,
            made.answer,
        )

    def _evaluate(self) -> None:
        acceptance = self.acceptance()
        loss = self.state.loss / max(1, self.state.texts)
        self.state.history.append(Evaluation(self.state.updates, self.state.tokens, loss, acceptance))
        self.state.loss, self.state.texts = 0.0, 0
        self._shown(self, self.state.history[-1])

    def acceptance(self) -> Acceptance:
        """On the held-out texts."""
        steps = self.settings.steps
        total = Acceptance(0, (0,) * steps)
        with torch.no_grad():
            for index in self.examples.held_out:
                example = self._example(index)
                wanted = F.pad(example.likeliest[example.first :], (0, steps), value=-1)
                right, possible = [], []
                for k, (_, found, usable) in enumerate(losses(self.head, self.target, example, steps)):
                    same = self.target.ids[found] == wanted[k : k + len(found)]
                    right.append(same.cpu().numpy())
                    possible.append(usable.cpu().numpy())
                total += accepted(right, possible)
        return total

    # --- Checkpoints -------------------------------------------------------------------------------

    def save(self) -> None:
        """Keep everything that training goes on from."""
        state = asdict(self.state)
        document = {
            "ids": self.target.ids.cpu(),
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "state": state,
        }
        new = self._checkpoint.with_name(self._checkpoint.name + ".new")
        torch.save(document, new)
        os.replace(new, self._checkpoint)

    def _load(self) -> None:
        """Raises ModelFileError for a damaged checkpoint, or one of other texts."""
        try:
            found: dict[str, Any] = torch.load(self._checkpoint, map_location=self._device, weights_only=True)
            if not torch.equal(found["ids"].to(self._device), self.target.ids):
                raise ValueError
            self.head.load_state_dict(found["head"])
            self._optimizer.load_state_dict(found["optimizer"])
            state = found["state"]
            history = [
                Evaluation(
                    **{
                        **e,
                        "acceptance": Acceptance(
                            e["acceptance"]["drafts"], tuple(e["acceptance"]["accepted"])
                        ),
                    }
                )
                for e in state.pop("history")
            ]
            self.state = State(**state, history=history)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError):
            raise ModelFileError(
                f"{self._checkpoint}: is damaged, or of other texts; delete it to train again from the start"
            ) from None
