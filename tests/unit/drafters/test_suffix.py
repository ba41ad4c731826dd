from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.metrics import EARLIER_OUTPUTS
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Verdict
from outrider.decoding.verifiers.base import check_draft
from outrider.drafters._lookup import CHAIN, MAX_MATCH, SIZES, GramIndex
from outrider.drafters.output_pool import PROMPT_TAIL, SEPARATOR
from outrider.drafters.suffix import MAX_PATH_MATCHES, SuffixDrafter
from outrider.errors import ConfigError
from outrider.policy.tree import Lookup
from tests.support.calls import calls_of
from tests.support.toy_model import UNSCORED

SAMPLER = Sampler(SamplingParams(), 64)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=80)


def start(drafter: SuffixDrafter, prompt: list[int], name: str = "r") -> TokenContext:
    drafter.begin(Request(name, tuple(prompt), SamplingParams()))
    return TokenContext(prompt)


def look(drafter: SuffixDrafter, context: TokenContext, budget: int = 8, name: str = "r") -> Lookup:
    return drafter.lookup(ProposeJob(name, context, budget, SAMPLER), budget)


def reference(indexed: list[int], text: list[int], most: int) -> list[tuple[int, int]]:
    """`GramIndex.find`, by looking at every place."""
    found: dict[int, tuple[int, int]] = {}
    for size in reversed(SIZES):
        places = [
            at
            for at in range(size, len(indexed))
            if size <= len(text) and indexed[at - size : at] == text[-size:]
        ]
        for at in list(reversed(places))[:CHAIN]:
            length = size
            while length < min(MAX_MATCH, at, len(text)) and indexed[at - length - 1] == text[-length - 1]:
                length += 1
            found.setdefault(at, (at, length))
    return list(found.values())[:most]


@given(texts, st.lists(st.integers(1, 9), max_size=6), st.integers(1, 30))
def test_matches_are_those_of_a_search_everywhere(text: list[int], cuts: list[int], most: int) -> None:
    tokens: list[int] = []
    index = GramIndex(tokens)
    for cut in [*cuts, len(text)]:  # in parts, with a search after each
        tokens += text[len(tokens) : len(tokens) + cut]
        index.update()
        found, wanted = index.find(tokens, most), reference(tokens, tokens, most)
        assert found.list() == wanted
        assert len(found) == len(wanted)
        assert found.longest() == max(wanted, key=lambda match: match[1], default=(-1, 0))


@given(texts, texts)
def test_another_text_can_be_searched(indexed: list[int], text: list[int]) -> None:
    index = GramIndex(indexed)
    index.update()
    assert index.find(text, 12).list() == reference(indexed, text, 12)
    assert index.find(text[-MAX_MATCH:], 12).list() == index.find(text, 12).list()


@given(texts, texts, st.data())
def test_what_is_forgotten_is_not_found(first: list[int], second: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(first)))
    index = GramIndex(list(first))
    index.update()
    index.forget(count)
    index.tokens.extend(second)
    index.update()
    for start, length in index.find(second, 100).list():
        assert 0 <= start - index.base < len(index.tokens)
        whole = [*first, *second]
        assert whole[start - length : start] == second[len(second) - length :]
    kept = [*first[count:], *second]
    found = {start - count for start, _ in index.find(second, 100).list()}
    assert {start for start, _ in reference(kept, second, 100)} <= found | {
        start for start, _ in reference(kept, second, 100) if start + count < len(first) + SIZES[-1]
    }
    index.forget(len(index.tokens))
    assert index.find(second, 100).list() == []
    assert index.entries == 0


def test_what_is_no_token_is_refused() -> None:
    tokens = [1, 2, 3]
    index = GramIndex(tokens)
    index.update()
    tokens.append(2**40)
    with pytest.raises(ValueError, match="range"):
        index.update()
    tokens[:] = [1]
    with pytest.raises(ValueError, match="taken out"):
        index.update()
    with pytest.raises(TypeError):
        index.find(["a"], 1)  # type: ignore[list-item]


def brute_tree(
    places: list[tuple[int, int]], tokens: list[int], least: float, trust: float = 1.5
) -> dict[tuple[int, ...], float]:
    """Every path and its probability, from the matches of a text in itself."""
    paths: dict[tuple[int, ...], float] = {}

    def grow(path: tuple[int, ...], probability: float, alive: list[tuple[int, int]]) -> None:
        depth = len(path)
        going = [(at, n) for at, n in alive if depth < n and depth < MAX_MATCH]
        total = sum(n * n for _, n in going)
        by_token: dict[int, list[tuple[int, int]]] = {}
        for at, n in going:
            period = len(tokens) - at
            by_token.setdefault(tokens[at + depth % period], []).append((at, n))
        for token, group in by_token.items():
            agreed = min(max(n for _, n in group) + depth, MAX_MATCH) * len(group)
            chance = probability * sum(n * n for _, n in group) / total * agreed / (agreed + trust)
            if chance >= least:
                paths[(*path, token)] = chance
                grow((*path, token), chance, group)

    grow((), 1.0, places)
    return paths


@given(texts, st.integers(1, 20))
def test_the_tree_holds_the_likeliest_paths(text: list[int], budget: int) -> None:
    drafter = SuffixDrafter()
    found = look(drafter, start(drafter, text), budget)
    wanted = brute_tree(list(reference(text, text, 12)), text, 0.1)
    assert len(found.tokens) == min(budget, len(wanted))
    paths: list[tuple[int, ...]] = []
    for node, (token, parent) in enumerate(zip(found.tokens, found.parents, strict=True)):
        assert -1 <= parent < node
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
        assert found.paths[node] == pytest.approx(wanted[paths[-1]])
        above = found.paths[parent] if parent >= 0 else 1.0
        assert found.paths[node] == pytest.approx(above * found.confidence[node])
        assert 0.0 < found.confidence[node] < 1.0
    assert len(set(paths)) == len(paths), "no path twice"
    assert all(a >= b - 1e-12 for a, b in pairwise(found.paths))
    best = sorted(wanted.values(), reverse=True)[: len(found.tokens)]
    assert found.paths == pytest.approx(best)


@given(texts, st.integers(1, 12))
def test_a_chain_is_the_likeliest_child_each_time(text: list[int], budget: int) -> None:
    drafter = SuffixDrafter(tree=False)
    assert drafter.needs == frozenset()
    context = start(drafter, text)
    (draft,) = drafter.propose([ProposeJob("r", context, budget, SAMPLER)])
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    wanted = brute_tree(list(reference(text, text, 12)), text, 0.1)
    path: tuple[int, ...] = ()
    for token in draft.tokens.tolist():
        children = {p: c for p, c in wanted.items() if p[:-1] == path and len(p) == len(path) + 1}
        path = (*path, token)
        assert children[path] == pytest.approx(max(children.values()))


@given(texts, st.lists(st.integers(0, 3), max_size=4), st.integers(1, 8))
def test_what_follows_a_draft_is_what_would_follow_such_a_text(
    text: list[int], path: list[int], most: int
) -> None:
    """(The few places that are looked at agree with the many on short texts' likeliest path most often; here
    that is all that there is.)"""
    drafter = SuffixDrafter()
    context = start(drafter, text)
    assert drafter.likely_path("r", context.along(path), most) == ([], []), "not looked up in yet"
    look(drafter, context)
    tokens, chances = drafter.likely_path("r", context.along(path), most)
    assert len(tokens) == len(chances) <= most
    assert all(0.0 < chance < 1.0 for chance in chances)
    end = [*text, *path]
    longest = max((length for _, length in reference(text, end, MAX_PATH_MATCHES)), default=0)
    if not longest:
        assert tokens == []
    else:
        follows = {text[i] for i in range(1, len(text)) if text[i - 1] == end[-1]}
        assert not tokens or tokens[0] in follows


@given(texts, st.integers(0, 3), st.integers(1, 30))
def test_nothing_follows_a_token_that_ends_the_text(text: list[int], stop: int, budget: int) -> None:
    """The tree is the one without stop tokens, without what follows them: as large as it may be."""
    ending = Sampler(SamplingParams(), 64, eos_ids=[stop])
    drafter = SuffixDrafter(suffix_decoding_min_token_prob=0.0)
    context = start(drafter, text)
    whole = look(drafter, context, 10_000)
    found = drafter.lookup(ProposeJob("r", context, budget, ending), budget)
    kept: list[tuple[float, int]] = []
    beyond: set[int] = set()
    for node, (token, parent) in enumerate(zip(whole.tokens, whole.parents, strict=True)):
        if parent in beyond or (parent >= 0 and whole.tokens[parent] == stop):
            beyond.add(node)
        else:
            kept.append((whole.paths[node], token))
    assert [*zip(found.paths, found.tokens, strict=True)] == kept[:budget]
    row, _ = drafter.likely_path("r", context, 30)
    assert stop not in row[:-1]


def test_a_draft_is_followed_into_outputs_of_the_same_namespace() -> None:
    drafter = SuffixDrafter(namespace=lambda request: request.request_id[0])
    written = start(drafter, [1, 2], "a1")
    for token in range(34, 44):
        written.append(token)
    look(drafter, written, name="a1")
    drafter.end("a1")
    for name, expected in (("a2", [42, 43]), ("b1", [])):
        context = start(drafter, [5, 6], name)
        look(drafter, context, name=name)
        assert drafter.likely_path(name, context.along([*range(34, 42)]), 8)[0] == expected


def test_drafts_are_what_an_engine_can_score() -> None:
    drafter = SuffixDrafter()
    context = start(drafter, [1, 2, 3, 1, 2, 4, 1, 2])
    (draft,) = drafter.propose([ProposeJob("r", context, 6, SAMPLER)])
    assert draft.source == "suffix"
    assert set(draft.tokens[draft.parents == -1].tolist()) >= {3, 4}, "both continuations are children"
    checked = check_draft(draft, 64, 6, tree=True)
    np.testing.assert_array_equal(checked.tokens, draft.tokens)
    drafter.observe("r", draft, Verdict((), 1, "recovered"), UNSCORED)


def test_loops_continue_and_no_match_is_no_draft() -> None:
    drafter = SuffixDrafter(tree=False, suffix_decoding_min_token_prob=0.0)
    assert look(drafter, start(drafter, [9, 1, 2, 1, 2, 1, 2]), 4).tokens == [1, 2, 1, 2]
    assert look(drafter, start(drafter, [5], "one"), 4, "one").tokens == []
    (draft,) = drafter.propose([ProposeJob("one", TokenContext([5]), 4, SAMPLER)])
    assert len(draft) == 0


def test_a_longer_match_is_trusted_more() -> None:
    drafter = SuffixDrafter()
    weak = look(drafter, start(drafter, [1, 7, 2, 1], "weak"), 1, "weak")
    strong = look(drafter, start(drafter, [4, 5, 6, 1, 7, 2, 4, 5, 6, 1], "strong"), 1, "strong")
    assert weak.tokens == strong.tokens == [7]
    assert strong.confidence[0] > weak.confidence[0] + 0.2
    assert (weak.length, strong.length) == (1, 4)


def test_depth_and_length_are_limited() -> None:
    text = [*range(30), *range(12)]
    for options, size in (
        ({"suffix_decoding_max_spec_factor": 0.5}, 6),
        ({"suffix_decoding_max_tree_depth": 3}, 3),
        ({"suffix_decoding_max_spec_factor": 0.0}, 0),
        ({"suffix_decoding_max_spec_factor": 1.0}, 12),
        ({"suffix_decoding_min_token_prob": 0.75}, 2),
    ):
        drafter = SuffixDrafter(**options)
        assert len(look(drafter, start(drafter, text), 50).tokens) == size, options


def test_outputs_are_shared_within_a_namespace_only() -> None:
    drafter = SuffixDrafter(namespace=lambda request: request.request_id[0])
    context = start(drafter, [9], "a1")
    look(drafter, context, 4, "a1")
    for token in range(1, 12):
        context.append(token)
    drafter.end("a1")
    assert len(drafter.pool) == 1
    assert look(drafter, start(drafter, [8, 1, 2, 3], "a2"), 4, "a2").tokens == [4]
    assert look(drafter, start(drafter, [8, 9, *range(1, 10)], "a4"), 4, "a4").tokens == [10, 11], (
        "and no loop at its end"
    )
    assert look(drafter, start(drafter, [8, 1, 2, 3], "b1"), 4, "b1").tokens == []
    assert look(drafter, start(drafter, [8, 1], "a3"), 4, "a3").tokens == [], "one token says nothing"
    alone = SuffixDrafter()
    context = start(alone, [9], "a1")
    look(alone, context, 4, "a1")
    context.append(1)
    alone.end("a1")
    alone.end("a1")  # ends are forgiven
    assert len(alone.pool) == 0


def test_an_answer_is_expected_to_begin_as_others_did() -> None:
    drafter = SuffixDrafter(namespace=lambda _: "all")
    marks = [*range(100, 110)]  # what a template ends with
    first = start(drafter, [7, *marks], "first")
    look(drafter, first, 4, "first")
    for token in (1, 2, 3, 4, 5, 6):
        first.append(token)
    drafter.end("first")
    shared = drafter.pool.get("all")
    assert shared is not None
    assert shared.tokens == [*marks[-PROMPT_TAIL:], 1, 2, 3, 4, 5, 6, SEPARATOR], (
        "the end of the prompt, no more of it"
    )
    assert look(drafter, start(drafter, [8, 7, *marks[:2]], "third"), 4, "third").tokens == []
    second = start(drafter, [8, 9, *marks], "second")
    assert look(drafter, second, 4, "second").tokens == [1, 2]
    repeated = look(drafter, start(drafter, [*marks, 1, 2, *marks], "own"), 4, "own")
    assert look(drafter, second, 4, "second").confidence[0] < repeated.confidence[0]


def test_what_only_earlier_outputs_have_is_told_apart() -> None:
    drafter = SuffixDrafter(namespace=lambda _: "all")
    first = start(drafter, [9], "first")
    look(drafter, first, 4, "first")
    for token in (1, 2, 3, 4, 5, 6):
        first.append(token)
    drafter.end("first")
    found = look(drafter, start(drafter, [1, 2, 3, 7, 1, 2, 3], "second"), 4, "second")
    assert dict(zip(found.tokens, found.shared, strict=True)) == {7: False, 4: True, 1: False, 2: False}
    both = look(drafter, start(drafter, [1, 2, 3, 4, 1, 2, 3], "third"), 1, "third")
    assert (both.tokens, both.shared) == ([4], [False]), "its own text has it as well"
    assert look(drafter, start(drafter, [7, 8, 9, 7, 8], "fourth"), 1, "fourth").shared == []
    context = start(drafter, [8, 1, 2, 3], "fifth")
    (draft,) = drafter.propose([ProposeJob("fifth", context, 4, SAMPLER)])
    assert draft.sources == (EARLIER_OUTPUTS,) * len(draft)
    assert draft.source == "suffix"


def test_unanswered_prompts_leave_nothing() -> None:
    drafter = SuffixDrafter(namespace=lambda _: "all")
    look(drafter, start(drafter, [1, 2, 3], "r"), 4)
    drafter.end("r")
    assert drafter.pool.get("all") is None


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("xyz"), texts), max_size=12), st.integers(0, 4))
def test_the_oldest_outputs_go_first(outputs: list[tuple[str, list[int]]], most: int) -> None:
    drafter = SuffixDrafter(suffix_decoding_max_cached_requests=most)
    for namespace, output in outputs:
        drafter.pool.add(namespace, output)
    kept = outputs[max(0, len(outputs) - most) :] if most else []
    assert len(drafter.pool) == len(kept)
    for namespace in "xyz":
        index = drafter.pool.get(namespace)
        tokens = [t for name, output in kept if name == namespace for t in [*output, -1]]
        assert ([] if index is None else index.tokens) == tokens
    held = [index for name in "xyz" if (index := drafter.pool.get(name)) is not None]
    assert drafter.pool.nbytes == sum(index.nbytes for index in held)
    drafter.pool.limit(0)
    assert (len(drafter.pool), drafter.pool.nbytes) == (0, 0)


def test_memory_is_bounded_and_reported() -> None:
    drafter = SuffixDrafter(max_bytes=200_000)
    random = np.random.default_rng(0)
    for _ in range(60):
        drafter.pool.add("x", random.integers(0, 1000, 50).tolist())
        assert drafter.nbytes <= 200_000
    assert 1 < len(drafter.pool) < 60
    look(drafter, start(drafter, list(range(2000))))
    assert drafter.nbytes > 200_000, "a request's own text counts too"
    drafter.end("r")
    assert drafter.nbytes <= 200_000


@pytest.mark.parametrize(
    "option", ["max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob"]
)
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        SuffixDrafter(**{f"suffix_decoding_{option}": -1})  # type: ignore[arg-type]


def test_a_lookup_does_no_more_in_a_long_text() -> None:
    """Nothing goes over the whole text in Python. (benchmarks/step_overhead.py has the time.)"""

    def calls(length: int) -> int:
        drafter = SuffixDrafter()
        context = start(drafter, np.random.default_rng(0).integers(0, 50, length).tolist())
        look(drafter, context)
        return calls_of(lambda: look(drafter, context))

    assert calls(20_000) == calls(2_000) < 40
