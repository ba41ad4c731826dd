"""How good a draft is on texts that it was not trained on, and whether it still gets better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Flags: TypeAlias = npt.NDArray[np.bool_]

EVALUATIONS = 4  # the last ones, over which a gain is measured
EARLIEST = 0.4  # of the training: before that, a head that learns nothing yet may still learn
LEAST_GAIN = 0.01  # of tokens per pass, over a tenth of the training: less does not pay


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of drafts along held-out texts, as in greedy decoding: a token is accepted where it is the target's
    likeliest, and all before it in the draft were.

    drafts:   places where a draft began.
    accepted: of these, how many had the first token right, the first two, and so on.
    """

    drafts: int
    accepted: tuple[int, ...]

    @property
    def by_position(self) -> tuple[float, ...]:
        """The probability that a position is accepted, given that the one before was."""
        before = (self.drafts, *self.accepted)
        return tuple(n / max(1, b) for n, b in zip(self.accepted, before, strict=False))

    @property
    def reached(self) -> tuple[float, ...]:
        """The probability that a position is accepted, and all before it."""
        return tuple(n / max(1, self.drafts) for n in self.accepted)

    @property
    def tokens_per_pass(self) -> float:
        """Expected with drafts of all positions: the target's own token, and each that is accepted."""
        return 1 + sum(self.accepted) / max(1, self.drafts)

    def __add__(self, other: Acceptance) -> Acceptance:
        pairs = zip(self.accepted, other.accepted, strict=True)
        return Acceptance(self.drafts + other.drafts, tuple(a + b for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Likeness:
    """How like its target a draft model is, at places of held-out answers, given the text so far.

    places:  tokens of answers.
    agreed:  of these, at how many the likeliest token of both is the same.
    overlap: the sum over the places of the sum over the tokens of the smaller of both probabilities: what is
             accepted when tokens are drawn (Leviathan et al. 2023), at temperature 1.
    """

    places: int
    agreed: int
    overlap: float

    @property
    def agreement(self) -> float:
        """The share of places."""
        return self.agreed / max(1, self.places)

    @property
    def mean_overlap(self) -> float:
        """The mean of the places."""
        return self.overlap / max(1, self.places)

    def __add__(self, other: Likeness) -> Likeness:
        return Likeness(self.places + other.places, self.agreed + other.agreed, self.overlap + other.overlap)


@dataclass(frozen=True, slots=True)
class Held:
    """What was found on the held-out texts. likeness: of a draft model; None for a head."""

    acceptance: Acceptance
    likeness: Likeness | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """updates: of the weights so far; tokens: trained on so far, epochs counted; loss: of the texts since the
    evaluation before."""

    updates: int
    tokens: int
    loss: float
    held: Held

    @staticmethod
    def read(found: Mapping[str, Any]) -> Evaluation:
        """From what `asdict` made of one. Raises KeyError or TypeError."""
        held = found["held"]
        acceptance, likeness = held["acceptance"], held["likeness"]
        return Evaluation(
            found["updates"],
            found["tokens"],
            found["loss"],
            Held(
                Acceptance(acceptance["drafts"], tuple(acceptance["accepted"])),
                None if likeness is None else Likeness(**likeness),
            ),
        )


def accepted(right: Sequence[Flags], possible: Sequence[Flags]) -> Acceptance:
    """The acceptance of one text.

    right:    for each position of a draft, bool[places where drafts begin]: its token is the target's.
    possible: the same: the text goes on so far. Drafts count that all positions are possible of.
    """
    whole = np.logical_and.reduce(possible)
    counts = []
    so_far = whole
    for one in right:
        so_far = so_far & one
        counts.append(int(so_far.sum()))
    return Acceptance(int(whole.sum()), tuple(counts))


def chains(right: Flags, steps: int) -> Acceptance:
    """The acceptance of drafts of `steps` tokens that begin at each place of a text and follow it.

    right: bool[places]: the draft's token is the target's there, given the text so far.
    """
    count = max(0, len(right) - steps + 1)
    return accepted([right[k : k + count] for k in range(steps)], [np.ones(count, np.bool_)] * steps)


def worse(first: Held, last: Held) -> bool:
    """Whether training has done harm: it began with a draft whose drafts went further."""
    return last.acceptance.tokens_per_pass < first.acceptance.tokens_per_pass


def gain(history: Sequence[tuple[float, float]]) -> float | None:
    """What a tenth of the whole training added lately; None before it can be said.

    history: (part of the training that is done, tokens per pass) of the evaluations.
    """
    if len(history) < EVALUATIONS:
        return None
    done, values = np.array(history[-EVALUATIONS:]).T
    slope = float(np.polyfit(done, values, 1)[0])
    return slope / 10


def pays(history: Sequence[tuple[float, float]]) -> bool:
    """Whether more training still makes a difference, as far as can be told."""
    found = gain(history)
    return found is None or history[-1][0] < EARLIEST or found >= LEAST_GAIN
