"""What a draft model is fed as it grows a tree, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence


def tokens_to_feed(parents: Sequence[int], frontier: Sequence[int]) -> tuple[list[int], list[int]]:
    """What a draft model is fed to draw children of `frontier`, nodes of one depth of the tree it grows.

    Returns (kept, fed), both ascending: the common path above the frontier, which the cache holds as a chain,
    and the rest of the frontier's paths. A token can only hang from the whole cache or from tokens of the
    same pass, so what differs between the paths is fed again.
    """
    paths = [_path(parents, node) for node in frontier]
    first = paths[0]
    common = len(first) - 1
    for path in paths[1:]:
        common = next((i for i in range(common) if path[i] != first[i]), common)
    kept = first[:common]
    if len(paths) == 1:
        return kept, first[common:]
    return kept, sorted({node for path in paths for node in path[common:]})


def levels(parents: Sequence[int]) -> list[list[int]]:
    """The inner nodes of a grown tree by depth: the frontier of each pass after the first."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    found: list[list[int]] = [[] for _ in range(max(depths, default=0))]
    for node in sorted({parent for parent in parents if parent >= 0}):
        found[depths[node]].append(node)
    return found


def height(parents: Sequence[int]) -> int:
    """Tokens of the longest path of a grown tree, of at least one node."""
    heights: list[int] = []
    for parent in parents:
        heights.append(heights[parent] + 1 if parent >= 0 else 1)
    return max(heights)


def _path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the top to `node`."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]
