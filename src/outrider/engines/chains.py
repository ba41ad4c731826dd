"""The seam for models that draft by themselves: chains of tokens, without the logits between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.base import Cache

LONGEST = 64  # tokens of a chain


@dataclass(frozen=True, slots=True, eq=False)
class ChainStart:
    """Where a sequence's draft begins.

    cache:    of the model, with room for `tokens` and all drafted tokens but the last.
    tokens:   the tokens after those in the cache, at least one; the first drafted token follows them.
    params:   of which temperature, top_k, top_p and min_p count.
    seed:     of the noise, 64-bit.
    position: index in the target's sequence of the first drafted token.
    budget:   how many tokens are drafted, 1 .. LONGEST.
    """

    cache: Cache
    tokens: Sequence[int]
    params: SamplingParams
    seed: int
    position: int
    budget: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Drafted tokens, and for each by how much its score with noise (at temperature 0 its logit) exceeds that
    of the token that comes second; inf where none comes near."""

    tokens: list[int]
    margins: list[float]


class Chains(Protocol):
    """Drafts with the target's noise, as the rule `coupled` wants, at temperature 0 greedily."""

    def draft(self, starts: Sequence[ChainStart]) -> list[Chain]:
        """One chain of `budget` tokens for each start. The caches have the tokens before them and all drafted
        ones but the last after that. Raises ValueError for a budget out of range or a cache without room, and
        what `LanguageModel.forward` raises."""


@runtime_checkable
class ChainModel(Protocol):
    """A `LanguageModel` that may draft by itself."""

    def chains(self, common_size: int) -> Chains | None:
        """What drafts tokens below `common_size`; None where each token is drawn from `forward`'s logits."""
