"""The seams between the step loop and whatever computes logits.

A `LanguageModel` is one set of weights with caches that a caller may extend and roll back. The
draft model drafter uses it directly. `StepEngine` is the target's view of it: open, score, commit,
close, with the anchor rule (the last emitted token is emitted, but not yet in the cache).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from outrider.decoding.drawing import RowDraws
from outrider.decoding.types import Draft, DrawnRows, FloatArray, IntArray, TargetScores, Verdict
from outrider.engines.hidden import HiddenStates


@runtime_checkable
class Cache(Protocol):
    """The keys and values of one sequence. Rolling back costs O(1), keeping a path O(path).

    A cache may go back to 0, and to any length from the one before its last pass on. Where layers have a
    sliding window, it may have given back the positions that others need: see `roll_back`.
    """

    @property
    def length(self) -> int:
        """Committed and uncommitted positions held, in tokens."""

    @property
    def capacity(self) -> int:
        """Most positions that this cache may hold."""

    def truncate(self, length: int) -> None:
        """Drop every position from `length` on. Raises ValueError when length > self.length, and for a
        length that it cannot go back to."""

    def keep(self, base: int, slots: Sequence[int]) -> None:
        """Keep positions 0..base-1 and then, in order, the ones at `slots` (absolute, ascending,
        all >= base): the path of a tree becomes a chain. `length` is base + len(slots) after."""

    def close(self) -> None:
        """Free the memory. Any later use raises ValueError."""


def roll_back(cache: Cache, length: int) -> int:
    """Truncate `cache` to `length`, or to 0 where it cannot go back so far. Returns its length.

    A cache with sliding windows has a `rollback_floor`: the shortest length but 0 that it can go back to.
    """
    kept = 0 if length < getattr(cache, "rollback_floor", 0) else length
    cache.truncate(kept)
    return kept


@runtime_checkable
class CacheBlocks(Protocol):
    """Keys and values of some positions, shared by caches and a prefix cache.

    whole: False where layers with a sliding window had given back these positions already.
    """

    @property
    def nbytes(self) -> int: ...

    @property
    def whole(self) -> bool: ...


@runtime_checkable
class SharingCache(Cache, Protocol):
    """A cache whose positions other caches of the same model can take over, without computing them again."""

    def share(self, start: int, stop: int) -> CacheBlocks:
        """Positions start..stop-1, both multiples of the model's `share_unit`. They stay as they are,
        whatever this cache does next. Raises ValueError for positions that it does not hold."""

    def adopt(self, blocks: CacheBlocks) -> None:
        """Append blocks, at the positions where they were shared: `length`, a multiple of `share_unit`, must
        be their start. They are valid after the same text only, which the caller ensures. Passes may follow
        when the blocks of the last `share_window` - 1 positions are whole. Raises ValueError when they do not
        fit."""


class PaddedCache(Cache, Protocol):
    """A cache that can be long without anything computed: to measure what a pass takes there."""

    def pad(self, count: int) -> None:
        """Append `count` positions of no meaning. Raises ValueError where they do not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class ForwardItem:
    """One sequence's share of a forward pass: n new tokens appended to `cache`.

    tokens:  int32[n].
    parents: int32[n]; -1 follows everything in the cache, i >= 0 follows new token i (i < own
             index). A token sees the cache and its ancestors. Its position is cache length + depth.
    rows:    int32[m], the new tokens whose logits are wanted (may be empty: prefill).
    """

    cache: Cache
    tokens: IntArray
    parents: IntArray
    rows: IntArray


@dataclass(frozen=True, slots=True)
class EngineCaps:
    """What a model can do. Matched against the needs of drafter and verifier when the loop is built.

    tree_attention: scores drafts that branch.
    exact_bits:     a token's logits depend on its prefix only, bit for bit (promise 1).
    hidden_states:  gives the hidden states of named layers, see `HiddenStateModel`.
    draws_rows:     draws the tokens of rows where the logits are, see `DrawingModel`.
    whole_prompts:  so many tokens, of which each costs less the more share its pass: prompts are computed in
                    passes as wide as that and as requests may wait for, and the last one scores the anchor,
                    too. 0: neither.
    """

    tree_attention: bool
    exact_bits: bool
    hidden_states: bool = False
    draws_rows: bool = False
    whole_prompts: int = 0


class LanguageModel(Protocol):
    """Weights that turn tokens into logits."""

    @property
    def caps(self) -> EngineCaps: ...

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding included."""

    @property
    def max_positions(self) -> int:
        """The longest context that the model was made for."""

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for at most `capacity` positions."""

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        """Run one pass. Returns float32[len(item.rows), vocab] for each item.

        The new tokens stay in the caches, at slots length, length + 1, … in the order given; the
        caller truncates or keeps. Raises ValueError for ids outside the vocabulary or a full
        cache, before any cache is changed.
        """


@runtime_checkable
class SharingModel(Protocol):
    """An optional ability of a LanguageModel: its caches are SharingCaches.

    share_unit:   positions of the smallest block.
    share_window: positions of the largest sliding window of its layers; 0 without any.
    """

    @property
    def share_unit(self) -> int: ...

    @property
    def share_window(self) -> int: ...


@runtime_checkable
class PooledModel(Protocol):
    """An optional ability of a LanguageModel: its caches may lie in a pool of a device's memory.

    pool_positions: of all caches together, when all models are loaded; None for a pool that grows in main
                    memory.
    slot_bytes:     of the keys and values of one position.
    """

    @property
    def pool_positions(self) -> int | None: ...

    @property
    def slot_bytes(self) -> int: ...


@runtime_checkable
class VocabSubsetModel(LanguageModel, Protocol):
    """A model that can compute part of its output matrix (LM head), the largest matrix of a small model."""

    @property
    def vocab_block_size(self) -> int:
        """Ids of a vocabulary block; block b has the ids from b * vocab_block_size on."""

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        """As `forward`, with the logits of the ids in these vocabulary blocks only, bit for bit; all others
        are -inf.

        blocks: int32[b], vocabulary blocks, ascending.
        Raises ValueError as `forward` does, and for blocks out of order or range.
        """


@runtime_checkable
class HiddenStateModel(LanguageModel, Protocol):
    """A model that gives the hidden states of named layers with its logits.

    Layer index i is the input of layer i: the residual stream before its first norm. Index num_layers is the
    output of the last layer, before the final norm.
    """

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    def forward_hidden(
        self, items: Sequence[ForwardItem], taps: Sequence[int]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """As `forward`, whose logits these are bit for bit, with the hidden states of all new tokens.

        taps: layer indices, ascending, at least one.
        Returns (logits, hidden): float32[len(item.rows), vocab] and float32[len(item.tokens), len(taps) *
        hidden_size] for each item. Rows are in the order of the item's tokens; the j-th tap has the columns
        from j * hidden_size on. A token's hidden states depend on its prefix only, as its logits do.
        Raises ValueError as `forward` does, and for other taps.
        """


@runtime_checkable
class DrawingModel(LanguageModel, Protocol):
    """A model that draws the tokens of rows itself, where its logits are."""

    def forward_drawn(
        self, items: Sequence[ForwardItem], draws: Sequence[RowDraws | None]
    ) -> list[tuple[FloatArray | Callable[[], FloatArray], DrawnRows | None]]:
        """As `forward`, with the tokens of the items' rows, or None where `draws` has None. The logits may be
        a function that gives them until the model's next pass; see `TargetScores`.

        draws: for each item; its positions are those of the item's `rows`.
        Raises as `forward` does.
        """


@dataclass(slots=True, eq=False)
class SeqHandle:
    """An open sequence: its cache, the anchor, and how far the prompt has been prefilled."""

    cache: Cache
    anchor: int
    pending: IntArray  # int32[k], prompt tokens (without the anchor) that are not in the cache yet
    committed: int = 0  # tokens in the sequence without the anchor
    text: list[int] = field(default_factory=list)  # of the sequence without the anchor, pending ones too
    scored: IntArray | None = None  # int32[n], the draft that was scored last
    namespace: str | None = None  # sequences of the same one share prefixes
    cached: int = 0  # prompt tokens that came from the prefix cache
    hidden: HiddenStates | None = None  # only where hidden states are wanted


class StepEngine(Protocol):
    """A target that Outrider drives step by step."""

    @property
    def caps(self) -> EngineCaps: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    def open(
        self,
        prompt: Sequence[int],
        capacity: int,
        namespace: str | None = None,
        taps: tuple[int, ...] = (),
    ) -> SeqHandle:
        """Register a prompt of at least one token; nothing is computed yet. The anchor is its last token.

        capacity:  in positions; must cover prompt, output and draft.
        namespace: sequences of the same one share prefixes, if the engine has a prefix cache; None shares
                   nothing, which `prefill_scores` needs.
        taps:      layers whose hidden states are wanted, see `HiddenStateModel`: those of the prompt are in
                   `SeqHandle.hidden`, those of anchor and draft in `TargetScores.hidden`. Sequences that
                   share a pass have the same taps or none. Needs `caps.hidden_states`.
        Raises ValueError for taps that the model does not have.
        """

    def prefill(self, seq: SeqHandle, max_tokens: int) -> int:
        """Put up to max_tokens pending prompt tokens into the cache; returns how many are left."""

    def prefill_scores(self, seq: SeqHandle, max_tokens: int) -> FloatArray:
        """The same, returning the logits after each of the tokens: float32[tokens, vocab]."""

    def score(
        self,
        batch: Sequence[tuple[SeqHandle, Draft]],
        prefill: Sequence[tuple[SeqHandle, int]] = (),
        draws: Sequence[RowDraws | None] = (),
    ) -> list[TargetScores]:
        """Score anchor and draft nodes of each sequence of `batch`, after all prompt tokens of it that are
        still pending. The same pass computes up to the given number of pending prompt tokens of each sequence
        of `prefill`.

        draws: for each sequence of `batch`, or empty: how an engine with `caps.draws_rows` draws its rows;
               others may ignore it.
        Returns one entry for each sequence of `batch`, which may be empty. A sequence appears once in all.
        When it raises, no sequence has changed.
        """

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        """Keep the anchor and the accepted path, drop the rest; next_token is the new anchor.
        The only place where a target's cache rolls back."""

    def close(self, seq: SeqHandle) -> None: ...
