"""A step engine on any LanguageModel: the anchor rule, prefill in chunks, and the one rollback."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from outrider.decoding.drawing import RowDraws
from outrider.decoding.types import Draft, DrawnRows, FloatArray, IntArray, TargetScores, Verdict
from outrider.engines.base import (
    DrawingModel,
    EngineCaps,
    ForwardItem,
    HiddenStateModel,
    LanguageModel,
    PooledModel,
    SeqHandle,
)
from outrider.engines.hidden import HiddenStates, check_taps
from outrider.engines.prefix import PrefixCache

HELD_ROWS = 64  # positions whose hidden states are held before the prefix cache gets their blocks
_NO_ROWS = np.empty(0, np.int32)


class CachedStepEngine:
    """Implements StepEngine. Between calls a sequence's cache holds exactly its committed tokens,
    which are all but the anchor; `score` adds anchor and draft, `commit` keeps what was accepted.

    prefixes: the prefix cache; None until `share_prefixes`.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._tapped = model if isinstance(model, HiddenStateModel) else None
        self._drawing = model if model.caps.draws_rows and isinstance(model, DrawingModel) else None
        self.prefixes: PrefixCache | None = None

    @property
    def pooled(self) -> PooledModel | None:
        """The model, where its caches lie in a pool that does not grow."""
        model = self._model
        return model if isinstance(model, PooledModel) and model.pool_positions is not None else None

    @property
    def caps(self) -> EngineCaps:
        """What the model can do."""
        return self._model.caps

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_positions(self) -> int:
        return self._model.max_positions

    def share_prefixes(self, max_bytes: int) -> PrefixCache:
        """From now on keep what sequences with a namespace compute, in at most `max_bytes` bytes, for later
        ones that begin in the same way. Raises ConfigError when the model's caches cannot be shared."""
        self.prefixes = PrefixCache(self._model, max_bytes)
        return self.prefixes

    def open(
        self,
        prompt: Sequence[int],
        capacity: int,
        namespace: str | None = None,
        taps: tuple[int, ...] = (),
    ) -> SeqHandle:
        ids = np.array(prompt, np.int32)
        text = ids[:-1]
        hidden = None
        if taps:
            if self._tapped is None:
                raise ValueError("the model gives no hidden states")
            check_taps(taps, self._tapped.num_layers)
            hidden = HiddenStates(taps, for_prefixes=self.prefixes is not None and namespace is not None)
        cache = self._model.new_cache(capacity)
        seq = SeqHandle(cache, int(ids[-1]), text, text=text.tolist(), namespace=namespace, hidden=hidden)
        if self.prefixes is not None and namespace is not None:
            self.prefixes.query_tokens += len(text)
            self._take(seq)
        return seq

    def prefill(self, seq: SeqHandle, max_tokens: int) -> int:
        self._take(seq)
        self._prefill(seq, seq.pending[: max(0, max_tokens)], _NO_ROWS)
        return len(seq.pending)

    def prefill_scores(self, seq: SeqHandle, max_tokens: int) -> FloatArray:
        tokens = seq.pending[:max_tokens]
        return self._prefill(seq, tokens, np.arange(len(tokens), dtype=np.int32))

    def _prefill(self, seq: SeqHandle, tokens: IntArray, rows: IntArray) -> FloatArray:
        if not len(tokens):
            return np.empty((0, self.vocab_size), np.float32)
        (logits,), hidden = self._forward([_chain(seq, tokens, rows)], [seq])
        self._computed(seq, len(tokens), hidden[0] if hidden else None)
        return logits

    def _forward(
        self, items: Sequence[ForwardItem], seqs: Sequence[SeqHandle]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """One pass. Returns (logits, hidden) by item; no hidden states when no sequence wants them."""
        wanted = {seq.hidden.taps for seq in seqs if seq.hidden is not None}
        if not wanted:
            return self._model.forward(items), []
        if len(wanted) > 1:
            raise ValueError("sequences that share a pass must want the same layers' hidden states")
        assert self._tapped is not None, "open refuses taps of other models"
        return self._tapped.forward_hidden(items, wanted.pop())

    def _take(self, seq: SeqHandle) -> None:
        """Take what the prefix cache has of the prompt; others may have computed it since it was opened."""
        if self.prefixes is not None and len(seq.pending):
            end = seq.committed + len(seq.pending)
            taken = self.prefixes.take(seq.cache, seq.text[:end], seq.namespace, seq.hidden)
            seq.pending = seq.pending[taken:]
            seq.committed += taken
            seq.cached += taken

    def _computed(self, seq: SeqHandle, count: int, hidden: FloatArray | None) -> None:
        """A pass has computed the next `count` pending tokens, and `hidden` if it was asked to."""
        if seq.hidden is not None and hidden is not None:
            seq.hidden.add_prompt(seq.committed, hidden)
        self._written(seq, count)

    def _written(self, seq: SeqHandle, count: int) -> None:
        """The next `count` pending tokens are in the cache now."""
        seq.pending = seq.pending[count:]
        seq.committed += count
        self._keep(seq)

    def _keep(self, seq: SeqHandle) -> None:
        if self.prefixes is not None:
            self.prefixes.keep(seq.cache, seq.text[: seq.committed], seq.namespace, seq.hidden)

    def score(
        self,
        batch: Sequence[tuple[SeqHandle, Draft]],
        prefill: Sequence[tuple[SeqHandle, int]] = (),
        draws: Sequence[RowDraws | None] = (),
    ) -> list[TargetScores]:
        for seq, _ in (*batch, *prefill):
            self._take(seq)
        rests = [len(seq.pending) for seq, _ in batch]
        items = [_scored(seq, draft) for seq, draft in batch]
        chunks = [(seq, seq.pending[:most]) for seq, most in prefill if most > 0 and len(seq.pending)]
        items += [_chain(seq, tokens, _NO_ROWS) for seq, tokens in chunks]
        if len({id(item.cache) for item in items}) < len(items):
            raise ValueError("a sequence may appear once in a pass")
        if not items:
            return []
        seqs = [seq for seq, _ in (*batch, *chunks)]
        drawn: Sequence[DrawnRows | None] = [None] * len(items)
        logits: Sequence[FloatArray | Callable[[], FloatArray]]
        states: list[FloatArray] = []
        if self._drawing is not None and any(draws) and not any(seq.hidden is not None for seq in seqs):
            each = self._drawing.forward_drawn(items, [*draws, *[None] * len(chunks)])
            logits, drawn = [rows for rows, _ in each], [tokens for _, tokens in each]
        else:
            logits, states = self._forward(items, seqs)
        hidden: Sequence[FloatArray | None] = states or [None] * len(items)
        for (seq, draft), rest, rows in zip(batch, rests, hidden, strict=False):
            seq.scored = draft.tokens
            if rest:
                self._computed(seq, rest, None if rows is None else rows[:rest])
            if seq.hidden is not None:
                seq.hidden.scored = None if rows is None else rows[rest:]
        for (seq, tokens), rows in zip(chunks, hidden[len(batch) :], strict=True):
            self._computed(seq, len(tokens), rows)
        return [
            TargetScores(rows, None if seq.hidden is None else seq.hidden.scored, tokens)
            for (seq, _), rows, tokens in zip(batch, logits, drawn, strict=False)
        ]

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        base = seq.committed
        seq.cache.keep(base, [base, *(base + 1 + node for node in verdict.path)])
        seq.committed += 1 + len(verdict.path)
        if seq.hidden is not None:
            seq.hidden.commit(base, verdict.path)
        assert seq.scored is not None, "only what was scored can be committed"
        seq.text += [seq.anchor, *[int(seq.scored[node]) for node in verdict.path]]
        seq.anchor = verdict.next_token
        assert seq.cache.length == seq.committed, "the cache must hold the committed tokens"
        if seq.hidden is not None and seq.hidden.held >= HELD_ROWS:
            self._keep(seq)

    def close(self, seq: SeqHandle) -> None:
        try:
            self._keep(seq)  # the next turn of a chat begins with this text
        finally:
            seq.cache.close()


def _scored(seq: SeqHandle, draft: Draft) -> ForwardItem:
    """What is pending of a prompt, the anchor, and the draft's nodes; the rows of the last two are wanted."""
    assert seq.cache.length == seq.committed, "the cache must hold the committed tokens"
    rest = len(seq.pending)
    # The anchor becomes new token `rest`, so the draft's nodes and their parents move up.
    tokens = np.array([*seq.pending.tolist(), seq.anchor, *draft.tokens.tolist()], np.int32)
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    parents[rest + 1 :] = draft.parents + (rest + 1)
    return ForwardItem(seq.cache, tokens, parents, np.arange(rest, len(tokens), dtype=np.int32))


def _chain(seq: SeqHandle, tokens: IntArray, rows: IntArray) -> ForwardItem:
    """Pending tokens of a prompt, one after the other."""
    assert seq.cache.length == seq.committed, "the cache must hold the committed tokens"
    return ForwardItem(seq.cache, tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), rows)
