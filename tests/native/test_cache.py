"""The rules of the KV cache, and that an invalid call changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engines.base import CacheBlocks
from outrider.engines.native import NativeCache, NativeModel
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.open import open_model
from tests.native.support import item, load, run, same_bits
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyCache


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> NativeModel:
    path = tmp_path_factory.mktemp("cache") / "m.gguf"
    return load(open_model(tiny_gguf(path, arch=request.param, types="Q8_0")))


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.lists(st.integers(3, 319), min_size=1, max_size=20), st.floats(0, 1)), max_size=6)
)
def test_a_truncated_cache_is_as_good_as_a_new_one(
    model: NativeModel, rounds: list[tuple[list[int], float]]
) -> None:
    cache = model.new_cache(128)
    text: list[int] = []
    for tokens, share in rounds:
        run(model, cache, tokens)
        text += tokens
        cut = int(len(text) * share)
        cache.truncate(cut)
        text = text[:cut]
        assert cache.length == len(text)
    fresh = model.new_cache(128)
    assert same_bits(run(model, cache, [5, 6]), run(model, fresh, [*text, 5, 6])[-2:])


def test_memory_grows_by_blocks(model: NativeModel) -> None:
    cache = model.new_cache(128)
    assert cache.nbytes == 0
    run(model, cache, [5] * 16)
    one = cache.nbytes
    run(model, cache, [5])
    assert cache.nbytes == 2 * one > 0
    cache.close()
    assert cache.nbytes == 0


def test_logits_take_the_memory_of_those_let_go_of(model: NativeModel) -> None:
    cache = model.new_cache(128)
    first = run(model, cache, [5] * 8)
    place, before = first.ctypes.data, first.copy()
    second = run(model, cache, [6] * 8)
    assert second.ctypes.data != place
    assert same_bits(first, before), "what is still held is left alone"
    del first
    third = run(model, cache, [7] * 3)
    assert third.ctypes.data == place
    assert same_bits(third, run(model, model.new_cache(128), [5] * 8 + [6] * 8 + [7] * 3)[-3:])


@pytest.fixture(scope="module")
def slabbed(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    """A model whose blocks are large enough to come from slabs: 64 KiB each."""
    dims = Dims(layers=2, heads=4, kv_heads=4, head_dim=128)
    return load(open_model(tiny_gguf(tmp_path_factory.mktemp("slabs") / "m.gguf", dims=dims, types="Q8_0")))


def grow_and_close(model: NativeModel, steps: list[tuple[int, int, bool]], random: Random) -> None:
    """Steps: which cache grows, by how many tokens, and whether it is closed then, its full blocks kept."""
    slab, block, most = 2 << 20, 1 << 16, 0
    caches: dict[int, tuple[NativeCache, list[int]]] = {}
    kept: list[tuple[CacheBlocks, list[int]]] = []
    for which, count, close in steps:
        cache, text = caches.setdefault(which, (model.new_cache(4096), []))
        tokens = [3 + random.randrange(300) for _ in range(count)]
        run(model, cache, tokens)
        text += tokens
        if close:
            full = len(text) // 16 * 16
            kept.append((cache.share(0, full), text[:full]))
            cache.close()
            del caches[which]
        alive = sum(c.nbytes for c, _ in caches.values()) + sum(b.nbytes for b, _ in kept)
        most = max(most, alive + block)  # (a closed cache's last block was there until just now)
        assert alive <= model.cache_bytes <= most + slab
    for blocks, text in kept:
        cache = model.new_cache(4096)
        cache.adopt(blocks)
        caches[len(caches) + 6] = cache, text
    for cache, text in caches.values():
        assert same_bits(run(model, cache, [7]), run(model, model.new_cache(4096), [*text, 7])[-1:])


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 90), st.booleans()), max_size=25), st.randoms())
def test_slabs_hold_what_blocks_held_at_their_most(
    slabbed: NativeModel, steps: list[tuple[int, int, bool]], random: Random
) -> None:
    """Memory taken is the most that was needed and a slab at most, all is given back in whatever order blocks
    are let go, and none is given out twice."""
    grow_and_close(slabbed, steps, random)
    assert slabbed.cache_bytes == 0


def test_bad_calls_change_nothing(model: NativeModel) -> None:
    good, cache = model.new_cache(64), model.new_cache(8)
    run(model, good, [5, 6, 7])
    run(model, cache, [5, 6])
    closed = model.new_cache(8)
    closed.close()
    with pytest.raises(ValueError, match="vocabulary"):
        model.forward([item(good, [5]), item(cache, [320])])
    with pytest.raises(ValueError, match="vocabulary"):
        model.forward([item(cache, [-1])])
    with pytest.raises(ValueError, match="do not fit"):
        model.forward([item(good, [5]), item(cache, [5] * 7)])
    with pytest.raises(ValueError, match="parent"):
        model.forward([item(cache, [5, 6], parents=[-1, 1])])
    with pytest.raises(ValueError, match="wanted row"):
        model.forward([item(cache, [5], rows=[1])])
    with pytest.raises(ValueError, match="once"):
        model.forward([item(cache, [5]), item(cache, [5])])
    with pytest.raises(ValueError, match="closed"):
        run(model, closed, [5])
    with pytest.raises(ValueError, match="truncate"):
        cache.truncate(3)
    with pytest.raises(ValueError, match="ascend"):
        cache.keep(1, [1, 1])
    with pytest.raises(ValueError, match="inside"):
        cache.keep(1, [2])
    assert (good.length, cache.length) == (3, 2)
    with pytest.raises(ValueError, match="capacity"):
        model.new_cache(0)


def test_padding_is_positions_that_a_pass_may_follow(model: NativeModel) -> None:
    """Of no meaning: but their memory is there, and all that is done with a cache can be done with it."""
    cache, computed = model.new_cache(64), model.new_cache(64)
    run(model, computed, [5] * 40)
    cache.pad(30)
    cache.pad(10)
    assert (cache.length, cache.nbytes) == (computed.length, computed.nbytes)
    assert not any(math.isnan(x) for x in run(model, cache, [5, 6])[-1])
    cache.truncate(0)
    assert same_bits(run(model, cache, [5, 6]), run(model, model.new_cache(8), [5, 6]))
    shared = computed.share(0, 32)
    other = model.new_cache(64)
    other.adopt(shared)
    other.truncate(20)
    other.pad(20)  # in a copy of the block that others hold
    again = model.new_cache(64)
    again.adopt(shared)
    assert same_bits(run(model, again, [7]), run(model, other_of(model), [7]))
    for count, message in ((25, "do not fit"), (-1, "pad")):
        with pytest.raises(ValueError, match=message):
            other.pad(count)
    assert other.length == 40


def other_of(model: NativeModel) -> NativeCache:
    cache = model.new_cache(64)
    run(model, cache, [5] * 32)
    return cache


def test_bad_options(tmp_path: Path) -> None:
    source = open_model(tiny_gguf(tmp_path / "m.gguf"))
    with pytest.raises(ConfigError, match="sse9"):
        NativeModel.load(source, isa="sse9")
    with pytest.raises(ConfigError, match="threads"):
        NativeModel.load(source, threads=0)
    with pytest.raises(ConfigError, match="kv_dtype"):
        NativeModel.load(source, kv_dtype="q4")
    odd = open_model(tiny_gguf(tmp_path / "odd.gguf", dims=Dims(head_dim=24)))
    with pytest.raises(UnsupportedModelError, match="head size of 24"):
        NativeModel.load(odd)


@settings(max_examples=40)
@given(
    text=st.lists(st.integers(3, 319), min_size=16, max_size=60),
    cut=st.integers(0, 60),
    more=st.lists(st.integers(3, 319), min_size=1, max_size=20),
    tree=st.booleans(),
)
def test_shared_blocks_stay_as_they_are(
    model: NativeModel, text: list[int], cut: int, more: list[int], tree: bool
) -> None:
    """Whatever the giver and the taker write afterwards, by a pass or by keeping a path."""
    giver, taker = model.new_cache(128), model.new_cache(128)
    run(model, giver, text)
    stop = len(text) // 16 * 16
    blocks = giver.share(0, stop)
    assert (blocks.positions, blocks.nbytes) == (stop, giver.nbytes * stop // 16 // -(-len(text) // 16))
    taker.adopt(blocks)
    assert (taker.length, taker.nbytes) == (stop, blocks.nbytes)
    for cache, length in ((giver, min(cut, len(text))), (taker, min(cut, stop))):
        cache.truncate(length)
        if tree:  # siblings, of which the last is kept
            run(model, cache, more, parents=[-1] * len(more))
            cache.keep(length, [length + len(more) - 1])
        else:
            run(model, cache, more)
    fresh, again = model.new_cache(128), model.new_cache(128)
    again.adopt(blocks)
    expected = run(model, fresh, [*text[:stop], 5, 6])[-2:]
    assert same_bits(run(model, again, [5, 6]), expected)
    written = [*text[: min(cut, stop)], *(more[-1:] if tree else more), 5]
    fresh.truncate(0)
    assert same_bits(run(model, taker, [5]), run(model, fresh, written)[-1:])


def test_blocks_outlive_their_cache(model: NativeModel) -> None:
    giver, taker, fresh = (model.new_cache(64) for _ in range(3))
    run(model, giver, [7] * 20)
    first, second = giver.share(0, 16), giver.share(16, 16)
    giver.close()
    taker.adopt(first)
    taker.adopt(second)
    assert taker.length == 16
    assert same_bits(run(model, taker, [5]), run(model, fresh, [*[7] * 16, 5])[-1:])


def test_bad_sharing_changes_nothing(model: NativeModel, tmp_path: Path) -> None:
    cache, small = model.new_cache(64), model.new_cache(16)
    run(model, cache, [5] * 40)
    for start, stop in ((0, 8), (8, 16), (0, 48), (16, 0), (-16, 0)):
        with pytest.raises(ValueError, match="share"):
            cache.share(start, stop)
    blocks = cache.share(0, 32)
    with pytest.raises(ValueError, match="do not fit"):
        small.adopt(blocks)
    with pytest.raises(ValueError, match="multiple of 16"):
        cache.adopt(blocks)
    other = load(open_model(tiny_gguf(tmp_path / "m.gguf", dims=Dims(layers=1)))).new_cache(64)
    with pytest.raises(ValueError, match="another model"):
        other.adopt(blocks)
    with pytest.raises(TypeError, match="of its own"):
        other.adopt(ToyCache(16).share(0, 0))
    assert (cache.length, small.length, other.length) == (40, 0, 0)
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.share(0, 16)
    with pytest.raises(ValueError, match="closed"):
        cache.adopt(blocks)
