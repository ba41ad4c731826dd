"""The C++ GramIndex and SuffixTree against their specifications, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters import _lookup as native
from tests.oracles import gram_index, suffix_tree
from tests.oracles.gram_index import GramIndex
from tests.oracles.suffix_tree import SuffixTree

Step: TypeAlias = tuple[str, Any]  # append these tokens, forget so many, or find this text

BARRIER = -1  # separates outputs that share an index

tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=60) | st.lists(st.integers(0, 1), min_size=30, max_size=90)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), texts),
        st.tuples(st.just("forget"), st.integers(0, 60)),
        st.tuples(st.just("find"), st.tuples(texts, st.integers(0, 40))),
        st.tuples(st.just("find own"), st.integers(0, 40)),
    ),
    max_size=12,
)


def as_list(matches: Any) -> list[tuple[int, int]]:
    return matches if isinstance(matches, list) else matches.list()


def searches(kind: type[Any], sequence: Sequence[Step]) -> list[Any]:
    """What an index answers, step by step."""
    index = kind([])
    found: list[Any] = []
    for name, argument in sequence:
        if name == "append":
            index.tokens.extend(argument)
            index.update()
        elif name == "forget":
            index.forget(argument)
        elif name == "find":
            found.append(as_list(index.find(*argument)))
        else:
            found.append(as_list(index.find(index.tokens, argument)))
        found += [index.base, index.entries, list(index.tokens)]
    return found


@given(steps)
def test_an_index_answers_as_the_specification(sequence: list[Step]) -> None:
    assert searches(native.GramIndex, sequence) == searches(GramIndex, sequence)


def test_constants_are_those_of_the_specification() -> None:
    assert tuple(native.SIZES) == gram_index.SIZES
    assert (native.MAX_MATCH, native.CHAIN) == (gram_index.MAX_MATCH, gram_index.CHAIN)


Kinds: TypeAlias = tuple[Callable[[list[int]], Any], Callable[..., Any]]  # an index and a tree

NATIVE: Kinds = (native.GramIndex, native.SuffixTree)
ORACLE: Kinds = (GramIndex, SuffixTree)


@dataclass(frozen=True)
class Case:
    """What a tree is grown from: its options, the text, others' outputs, a path that is copied, limits."""

    options: tuple[int, float, float, bool]
    text: list[int]
    outputs: list[int] | None
    copy: list[int] | None
    budget: int
    places: int  # that are found
    most: int  # that are kept
    stop_ids: frozenset[int]


def drafts(kinds: Kinds, case: Case) -> list[Any]:
    """A tree and a row of what may follow a text."""
    index_of, tree_of = kinds
    tree = tree_of(*case.options)
    text = index_of(list(case.text))
    text.update()
    matches = text.find(text.tokens, case.places)
    others = theirs = copy = None
    if case.outputs is not None:
        others = index_of(list(case.outputs))
        others.update()
        theirs = others.find(text.tokens, case.places)
    if case.copy is not None:
        start, _ = next(iter(as_list(matches)), (-1, 0))
        copy = start, case.copy, 7
    sources = text, matches, others, theirs
    grown = tree.grow(*sources, copy, budget=case.budget, most=case.most, stop_ids=case.stop_ids)
    row = tree.row(*sources, most=case.budget, stop_ids=case.stop_ids)
    return [*map(list, grown[:4]), grown[4], *map(list, row)]


@given(
    st.builds(
        Case,
        st.tuples(st.integers(0, 12), st.floats(0.0, 3.0), st.sampled_from([0.0, 0.1, 0.3]), st.booleans()),
        text=texts,
        outputs=st.none() | st.lists(tokens | st.just(BARRIER), max_size=60),
        copy=st.none() | st.lists(tokens, max_size=8),
        budget=st.integers(0, 20),
        places=st.integers(1, 12),
        most=st.integers(1, 12),
        stop_ids=st.frozensets(tokens, max_size=1),
    )
)
def test_drafts_are_those_of_the_specification(case: Case) -> None:
    assert drafts(NATIVE, case) == drafts(ORACLE, case)


class ShortGrams(GramIndex):
    """Has no n-grams of sixteen tokens."""

    sizes = gram_index.SIZES[:-1]


class LongChains(GramIndex):
    """Looks at more places of an n-gram."""

    chain = gram_index.CHAIN + 1


class Remembering(GramIndex):
    """Still finds n-grams that reach across a cut."""

    def forget(self, count: int) -> None:
        kept = max(0, min(count, len(self.tokens)) - 1)
        super().forget(kept)


@pytest.mark.parametrize("twin", [ShortGrams, LongChains, Remembering])
def test_a_broken_index_is_caught(twin: type[GramIndex]) -> None:
    random = np.random.default_rng(0)
    half = random.integers(0, 2, 200).tolist()
    sequence: list[Step] = [
        ("append", half),
        ("find own", 60),
        ("forget", 90),
        ("find own", 60),
        ("append", half[:150]),
        ("find own", 60),
    ]
    assert searches(native.GramIndex, sequence) == searches(GramIndex, sequence)
    assert searches(native.GramIndex, sequence) != searches(twin, sequence)


class CrossesBarriers(SuffixTree):
    """Goes on into another output."""

    def children(self, places: Sequence[suffix_tree.Place], depth: int) -> list[suffix_tree.Child]:
        joined = [
            suffix_tree.Place([t for t in p.tokens if t >= 0], p.at, p.period, p.length, p.weight)
            for p in places
        ]
        return super().children(joined, depth)


class WithoutLoops(SuffixTree):
    """Ends where the text does."""

    def children(self, places: Sequence[suffix_tree.Place], depth: int) -> list[suffix_tree.Child]:
        ending = [suffix_tree.Place(p.tokens, p.at, 0, p.length, p.weight) for p in places]
        return super().children(ending, depth)


class EqualWeights(SuffixTree):
    """Counts a short match like a long one."""

    def children(self, places: Sequence[suffix_tree.Place], depth: int) -> list[suffix_tree.Child]:
        equal = [suffix_tree.Place(p.tokens, p.at, p.period, p.length, 1.0) for p in places]
        return super().children(equal, depth)


@pytest.mark.parametrize("twin", [CrossesBarriers, WithoutLoops, EqualWeights])
def test_a_broken_tree_is_caught(twin: type[SuffixTree]) -> None:
    random = np.random.default_rng(1)
    same = []
    for _ in range(20):
        text = random.integers(0, 3, 40).tolist()
        outputs = [*random.integers(0, 3, 12).tolist(), BARRIER, *random.integers(0, 3, 12).tolist()]
        case = Case((8, 2.0, 0.0, True), text, outputs, None, 16, 12, 12, frozenset())
        assert drafts(NATIVE, case) == drafts(ORACLE, case)
        same.append(drafts(NATIVE, case) == drafts((GramIndex, twin), case))
    assert not all(same)
