"""Every family against transformers and llama.cpp, as tests/scripts/record_family_reference.py recorded them,
and against float64; what a family does not have yet is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from outrider.engines.native import NativeModel
from outrider.errors import UnsupportedModelError
from outrider.models.checks import expected_tensors
from outrider.models.families import FAMILIES
from outrider.models.open import open_model
from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import FeedForwardSpec, LayerSpec, NormsSpec, RopeSpec
from tests.native.support import item, load, run, same_bits, usable_isas
from tests.support.models import VOCAB_SIZE, family_dims, hf_name, tiny_gguf, tiny_hf, tiny_weights
from tests.support.reference import Reference
from tests.support.ropes import SCALINGS
from tests.support.wrapped import WRAPPED, wrapped_dims, wrapped_hf

RECORD = Path(__file__).parent.parent / "data/reference/families.npz"
LAYERS, HIDDEN = 3, 128
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, Any]]:
    with np.load(RECORD) as found:
        yield dict(found)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def source(folder: Path, family: str, form: str, kind: str = "F32") -> ModelSource:
    dims = family_dims(family)
    if form == "folder":
        return open_model(tiny_hf(folder / "model", arch=family, dims=dims, tied=False))
    return open_model(tiny_gguf(folder / "model.gguf", arch=family, dims=dims, types=kind, tied=False))


def relative_error(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    wanted = wanted.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def log_probs(logits: Floats) -> npt.NDArray[np.float64]:
    exact = logits.astype(np.float64)
    highest = exact.max(axis=1, keepdims=True)
    return np.asarray(exact - highest - np.log(np.exp(exact - highest).sum(axis=1, keepdims=True)))


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_float_weights_agree_with_transformers(
    tmp_path: Path, record: dict[str, Any], family: str, form: str
) -> None:
    model = load(source(tmp_path, family, form), kv_dtype="f32")
    tokens = record["tokens"].tolist()
    logits = run(model, model.new_cache(len(tokens)), tokens)
    assert relative_error(logits[:, record["columns"]], record[f"{family}.logits"]) < 1e-5


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_the_same_file_agrees_with_llama_cpp(
    tmp_path: Path, record: dict[str, Any], family: str, kind: str
) -> None:
    name, most = {"F32": ("llama_cpp", 1e-4), "Q8_0": ("llama_cpp_q8", 0.02)}[kind]
    model = load(source(tmp_path, family, "gguf", kind), kv_dtype="f32")
    tokens = record["tokens"].tolist()
    found = log_probs(run(model, model.new_cache(len(tokens)), tokens))
    assert relative_error(found[:, record["columns"]], record[f"{family}.{name}"]) < most


@pytest.mark.parametrize("arch", WRAPPED)
def test_text_parts_of_models_for_images_agree_with_transformers(
    tmp_path: Path, record: dict[str, Any], arch: str
) -> None:
    model = load(open_model(wrapped_hf(tmp_path, arch, old=True, dims=wrapped_dims(arch))), kv_dtype="f32")
    tokens = record["tokens"].tolist()
    logits = run(model, model.new_cache(len(tokens)), tokens)
    assert relative_error(logits[:, record["columns"]], record[f"{arch}.wrapped"]) < 1e-5


IN_GGUF = [name for name, scaling in SCALINGS.items() if scaling.keys is not None]
ROPES = [*((name, "folder") for name in SCALINGS), *((name, "gguf") for name in IN_GGUF)]


def scaled_source(folder: Path, name: str, form: str) -> ModelSource:
    scaling = SCALINGS[name]
    path = scaling.folder(folder / "model") if form == "folder" else scaling.gguf(folder / "model.gguf")
    return open_model(path).for_context(scaling.context)


@pytest.mark.parametrize(("name", "form"), ROPES)
def test_rotary_scalings_agree_with_transformers(
    tmp_path: Path, record: dict[str, Any], name: str, form: str
) -> None:
    opened = scaled_source(tmp_path, name, form)
    (rope,) = opened.architecture.ropes
    assert np.allclose(rope.inv_freq, record[f"rope {name}.inv_freq"], rtol=1e-6, atol=0)
    assert np.isclose(rope.scale, record[f"rope {name}.scale"], rtol=1e-6)
    assert opened.architecture.max_positions == SCALINGS[name].positions
    model = load(opened, kv_dtype="f32")
    tokens = record["tokens"].tolist()
    logits = run(model, model.new_cache(len(tokens)), tokens)[:, record["columns"][::4]]
    assert relative_error(logits, record[f"rope {name}.logits"]) < 1e-5


@pytest.mark.parametrize("name", IN_GGUF)
def test_rotary_scalings_agree_with_llama_cpp(tmp_path: Path, record: dict[str, Any], name: str) -> None:
    model = load(scaled_source(tmp_path, name, "gguf"), kv_dtype="f32")
    tokens = record["tokens"].tolist()
    found = log_probs(run(model, model.new_cache(len(tokens)), tokens))[:, record["columns"][::4]]
    assert relative_error(found, record[f"rope {name}.llama_cpp"]) < 1e-4


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
def test_quantized_weights_agree_with_the_dequantized_ones(tmp_path: Path, family: str, kind: str) -> None:
    dims = replace(family_dims(family), hidden=256, head_dim=64, layers=2)
    path = tiny_gguf(tmp_path / "a.gguf", arch=family, dims=dims, types=kind)
    model = load(open_model(path))
    tokens = [int(i) for i in np.random.default_rng(5).integers(3, VOCAB_SIZE, 40)]
    wanted = Reference(open_model(path)).logits(tokens)
    most = 0.03 if family == "olmo2" else 0.02  # without norms before them, activations round more coarsely
    assert relative_error(run(model, model.new_cache(40), tokens), wanted) < most


def test_hidden_states_are_those_of_transformers(tmp_path: Path, record: dict[str, Any], family: str) -> None:
    model = load(source(tmp_path, family, "folder"), kv_dtype="f32")
    layers = family_dims(family).layers
    assert (model.num_layers, model.hidden_size) == (layers, HIDDEN)
    work = item(model.new_cache(64), record["tokens"].tolist())
    _, (hidden,) = model.forward_hidden([work], range(layers + 1))
    assert hidden.dtype == np.float32
    states = hidden.reshape(-1, layers + 1, HIDDEN)[:, :, record["hidden_columns"]]
    for i in range(layers + 1):
        assert relative_error(states[:, i], record[f"{family}.hidden"][:, i]) < 1e-5


def test_hidden_states_agree_with_float64(tmp_path: Path, family: str) -> None:
    model = load(source(tmp_path, family, "gguf"), kv_dtype="f32")
    reference = Reference(source(tmp_path, family, "gguf"))
    tokens, parents = [5, 9, 7, 11, 3], [-1, 0, 0, 1, 3]
    taps = [0, 2, family_dims(family).layers]
    _, (hidden,) = model.forward_hidden([item(model.new_cache(8), tokens, parents)], taps)
    wanted = reference.hidden(tokens, parents)[:, taps].reshape(5, 3 * HIDDEN)
    assert relative_error(hidden, wanted) < 1e-5


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_hidden_states_of_all_tokens_whatever_logits_are_wanted(tmp_path: Path, kind: str) -> None:
    """Logits are those of a pass without taps, and neither rows, widths, trees, threads nor instruction sets
    change a bit of the hidden states."""
    opened = source(tmp_path, "qwen3", "gguf", kind)
    tokens = [int(i) for i in np.random.default_rng(5).integers(3, VOCAB_SIZE, 24)]
    taps = [0, 1, LAYERS]
    for isa in usable_isas():
        model = load(opened, isa, threads=2)
        plain = model.forward([item(model.new_cache(32), tokens)])[0]
        (logits,), (every,) = model.forward_hidden([item(model.new_cache(32), tokens)], taps)
        assert same_bits(logits, plain)
        assert every.shape == (24, len(taps) * HIDDEN)
        for rows in ([], [23], [4, 2]):
            for wanted in (taps, [0, LAYERS - 1]):
                work = item(model.new_cache(32), tokens, rows=rows)
                (logits,), (hidden,) = model.forward_hidden([work], wanted)
                assert same_bits(logits, plain[rows])
                columns = np.concatenate([every[:, j * HIDDEN : (j + 1) * HIDDEN] for j in (0, 1)], axis=1)
                if wanted == taps:
                    assert same_bits(hidden, every)
                else:
                    assert same_bits(hidden[:, :HIDDEN], columns[:, :HIDDEN])
        cache = model.new_cache(32)
        parts = [
            model.forward_hidden([item(cache, tokens[i : i + 5], rows=[])], taps)[1][0]
            for i in range(0, 24, 5)
        ]
        assert same_bits(np.concatenate(parts), every)
    first = load(opened, "portable").forward_hidden([item(model.new_cache(32), [], rows=[])], taps)
    assert first[1][0].shape == (0, len(taps) * HIDDEN)


def test_hidden_states_of_several_sequences(tmp_path: Path) -> None:
    model = load(source(tmp_path, "llama", "gguf"))
    texts = [[4, 5, 6], [9], [7, 8, 9, 10]]
    alone = [model.forward_hidden([item(model.new_cache(8), text)], [1])[1][0] for text in texts]
    work = [item(model.new_cache(8), text, rows=[0]) for text in texts]
    for a, b in zip(alone, model.forward_hidden(work, [1])[1], strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("taps", [[], [1, 1], [2, 1], [-1], [LAYERS + 1]])
def test_taps_out_of_order_or_range(tmp_path: Path, taps: list[int]) -> None:
    model = load(source(tmp_path, "llama", "gguf"))
    cache = model.new_cache(8)
    with pytest.raises(ValueError, match="taps must be ascending"):
        model.forward_hidden([item(cache, [4, 5])], taps)
    assert cache.length == 0


OTHER_ROPE = RopeSpec(32, np.geomspace(1, 1e-2, 16).astype(np.float32), scale=1.3)
ALL_NORMS = NormsSpec(q=True, k=True, post_attention=True, post_ffn=True)


@pytest.mark.grid(4)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
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
        ({}, {"embedding_scale": 3.5}),
        ({}, {"residual_scale": 0.3}),
        ({"norms": ALL_NORMS}, {"residual_scale": 0.3}),
        ({}, {"logit_scale": 0.2}),
        ({}, {"logit_softcap": 3.0}),
        ({}, {"logit_softcap": 3.0, "logit_scale": 2.0}),
    ],
)
def test_parts_that_layers_and_models_may_have(
    tmp_path: Path, layer: dict[str, Any], model: dict[str, Any], kind: str
) -> None:
    """Each in a middle layer or the whole model: float64 says what it does, and no width changes a bit."""
    opened = source(tmp_path, "qwen3", "gguf", kind)
    spec = opened.architecture
    changed = replace(spec.layers[1], **layer)
    spec = replace(spec, ropes=(*spec.ropes, OTHER_ROPE), layers=(spec.layers[0], changed, spec.layers[2]))
    spec = replace(spec, **model)
    rng = np.random.default_rng(3)
    tensors = {
        name: Tensor(name, "F32", shape, rng.uniform(0.5, 1.5, shape).astype(np.float32).view(np.uint8))
        for name, shape, _ in expected_tensors(spec)
        if len(shape) == 1
    }
    made = replace(opened, architecture=spec, tensors={**opened.tensors, **tensors})
    before = {n: t for n, t in tensors.items() if n in opened.tensors and t.shape == opened.tensors[n].shape}
    plain = replace(opened, tensors={**opened.tensors, **before})
    tokens = [int(i) for i in rng.integers(3, VOCAB_SIZE, 40)]
    found = {}
    for isa in usable_isas():
        engine = load(made, isa, 2, "f32")
        found[isa] = run(engine, engine.new_cache(40), tokens)
        cache = engine.new_cache(40)
        parts = [run(engine, cache, tokens[i : i + 3]) for i in range(0, 40, 3)]
        assert same_bits(np.concatenate(parts), found[isa])
        assert same_bits(found[isa], found["portable"])
    wanted, unchanged = (Reference(s, rounded=True).logits(tokens) for s in (made, plain))
    assert relative_error(found["portable"], wanted) < (1e-5 if kind == "F32" else 0.03)
    assert relative_error(unchanged, wanted) > 0.05


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sinks": True}, "attention sinks"),
        ({"feed_forward": FeedForwardSpec(256, experts=8, experts_used=2)}, "a mixture of 8 experts"),
        (
            {"feed_forward": FeedForwardSpec(256, activation="swiglu_clamped")},
            "the activation swiglu_clamped",
        ),
        ({"feed_forward": FeedForwardSpec(512)}, "a feed-forward part of another size"),
    ],
)
def test_what_a_layer_cannot_have_yet(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    opened = source(tmp_path, "llama", "gguf")
    spec = opened.architecture
    layers: tuple[LayerSpec, ...] = (*spec.layers[:-1], replace(spec.layers[-1], **change))
    refused = replace(opened, architecture=replace(spec, layers=layers))
    with pytest.raises(UnsupportedModelError, match=rf"layer 2 has {words}.* does not support yet") as caught:
        NativeModel.load(refused)
    assert str(opened.path) in str(caught.value)


def test_tensor_names_are_those_of_the_gguf_package(family: str) -> None:
    names = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    mapped = gguf.get_tensor_name_map(names[family], family_dims(family).layers)
    for name in tiny_weights(family, family_dims(family), tied=False):
        stem, kind = hf_name(name, family).rsplit(".", 1)
        assert f"{mapped.get_name(stem)}.{kind}" == name
