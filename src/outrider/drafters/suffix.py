"""Suffix lookup: draft what followed the text's last tokens before, as a tree ranked by frequency.

The method of SuffixDecoding (Oliaro et al. 2024): the longest match in the request's own text, and in
recent outputs of this process when they may be shared; children weighted by how often and after how long a
match they followed; the likeliest paths first. In the place of suffix trees, `GramIndex`; and beyond them
`CopyTracker`, for copies with changes, which exact matches lose. A lookup runs right after a pass, which leaves
nothing in the caches, so what touches much is C++.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, Verdict
from outrider.drafters._lookup import MAX_MATCH, GramIndex, Matches, SuffixTree
from outrider.drafters.copy_tracker import CopyTracker
from outrider.errors import ConfigError
from outrider.policy.tree import Lookup

Namespace: TypeAlias = Callable[[Request], str | None]

MAX_PLACES = 12  # places whose continuations make the tree
FEW_PLACES = 4  # places whose continuations are worth a look for every token that is drafted
BARRIER = -1  # parts the outputs in a shared text; no token, so that nothing matches across it
TAIL = 8  # of a prompt's last tokens, which are kept with a shared output: what an answer begins behind
MAX_BYTES = 64 * 1024 * 1024


class OutputPool:
    """Recent outputs, one indexed text for each namespace; the oldest output goes first when there are more
    than `max_requests` or more than `max_bytes`.

    nbytes: bytes of all indexes, about.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self.nbytes = 0
        self._texts: dict[str, GramIndex] = {}
        self._outputs: deque[tuple[str, int]] = deque()  # (namespace, tokens with the barrier), oldest first

    def __len__(self) -> int:
        return len(self._outputs)

    def limit(self, max_bytes: int) -> None:
        """Hold no more than so many bytes from now on."""
        self.max_bytes = max_bytes
        self._shrink()

    def get(self, namespace: str) -> GramIndex | None:
        return self._texts.get(namespace)

    def add(self, namespace: str, text: Sequence[int], prompt_length: int = 0) -> None:
        """Take in one output: what follows the prompt."""
        if len(text) <= prompt_length or not self.max_requests:
            return
        kept = text[max(0, prompt_length - TAIL) :]
        index = self._texts.get(namespace)
        before = 0 if index is None else index.nbytes
        if index is None:
            index = self._texts[namespace] = GramIndex([])
        index.tokens.extend([*kept, BARRIER])
        index.update()
        self.nbytes += index.nbytes - before
        self._outputs.append((namespace, len(kept) + 1))
        self._shrink()

    def _shrink(self) -> None:
        while len(self._outputs) > self.max_requests or (self._outputs and self.nbytes > self.max_bytes):
            namespace, count = self._outputs.popleft()
            index = self._texts[namespace]
            self.nbytes -= index.nbytes
            index.forget(count)
            if index.tokens:
                self.nbytes += index.nbytes
            else:
                del self._texts[namespace]


@dataclass(slots=True, eq=False)
class _Text:
    """A request: its own text once it is looked up in, whom it shares outputs with, and the ids that end it.
    A prompt is full of those, where its messages end, but nothing follows them in an output."""

    prompt_length: int
    namespace: str | None
    stop_ids: Collection[int] = ()
    index: GramIndex | None = None
    copying: CopyTracker = field(default_factory=CopyTracker)


class SuffixDrafter:
    """Looks the text's end up in the request's own text and in outputs that it may share.

    tree:       propose trees; else the likeliest chain, for engines and verifiers without trees.
    namespace:  whom a request shares its output with: those for which this gives the same text. None, and
                no function at all, shares nothing. A server must give each API key its own.
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
        for name, value, least, most in (
            ("max_tree_depth", suffix_decoding_max_tree_depth, 1, 1024),
            ("max_cached_requests", suffix_decoding_max_cached_requests, 0, 10**9),
            ("max_spec_factor", suffix_decoding_max_spec_factor, 0.0, 1e6),
            ("min_token_prob", suffix_decoding_min_token_prob, 0.0, 1.0),
        ):
            if not least <= value <= most:
                raise ConfigError(f"suffix_decoding_{name} must be from {least:g} to {most:g}, not {value!r}")
        self.needs = frozenset({"tree_attention"}) if tree else frozenset[str]()
        self.pool = OutputPool(suffix_decoding_max_cached_requests, max_bytes)
        self._namespace = namespace
        self._tree = SuffixTree(
            suffix_decoding_max_tree_depth,
            suffix_decoding_max_spec_factor,
            suffix_decoding_min_token_prob,
            tree,
        )
        self._texts: dict[str, _Text] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes, about."""
        own = sum(text.index.nbytes for text in self._texts.values() if text.index is not None)
        return own + self.pool.nbytes

    def begin(self, request: Request) -> None:
        namespace = None if self._namespace is None else self._namespace(request)
        self._texts[request.request_id] = _Text(len(request.prompt), namespace)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        drafts = []
        for job in jobs:
            found = self.look(job, job.budget)
            tokens, parents = np.array(found.tokens, np.int32), np.array(found.parents, np.int32)
            drafts.append(Draft(tokens, parents, None, self.name))
        return drafts

    def observe(self, request_id: str, draft: Draft, verdict: Verdict) -> None:
        pass  # the text itself tells

    def end(self, request_id: str) -> None:
        text = self._texts.pop(request_id, None)
        if text is not None and text.namespace is not None and text.index is not None:
            self.pool.add(text.namespace, text.index.tokens, text.prompt_length)

    def look(self, job: ProposeJob, budget: int) -> Lookup:
        """What may follow, up to `budget` nodes. Takes the text's new tokens into its index first."""
        text = self._texts[job.request_id]
        text.stop_ids = job.sampler.stop_ids
        tokens = job.context.tokens
        index = text.index
        if index is None:
            index = text.index = GramIndex(tokens)
        index.update()
        ahead = job.context.path  # looked up, but not the text's own yet
        if ahead:
            tokens = [*tokens[-MAX_MATCH:], *ahead]
        matches = index.find(tokens, MAX_PLACES)
        copy = None if ahead else text.copying.follow(tokens, matches, text.stop_ids)
        others, theirs = self._shared(text, tokens, MAX_PLACES)
        found = self._tree.grow(index, matches, others, theirs, copy, budget, MAX_PLACES, text.stop_ids)
        return Lookup(*found, copied=0 if ahead else text.copying.copied)

    def follow(self, request_id: str, context: TokenContext, most: int) -> tuple[list[int], list[float]]:
        """(tokens, the chance of each given those before) of the likeliest path behind a draft of a text that
        was looked up in, `most` tokens at most."""
        text = self._texts[request_id]
        if text.index is None:
            return [], []
        end = [*context.tokens[-MAX_MATCH:], *context.path]
        others, theirs = self._shared(text, end, FEW_PLACES)
        return self._tree.row(
            text.index, text.index.find(end, FEW_PLACES), others, theirs, most, text.stop_ids
        )

    def _shared(self, text: _Text, end: list[int], most: int) -> tuple[GramIndex | None, Matches | None]:
        """(the outputs that the text may look up in, places in them), where there are any."""
        if text.namespace is None or (others := self.pool.get(text.namespace)) is None:
            return None, None
        return others, others.find(end, most)
