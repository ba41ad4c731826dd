"""The prefix cache: keys and values of texts already computed, for requests that begin in the same way.

One tree per namespace. A node is one block of tokens that follows the blocks of its ancestors, and holds
their keys and values. Children are found by the tokens themselves, so a block is used only after the very
text that it was computed for. (Blocks found by the hash of their prefix: vLLM's automatic prefix caching;
trees: Zheng et al. 2024, SGLang.)

Of a block that a sequence computed long ago, layers with a sliding window may hold nothing any more. It is
kept nevertheless, for longer prefixes: a prefix is used only where the blocks that windows show after it are
whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, runtime_checkable

import numpy as np

from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import Cache, CacheBlocks, SharingCache, SharingModel
from outrider.engines.hidden import HiddenStates
from outrider.errors import ConfigError


@dataclass(slots=True, eq=False)
class _Node:
    """One block. The root of a namespace has neither parent nor blocks.

    hidden: float32[block, len(taps) * hidden size], where a drafter wanted hidden states.
    """

    parent: _Node | None = None
    key: bytes = b""
    blocks: CacheBlocks | None = None
    children: dict[bytes, _Node] = field(default_factory=dict)
    taps: tuple[int, ...] = ()
    hidden: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        assert self.blocks is not None
        return self.blocks.nbytes + (0 if self.hidden is None else self.hidden.nbytes)


class PrefixCache:
    """Blocks of caches of one model in at most `max_bytes` bytes; the least recently used are evicted first.

    Requests share within their namespace only; None shares nothing. Not for several threads at once.
    Raises ConfigError when the model's caches do not share blocks.

    hit_tokens, query_tokens: prompt tokens found, and those that the caller counted as asked for.
    window: positions of the largest sliding window of the model's layers; 0 without any.
    """

    def __init__(self, model: object, max_bytes: int) -> None:
        if not isinstance(model, SharingModel):
            raise ConfigError("this engine's caches cannot be shared, so it has no prefix cache")
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.hit_tokens = self.query_tokens = 0
        self._unit = model.share_unit
        self.window = model.share_window
        self._roots: dict[str, _Node] = {}
        # The least recently used first. A node comes after its children, so the first is always a leaf.
        self._nodes: OrderedDict[_Node, str] = OrderedDict()

    def __len__(self) -> int:
        """Blocks kept."""
        return len(self._nodes)

    def take(
        self,
        cache: Cache,
        tokens: Sequence[int] | IntArray,
        namespace: str | None,
        hidden: HiddenStates | None = None,
    ) -> int:
        """Append to `cache` what is kept of a text after its positions. Returns how many were appended.

        tokens: the text as far as it may be taken; its first `cache.length` tokens are those in the cache.
        hidden: gets the hidden states of the positions, which are taken as far as these are known; None
                takes the positions without them.
        """
        if namespace is None or not isinstance(cache, SharingCache):
            return 0
        held = cache.length
        if held // self._unit == len(tokens) // self._unit:
            return 0
        whole = held // self._unit  # a block that is not full is replaced as a whole
        nodes = self._walk(self._keys(tokens), namespace)[whole:]
        if hidden is not None:
            nodes = list(takewhile(lambda node: node.taps == hidden.taps, nodes))
        nodes = nodes[: self._usable(nodes)]
        found = (whole + len(nodes)) * self._unit - held
        if found <= 0:
            return 0
        cache.truncate(whole * self._unit)
        for node in nodes:
            assert node.blocks is not None
            cache.adopt(node.blocks)
        if hidden is not None:
            states = [node.hidden for node in nodes if node.hidden is not None]
            hidden.add_cached(held, np.concatenate(states)[held - whole * self._unit :])
        self.hit_tokens += found
        return found

    def known(self, tokens: Sequence[int] | IntArray, namespace: str | None) -> int:
        """How many positions of a text could be taken into an empty cache."""
        return (
            0 if namespace is None else self._unit * self._usable(self._walk(self._keys(tokens), namespace))
        )

    def keep(
        self,
        cache: Cache,
        tokens: Sequence[int] | IntArray,
        namespace: str | None,
        hidden: HiddenStates | None = None,
    ) -> None:
        """Keep the full blocks of a text, which `cache` holds from its first position on, with the hidden
        states that `hidden` holds of them; it need not hold these any longer."""
        if namespace is None or not isinstance(cache, SharingCache):
            return
        root = self._roots.get(namespace) or _Node()
        keys = self._keys(tokens)
        path = self._walk(keys, namespace)
        needed = set(path)
        if self.window:
            self._make_whole(path, cache, needed)
        if hidden is not None:
            self._complete(path, hidden, needed)
        for key in keys[len(path) :]:
            start = len(path) * self._unit
            blocks = cache.share(start, start + self._unit)
            parent = path[-1] if path else root
            node = _Node(parent, key, blocks)
            if hidden is not None and (states := hidden.rows(start, start + self._unit)) is not None:
                node.taps, node.hidden = hidden.taps, states
            if not self._make_room(node.nbytes, needed):
                break
            parent.children[key] = node
            self._roots[namespace] = root  # it may have been evicted with its last block
            self._nodes[node] = namespace
            self.nbytes += node.nbytes
            path.append(node)
            needed.add(node)
        if hidden is not None:
            hidden.release(len(keys) * self._unit)
        self._touch(path)

    def _usable(self, nodes: Sequence[_Node]) -> int:
        """How many of these nodes can be appended to a cache that ends where they begin, so that windows show
        whole blocks only after them."""
        usable = whole = 0  # whole: how many in a row, to the present one
        for count, node in enumerate(nodes, 1):
            assert node.blocks is not None
            whole = whole + 1 if node.blocks.whole else 0
            if whole == count or whole * self._unit >= self.window - 1:
                usable = count
        return usable

    def _make_whole(self, path: Sequence[_Node], cache: SharingCache, needed: set[_Node]) -> None:
        """Give nodes that windows had passed when they were kept the blocks that are held now."""
        for index, node in enumerate(path):
            assert node.blocks is not None
            if node.blocks.whole:
                continue
            blocks = cache.share(index * self._unit, (index + 1) * self._unit)
            more = blocks.nbytes - node.blocks.nbytes
            if blocks.whole and self._make_room(more, needed):
                node.blocks = blocks
                self.nbytes += more

    def _complete(self, path: Sequence[_Node], hidden: HiddenStates, needed: set[_Node]) -> None:
        """Give nodes that were kept without these hidden states the ones that are held."""
        for index, node in enumerate(path):
            if node.taps == hidden.taps:
                continue
            states = hidden.rows(index * self._unit, (index + 1) * self._unit)
            if states is None:
                continue
            more = states.nbytes - (0 if node.hidden is None else node.hidden.nbytes)
            if self._make_room(more, needed):
                node.taps, node.hidden = hidden.taps, states
                self.nbytes += more

    def shrink(self, max_bytes: int) -> None:
        """Set another bound and evict what exceeds it."""
        self.max_bytes = max_bytes
        self._make_room(0, set())

    def clear(self) -> None:
        """Evict everything."""
        self._roots.clear()
        self._nodes.clear()
        self.nbytes = 0

    def _keys(self, tokens: Sequence[int] | IntArray) -> list[bytes]:
        """The keys of a text's full blocks: their tokens."""
        data, size = np.asarray(tokens, np.int32).tobytes(), 4 * self._unit
        return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]

    def _walk(self, keys: Sequence[bytes], namespace: str) -> list[_Node]:
        """The nodes of a text, as far as they are kept; they become the most recently used."""
        path: list[_Node] = []
        node = self._roots.get(namespace)
        for key in keys:
            node = None if node is None else node.children.get(key)
            if node is None:
                break
            path.append(node)
        self._touch(path)
        return path

    def _touch(self, path: Sequence[_Node]) -> None:
        """Make a path the most recently used, each node more recently than its child."""
        for node in reversed(path):
            self._nodes.move_to_end(node)

    def _make_room(self, count: int, needed: set[_Node]) -> bool:
        """Evict the least recently used until `count` more bytes fit; False if only needed ones are left."""
        while self.nbytes + count > self.max_bytes:
            node = next(iter(self._nodes), None)
            if node is None or node in needed:
                return False
            self._evict(node)
        return True

    def _evict(self, node: _Node) -> None:
        namespace = self._nodes.pop(node)
        assert not node.children, "a node was used no less recently than its children"
        assert node.parent is not None
        del node.parent.children[node.key]
        self.nbytes -= node.nbytes
        if not self._roots[namespace].children:
            del self._roots[namespace]


@runtime_checkable
class SharesPrefixes(Protocol):
    """An optional ability of a step engine, and of a drafter with a model of its own."""

    def share_prefixes(self, max_bytes: int) -> PrefixCache:
        """From now on keep what requests with a namespace compute, in at most `max_bytes` bytes, for later
        ones that begin in the same way. Raises ConfigError when the model's caches cannot be shared."""
