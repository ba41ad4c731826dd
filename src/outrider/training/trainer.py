"""Fits weights to a target's texts: updates, checkpoints, and evaluations on texts that are held out.

What is fitted, a head or a draft model, is a `Lesson`.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from outrider.errors import ModelFileError
from outrider.training.progress import Evaluation, Held, pays
from outrider.training.schedule import rate
from outrider.training.settings import Settings

BETAS = (0.9, 0.95)
CLIP = 0.5  # most length of a gradient
SAVE_SECONDS = 60.0
SAVE_SHARE = 20  # a checkpoint is kept after so many times what the one before took


class Lesson(Protocol):
    """Weights, and what they learn from.

    training:    numbers of the texts to train on.
    evaluations: in a whole training.
    tag:         int64[n], what a checkpoint must have been made with to fit these weights.
    """

    @property
    def training(self) -> Sequence[int]: ...

    @property
    def evaluations(self) -> int: ...

    @property
    def tag(self) -> Tensor: ...

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """What is trained, by name."""

    def rows(self, index: int) -> int:
        """Tokens of a text that are read."""

    def loss(self, index: int) -> Tensor:
        """The mean loss of a text, with its gradient."""

    def held(self) -> Held:
        """How good the weights are on the held-out texts."""


def adam(weights: Collection[Tensor], rate: float) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019); norms and biases do not decay."""
    return torch.optim.AdamW(
        [
            {"params": [p for p in weights if p.ndim == 2], "weight_decay": 0.01},
            {"params": [p for p in weights if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=rate,
        betas=BETAS,
        fused=True,  # one pass over the weights, which the memory's bandwidth limits
    )


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
    """Trains on a run's examples. Equal settings and examples give equal weights, on the CPU bit for bit,
    however often it was interrupted.

    shown: told of each evaluation.
    """

    def __init__(
        self,
        lesson: Lesson,
        settings: Settings,
        *,
        checkpoint: Path,
        shown: Callable[[Trainer, Evaluation], object] = lambda *_: None,
    ) -> None:
        self.lesson, self.settings = lesson, settings
        self._checkpoint, self._shown = checkpoint, shown
        self._parameters = dict(lesson.parameters)
        weights = self._parameters.values()
        self._device = next(iter(weights)).device
        self._optimizer = adam(weights, settings.rate)
        self.state = State()
        self.per_epoch = -(-len(lesson.training) // settings.batch)
        self.updates = self.per_epoch * settings.epochs
        self._every = max(1, self.updates // lesson.evaluations)
        if checkpoint.exists():
            self._load()

    @property
    def all_tokens(self) -> int:
        """To train on, epochs counted."""
        return self.settings.epochs * sum(map(self.lesson.rows, self.lesson.training))

    @property
    def pays(self) -> bool:
        """Whether more training still makes a difference."""
        parts = [(e.updates / self.updates, e.held.acceptance.tokens_per_pass) for e in self.state.history]
        return pays(parts)

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until `stop` says so. Keeps a checkpoint. Returns whether it is the end."""
        if not self.state.history:
            self._evaluate()
        began = saved = time.monotonic()
        before, saving = self.state.seconds, 0.0
        while self.state.updates < self.updates and not stop():
            self._update()
            now = time.monotonic()
            self.state.seconds = before + now - began
            if self.state.updates % self._every == 0 or self.state.updates == self.updates:
                self._evaluate()
            if now - saved > max(SAVE_SECONDS, SAVE_SHARE * saving):
                self.save()
                saved = time.monotonic()
                saving = saved - now
        self.save()
        return self.state.updates == self.updates

    def _update(self) -> None:
        """One update of the weights, from one batch of texts."""
        epoch, number = divmod(self.state.updates, self.per_epoch)
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(self.lesson.training)
        batch = order[number * self.settings.batch : (number + 1) * self.settings.batch]
        for group in self._optimizer.param_groups:
            group["lr"] = rate(self.state.updates, self.updates, self.settings.rate)
        self._optimizer.zero_grad(set_to_none=True)
        for index in batch:
            loss = self.lesson.loss(int(index))
            (loss / len(batch)).backward()
            self.state.loss += float(loss.detach())
            self.state.texts += 1
            self.state.tokens += self.lesson.rows(int(index))
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), CLIP)
        self._optimizer.step()
        self.state.updates += 1

    def _evaluate(self) -> None:
        held = self.lesson.held()
        loss = self.state.loss / max(1, self.state.texts)
        self.state.history.append(Evaluation(self.state.updates, self.state.tokens, loss, held))
        self.state.loss, self.state.texts = 0.0, 0
        self._shown(self, self.state.history[-1])

    # --- Checkpoints -------------------------------------------------------------------------------

    def save(self) -> None:
        """Keep everything that training goes on from."""
        document = {
            "tag": self.lesson.tag.cpu(),
            "weights": {name: weight.detach() for name, weight in self._parameters.items()},
            "optimizer": self._optimizer.state_dict(),
            "state": asdict(self.state),
        }
        new = self._checkpoint.with_name(self._checkpoint.name + ".new")
        torch.save(document, new)
        os.replace(new, self._checkpoint)

    def _load(self) -> None:
        """Raises ModelFileError for a damaged checkpoint, or one of other texts."""
        try:
            found: dict[str, Any] = torch.load(self._checkpoint, map_location=self._device, weights_only=True)
            if not torch.equal(found["tag"].cpu(), self.lesson.tag.cpu()):
                raise ValueError
            if found["weights"].keys() != self._parameters.keys():
                raise ValueError
            with torch.no_grad():
                for name, weight in self._parameters.items():
                    if found["weights"][name].shape != weight.shape:
                        raise ValueError
                    weight.copy_(found["weights"][name])
            self._optimizer.load_state_dict(found["optimizer"])
            state = found["state"]
            history = [Evaluation.read(e) for e in state.pop("history")]
            self.state = State(**state, history=history)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RuntimeError,
            EOFError,
            pickle.UnpicklingError,
        ):
            raise ModelFileError(
                f"{self._checkpoint}: is damaged, or of other texts; delete it to train again from the start"
            ) from None
