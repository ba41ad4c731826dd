"""The torch engine's own modules against transformers and float64, and their bits in strict mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider.engines.torch.pool import SlotPool, TorchCache  # noqa: E402
from outrider.errors import InsufficientMemoryError, UnsupportedModelError  # noqa: E402
from outrider.models.checks import expected_tensors  # noqa: E402
from outrider.models.families import FAMILIES  # noqa: E402
from outrider.models.source import Tensor  # noqa: E402
from outrider.models.spec import FeedForwardSpec, NormsSpec, RopeSpec  # noqa: E402
from tests.support.models import VOCAB_SIZE, family_dims  # noqa: E402
from tests.support.reference import Reference  # noqa: E402
from tests.torch.support import CPU, item, load, relative_error, run, same_bits, source  # noqa: E402

RECORD = Path(__file__).parent.parent / "data/reference/families.npz"
HIDDEN = 128


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, Any]]:
    with np.load(RECORD) as found:
        yield dict(found)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_float_weights_agree_with_transformers(
    tmp_path: Path, record: dict[str, Any], family: str, form: str, strict: bool
) -> None:
    model = load(source(tmp_path, family, form), strict=strict)
    tokens = record["tokens"].tolist()
    logits = run(model, model.new_cache(len(tokens)), tokens)
    assert logits.dtype == np.float32
    assert relative_error(logits[:, record["columns"]], record[f"{family}.logits"]) < 1e-5


def test_hidden_states_are_those_of_transformers(tmp_path: Path, record: dict[str, Any], family: str) -> None:
    model = load(source(tmp_path, family))
    layers = family_dims(family).layers
    assert (model.num_layers, model.hidden_size) == (layers, HIDDEN)
    _, (hidden,) = model.forward_hidden([item(model.new_cache(64), record["tokens"])], range(layers + 1))
    states = hidden.reshape(-1, layers + 1, HIDDEN)[:, :, record["hidden_columns"]]
    for i in range(layers + 1):
        assert relative_error(states[:, i], record[f"{family}.hidden"][:, i]) < 1e-5


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
def test_quantized_weights_are_dequantized(tmp_path: Path, kind: str) -> None:
    opened = source(tmp_path, "llama", "gguf", kind if kind != "Q4_K" else "Q4_1")
    tokens = [5, 9, 7, 11, 3, 8]
    model = load(opened)
    wanted = Reference(opened).logits(tokens)
    assert relative_error(run(model, model.new_cache(8), tokens), wanted) < 1e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_is_near(tmp_path: Path, dtype: str) -> None:
    opened = source(tmp_path, "llama")
    tokens = [5, 9, 7, 11, 3, 8]
    model = load(opened, getattr(torch, dtype))
    wanted = Reference(opened).logits(tokens)
    assert 1e-6 < relative_error(run(model, model.new_cache(8), tokens), wanted) < 0.03


@pytest.mark.parametrize("strict", [False, True])
def test_trees_and_several_sequences(tmp_path: Path, family: str, strict: bool) -> None:
    """Two sequences, one with a tree after a chain, the other with a chain alone: each as by itself."""
    opened = source(tmp_path, family)
    model, reference = load(opened, strict=strict), Reference(opened)
    first, second = model.new_cache(64), model.new_cache(64)
    prompt = [int(i) for i in np.random.default_rng(1).integers(3, VOCAB_SIZE, 21)]
    model.forward([item(first, prompt, rows=[])])
    tree, parents = [5, 9, 7, 11, 3, 8, 4], [-1, 0, 0, 1, 2, 3, -1]
    other = prompt[:9]
    found, alone = model.forward([item(first, tree, parents, rows=[6, 0, 5, 3]), item(second, other)])
    moved = [len(prompt) - 1 if p < 0 else len(prompt) + p for p in parents]
    wanted = reference.logits([*prompt, *tree], [*range(-1, len(prompt) - 1), *moved])[len(prompt) :]
    assert relative_error(found, wanted[[6, 0, 5, 3]]) < 1e-5
    assert relative_error(alone, reference.logits(other)) < 1e-5
    assert (first.length, second.length) == (28, 9)
    first.keep(21, [21, 23, 25])
    after = model.forward([item(first, [6, 2])])[0]
    wanted = reference.logits([*prompt, 5, 7, 3, 6, 2])[-2:]
    assert relative_error(after, wanted) < 1e-5


@pytest.mark.grid(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strict_bits_depend_on_the_prefix_only(tmp_path: Path, family: str, dtype: str) -> None:
    model = load(source(tmp_path, family), getattr(torch, dtype), strict=True)
    assert model.caps.exact_bits
    rng = np.random.default_rng(5)
    tokens = [int(i) for i in rng.integers(3, VOCAB_SIZE, 90)]
    cache = model.new_cache(256)
    plain = np.concatenate([run(model, cache, [token]) for token in tokens])
    for sizes in ([90], [1, 40, 49], [16] * 5 + [10], [7] * 12 + [6]):
        cache, at, parts = model.new_cache(256), 0, []
        for size in sizes:
            parts.append(run(model, cache, tokens[at : at + size]))
            at += size
        assert same_bits(np.concatenate(parts), plain)
    # The true path among wrong nodes of a tree that takes more than one pass, beside another sequence.
    cache, beside = model.new_cache(256), model.new_cache(256)
    model.forward([item(cache, tokens[:50], rows=[]), item(beside, tokens[3:40], rows=[])])
    ids: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    while len(path) < 20:
        wrong = rng.random() < 0.5
        parents.append(int(rng.integers(-1, len(ids))) if wrong else path[-1] if path else -1)
        ids.append(int(rng.integers(3, VOCAB_SIZE)) if wrong else tokens[50 + len(path)])
        if not wrong:
            path.append(len(ids) - 1)
    found = model.forward([item(beside, [9, 8, 7]), item(cache, ids, parents, rows=path)])[1]
    assert same_bits(found, plain[50:70])
    cache.keep(50, [50 + node for node in path])
    assert same_bits(run(model, cache, tokens[70:]), plain[70:])


def test_the_bits_test_catches_passes_of_other_widths(tmp_path: Path) -> None:
    """A broken twin: without the fixed width, bits of long sums depend on how many tokens share the pass."""
    model = load(source(tmp_path, "llama"))
    assert not model.caps.exact_bits
    tokens = [int(i) for i in np.random.default_rng(5).integers(3, VOCAB_SIZE, 64)]
    cache = model.new_cache(64)
    plain = np.concatenate([run(model, cache, [token]) for token in tokens])
    together = run(model, model.new_cache(64), tokens)
    assert relative_error(together, plain) < 1e-5
    assert not same_bits(together, plain)


def test_strict_hidden_states_have_the_same_bits(tmp_path: Path) -> None:
    model = load(source(tmp_path, "gemma3"), strict=True)
    tokens = [int(i) for i in np.random.default_rng(5).integers(3, VOCAB_SIZE, 40)]
    _, (whole,) = model.forward_hidden([item(model.new_cache(64), tokens, rows=[])], [0, 2])
    cache = model.new_cache(64)
    parts = [model.forward_hidden([item(cache, tokens[i : i + 7])], [0, 2])[1][0] for i in range(0, 40, 7)]
    assert whole.shape == (40, 2 * HIDDEN)
    assert same_bits(np.concatenate(parts), whole)


OTHER_ROPE = RopeSpec(32, np.geomspace(1, 1e-2, 16).astype(np.float32), scale=1.3)
ALL_NORMS = NormsSpec(q=True, k=True, post_attention=True, post_ffn=True)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("layer", "model"),
    [
        ({"rope": None}, {}),
        ({"rope": 1}, {}),
        ({"attention_scale": 0.3}, {}),
        ({"attention_softcap": 2.0}, {}),
        ({"window": 3}, {}),
        ({"window": 16, "attention_softcap": 1.0}, {}),
        ({"query_growth": 0.5, "query_growth_positions": 4}, {}),
        ({"norms": NormsSpec(q=True, k=True, attention=False)}, {}),
        ({"norms": NormsSpec(q=True, k=True, ffn=False)}, {}),
        ({"norms": ALL_NORMS}, {}),
        ({"norms": NormsSpec(post_attention=True, post_ffn=True, attention=False, ffn=False)}, {}),
        ({"norms": NormsSpec(q=True, k=True, whole_qk=True)}, {}),
        ({"feed_forward": FeedForwardSpec(256, activation="gelu_tanh")}, {}),
        ({"feed_forward": FeedForwardSpec(96)}, {}),
        ({}, {"embedding_scale": 3.5}),
        ({}, {"residual_scale": 0.3}),
        ({}, {"logit_scale": 0.2}),
        ({}, {"logit_softcap": 3.0}),
        ({}, {"logit_softcap": 3.0, "logit_scale": 2.0}),
    ],
)
def test_parts_that_layers_and_models_may_have(
    tmp_path: Path, layer: dict[str, Any], model: dict[str, Any], strict: bool
) -> None:
    """Each in a middle layer or the whole model, against float64."""
    opened = source(tmp_path, "qwen3", "gguf")
    spec = opened.architecture
    changed = replace(spec.layers[1], **layer)
    spec = replace(spec, ropes=(*spec.ropes, OTHER_ROPE), layers=(spec.layers[0], changed, spec.layers[2]))
    spec = replace(spec, **model)
    rng = np.random.default_rng(3)
    tensors = {}
    for name, shape, _ in expected_tensors(spec):
        known = opened.tensors.get(name)
        if known is None or len(shape) == 1 or known.shape != shape:
            values = rng.uniform(0.5, 1.5, shape) / (1 if len(shape) == 1 else shape[1])
            tensors[name] = Tensor(name, "F32", shape, values.astype(np.float32).view(np.uint8).reshape(-1))
    made = replace(opened, architecture=spec, tensors={**opened.tensors, **tensors})
    tokens = [int(i) for i in rng.integers(3, VOCAB_SIZE, 40)]
    engine = load(made, strict=strict)
    found = run(engine, engine.new_cache(40), tokens)
    cache = engine.new_cache(40)
    parts = np.concatenate([run(engine, cache, tokens[i : i + 3]) for i in range(0, 40, 3)])
    wanted = Reference(made).logits(tokens)
    assert relative_error(found, wanted) < 1e-5
    assert relative_error(parts, wanted) < 1e-5
    assert same_bits(found, parts) or not strict


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sinks": True}, "attention sinks"),
        ({"feed_forward": FeedForwardSpec(256, experts=8, experts_used=2)}, "a mixture of 8 experts"),
        (
            {"feed_forward": FeedForwardSpec(256, activation="swiglu_clamped")},
            "the activation swiglu_clamped",
        ),
    ],
)
def test_what_a_layer_cannot_have_yet(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    opened = source(tmp_path, "llama")
    spec = opened.architecture
    layers = (*spec.layers[:-1], replace(spec.layers[-1], **change))
    with pytest.raises(UnsupportedModelError, match=rf"layer 2 has {words}.* does not support yet") as caught:
        load(replace(opened, architecture=replace(spec, layers=layers)))
    assert str(opened.path) in str(caught.value)


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_weights_start_at_cache_lines(tmp_path: Path, form: str) -> None:
    weights = load(source(tmp_path, "qwen2", form)).weights
    assert all(tensor.data_ptr() % 64 == 0 for tensor in weights.tensors())


def test_values_that_a_type_cannot_hold(tmp_path: Path) -> None:
    opened = source(tmp_path, "llama")
    name = "blk.0.attn_norm.weight"
    large = np.full(opened.tensors[name].shape, 1e6, np.float32)
    tensors = {**opened.tensors, name: Tensor(name, "F32", large.shape, large.view(np.uint8))}
    with pytest.raises(UnsupportedModelError, match="not finite as float16"):
        load(replace(opened, tensors=tensors), torch.float16)


def test_a_failed_pass_changes_nothing(tmp_path: Path) -> None:
    model = load(source(tmp_path, "llama"))
    first, second = model.new_cache(4), model.new_cache(1)
    for bad in (
        [item(first, [1, 2]), item(second, [1, 2])],
        [item(first, [1, -1])],
        [item(first, [1, VOCAB_SIZE])],
        [item(first, [1, 2], [-1, 1])],
        [item(first, [1, 2], [-2, 0])],
        [item(first, [1], rows=[1])],
        [item(first, [1]), item(first, [2])],
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            model.forward(bad)
    assert (first.length, second.length) == (0, 0)
    assert model.forward([item(first, [], rows=[])])[0].shape == (0, VOCAB_SIZE)
    second.close()
    with pytest.raises(ValueError, match="closed"):
        model.forward([item(second, [1])])


def test_a_pool_gives_rows_of_slots_and_takes_them_back() -> None:
    pool = SlotPool((2, 1, 4), torch.float32, CPU, most=101)
    first, second, third = pool.take(40), pool.take(40), pool.take(20)
    assert sorted((first, second, third)) == [1, 41, 81]
    with pytest.raises(InsufficientMemoryError, match=r"at most 0 of 101.*--gpu-memory-utilization"):
        pool.take(1)
    pool.give(first)
    pool.give(third)
    with pytest.raises(InsufficientMemoryError, match="no 41 positions"):
        pool.take(41)
    pool.give(second)
    assert pool.take(100) == 1


def test_a_pool_that_grows_keeps_what_it_holds() -> None:
    pool = SlotPool((2, 1, 4), torch.float32, CPU)
    first = pool.take(1000)
    pool.keys[:, first : first + 1000] = 7.0
    second = pool.take(5000)
    assert second >= first + 1000
    assert bool((pool.keys[:, first : first + 1000] == 7.0).all())
    assert pool.take(10) not in range(second, second + 5000)


def test_gaps_of_a_fixed_pool_are_closed(tmp_path: Path) -> None:
    """Where what is free is enough, but not in a row, sequences are moved; their logits keep their bits."""
    model = load(source(tmp_path, "llama"), strict=True, slots=lambda model: 101)
    tokens = [5, 6, 7, 8, 9, 10, 11, 12]
    kept, gone, other, late = (model.new_cache(n) for n in (10, 30, 20, 30))
    for cache in (kept, other, late):
        model.forward([item(cache, tokens)])
    gone.close()
    assert model.pool.slots == 101
    wanted = model.forward([item(late, [3])])[0]
    late.truncate(len(tokens))
    found = model.new_cache(30)  # fits into the gap
    found.close()
    assert [kept.start, found.start, other.start, late.start] == [1, 11, 41, 61]
    large = model.new_cache(35)  # does not, but does when the others are side by side
    assert [kept.start, other.start, late.start, large.start] == [1, 11, 31, 61]
    assert same_bits(model.forward([item(late, [3])])[0], wanted)
    with pytest.raises(InsufficientMemoryError, match="no 6 positions"):
        model.new_cache(6)
    for cache in (kept, other, late, large):
        cache.close()
    assert model.pool.take(100) == 1


def test_slots_without_an_owner_are_not_moved() -> None:
    model_pool = SlotPool((1, 1, 2), torch.float32, CPU, most=31)
    first, fixed = model_pool.take(10), model_pool.take(10)
    moved = TorchCache(model_pool, 5)
    assert (first, fixed, moved.start) == (1, 11, 21)
    model_pool.give(first)
    with pytest.raises(InsufficientMemoryError):
        model_pool.take(12)
    assert model_pool.take(10) == 1
    assert moved.start == 21


def test_moves_over_their_own_place_keep_the_values() -> None:
    pool = SlotPool((1, 1, 2), torch.float32, CPU, most=1002)
    gap, cache = TorchCache(pool, 3), TorchCache(pool, 900)
    values = torch.arange(900 * 2, dtype=torch.float32).reshape(1, 900, 1, 2)
    pool.keys[:, cache.start : cache.start + 900], cache.length = values, 900
    gap.close()
    TorchCache(pool, 101)
    assert cache.start == 1
    assert torch.equal(pool.keys[:, 1:901], values)
