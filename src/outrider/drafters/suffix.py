"""Suffix lookup: draft what followed the text's last tokens before, as a tree ranked by frequency.

The method of SuffixDecoding (Oliaro et al. 2024): the longest match in the request's own text, and in
recent outputs of this process when they may be shared; children weighted by how often and after how long a
match they followed; the likeliest paths first. In the place of suffix trees, `GramIndex`; and beyond them
`Copying`, for copies with changes, which exact matches lose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.plan import Lookup
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, Verdict
from outrider.drafters.copying import Copying
from outrider.drafters.grams import MAX_MATCH, GramIndex, Match
from outrider.errors import ConfigError

Namespace: TypeAlias = Callable[[Request], str | None]

MAX_PLACES = 12  # places whose continuations make the tree
FEW_PLACES = 4  # places whose continuations are worth a look for every token that is drafted
BARRIER = -1  # parts the outputs in a shared text; no token, so that nothing matches across it
TAIL = 8  # of a prompt's last tokens, which are kept with a shared output: what an answer begins behind
MAX_BYTES = 64 * 1024 * 1024

_SHARED_LEAST = 2  # tokens of agreement that make a place in others' outputs
_STRANGER = 6  # tokens of agreement that count for nothing there: a text repeats itself rather than others
_TRUST = 1.5  # tokens of agreement that make a lone place even odds to go on agreeing


# A place to continue from: (tokens, index of the next one, where the text ends, period of the loop that it
# goes on with from there or 0 to stop, length of the match, weight).
_Place: TypeAlias = tuple[list[int], int, int, int, int, float]


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
        index.tokens += [*kept, BARRIER]
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
    copying: Copying = field(default_factory=Copying)


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
        self._tree = tree
        self._namespace = namespace
        self._depth = suffix_decoding_max_tree_depth
        self._factor = suffix_decoding_max_spec_factor
        self._least = suffix_decoding_min_token_prob
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
            tokens = [*tokens, *ahead]
        matches = index.find(tokens, MAX_PLACES)
        places: list[_Place] = []
        if not ahead and (copy := text.copying.follow(tokens, matches, text.stop_ids)) is not None:
            places = [(copy.path, 0, len(copy.path), 0, copy.sure, float(copy.sure * copy.sure))]
            matches = [match for match in matches if match.start != copy.start]
        places += _places(index, matches, own=True)
        if text.namespace is not None and (shared := self.pool.get(text.namespace)) is not None:
            places += _places(shared, shared.find(tokens, MAX_PLACES), own=False)
            places.sort(key=lambda place: -place[4])
            del places[MAX_PLACES:]
        found = self._grow(places, budget, text.stop_ids) if places else Lookup()
        found.copied = 0 if ahead else text.copying.copied
        return found

    def follow(self, request_id: str, context: TokenContext, most: int) -> tuple[list[int], list[float]]:
        """(tokens, the chance of each given those before) of the likeliest path behind a draft of a text that
        was looked up in, `most` tokens at most."""
        text = self._texts[request_id]
        if text.index is None:
            return [], []
        end = [*context.tokens[-MAX_MATCH:], *context.path]
        places = _places(text.index, text.index.find(end, FEW_PLACES), own=True)
        if text.namespace is not None and (shared := self.pool.get(text.namespace)) is not None:
            places += _places(shared, shared.find(end, FEW_PLACES), own=False)
        tokens: list[int] = []
        chances: list[float] = []
        while places and len(tokens) < most:
            found = self._children(places, len(tokens))
            if not found:
                break
            token, chance, places = max(found, key=lambda child: child[1])
            tokens.append(token)
            chances.append(chance)
            if token in text.stop_ids:
                break
        return tokens, chances

    def _grow(self, places: list[_Place], budget: int, stop_ids: Collection[int]) -> Lookup:
        """Best first: the likeliest open node joins the tree, and its children become open."""
        out = Lookup(length=max(place[4] for place in places))
        # (-path, order of opening, parent, depth, token, chance, places that go on through the node)
        open_nodes: list[tuple[float, int, int, int, int, float, list[_Place]]] = []
        parent, depth, path, order = -1, 0, 1.0, 0
        token = BARRIER
        while True:
            if depth < self._depth and token not in stop_ids:
                for token, chance, following in self._children(places, depth):
                    if path * chance >= self._least:
                        order += 1
                        heappush(open_nodes, (-path * chance, order, parent, depth, token, chance, following))
            if not open_nodes or len(out.tokens) >= budget:
                return out
            negative, _, above, depth, token, chance, places = heappop(open_nodes)
            if not self._tree:
                open_nodes.clear()
            parent, depth, path = len(out.tokens), depth + 1, -negative
            out.tokens.append(token)
            out.parents.append(above)
            out.confidence.append(chance)
            out.paths.append(path)

    def _children(self, places: list[_Place], depth: int) -> list[tuple[int, float, list[_Place]]]:
        """(token, its chance, the places that go on with it) of what follows `depth` tokens on."""
        factor = self._factor
        groups: dict[int, list[_Place]] = {}
        total = 0.0
        for place in places:
            tokens, at, end, period, length, weight = place
            if depth >= length * factor:
                continue
            step = at + depth
            if step >= end:
                if not period:
                    continue
                step = at + depth % period
            token = tokens[step]
            if token < 0:
                continue
            total += weight
            if token in groups:
                groups[token].append(place)
            else:
                groups[token] = [place]
        found = []
        for token, following in groups.items():
            if len(following) == 1:
                longest, weight = following[0][4], following[0][5]
            else:
                longest, weight = 0, 0.0
                for place in following:
                    weight += place[5]
                    longest = max(longest, place[4])
            agreed = min(longest + depth, MAX_MATCH) * len(following)
            found.append((token, weight / total * agreed / (agreed + _TRUST), following))
        return found


def _places(index: GramIndex, matches: Sequence[Match], *, own: bool) -> list[_Place]:
    """Where to continue from. In its own text a place goes on into its own continuation, as a loop."""
    end = len(index.tokens)
    least, stranger = (1, 0) if own else (_SHARED_LEAST, _STRANGER)
    return [
        (index.tokens, at, end, end - at if own else 0, max(1, length - stranger), float(length * length))
        for start, length in matches
        if length >= least and (at := start - index.base) < end
    ]
