"""Keys and values of texts already read, kept for requests that begin in the same way.

A tree for each namespace: a node is one block of tokens behind the blocks of its ancestors, and holds their
keys and values. Children are found by the tokens themselves, so a block is taken only behind the very text
that it was computed behind. (Blocks by the hash of their prefix: vLLM's automatic prefix caching; trees:
Zheng et al. 2024, SGLang.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from outrider.decoding.types import IntArray
from outrider.engines.base import Cache, CacheBlocks, SharingCache, SharingModel
from outrider.errors import ConfigError


@dataclass(slots=True, eq=False)
class _Node:
    """One block. The root of a namespace has neither parent nor blocks."""

    parent: _Node | None = None
    key: bytes = b""
    blocks: CacheBlocks | None = None
    children: dict[bytes, _Node] = field(default_factory=dict)


class PrefixCache:
    """Blocks of caches of one model, at most `max_bytes` of them, those not used for longest given up first.

    Requests share within their namespace only; None shares nothing. Not for several threads at once.
    Raises ConfigError when the model's caches do not share blocks.

    hit_tokens, query_tokens: prompt tokens found, of those that the caller says it asked for.
    """

    def __init__(self, model: object, max_bytes: int) -> None:
        if not isinstance(model, SharingModel):
            raise ConfigError("this engine's caches cannot be shared, so it has no prefix cache")
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.hit_tokens = self.query_tokens = 0
        self._unit = model.share_unit
        self._roots: dict[str, _Node] = {}
        # The least recently used first. A node is always younger than its children, so the first is a leaf.
        self._nodes: OrderedDict[_Node, str] = OrderedDict()

    def __len__(self) -> int:
        """Blocks kept."""
        return len(self._nodes)

    def take(self, cache: Cache, tokens: Sequence[int] | IntArray, namespace: str | None) -> int:
        """Put what is known of a text behind what `cache` holds of it. Returns how many positions came.

        tokens: the text as far as it may be taken; its first `cache.length` tokens are those in the cache.
        """
        if namespace is None or not isinstance(cache, SharingCache):
            return 0
        held = cache.length
        if held // self._unit == len(tokens) // self._unit:
            return 0
        path = self._walk(self._keys(tokens), namespace)
        found = len(path) * self._unit - held
        if found <= 0:
            return 0
        whole = held // self._unit
        cache.truncate(whole * self._unit)  # a block that is not full is taken over as a whole
        for node in path[whole:]:
            assert node.blocks is not None
            cache.adopt(node.blocks)
        self.hit_tokens += found
        return found

    def known(self, tokens: Sequence[int] | IntArray, namespace: str | None) -> int:
        """How many positions of a text could be taken into an empty cache."""
        return 0 if namespace is None else self._unit * len(self._walk(self._keys(tokens), namespace))

    def keep(self, cache: Cache, tokens: Sequence[int] | IntArray, namespace: str | None) -> None:
        """Keep the full blocks of a text, which `cache` holds from its first position on."""
        if namespace is None or not isinstance(cache, SharingCache):
            return
        root = self._roots.get(namespace) or _Node()
        keys = self._keys(tokens)
        path = self._walk(keys, namespace)
        needed = set(path)
        for key in keys[len(path) :]:
            start = len(path) * self._unit
            blocks = cache.share(start, start + self._unit)
            if not self._make_room(blocks.nbytes, needed):
                break
            parent = path[-1] if path else root
            node = _Node(parent, key, blocks)
            parent.children[key] = node
            self._roots[namespace] = root  # it may have been given up with its last block
            self._nodes[node] = namespace
            self.nbytes += blocks.nbytes
            path.append(node)
            needed.add(node)
        self._touch(path)

    def shrink(self, max_bytes: int) -> None:
        """Set another bound, giving up what is above it."""
        self.max_bytes = max_bytes
        self._make_room(0, set())

    def clear(self) -> None:
        """Forget everything."""
        self._roots.clear()
        self._nodes.clear()
        self.nbytes = 0

    def _keys(self, tokens: Sequence[int] | IntArray) -> list[bytes]:
        """The names of a text's full blocks: their tokens."""
        data, size = np.asarray(tokens, np.int32).tobytes(), 4 * self._unit
        return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]

    def _walk(self, keys: Sequence[bytes], namespace: str) -> list[_Node]:
        """The nodes of a text, as far as they are kept; they are the youngest after."""
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
        """Make a path the youngest, each node younger than its child."""
        for node in reversed(path):
            self._nodes.move_to_end(node)

    def _make_room(self, count: int, needed: set[_Node]) -> bool:
        """Give up the oldest until `count` bytes more fit; False when only needed ones are left."""
        while self.nbytes + count > self.max_bytes:
            node = next(iter(self._nodes), None)
            if node is None or node in needed:
                return False
            self._give_up(node)
        return True

    def _give_up(self, node: _Node) -> None:
        namespace = self._nodes.pop(node)
        assert not node.children, "a node is younger than its children"
        assert node.parent is not None
        assert node.blocks is not None
        del node.parent.children[node.key]
        self.nbytes -= node.blocks.nbytes
        if not self._roots[namespace].children:
            del self._roots[namespace]


@runtime_checkable
class SharesPrefixes(Protocol):
    """What a step engine, or a drafter with a model of its own, may be able to do."""

    def share_prefixes(self, max_bytes: int) -> PrefixCache:
        """From now on keep what requests with a namespace compute, in at most so many bytes, for later ones
        that begin in the same way. Raises ConfigError when the model's caches cannot be shared."""
