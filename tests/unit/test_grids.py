"""What CI leaves out of a grid at one commit it runs at another."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import pytest

from tests.support.grids import current_commit, left_out


@dataclass(frozen=True)
class Collected:
    nodeid: str
    marker: pytest.Mark | None = None

    @property
    def name(self) -> str:
        return self.nodeid.partition("::")[2]

    @property
    def originalname(self) -> str:
        return self.name.partition("[")[0]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marker if name == "grid" else None


CASES = pytest.mark.grid(3).mark
PAGES = pytest.mark.grid(2, whole_file=True).mark
ITEMS = [
    *(Collected(f"test_a.py::test_cases[{a}-{b}]", CASES) for a, b in product("xyz", range(4))),
    Collected("test_a.py::test_alone"),
    *(Collected(f"test_pages.py::test_{n}", PAGES) for n in ("one", "two", "three")),
]


def kept(commit: int) -> set[str]:
    dropped = left_out(cast(Any, ITEMS), commit)
    return {item.nodeid for item in ITEMS} - dropped


def test_every_case_runs_at_some_commit_and_a_part_at_each() -> None:
    assert set().union(*map(kept, range(6))) == {item.nodeid for item in ITEMS}
    for commit in range(6):
        found = kept(commit)
        assert sum("test_cases" in node for node in found) == 4
        assert sum("test_pages" in node for node in found) in (1, 2)
        assert "test_a.py::test_alone" in found
        assert found == kept(commit + 6)


def test_a_part_has_more_than_one_value_of_each_parameter() -> None:
    for commit in range(3):
        assert len({node.partition("[")[2][0] for node in kept(commit) if "test_cases" in node}) > 1


def test_the_checkout_has_commits() -> None:
    assert current_commit() > 0
