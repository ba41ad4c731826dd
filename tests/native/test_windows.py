"""The cache of layers with a sliding window: it holds what it must and no more, and no bit changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import memory
from outrider.config.speculative import MAX_DRAFT_TOKENS
from outrider.decoding.types import Draft, FloatArray, Verdict
from outrider.engines.base import SeqHandle, roll_back
from outrider.engines.native import NativeCache, NativeModel, _core
from outrider.engines.prefix import PrefixCache
from outrider.engines.step import CachedStepEngine
from outrider.models.open import open_model
from outrider.verify.memoized_model import MemoizedModel
from tests.native.support import item, load, run, same_bits, windowed
from tests.oracles.window_cache import BLOCK, ROLLBACK, WindowCache
from tests.support.models import Dims, tiny_gguf

CONTEXT = 1024
LAYERS: list[tuple[int | None, ...]] = [(20, None), (40, 40), (33, 1), (None, 48), (400, None)]


@pytest.fixture(scope="module", params=LAYERS, ids=str)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> NativeModel:
    return windowed_model(tmp_path_factory.mktemp("windows"), request.param)


def windowed_model(folder: Path, windows: Sequence[int | None]) -> NativeModel:
    path = tiny_gguf(folder / "m.gguf", types="Q8_0", dims=Dims(context=CONTEXT))
    return load(windowed(open_model(path), windows))


def windows_of(model: NativeModel) -> list[int]:
    return [layer.window for layer in model.source.architecture.layers if layer.window is not None]


def words(random: Random, count: int) -> list[int]:
    return [3 + random.randrange(300) for _ in range(count)]


# --- What is held: the specification, and the C++ against it --------------------------------------------


class OffByOne(WindowCache):
    """The broken twin: a block is given back one position too early."""

    def first_needed(self) -> int:
        return super().first_needed() + 1


def check_reads(cache: WindowCache, steps: Sequence[tuple[int, float]]) -> None:
    """Passes of so many tokens, after each of which the cache goes back to a share of what lies between its
    floor and its length. Asserts that each token sees the last tokens of its text."""
    text: list[int] = []
    for count, share in steps:
        before = cache.rollback_floor
        new = [*range(len(text), len(text) + count)]
        seen = cache.forward(new)
        for at, token in enumerate(new):
            assert seen[at] == [*text, *new[: at + 1]][-cache.window :], token
        text += new
        floor = cache.rollback_floor
        assert floor <= max(before, len(text) - count - ROLLBACK)
        text = text[: floor + round(share * (len(text) - floor))]
        cache.truncate(len(text))


shares = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
steps = st.lists(st.tuples(st.integers(1, 90), shares), max_size=9)


@settings(max_examples=100)
@given(window=st.integers(1, 70), start=st.integers(1, 400), steps=steps)
def test_a_token_sees_its_window_after_any_rollback(
    window: int, start: int, steps: list[tuple[int, float]]
) -> None:
    check_reads(WindowCache(window), [(start, 1.0), *steps])


def test_a_block_given_back_too_early_is_noticed() -> None:
    grow = [(ROLLBACK, 1.0), *[(1, 1.0)] * 80]
    check_reads(WindowCache(20), grow)
    with pytest.raises(AssertionError):
        check_reads(OffByOne(20), grow)


def blocks_held(cache: NativeCache) -> list[bool]:
    """Of each full block, whether all layers hold it."""
    return [cache.share(at, at + BLOCK).whole for at in range(0, cache.length - BLOCK + 1, BLOCK)]


def check_held(model: NativeModel, oracle: type[WindowCache], steps: Sequence[tuple[int, float]]) -> None:
    """The same passes and rollbacks in the C++ and in its specification, which is asked after each what is
    held; then lengths that cannot be gone back to are refused, and change nothing."""
    cache, expected = model.new_cache(CONTEXT), [oracle(window) for window in windows_of(model)]
    longest = 0
    for count, share in steps:
        if cache.length + count > CONTEXT:
            return
        run(model, cache, [5] * count)
        for layer in expected:
            layer.forward([5] * count)
        floor = cache.rollback_floor
        assert floor == max(layer.rollback_floor for layer in expected)
        first = max(layer.first for layer in expected)
        assert blocks_held(cache) == [at >= first for at in range(0, cache.length - BLOCK + 1, BLOCK)]
        longest = max(longest, -(-cache.length // BLOCK) * BLOCK)
        assert cache.nbytes <= memory.kv_bytes(model.source.architecture, longest)
        for below in {floor - 1, 1} if floor > 1 else ():
            with pytest.raises(ValueError, match=f"go back to {below} positions.*after {floor} or more"):
                cache.truncate(below)
            with pytest.raises(ValueError, match="go back"):
                cache.keep(below, [])
        length = floor + round(share * (cache.length - floor))
        cache.truncate(length)
        for layer in expected:
            layer.truncate(length)


@settings(max_examples=40)
@given(start=st.integers(1, 400), steps=steps)
def test_the_cache_holds_what_its_specification_does(
    model: NativeModel, start: int, steps: list[tuple[int, float]]
) -> None:
    check_held(model, WindowCache, [(start, 1.0), *steps])


def test_a_specification_that_is_off_by_one_differs(tmp_path: Path) -> None:
    model = windowed_model(tmp_path, (33, 20))  # a block ends where the larger window does
    grow = [(ROLLBACK + 1, 1.0), *[(1, 1.0)] * 80]
    check_held(model, WindowCache, grow)
    with pytest.raises(AssertionError):
        check_held(model, OffByOne, grow)


def test_constants_agree() -> None:
    assert _core.ROLLBACK == ROLLBACK == MAX_DRAFT_TOKENS


def test_memory_stays_the_same_once_the_window_is_full(tmp_path: Path) -> None:
    """Of all layers; and the estimate says so."""
    model = windowed_model(tmp_path, (20, 20))
    cache, spec = model.new_cache(CONTEXT), model.source.architecture
    held = []
    for _ in range(CONTEXT // BLOCK):
        run(model, cache, [5] * BLOCK)
        held.append(cache.nbytes)
    assert held[-1] == held[20] == max(held) < 14 * held[0]
    assert memory.kv_bytes(spec, CONTEXT) < memory.prefix_bytes(spec, CONTEXT) == CONTEXT // BLOCK * held[0]
    assert model.cache_bytes == held[-1]
    cache.close()
    assert (cache.nbytes, model.cache_bytes) == (0, 0)


# --- Bits -----------------------------------------------------------------------------------------------


def in_one_pass(model: NativeModel, text: Sequence[int]) -> FloatArray:
    """The logits of a text whose positions are all held."""
    cache = model.new_cache(len(text))
    try:
        return run(model, cache, text)
    finally:
        cache.close()


@settings(max_examples=25)
@given(
    start=st.integers(1, 420),
    rounds=st.lists(st.tuples(st.integers(1, 40), st.booleans(), shares), max_size=7),
    random=st.randoms(use_true_random=False),
)
def test_logits_do_not_depend_on_what_was_given_back(
    model: NativeModel, start: int, rounds: list[tuple[int, bool, float]], random: Random
) -> None:
    """Bit for bit: chains and trees, paths that are kept, and rollbacks as far as they go."""
    text, cache = words(random, start), model.new_cache(CONTEXT)
    for at in range(0, start, 90):
        run(model, cache, text[at : min(at + 90, start)])
    for count, tree, share in rounds:
        new = words(random, count)
        parents = [random.randrange(-1, i) for i in range(count)] if tree else [*range(-1, count - 1)]
        found = run(model, cache, new, parents)
        path = [random.randrange(count)]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        base = len(text)
        text += [new[node] for node in path]
        assert same_bits(found[path], in_one_pass(model, text)[base:])
        cache.keep(base, [base + node for node in path])
        floor = cache.rollback_floor
        del text[floor + round(share * (len(text) - floor)) :]
        cache.truncate(len(text))
    assert same_bits(run(model, cache, [5, 6]), in_one_pass(model, [*text, 5, 6])[-2:])


def test_a_cache_goes_back_to_nothing_where_it_cannot_go_further(model: NativeModel) -> None:
    cache, text = model.new_cache(CONTEXT), words(Random(1), 700)
    for at in range(0, 700, 50):
        run(model, cache, text[at : at + 50])
    floor = cache.rollback_floor
    assert 0 < floor <= 650 - ROLLBACK
    assert roll_back(cache, floor) == floor == cache.length
    assert same_bits(run(model, cache, text[floor : floor + 3]), in_one_pass(model, text)[floor : floor + 3])
    assert roll_back(cache, floor - 1) == 0 == cache.length == cache.rollback_floor
    assert same_bits(run(model, cache, text[:30]), in_one_pass(model, text[:30]))


def test_memoized_rows_are_computed_again_where_the_cache_cannot_go_back(model: NativeModel) -> None:
    memoized, long = MemoizedModel(model), words(Random(4), 600)
    with memoized.memoizing():
        for text in (
            [5],
            *(long[:end] for end in range(20, 601, 20)),
            long[:50],
            [*long[:40], 9],
            long[:590],
        ):
            assert same_bits(memoized.row(tuple(text)), in_one_pass(model, text)[-1])


def test_a_pass_that_is_refused_gives_nothing_back(model: NativeModel) -> None:
    cache, small = model.new_cache(CONTEXT), model.new_cache(8)
    for _ in range(10):
        run(model, cache, [5] * 70)
    before = cache.nbytes, cache.rollback_floor
    with pytest.raises(ValueError, match="do not fit"):
        model.forward([item(cache, [5]), item(small, [5] * 9)])
    assert (cache.nbytes, cache.rollback_floor, small.nbytes) == (*before, 0)


# --- Shared prefixes ------------------------------------------------------------------------------------


def decode(engine: CachedStepEngine, seq: SeqHandle, count: int) -> list[FloatArray]:
    """The rows of `count` greedy steps, each with a draft of four of which two are kept."""
    while engine.prefill(seq, 100):
        pass
    found = []
    for _ in range(count):
        (scores,) = engine.score([(seq, Draft.chain([7, 8, 9, 10], "t"))])
        found.append(scores.logits)
        engine.commit(seq, Verdict((0, 1), int(scores.logits[2].argmax()), "recovered"))
    return found


def prompt_of(random: Random, request: tuple[int, float, int], answers: list[list[int]]) -> list[int]:
    """A prompt that begins as an earlier text does, up to a share of it, and goes on with new words."""
    which, share, more = request
    start = answers[which % len(answers)] if answers else []
    return [*start[: round(share * len(start))], *words(random, more)]


@settings(max_examples=15)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 9), shares, st.integers(1, 200)),
        min_size=2,
        max_size=5,
    ),
    steps=st.sampled_from([1, 70, 110]),
    blocks=st.sampled_from([0, 12, 10**6]),
    random=st.randoms(use_true_random=False),
)
def test_a_prefix_is_used_where_its_windows_are_whole(
    model: NativeModel, requests: list[tuple[int, float, int]], steps: int, blocks: int, random: Random
) -> None:
    """Whatever was decoded after it, and however little room there is: the logits are those without it."""
    engine, plain = CachedStepEngine(model), CachedStepEngine(model)
    prefixes = engine.share_prefixes(blocks * memory.prefix_bytes(model.source.architecture, BLOCK))
    answers: list[list[int]] = []
    for request in requests:
        prompt = prompt_of(random, request, answers)[:500]
        seq, reference = engine.open(prompt, CONTEXT, "a"), plain.open(prompt, CONTEXT)
        assert seq.committed == prefixes.known(prompt[:-1], "a")
        for found, expected in zip(decode(engine, seq, steps), decode(plain, reference, steps), strict=True):
            assert same_bits(found, expected)
        answers.append(list(seq.text))
        engine.close(seq)
        plain.close(reference)
        assert prefixes.nbytes <= prefixes.max_bytes


def answered(model: NativeModel, prompt: Sequence[int], steps: int) -> tuple[CachedStepEngine, list[int]]:
    """An engine whose prefix cache has seen a prompt and its answer, and the text of both."""
    engine = CachedStepEngine(model)
    engine.share_prefixes(10**9)
    seq = engine.open(prompt, CONTEXT, "a")
    decode(engine, seq, steps)
    engine.close(seq)
    return engine, list(seq.text)


def test_prompts_and_the_ends_of_answers_can_be_gone_on_from(tmp_path: Path) -> None:
    model = windowed_model(tmp_path, (40, None))
    prompt = words(Random(2), 333)
    engine, text = answered(model, prompt, 150)
    assert len(text) > 333 + 400

    def taken(length: int) -> int:
        seq = engine.open([*text[:length], 1], CONTEXT, "a")
        found = seq.committed
        engine.close(seq)
        return found

    assert taken(len(text)) == len(text) // BLOCK * BLOCK
    assert taken(len(text) - 100) == (len(text) - 100) // BLOCK * BLOCK  # what a rollback could reach
    assert taken(200) == 192  # any part of the prompt
    middle = 332 // BLOCK * BLOCK
    assert taken(500) == middle, "the windows have passed the middle of the answer"
    seq = engine.open([*text[:500], 1], CONTEXT, "a")
    engine.prefill(seq, 500)
    engine.close(seq)
    assert taken(500) == 496, "what was computed again is kept whole"


class IgnoresWindows(PrefixCache):
    """The broken twin: a prefix is used although windows have passed what is seen after it."""

    def _usable(self, nodes: Sequence[object]) -> int:
        return len(nodes)


class OneBlockShort(PrefixCache):
    """The broken twin: one block fewer than windows show is enough."""

    def _usable(self, nodes: Sequence[object]) -> int:
        self.window -= BLOCK
        try:
            return super()._usable(nodes)  # type: ignore[arg-type]
        finally:
            self.window += BLOCK


@pytest.mark.parametrize(("twin", "length"), [(IgnoresWindows, 500), (OneBlockShort, -1)])
def test_a_prefix_without_its_windows_is_noticed(
    tmp_path: Path, twin: type[PrefixCache], length: int
) -> None:
    model = windowed_model(tmp_path, (40, None))
    engine, text = answered(model, words(Random(2), 333), 150)
    assert isinstance(engine.prefixes, PrefixCache)
    if length < 0:  # the first block boundary whose window is short by less than a block
        whole = [node.blocks is not None and node.blocks.whole for node in reversed(engine.prefixes._nodes)]
        last_gap = len(whole) - 1 - whole[::-1].index(False)
        length = (last_gap + 3) * BLOCK
    engine.prefixes.__class__ = twin
    seq = engine.open([*text[:length], 1, 2], CONTEXT, "a")
    assert seq.committed == length // BLOCK * BLOCK
    with pytest.raises(ValueError, match="lack what sliding windows show"):
        engine.prefill(seq, 500)


def test_blocks_without_their_windows_are_refused_until_whole_ones_follow(tmp_path: Path) -> None:
    model = windowed_model(tmp_path, (40, None))
    giver, text = model.new_cache(CONTEXT), words(Random(3), 480)
    for at in range(0, 480, 40):
        run(model, giver, text[at : at + 40])
    parts = [giver.share(at, at + BLOCK) for at in range(0, 480, BLOCK)]
    whole = [part.whole for part in parts]
    assert whole == sorted(whole)
    assert not whole[0]
    assert whole[-1]
    assert parts[0].nbytes * 2 == parts[-1].nbytes, "one of two layers"
    taker = model.new_cache(CONTEXT)
    for part in parts[: whole.index(True) + 2]:
        taker.adopt(part)
    with pytest.raises(ValueError, match="lack what sliding windows show"):
        run(model, taker, [5])
    taker.adopt(parts[whole.index(True) + 2])
    assert same_bits(run(model, taker, [5])[0], in_one_pass(model, [*text[: taker.length - 1], 5])[-1])
    assert np.isfinite(run(model, taker, [6])).all()
