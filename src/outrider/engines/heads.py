"""The seam between a drafter and the engine that computes a head on the target (EAGLE-3, Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import Cache


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
