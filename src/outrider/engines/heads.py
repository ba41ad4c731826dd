"""The seam between a drafter and the engine that computes a head on the target (EAGLE-3, Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import Cache
from outrider.policy.tree_growth import TreeGrowth

# Of more rows than these, all but the last are computed in a pass without logits before it: of them, keys and
# values are all that is needed, which takes a quarter less than with the last one's logits in the same pass.
TOGETHER = 16


@dataclass(frozen=True, slots=True, eq=False)
class HeadItem:
    """One sequence's share of a head's pass: n new tokens, a chain after everything in `cache`.

    tokens: int32[n], of the target's vocabulary.
    states: float32[n, columns], the hidden states that each comes with, see `HeadModel.forward_head`.
    rows:   int32[m], the new tokens whose logits are wanted (may be empty: prefill).
    """

    cache: Cache
    tokens: IntArray
    states: FloatArray
    rows: IntArray


class HeadModel(Protocol):
    """The weights of a head."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits: the head's own vocabulary."""

    @property
    def token_count(self) -> int:
        """Ids of the tokens that it reads: the target's vocabulary."""

    @property
    def hidden_size(self) -> int:
        """Columns of what is fed back."""

    @property
    def state_width(self) -> int:
        """Columns of the target's hidden states that a token comes with."""

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for at most `capacity` positions."""

    def forward_head(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """One pass.

        fed_back: whether the states are what the head gave for the token before each, float32[n,
                  hidden_size]; else they are the target's, float32[n, state_width].
        Returns (logits, states): float32[m, vocab_size] and float32[m, hidden_size] for each item; the
        states are what is fed back with the next token. The new tokens stay in the caches, which the caller
        truncates. Raises ValueError for ids outside the vocabulary, states of another size or a full cache,
        before any cache is changed.
        """


@dataclass(slots=True, eq=False)
class HeadDraftJob:
    """One draft that `DraftingHead.draft` makes.

    cache, tokens, states: as in HeadItem, of the rows that are computed first; at least one.
    path:      tokens that follow them, before anything is drawn.
    position:  of the first drawn token in its sequence.
    budget:    most nodes, at least 1.
    sampler:   draws the tokens, and adjusts no logits.
    growth:    directs where a tree grows; None for a chain.
    confident: whether the confidence in each token is wanted; a growth asks for it.
    """

    cache: Cache
    tokens: list[int]
    states: FloatArray
    path: list[int]
    position: int
    budget: int
    sampler: Sampler
    growth: TreeGrowth | None
    confident: bool


@runtime_checkable
class DraftingHead(Protocol):
    """A head that makes whole drafts by itself, in less time than a pass and a draw at a time take: those of
    coupled drawing, see `outrider.drafters.drawing`."""

    def can_draw(self, sampler: Sampler) -> bool:
        """Whether it draws what this sampler draws."""

    def draft(
        self, jobs: Sequence[HeadDraftJob], ids: IntArray | None
    ) -> tuple[list[tuple[list[int], list[int], list[float]]], list[int]]:
        """All drafts, in the same passes.

        ids: int32[vocab_size], ascending, the target's ids of the logits; None where they are the same.
        Returns ((tokens, parents, confidence) of each, as in `Draft`; confidence is empty where it is not
        wanted), and how many drafts there were in each pass after the first. Raises as `forward_head`.
        """
