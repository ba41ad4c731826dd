"""Drafts of a small model of the target's vocabulary (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.drafters.chain_drafts import can_extend, extend
from outrider.drafters.draft_context import HEAD_TOKENS, TAIL_TOKENS, DraftContext
from outrider.drafters.draft_sequence import DraftSequence, DraftTree
from outrider.drafters.drawing import Drawing, Draws
from outrider.drafters.vocab_subset import VocabSubset, frequent_blocks, union_blocks
from outrider.engines.base import ForwardItem, LanguageModel, VocabSubsetModel
from outrider.engines.chains import ChainModel
from outrider.engines.prefix import PrefixCache
from outrider.policy.tree import DraftPass

KEPT_TOKENS = 16  # processed in one pass, from which on a model with sliding windows keeps them as a prefix


@dataclass(slots=True, eq=False)
class _Request:
    """The draft model's state of one request.

    capacity:   most tokens of it that the draft model's cache may hold.
    may_exceed: whether the sequence may become longer than that.
    namespace:  requests of one namespace share cached prefixes.
    context:    the tokens that the draft model processes.
    sequence:   its place in the draft model, made at the first draft.
    """

    capacity: int
    may_exceed: bool
    namespace: str | None
    context: DraftContext
    sequence: DraftSequence | None = None


class DraftModelDrafter:
    """Drafts with a LanguageModel, for all jobs in the same passes: chains, or trees where a job's guide asks
    for siblings (in coupled drawing, the tokens that come next with the same noise).

    Each request has a cache of its own. Before a request's next draft, the tokens that the target did not
    keep are rolled back, and the unprocessed tokens are prefilled in chunks of at most `chunk`. Tokens are
    sampled with the request's own parameters, from the ids below `common_size`, which both models share. A
    draft ends early at a stop token or at the end of the draft model's context; a longer sequence is then
    continued without its middle (`DraftContext`).

    Where a job's lookahead predicts the next draft tokens, they are processed along with the token that is
    drawn from, as the target verifies a draft: while the model draws what was predicted, its pass is done
    already. The draft is the same, in fewer passes.

    Of a large vocabulary only the likely part is computed (`VocabSubset`), if the model can. A model that can
    draft by itself (`ChainModel`) does, where coupled drawing needs nothing that only the host has.

    draws: how a token is drawn from the draft model's distribution, see `Drawing`.
    """

    name = "draft_model"
    looks_ahead = True
    pass_seconds: float | None = None
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        model: LanguageModel,
        *,
        common_size: int | None = None,
        max_context: int | None = None,
        chunk: int = 512,
        draws: Draws = "coupled",
    ) -> None:
        self._model = model
        self._common_size = min(model.vocab_size, common_size or model.vocab_size)
        self._max_context = min(model.max_positions, max_context or model.max_positions)
        self._chunk = chunk
        self._drawing = Drawing(draws)
        self._frequent = frequent_blocks(model)
        self._requests: dict[str, _Request] = {}
        self._prefixes: PrefixCache | None = None
        self._chains = model.chains(self._common_size) if isinstance(model, ChainModel) else None
        self.passes: list[DraftPass] = []  # of the last propose

    def share_prefixes(self, max_bytes: int) -> PrefixCache:
        """See `SharesPrefixes`."""
        self._prefixes = PrefixCache(self._model, max_bytes)
        return self._prefixes

    def begin(self, request: Request) -> None:
        """See `Drafter.begin`."""
        max_tokens = request.params.max_tokens
        length = self._max_context if max_tokens is None else len(request.prompt) + max_tokens
        capacity = min(self._max_context, length)
        may_exceed = max_tokens is None or length > self._max_context
        self._requests[request.request_id] = _Request(
            capacity, may_exceed, request.namespace, DraftContext(len(request.prompt))
        )

    def propose(self, jobs: Sequence[ProposeJob], prefill_budget: int | None = None) -> list[Draft]:
        """See `Drafter.propose`. With a `prefill_budget`, at most so many tokens are processed before
        anything is drawn, so that no request waits for another's prefill: one with more unprocessed tokens
        gets an empty draft."""
        self.passes = []
        trees = [self._start(job) for job in jobs]
        active = [tree for tree in trees if tree is not None]
        if prefill_budget is not None:
            active = self._prefilled(active, prefill_budget)
        if self._chains is not None:
            coupled = self._drawing.coupled
            extended = [tree for tree in active if coupled(tree.sequence.sampler) and can_extend(tree)]
            self.passes += extend(self._chains, extended)
            active = [tree for tree in active if tree not in extended]
        while active:
            logits = self._forward(active)
            active = [tree for tree, rows in zip(active, logits, strict=True) if self._grow(tree, rows)]
        return [Draft.empty(self.name) if tree is None else tree.draft(self.name) for tree in trees]

    def _prefilled(self, trees: list[DraftTree], budget: int) -> list[DraftTree]:
        """Those that may draw now. One with more unprocessed tokens than are left of the budget is prefilled
        with as many tokens as are left."""
        ready = []
        for tree in sorted(trees, key=lambda tree: len(tree.input_tokens)):
            size = len(tree.input_tokens)
            if size <= max(2, budget):  # every step leaves up to two unprocessed tokens
                ready.append(tree)
            elif budget > 0:
                self._pass([tree], budget)
            budget -= size
        return ready

    def unprocessed(
        self, job: ProposeJob, copied: int = 0, too_expensive: Callable[[int], bool] | None = None
    ) -> int | None:
        """How many tokens a draft would have to process before the first draw; None when the draft model's
        context is full for good. Processes nothing.

        copied:        how many of the sequence's last tokens occur further up in it as well.
        too_expensive: whether so many unprocessed prompt tokens cost too much, so that the middle of the
                       unprocessed tokens is left out.
        """
        request, path = self._requests[job.request_id], job.context.path
        request.context.extend(job.context.tokens, copied)
        processed = self._roll_back(request)
        if too_expensive is not None and too_expensive(request.context.unprocessed_prompt(processed)):
            request.context.truncate_middle(processed)
        kept = self._fit(request, len(path), processed)
        return None if kept is None else len(request.context.tokens) - kept + len(path)

    def _roll_back(self, request: _Request) -> int:
        """Drop what the target did not keep. Returns how many tokens are processed or in a cached prefix."""
        context = request.context
        if request.sequence is not None:
            request.sequence.roll_back()
            return request.sequence.confirmed
        context.drop_copied(0)
        return 0 if self._prefixes is None else self._prefixes.known(context.tokens[:-1], request.namespace)

    def _fit(self, request: _Request, path_length: int, processed: int) -> int | None:
        """Make the context fit into the cache together with `path_length` tokens. Returns how many of the
        `processed` tokens are still valid; None where it cannot fit. A sequence that exceeds the capacity
        loses the middle of its unprocessed tokens first, and if that is not enough, the middle of all."""
        context, capacity = request.context, request.capacity - path_length
        if request.may_exceed and len(context.tokens) > capacity >= HEAD_TOKENS + TAIL_TOKENS:
            context.truncate_middle(processed)
            if len(context.tokens) > capacity:
                context.truncate_middle(0)
                processed = min(processed, HEAD_TOKENS)
                if request.sequence is not None:
                    request.sequence.truncate(HEAD_TOKENS)
                    processed = request.sequence.confirmed
        return processed if len(context.tokens) <= capacity else None

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        """See `Drafter.observe`. The next job's context has the kept tokens, so nothing is done here."""

    def end(self, request_id: str) -> None:
        """See `Drafter.end`."""
        request = self._requests.pop(request_id, None)
        if request is None or request.sequence is None:
            return
        try:
            self._keep(request.sequence)
        finally:
            request.sequence.cache.close()

    def _keep(self, sequence: DraftSequence) -> None:
        if self._prefixes is not None:
            processed = sequence.context.tokens[: sequence.confirmed]
            self._prefixes.keep(sequence.cache, processed, sequence.namespace)

    def _start(self, job: ProposeJob) -> DraftTree | None:
        """An empty draft whose input is all unprocessed tokens. None when the draft model cannot propose: its
        context is full, or the sequence has ids that it does not know."""
        request, path = self._requests[job.request_id], job.context.path
        request.context.extend(job.context.tokens)
        if job.budget <= 0 or self._fit(request, len(path), self._roll_back(request)) is None:
            return None
        tokens = request.context.tokens
        free = request.capacity - len(tokens) - len(path) + 1  # the last drafted token needs no slot
        sequence = request.sequence
        if sequence is None:
            sequence = request.sequence = self._open(job, request)
        unprocessed = [*tokens[sequence.confirmed :], *path]
        if max(unprocessed) >= self._model.vocab_size:
            return None
        return DraftTree(
            sequence=sequence,
            vocab_size=self._model.vocab_size,
            contexts=[job.context],
            budget=min(job.budget, free),
            input_tokens=unprocessed,
            randomness=StepRandomness(job.sampler.seed, len(job.context.tokens)),
            guide=job.guide,
            lookahead=job.lookahead,
        )

    def _open(self, job: ProposeJob, request: _Request) -> DraftSequence:
        """A request's place in the draft model, with the cached prefix of its sequence."""
        subset, context = None, request.context
        if self._frequent is not None and isinstance(self._model, VocabSubsetModel):
            subset = VocabSubset(self._model, self._frequent, job.sampler.stop_ids)
        sampler = job.sampler.restricted(self._common_size)
        cache = self._model.new_cache(request.capacity)
        sequence = DraftSequence(cache, sampler, context, subset, request.namespace)
        if self._prefixes is not None:
            prefix = context.tokens[:-1]
            sequence.confirmed = self._prefixes.take(sequence.cache, prefix, request.namespace)
            if subset is not None:
                subset.add(context.tokens[: sequence.confirmed])
        return sequence

    def _forward(self, trees: Sequence[DraftTree]) -> list[FloatArray]:
        """Process each draft's input. Returns the logits after its node and its predicted tokens:
        float32[1 + len(predicted), vocab] for each."""
        for tree in trees:
            while tree.node < 0 and len(tree.input_tokens) > self._chunk:
                self._pass([tree], self._chunk)
            if tree.node < 0:
                tree.predict()
        return self._pass(trees)

    def _pass(self, trees: Sequence[DraftTree], size: int | None = None) -> list[FloatArray]:
        """One pass over each draft's input, or over the first `size` tokens of a longer chain."""
        inputs = [tree.next_input(size) for tree in trees]
        items = []
        for tree, (chain, wanted) in zip(trees, inputs, strict=True):
            size_of_pass = len(chain)
            parents = np.arange(-1, size_of_pass - 1, dtype=np.int32)
            rows = np.arange(size_of_pass - wanted, size_of_pass, dtype=np.int32)
            items.append(ForwardItem(tree.sequence.cache, np.array(chain, np.int32), parents, rows))
            if tree.sequence.vocab_subset is not None:
                tree.sequence.vocab_subset.add(chain)
        logits = self._logits(items, trees)
        prefilled = 0
        for tree, (processed, _) in zip(trees, inputs, strict=True):
            sequence = tree.sequence
            count = min(len(processed), len(sequence.context.tokens) - sequence.confirmed)
            sequence.confirmed += count
            if self._prefixes is not None and self._prefixes.window and count >= KEPT_TOKENS:
                self._keep(sequence)  # before sliding windows pass them
            prefilled += max(0, count - 2) if size is None else count
            sequence.drafted += processed[count:]
            if size is not None:
                del tree.input_tokens[:size]
        self.passes.append(DraftPass(sum([len(chain) for chain, _ in inputs]), prefilled))
        return logits

    def _logits(self, items: Sequence[ForwardItem], trees: Sequence[DraftTree]) -> list[FloatArray]:
        subsets = [tree.sequence.vocab_subset for tree in trees if tree.sequence.vocab_subset is not None]
        if isinstance(self._model, VocabSubsetModel) and subsets:
            return self._model.forward_subset(items, union_blocks(subsets))
        return self._model.forward(items)

    def _grow(self, tree: DraftTree, logits: FloatArray) -> bool:
        """Draw below the node, then below the predicted tokens as long as they are the drawn ones. Returns
        whether the draft needs another pass."""
        first = len(tree.tokens)
        self._drawing.below(tree, logits[0])
        for token, row in zip(tree.predicted, logits[1:], strict=True):
            if len(tree.tokens) == first or tree.tokens[first] != token:
                break
            node = tree.next_node(ready=first)
            if node != first:
                return tree.prepare_pass(node)
            tree.descend(first)
            first = len(tree.tokens)
            self._drawing.below(tree, row)
        return len(tree.tokens) > first and tree.prepare_pass(tree.next_node())
