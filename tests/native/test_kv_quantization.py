"""Keys and values in 8 bits: what is held of them, that no bit depends on how tokens are grouped, and what
says that it is another target."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import memory
from outrider.config.engine import parse_engine
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import FloatArray
from outrider.engines.native import _core
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.models.open import open_model
from outrider.models.quantization import with_kv_type
from outrider.models.source import ModelSource
from outrider.pipeline import open_pipeline
from tests.native.support import item, load, run, same_bits, usable_isas, windowed
from tests.support.models import Dims, tiny_gguf
from tests.support.reference import Reference

GROUP = 32  # columns of a key with one scale
TOKENS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 330)]


def held(keys: FloatArray, values: FloatArray, isa: str = "auto") -> tuple[FloatArray, FloatArray]:
    return _core.held("q8_0", isa, keys, values)


def mixed(rows: FloatArray) -> npt.NDArray[np.float64]:
    """Walsh-Hadamard transforms of as many neighbouring columns as the largest power of two, up to 128, that
    divides their number."""
    columns = rows.shape[1]
    n = min(128, columns & -columns)
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)])
    return np.asarray((rows.astype(np.float64).reshape(-1, columns // n, n) @ signs).reshape(rows.shape))


def rows(data: st.DataObject) -> FloatArray:
    """Rows of a multiple of 16 columns, of any scale, some with an outlier and some of zeros."""
    positions, columns = data.draw(st.integers(1, 20)), 16 * data.draw(st.integers(1, 9))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    found = random.standard_normal((positions, columns)) * 10.0 ** random.uniform(-4, 3, (positions, 1))
    found[random.random(found.shape) < 0.02] *= 100
    found[random.random(positions) < 0.1] = 0
    return found.astype(np.float32)


@settings(max_examples=50)
@given(st.data())
def test_what_is_held_is_within_half_a_step(data: st.DataObject) -> None:
    """A step is the largest magnitude over 127: of 32 columns of a mixed key, rounded to binary16, and of all
    of a value. What was held once is held again."""
    given_rows = rows(data)
    keys, values = held(given_rows, given_rows)
    mixed_rows, mixed_keys = mixed(given_rows), mixed(keys)
    for first in range(0, given_rows.shape[1], GROUP):
        part, found = mixed_rows[:, first : first + GROUP], mixed_keys[:, first : first + GROUP]
        step = (np.abs(part).max(1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float64)
        rounding = np.maximum(np.abs(part) * 2.0**-11, 127 * 2.0**-25)  # of the step, and of sums
        rounding += np.abs(given_rows).sum(1, keepdims=True) * 2.0**-20
        assert (np.abs(found - part) <= step * (0.5 + 1e-3) + rounding).all()
    step = np.abs(given_rows).max(1, keepdims=True) / np.float64(127)
    assert (np.abs(values - given_rows) <= step * 0.5 * (1 + 1e-5)).all()
    assert not keys[~given_rows.any(1)].any()
    assert np.abs(keys - given_rows).max() <= np.abs(given_rows).max() * 0.02
    again = held(keys, values)
    assert np.abs(again[0] - keys).max(initial=0) <= np.abs(keys).max(initial=0) * 2.0**-7
    assert np.allclose(again[1], values, rtol=1e-6)
    for isa in usable_isas():
        one = held(given_rows, given_rows, isa)
        assert same_bits(one[0], keys)
        assert same_bits(one[1], values)


def test_a_coarser_step_is_seen() -> None:
    """The twin of the test above: what 7 bits would hold is outside of half a step."""
    values = np.linspace(-1, 1, 80, dtype=np.float32).reshape(1, 80)
    coarse = np.rint(values * 63) / 63
    assert (np.abs(held(values, values)[1] - values) <= 0.5001 / 127).all()
    assert not (np.abs(coarse - values) <= 0.5001 / 127).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_what_no_model_should_give_does_no_harm(value: float) -> None:
    """Not to the other positions, and not to memory."""
    given_rows = np.ones((3, 48), np.float32)
    given_rows[1, 5] = value
    for isa in usable_isas():
        keys, values = held(given_rows, given_rows, isa)
        assert np.allclose(keys[[0, 2]], 1, rtol=1e-3)
        assert np.allclose(values[[0, 2]], 1)


def test_shapes_are_checked() -> None:
    good = np.ones((2, 32), np.float32)
    for keys, values in ((good[:1], good), (good, np.ones((2, 48), np.float32)), (good[:, :24].copy(),) * 2):
        with pytest.raises(ValueError, match="one shape"):
            held(keys, values)
    with pytest.raises(ValueError, match="q4_0"):
        _core.held("q4_0", "auto", good, good)


# --- Passes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """Two heads' queries to one of keys, a group of 32 columns and one of 16; a layer with a window."""
    dims = Dims(hidden=96, heads=4, kv_heads=2, ffn=160, head_dim=48, context=1024)
    path = tiny_gguf(tmp_path_factory.mktemp("kv") / "m.gguf", types="Q8_0", dims=dims)
    return windowed(with_kv_type(open_model(path), "q8_0"), (None, 40))


@pytest.fixture(scope="module")
def alone(source: ModelSource) -> FloatArray:
    """Logits of TOKENS, computed one at a time."""
    model = load(source, kv_dtype=None)
    cache = model.new_cache(400)
    return np.concatenate([run(model, cache, [token]) for token in TOKENS])


@pytest.mark.parametrize("isa", usable_isas())
def test_passes_threads_and_instruction_sets_change_no_bit(
    source: ModelSource, alone: FloatArray, isa: str
) -> None:
    for threads, width in ((1, 330), (2, 5), (2, 33)):
        model = load(source, isa, threads, kv_dtype=None)
        cache = model.new_cache(400)
        parts = [run(model, cache, TOKENS[i : i + width]) for i in range(0, len(TOKENS), width)]
        assert same_bits(alone, np.concatenate(parts)), f"{width} tokens a pass, {threads} threads"


@settings(max_examples=25)
@given(data=st.data())
def test_trees_rollbacks_and_shared_blocks_change_no_bit(
    source: ModelSource, alone: FloatArray, data: st.DataObject
) -> None:
    """A path through a tree scores as the chain does; what is kept of it, what is left after a rollback, and
    what a sequence adopts go on as if the chain had been computed."""
    model = load(source, threads=data.draw(st.sampled_from([1, 2])), kv_dtype=None)
    start, n = data.draw(st.integers(1, 290)), data.draw(st.integers(1, 12))
    cache = model.new_cache(400)
    run(model, cache, TOKENS[:start])
    path = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
    for before, node in zip([-1, *path], path, strict=False):
        parents[node] = before
    tokens = [data.draw(st.integers(3, 319)) for _ in range(n)]
    for depth, node in enumerate(path):
        tokens[node] = TOKENS[start + depth]
    end = start + len(path)
    assert same_bits(run(model, cache, tokens, parents)[path], alone[start:end])
    cache.keep(start, [start + node for node in path])
    assert same_bits(run(model, cache, TOKENS[end : end + 20]), alone[end : end + 20])
    back = data.draw(st.integers(start, end))
    cache.truncate(back)
    assert same_bits(run(model, cache, TOKENS[back : back + 3]), alone[back : back + 3])
    other = model.new_cache(400)
    run(model, other, TOKENS[:64])
    if start >= 64:
        taken = model.new_cache(400)
        taken.adopt(other.share(0, 64))
        assert same_bits(run(model, taken, TOKENS[64:70]), alone[64:70])
        run(model, other, TOKENS[:3])  # which does not change what is shared


def test_a_wrong_path_is_seen(source: ModelSource, alone: FloatArray) -> None:
    """The twin: another slot kept gives other bits."""
    model = load(source, kv_dtype=None)
    cache = model.new_cache(400)
    run(model, cache, TOKENS[:20])
    run(model, cache, [9, TOKENS[20]], [-1, -1])
    cache.keep(20, [20])
    assert not same_bits(run(model, cache, TOKENS[21:22]), alone[21:22])


def test_it_is_near_what_floats_give_and_not_the_same(source: ModelSource) -> None:
    wanted = Reference(source, rounded=True).logits(TOKENS[:60])
    errors = {}
    for kind in ("f32", "f16", "q8_0"):
        model = load(source, kv_dtype=kind)
        found = run(model, model.new_cache(64), TOKENS[:60])
        errors[kind] = np.median(np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1))
    assert errors["f32"] < errors["f16"] < errors["q8_0"] < 0.03


def test_blocks_of_another_type_are_refused(source: ModelSource) -> None:
    caches = []
    for kind in ("f16", "q8_0"):
        model = load(source, kv_dtype=kind)
        caches.append(model.new_cache(64))
        run(model, caches[-1], TOKENS[:16])
    for one, other in (caches, caches[::-1]):
        with pytest.raises(ValueError, match="another type"):
            one.adopt(other.share(0, 16))


# --- What is counted, and what is said -------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 80, 128])
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_memory_is_what_is_counted(tmp_path: Path, head_dim: int, kind: str) -> None:
    dims = Dims(hidden=32, heads=2, kv_heads=1, ffn=32, head_dim=head_dim)
    opened = open_model(tiny_gguf(tmp_path / "m.gguf", dims=dims))
    opened = with_kv_type(opened, None if kind == "f16" else kind)
    model = load(opened, kv_dtype=None)
    cache = model.new_cache(64)
    run(model, cache, TOKENS[:17])
    assert cache.nbytes == memory.kv_bytes(opened.architecture, 32)
    if kind == "q8_0" and head_dim >= 64:
        other = dataclasses.replace(opened.architecture, kv_type="f16")
        assert memory.kv_bytes(opened.architecture, 32) <= 0.54 * memory.kv_bytes(other, 32)


def test_the_target_says_so_and_texts_are_its_own(tmp_path: Path) -> None:
    """Speculation, the prefix of a text and the length of prompts change nothing; the name is another's."""
    path = str(tiny_gguf(tmp_path / "m.gguf", types="Q8_0"))
    prompts = [{"prompt_token_ids": TOKENS[:n]} for n in (30, 45, 30)]
    params = SamplingParams(temperature=0.8, seed=7, ignore_eos=True, max_tokens=40)
    texts = []
    for spec in ({"method": "none"}, {"method": "draft_model", "model": path, "num_speculative_tokens": 3},
                 {"method": "ngram", "num_speculative_tokens": 4}):  # fmt: skip
        pipeline = open_pipeline(parse_engine(path, spec, kv_cache_dtype="q8_0", threads=2))
        assert pipeline.quantized
        assert "q8_0 keys and values" in str(pipeline.models["target"])
        with LLM.from_pipeline(pipeline) as llm:
            found = llm.generate(prompts, params, use_tqdm=False)
            texts.append([list(one.outputs[0].token_ids) for one in found])
    assert texts[0] == texts[1] == texts[2]


def test_names_are_checked_before_anything_is_read() -> None:
    for name in ("fp8", "fp8_e4m3", "q4_0", "int8", "", 8):
        with pytest.raises(ConfigError, match="q8_0"):
            LLM("no-such-model", kv_quantization=name)
        with pytest.raises(ConfigError, match="q8_0"):
            LLM("no-such-model", kv_cache_dtype=name)
    with pytest.raises(ConfigError, match="differ"):
        LLM("no-such-model", kv_cache_dtype="q8_0", kv_quantization="f16")


def test_items_of_one_pass_do_not_touch_each_other(source: ModelSource, alone: FloatArray) -> None:
    model = load(source, threads=2, kv_dtype=None)
    one, two = model.new_cache(64), model.new_cache(64)
    run(model, one, TOKENS[:20])
    together = model.forward([item(one, TOKENS[20:25]), item(two, TOKENS[:9])])
    assert same_bits(np.concatenate(together), np.concatenate([alone[20:25], alone[:9]]))
