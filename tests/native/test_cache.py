"""The cache's own rules, and what a bad call may not do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engines.native import NativeModel
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.open import open_model
from tests.native.support import item, load, run, same_bits
from tests.support.models import Dims, tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    return load(open_model(tiny_gguf(tmp_path_factory.mktemp("cache") / "m.gguf", types="Q8_0")))


@settings(max_examples=50, deadline=None)
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
