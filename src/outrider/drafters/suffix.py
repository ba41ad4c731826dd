"""Suffix lookup: a draft tree of what followed earlier occurrences of the sequence's last tokens.

The method of SuffixDecoding (Oliaro et al. 2024): find the longest matches in the request's own tokens, and
in recent outputs of this process where they may be shared; weight children by how often they followed and
after how long a match; take the likeliest paths first. `GramIndex` replaces the suffix trees, and
`CopyTracker` adds copies with small edits, which exact matches lose. A lookup runs right after a pass of the
target, when its data has left the CPU's caches, so the parts that touch much memory are C++.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.metrics import EARLIER_OUTPUTS
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.drafters._lookup import MAX_MATCH, GramIndex, Matches, SuffixTree
from outrider.drafters.copy_tracker import CopyTracker
from outrider.drafters.output_pool import MAX_BYTES, OutputPool
from outrider.errors import ConfigError
from outrider.policy.tree import Lookup
from outrider.policy.tuning import DEFAULT

Namespace: TypeAlias = Callable[[Request], str | None]

MAX_MATCHES = DEFAULT.lookup_matches  # matches whose continuations make the tree
MAX_PATH_MATCHES = DEFAULT.lookahead_matches


@dataclass(slots=True, eq=False)
class _Sequence:
    """What the drafter keeps of one request.

    namespace: requests of the same namespace share outputs; None shares nothing.
    stop_ids:  ids that end the output. A prompt may hold many, at the ends of its messages, but nothing
               follows one in an output.
    index:     of the request's tokens, made at its first lookup.
    """

    prompt_length: int
    namespace: str | None
    stop_ids: Collection[int] = ()
    index: GramIndex | None = None
    tracker: CopyTracker = field(default_factory=CopyTracker)


class SuffixDrafter:
    """Looks up the sequence's last tokens in the request's own tokens and in outputs shared with it.

    tree:       propose trees; else the likeliest chain, for engines and verifiers without trees.
    namespace:  gives a request's namespace; requests of one namespace share outputs. A request with None, and
                every request without this function, shares nothing. A server must give each API key its own.
    suffix_decoding_max_tree_depth:      most tokens of a path.
    suffix_decoding_max_cached_requests: outputs kept for sharing; `max_bytes` limits them as well.
    suffix_decoding_max_spec_factor:     a path is at most this many times as long as its match.
    suffix_decoding_min_token_prob:      paths less likely than this, by frequency, are left out.
    The names are vLLM's. Raises ConfigError for a value out of range.
    """

    name = "suffix"

    def __init__(
        self,
        *,
        tree: bool = True,
        namespace: Namespace | None = None,
        suffix_decoding_max_tree_depth: int = 24,
        suffix_decoding_max_cached_requests: int = 10_000,
        suffix_decoding_max_spec_factor: float = 1.0,
        suffix_decoding_min_token_prob: float = 0.1,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        for name, value, low, high in (
            ("max_tree_depth", suffix_decoding_max_tree_depth, 1, 1024),
            ("max_cached_requests", suffix_decoding_max_cached_requests, 0, 10**9),
            ("max_spec_factor", suffix_decoding_max_spec_factor, 0.0, 1e6),
            ("min_token_prob", suffix_decoding_min_token_prob, 0.0, 1.0),
        ):
            if not low <= value <= high:
                raise ConfigError(f"suffix_decoding_{name} must be from {low:g} to {high:g}, not {value!r}")
        self.needs = frozenset({"tree_attention"}) if tree else frozenset[str]()
        self.pool = OutputPool(suffix_decoding_max_cached_requests, max_bytes)
        self._namespace = namespace
        self._tree = SuffixTree(
            suffix_decoding_max_tree_depth,
            suffix_decoding_max_spec_factor,
            suffix_decoding_min_token_prob,
            tree,
        )
        self._sequences: dict[str, _Sequence] = {}

    @property
    def nbytes(self) -> int:
        """Approximate bytes of all indexes."""
        own = sum(seq.index.nbytes for seq in self._sequences.values() if seq.index is not None)
        return own + self.pool.nbytes

    def begin(self, request: Request) -> None:
        namespace = None if self._namespace is None else self._namespace(request)
        self._sequences[request.request_id] = _Sequence(len(request.prompt), namespace)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        drafts = []
        for job in jobs:
            found = self.lookup(job, job.budget)
            tokens, parents = np.array(found.tokens, np.int32), np.array(found.parents, np.int32)
            sources = None
            if found.shared:
                sources = tuple([EARLIER_OUTPUTS if shared else self.name for shared in found.shared])
            drafts.append(Draft(tokens, parents, None, self.name, sources))
        return drafts

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        pass  # the next job's context has the kept tokens

    def end(self, request_id: str) -> None:
        seq = self._sequences.pop(request_id, None)
        if seq is not None and seq.namespace is not None and seq.index is not None:
            self.pool.add(seq.namespace, seq.index.tokens, seq.prompt_length)

    def lookup(self, job: ProposeJob, budget: int) -> Lookup:
        """The tokens that may follow, up to `budget` nodes. Indexes the sequence's new tokens first."""
        seq = self._sequences[job.request_id]
        seq.stop_ids = job.sampler.stop_ids
        tokens = job.context.tokens
        index = seq.index
        if index is None:
            index = seq.index = GramIndex(tokens)
        index.update()
        path = job.context.path  # part of the match, but not indexed: the target has not verified it
        if path:
            tokens = [*tokens[-MAX_MATCH:], *path]
        matches = index.find(tokens, MAX_MATCHES)
        copy = None if path else seq.tracker.update(tokens, matches, seq.stop_ids)
        shared, shared_matches = self._shared(seq, tokens, MAX_MATCHES)
        found = self._tree.grow(
            index, matches, shared, shared_matches, copy, budget, MAX_MATCHES, seq.stop_ids
        )
        return Lookup(*found, copied=0 if path else seq.tracker.copied)

    def likely_path(
        self, request_id: str, context: TokenContext, max_tokens: int
    ) -> tuple[list[int], list[float]]:
        """(tokens, the probability of each given those before it) of the likeliest path after `context`, of a
        request that had a `lookup` before; ([], []) otherwise."""
        seq = self._sequences[request_id]
        if seq.index is None:
            return [], []
        tokens = [*context.tokens[-MAX_MATCH:], *context.path]
        matches = seq.index.find(tokens, MAX_PATH_MATCHES)
        shared, shared_matches = self._shared(seq, tokens, MAX_PATH_MATCHES)
        return self._tree.row(seq.index, matches, shared, shared_matches, max_tokens, seq.stop_ids)

    def _shared(
        self, seq: _Sequence, tokens: list[int], max_matches: int
    ) -> tuple[GramIndex | None, Matches | None]:
        """(the shared outputs of the request's namespace, matches of the end of `tokens` in them)."""
        if seq.namespace is None or (outputs := self.pool.get(seq.namespace)) is None:
            return None, None
        return outputs, outputs.find(tokens, max_matches)
