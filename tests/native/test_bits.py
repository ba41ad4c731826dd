"""Batch invariance: a token's logits depend on its prefix only, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeCache, NativeModel
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.weight_types import BLOCKS, FOLDER_TYPES, SUPPORTED_TYPES
from tests.native.support import item, load, run, same_bits, usable_isas, windowed
from tests.support.models import Dims, tiny_gguf
from tests.support.quantized import OF_TYPE, quantized_hf
from tests.support.reference import Reference

CASES = [
    *SUPPORTED_TYPES,
    *FOLDER_TYPES,
    "F32 qwen3",
    "Q8_0 qwen3",
    "Q4_K qwen3",
]  # qwen3: norms of queries and keys
CASES += ["Q8_0 olmo2"]  # norms of all heads together, and after parts only
CASES += ["Q8_0 mistral3"]  # queries that grow with their position
CASES += ["Q8_0 phi3"]  # a part of the columns rotated
CASES += ["Q8_0 smollm3"]  # a layer without rotation
CASES += ["Q8_0 granite"]  # factors of embeddings, attention, what layers add, and logits
FLOATS = ("F32", "F16", "BF16", "F8_32", "F8_128")
ODD = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32)  # a tail block, an odd count of groups
WIDE = Dims(hidden=256, ffn=512)
PROMPT = [int(i) for i in np.random.default_rng(7).integers(3, 320, 60)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSource]:
    folder = tmp_path_factory.mktemp("bits")
    found = {}
    for kind in FOLDER_TYPES:
        form, sizes = OF_TYPE[kind]
        found[kind] = open_model(quantized_hf(folder / kind, form, dims=sizes)[0])
    for kind in (kind for kind in CASES if kind not in FOLDER_TYPES):
        named = kind.partition(" ")[2]
        arch = "qwen2" if kind in ("Q4_1", "Q4_K") else named or "llama"
        odd = replace(ODD, layers=4) if arch == "smollm3" else ODD
        dims = None if BLOCKS[kind.split()[0]][0] == 256 else odd
        path = folder / f"{kind}.gguf"
        found[kind] = open_model(tiny_gguf(path, arch=arch, types=kind.split()[0], dims=dims))
    return found


def one_at_a_time(model: NativeModel, tokens: list[int]) -> np.ndarray:
    cache = model.new_cache(len(tokens))
    return np.concatenate([run(model, cache, [t]) for t in tokens])


@pytest.mark.grid(4)
@pytest.mark.parametrize("kind", CASES)
def test_matches_the_float64_reference(sources: dict[str, ModelSource], kind: str) -> None:
    model = load(sources[kind], kv_dtype="f32")
    got = run(model, model.new_cache(64), PROMPT[:24])
    wanted = Reference(sources[kind], rounded=True).logits(PROMPT[:24])
    error = np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    # A value on the edge between two steps may round the other way, and what follows with it: many rows
    # agree to float precision, the others to a step.
    assert np.quantile(error, 0.1) < 1e-5
    assert error.max() < (1e-5 if kind.split(maxsplit=1)[0] in FLOATS else 0.02)


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    "types",
    [
        *SUPPORTED_TYPES,
        {"ffn_up": "IQ4_XS", "ffn_gate": "IQ4_XS", "attn_v": "Q5_K", "token_embd": "Q6_K"},
        {"ffn_up": "Q2_K", "ffn_gate": "Q3_K", "attn_q": "Q2_K", "attn_v": "Q3_K", "token_embd": "Q6_K"},
        {"ffn_up": "MXFP4", "ffn_gate": "Q8_0", "attn_q": "MXFP4", "attn_v": "BF16", "token_embd": "Q8_0"},
        {"ffn_up": "MXFP4", "ffn_gate": "Q2_K", "attn_q": "IQ3_S", "attn_v": "Q8_0", "token_embd": "TQ2_0"},
    ],
    ids=str,
)
def test_is_near_the_dequantized_weights(tmp_path: Path, types: str | dict[str, str]) -> None:
    """Files of one type, and mixtures as llama.cpp makes them. What remains is the rounding of activations:
    with Q6_K, it is 2.5% in this model."""
    source = open_model(tiny_gguf(tmp_path / "a.gguf", types=types, dims=WIDE))
    model = load(source)
    got = run(model, model.new_cache(64), PROMPT[:24])
    wanted = Reference(source).logits(PROMPT[:24])
    error = np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(error) < 0.03
    groups = Reference(source, rounded=True)
    groups.superblocks = {}  # activations rounded for each 32 columns by themselves, and nothing else
    inherent = np.linalg.norm(groups.logits(PROMPT[:24]) - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(error) < 1.4 * np.median(inherent) + 1e-3
    assert same_bits(got, one_at_a_time(model, PROMPT[:24]))


@pytest.mark.grid(4)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("isa", usable_isas())
def test_width_does_not_change_a_bit(sources: dict[str, ModelSource], kind: str, isa: str) -> None:
    model = load(sources[kind], isa)
    alone = one_at_a_time(model, PROMPT)
    for width in (*range(2, 18), 48, 51):  # 48 and more: panels are multiplied in pairs
        cache = model.new_cache(64)
        count = len(PROMPT) if width > 40 else 40
        parts = [run(model, cache, PROMPT[i : min(i + width, count)]) for i in range(0, count, width)]
        assert same_bits(alone[:count], np.concatenate(parts)), f"{width} tokens a pass"


@pytest.mark.parametrize("kind", CASES)
def test_builds_and_threads_do_not_change_a_bit(sources: dict[str, ModelSource], kind: str) -> None:
    wanted = one_at_a_time(load(sources[kind], "portable"), PROMPT[:20])
    for isa in usable_isas():
        for threads in (1, 2, 3):
            model = load(sources[kind], isa, threads)
            assert same_bits(wanted, run(model, model.new_cache(32), PROMPT[:20])), (
                f"{isa}, {threads} threads"
            )


def draft_across_a_span(
    source: ModelSource, isa: str, tokens: list[int], alone: np.ndarray
) -> tuple[NativeModel, NativeCache]:
    """Check a tree's path across the end of a span against the rows `alone` of single tokens. Returns the
    model, and the cache with 507 tokens and the tree."""
    model = load(source, isa, 2)
    cache = model.new_cache(700)
    run(model, cache, tokens[:507])
    draft = [9, *tokens[507:515]]  # after a sibling
    tree = run(model, cache, draft, [-1, -1, *range(1, 8)])
    assert same_bits(tree[1:], alone[507:515])
    return model, cache


@pytest.mark.parametrize("isa", usable_isas())
def test_contexts_of_several_spans(tmp_path: Path, isa: str) -> None:
    """Attention merges spans of 256 positions: threads divide a lone token's, one thread goes through
    those of many tokens. Both give the same bits, along a tree's path too, and what float64 gives."""
    dims = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32, context=1024)
    source = open_model(tiny_gguf(tmp_path / "long.gguf", types="F32", dims=dims))
    tokens = [int(i) for i in np.random.default_rng(3).integers(3, 320, 600)]
    alone = one_at_a_time(load(source, isa, 2), tokens)
    for threads, width in ((1, 600), (2, 5), (3, 250)):
        model = load(source, isa, threads)
        cache = model.new_cache(700)
        together = np.concatenate([run(model, cache, tokens[i : i + width]) for i in range(0, 600, width)])
        assert same_bits(alone, together), f"{width} tokens a pass, {threads} threads"
    draft_across_a_span(source, isa, tokens, alone)
    wanted = Reference(source, rounded=True).logits(tokens)[500:]
    exact = load(source, isa, kv_dtype="f32")
    error = np.linalg.norm(run(exact, exact.new_cache(600), tokens)[500:] - wanted, axis=1)
    assert (error / np.linalg.norm(wanted, axis=1)).max() < 1e-5


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("windows", "kind"), [((1, 40), "F32"), ((None, 256), "F32"), ((300, 17), "F32"), ((40, None), "Q4_K")]
)
def test_windows_over_contexts_of_several_spans(
    tmp_path: Path, windows: tuple[int | None, int | None], kind: str
) -> None:
    """A layer with a window attends to its last positions only, however tokens are grouped into passes, along
    the path of a tree, and after drafted tokens are dropped on either side of the window's edge."""
    dims = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32, context=1024)
    path = tiny_gguf(tmp_path / "a.gguf", types=kind, dims=dims if kind == "F32" else None)
    plain = open_model(path)
    source = windowed(plain, windows)
    tokens = [int(i) for i in np.random.default_rng(3).integers(3, 320, 600)]
    alone = one_at_a_time(load(source, threads=2), tokens)
    assert not same_bits(alone[400:], one_at_a_time(load(plain, threads=2), tokens)[400:])
    for isa in usable_isas():
        for threads, width in ((1, 600), (2, 5), (2, 33)) if isa != "portable" else ((2, 33),):
            model = load(source, isa, threads)
            cache = model.new_cache(700)
            parts = [run(model, cache, tokens[i : i + width]) for i in range(0, 600, width)]
            assert same_bits(alone, np.concatenate(parts)), f"{width} tokens a pass, {threads} threads"
        model, cache = draft_across_a_span(source, isa, tokens, alone)
        cache.keep(507, range(508, 516))
        assert same_bits(run(model, cache, tokens[515:520]), alone[515:520])
        for length in (510, 300, 257, 255, 41, 40, 39, 16, 1):
            run(model, cache, [7] * 20)
            if length < cache.rollback_floor:
                cache.truncate(0)
                run(model, cache, tokens[: length + 4])
            cache.truncate(length)
            assert same_bits(run(model, cache, tokens[length : length + 3]), alone[length : length + 3])
        other = model.new_cache(64)
        run(model, other, tokens[:30])
        both = model.forward([item(cache, tokens[4:9]), item(other, tokens[30:50])])
        assert same_bits(np.concatenate(both), np.concatenate([alone[4:9], alone[30:50]]))
    wanted = Reference(source, rounded=True).logits(tokens[:330])[250:]
    exact = load(source, kv_dtype="f32")
    found = run(exact, exact.new_cache(600), tokens[:330])[250:]
    error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert error.max() < (1e-5 if kind == "F32" else 0.02)


@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
@settings(max_examples=40)
@given(data=st.data())
def test_trees_score_as_their_paths_do(
    sources: dict[str, ModelSource], kv_dtype: str, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["Q4_1", "Q8_0 qwen3"]))
    model = load(sources[kind], threads=data.draw(st.sampled_from([1, 2])), kv_dtype=kv_dtype)
    start = data.draw(st.integers(1, 40))
    n = data.draw(st.integers(1, 17))
    tokens = data.draw(st.lists(st.integers(3, 319), min_size=n, max_size=n))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
    cache = model.new_cache(80)
    run(model, cache, PROMPT[:start])
    scores = run(model, cache, tokens, parents)
    leaf = data.draw(st.integers(0, n - 1))
    path = [leaf]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    chain = one_at_a_time(model, PROMPT[:start] + [tokens[i] for i in path])
    assert same_bits(scores[path], chain[start:])
    # what is kept of the tree is that chain
    cache.keep(start, [start + i for i in path])
    after = run(model, cache, PROMPT[50:52])
    again = one_at_a_time(model, PROMPT[:start] + [tokens[i] for i in path] + PROMPT[50:52])
    assert same_bits(after, again[-2:])


def test_a_wrong_mask_is_seen(sources: dict[str, ModelSource]) -> None:
    """The twin of the test above: parents ignored give other bits."""
    model = load(sources["Q4_1"])
    tokens, parents = PROMPT[10:14], [-1, 0, 0, 1]
    scores = []
    for tree in (parents, None):
        cache = model.new_cache(32)
        run(model, cache, PROMPT[:10])
        scores.append(run(model, cache, tokens, tree))
    assert same_bits(scores[0][:2], scores[1][:2])
    assert not same_bits(scores[0][2:3], scores[1][2:3])
    assert not same_bits(scores[0][3:], scores[1][3:])


def test_a_kept_path_of_wrong_slots_is_seen(sources: dict[str, ModelSource]) -> None:
    model = load(sources["Q4_1"])
    outcomes = []
    for slots in ([10, 12], [10, 11]):
        cache = model.new_cache(32)
        run(model, cache, PROMPT[:10])
        run(model, cache, PROMPT[10:13], [-1, 0, 0])
        cache.keep(10, slots)
        assert cache.length == 12
        outcomes.append(run(model, cache, PROMPT[20:21]))
    assert not same_bits(*outcomes)


def test_sequences_in_one_pass_do_not_touch_each_other(sources: dict[str, ModelSource]) -> None:
    model = load(sources["Q5_K"], threads=2)
    texts = [PROMPT[:7], PROMPT[7:30], PROMPT[30:31]]
    alone = [run(model, model.new_cache(32), text) for text in texts]
    together = model.forward([item(model.new_cache(32), text) for text in texts])
    assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))


def test_only_wanted_rows_come_back(sources: dict[str, ModelSource]) -> None:
    model = load(sources["Q6_K"])
    every = run(model, model.new_cache(32), PROMPT[:12])
    caches = [model.new_cache(32) for _ in range(3)]
    some, none = model.forward(
        [item(caches[0], PROMPT[:9], rows=[8, 2]), item(caches[1], PROMPT[:9], rows=[])]
    )
    assert same_bits(some, every[[8, 2]])
    assert none.shape == (0, 320)
    assert model.forward([item(caches[2], PROMPT[:9], rows=[])])[0].shape == (0, 320)
    for cache in caches:  # whose keys and values are all there
        assert same_bits(run(model, cache, PROMPT[9:12]), every[9:])


def test_blocks_of_the_vocabulary_have_the_bits_of_the_whole(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", types="Q8_0")
    for isa in usable_isas():
        model = NativeModel.load(open_model(path), threads=2, isa=isa)
        cache = model.new_cache(8)
        tokens = np.array([3, 1, 4, 1, 5], np.int32)
        work = ForwardItem(cache, tokens, np.arange(-1, 4, dtype=np.int32), np.array([0, 4], np.int32))
        (whole,) = model.forward([work])
        cache.truncate(0)
        last = (model.vocab_size - 1) // model.vocab_block_size
        blocks = np.array([0, 1, 4, last], np.int32)
        (part,) = model.forward_subset([work], blocks)
        inside = np.isin(np.arange(model.vocab_size) // model.vocab_block_size, blocks)
        assert (part[:, inside].view(np.uint32) == whole[:, inside].view(np.uint32)).all()
        assert np.isneginf(part[:, ~inside]).all()
        for wrong in ([1, 0], [2, 2], [-1], [last + 1]):
            cache.truncate(0)
            with pytest.raises(ValueError, match="ascending"):
                model.forward_subset([work], np.array(wrong, np.int32))
            assert cache.length == 0
