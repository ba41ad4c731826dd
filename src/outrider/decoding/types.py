"""The data of a step: what a drafter proposes, what the target computes, what a verifier decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]

NextKind: TypeAlias = Literal["recovered", "bonus"]
TokenKind: TypeAlias = Literal["accepted", "recovered", "bonus"]


class Distribution(NamedTuple):
    """Probabilities of the tokens that have any.

    ids:   int64[k], ascending.
    probs: float64[k], not negative, with the sum 1; every other token has probability 0.
    """

    ids: npt.NDArray[np.int64]
    probs: npt.NDArray[np.float64]

    @staticmethod
    def point(token: int) -> Distribution:
        """All on one token."""
        return Distribution(np.array([token], np.int64), np.ones(1))

    def of(self, token: int) -> float:
        """The probability of one token."""
        at = int(self.ids.searchsorted(token))
        return float(self.probs[at]) if at < len(self.ids) and self.ids[at] == token else 0.0


Probs: TypeAlias = tuple[Distribution | None, ...]

_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The tokens that a drafter proposes for one step: a tree of n nodes, in topological order.

    tokens:  int32[n], token ids.
    parents: int32[n], index of each node's parent, always smaller than the node's own index;
             -1 means a child of the anchor (the last emitted token).
    probs:   for each node the distribution that it was drawn from, or None for a point mass; None for
             all of them (lookup drafters, and every drafter under the `coupled` rule).
    source:  name of the drafter, for metrics.
    sources: for each node the name of its drafter, in a draft of several; None if it is `source` for all.

    A stated distribution must be the one that the node was drawn from, given the path to the node, the
    siblings before it (so without them, if they were excluded) and that the node exists: whether a node is
    left out must not depend on its token. None is always correct: the rule then treats the token as given.
    """

    tokens: IntArray
    parents: IntArray
    probs: Probs | None = None
    source: str = "none"
    sources: tuple[str, ...] | None = None

    def origin(self, node: int) -> str:
        """The name of the drafter that proposed a node."""
        return self.source if self.sources is None else self.sources[node]

    def count_of(self, source: str, path: Sequence[int]) -> tuple[int, int]:
        """(how many nodes a drafter proposed, how many of those on a path)."""
        if self.sources is None:
            return (len(self), len(path)) if self.source == source else (0, 0)
        return self.sources.count(source), sum([self.sources[node] == source for node in path])

    def __len__(self) -> int:
        return len(self.tokens)

    def distribution(self, node: int) -> Distribution:
        """What a node was drawn from."""
        stated = None if self.probs is None else self.probs[node]
        return Distribution.point(int(self.tokens[node])) if stated is None else stated

    def after(self, tokens: Sequence[int], source: str) -> Draft:
        """One draft: a chain of tokens (point masses) from another source, then this draft."""
        if not tokens:
            return self
        count = len(tokens)
        chain = Draft.chain(tokens, source)
        own = tuple(self.origin(node) for node in range(len(self)))
        return Draft(
            np.concatenate((chain.tokens, self.tokens)),
            np.concatenate((chain.parents, self.parents + np.int32(count))),
            None if self.probs is None else ((None,) * count + self.probs),
            self.source,
            (source,) * count + own,
        )

    @staticmethod
    def empty(source: str = "none") -> Draft:
        """A draft of length 0: the step is then plain decoding."""
        return Draft(_NOTHING, _NOTHING, None, source)

    @staticmethod
    def chain(tokens: npt.ArrayLike, source: str, probs: Probs | None = None) -> Draft:
        """A draft in which every token follows the one before it."""
        ids = np.asarray(tokens, dtype=np.int32).reshape(-1)
        return Draft(ids, np.arange(-1, len(ids) - 1, dtype=np.int32), probs, source)


class DrawnRows(NamedTuple):
    """The tokens of rows that the engine drew itself (`drawing`).

    tokens:    the token of each row, UNDRAWN where the request's sampler must draw it.
    likeliest: about the probability of each row's likeliest token at temperature 1.
    """

    tokens: list[int]
    likeliest: list[float]


class TargetScores:
    """What the target's pass gives for one sequence and one step, of a draft of n nodes.

    logits: float32[n + 1, vocab]; row 0 follows the anchor, row i + 1 follows draft node i. A function that
            returns them when they are first asked for, where they lie on a device: it raises RuntimeError
            when the engine has gone on to the next pass.
    hidden: float32[n + 1, taps * hidden size], the hidden states of anchor and nodes, for a drafter that
            declares `taps`, else None.
    drawn:  the rows' tokens, where the engine drew them.
    """

    __slots__ = ("_logits", "drawn", "hidden")

    def __init__(
        self,
        logits: FloatArray | Callable[[], FloatArray],
        hidden: FloatArray | None = None,
        drawn: DrawnRows | None = None,
    ) -> None:
        self._logits, self.hidden, self.drawn = logits, hidden, drawn

    @property
    def logits(self) -> FloatArray:
        if not isinstance(self._logits, np.ndarray):
            self._logits = self._logits()
        return self._logits


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier keeps of a draft: the accepted nodes, in order from the anchor, and one more token.

    path:       indices into the draft; each one's parent is the one before it (the first's is -1).
    next_token: the target's own token after the path.
    next_kind:  "bonus" when the path ended at a leaf of the draft (an empty draft included),
                "recovered" when the target left the draft where it still had children.
    """

    path: tuple[int, ...]
    next_token: int
    next_kind: NextKind

    @staticmethod
    def ending(draft: Draft, path: Sequence[int]) -> Verdict:
        """The verdict that emits a path's tokens (at least one) and none after them."""
        return Verdict(tuple(path[:-1]), int(draft.tokens[path[-1]]), "recovered")


@dataclass(slots=True)
class StepRecord:
    """Counts and seconds of one step of one request, for metrics and the controller.

    emitted counts the tokens kept after stop checks; drafted and accepted are as verified.
    Seconds are this request's share of a batch's wall time; sampling_seconds is the part of
    other_seconds that verifying and sampling took. The first `forced` of the drafted tokens are those that
    the request's constraint left no choice about; `source` proposed the others. `width` counts the tokens of
    the whole pass: all sequences' drafts, anchors and prompt tokens. `certain` has the target's probability
    of its likeliest token, for as many rows as the controller wanted. `predicted` counts the drafted tokens
    that the request's prediction proposed, and those of them that were emitted; `earlier` the same of what
    only other requests' outputs had. `rejected_depth` is where the target left the draft (1: a child of the
    anchor), if it did and its own token there was emitted, else 0.
    """

    source: str
    drafted: int
    accepted: int
    emitted: int
    draft_seconds: float
    verify_seconds: float
    other_seconds: float
    accepted_depths: tuple[int, ...] = field(default=())
    sampling_seconds: float = 0.0
    forced: int = 0
    width: int = 0
    certain: tuple[float, ...] = ()
    predicted: tuple[int, int] = (0, 0)
    earlier: tuple[int, int] = (0, 0)
    rejected_depth: int = 0
