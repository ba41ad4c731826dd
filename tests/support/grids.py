"""Large grids of cases, of which CI runs a part: another one at each commit, so that some commits run all."""

from __future__ import annotations

import random
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def left_out(items: Iterable[pytest.Item], commit: int | None = None) -> set[str]:
    """The ids of the tests that CI does not run at this commit.

    Tests marked `grid(parts)` are dealt into so many parts: the cases of one test function, or with
    `grid(parts, whole_file=True)` all tests of the file.
    commit: a number, by which the part that runs is chosen; None: that of the checkout.
    """
    grids: dict[tuple[str, str], list[str]] = defaultdict(list)
    parts: dict[tuple[str, str], int] = {}
    for item in items:
        marker = item.get_closest_marker("grid")
        if marker is None:
            continue
        name = "" if marker.kwargs.get("whole_file") else str(getattr(item, "originalname", item.name))
        key = (item.nodeid.partition("::")[0], name)
        grids[key].append(item.nodeid)
        parts[key] = int(marker.args[0])
    if not grids:
        return set()
    number = current_commit() if commit is None else commit
    found: set[str] = set()
    for key, nodes in grids.items():
        random.Random("::".join(key)).shuffle(nodes)  # else a part might have one value of a parameter only
        found.update(node for place, node in enumerate(nodes) if place % parts[key] != number % parts[key])
    return found


def current_commit() -> int:
    """How many commits the checkout has; 0 where that cannot be told."""
    command = ["git", "-C", str(ROOT), "rev-list", "--count", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(found)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0
