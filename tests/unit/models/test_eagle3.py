"""EAGLE-3 heads in three dialects: what is read, what a target must be, and that no file is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ModelError, ModelFileError, UnsupportedModelError
from outrider.models.eagle3.head import Eagle3Head
from outrider.models.eagle3.open import head_kind, open_head
from outrider.models.open import open_model
from outrider.models.quantization import loaded_type, quantized
from outrider.models.source import ModelSource
from tests.support.heads import HeadDims, TinyHead, gguf_head, original_folder, speculators_folder, tiny_head
from tests.support.models import Dims, tiny_gguf, tiny_hf

GGUF = HeadDims(taps=(2, 3, 3))
Writer = Callable[..., Path]


def read(path: Path) -> Eagle3Head:
    head = open_head(path)
    assert head is not None
    return head


def gguf(folder: Path, head: TinyHead, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return gguf_head(folder / "head.gguf", head, **more)


WRITERS: Mapping[str, Writer] = {
    "original": original_folder,
    "speculators": speculators_folder,
    "gguf": gguf,
}


def target(folder: Path, **sizes: int) -> ModelSource:
    return open_model(tiny_gguf(folder / "target.gguf", dims=Dims(**{"layers": 6, **sizes}), tied=False))


@pytest.mark.parametrize("dialect", WRITERS)
def test_the_dialects_have_one_form(tmp_path: Path, dialect: str) -> None:
    made = tiny_head(GGUF)
    head = read(WRITERS[dialect](tmp_path / "head", made))
    assert head_kind(head.source.path) == "EAGLE-3"
    assert head.layers == (2, 3, 3)
    assert (head.taps, head.order) == ((2, 3), (0, 1, 1))
    assert head.target_ids is not None
    np.testing.assert_array_equal(head.target_ids, made.ids)
    spec = head.source.architecture
    assert (spec.vocab_size, spec.hidden_size, spec.n_layers, spec.name) == (96, 64, 1, "eagle3")
    assert (head.spec.states, head.spec.state_size, head.spec.tokens) == (3, 64, 320)
    assert spec.ropes[0].interleaved == (dialect == "gguf")
    assert set(head.source.tensors) == set(read(original_folder(tmp_path / "other", made)).source.tensors), (
        "the same tensors"
    )


def test_layers_that_no_file_names_are_those_of_the_paper(tmp_path: Path) -> None:
    for write in (original_folder, speculators_folder):
        head = read(write(tmp_path / write.__name__, tiny_head()))
        assert head.layers is None
        assert head.for_target(target(tmp_path)).layers == (2, 3, 3)
        assert head.for_target(target(tmp_path, layers=28)).layers == (2, 14, 25)


@pytest.mark.parametrize(("trained", "positions", "whole"), [(None, 8192, 2048), (700, 8192, 700),
                                                             (5000, 8192, 5000), (5000, 1024, 1024),
                                                             (None, 512, 512)])  # fmt: skip
def test_how_long_a_prompt_is_read_as_a_whole(
    tmp_path: Path, trained: int | None, positions: int, whole: int
) -> None:
    keys = {"eagle3.trained_length": trained, "eagle3.context_length": positions}
    made = {} if trained is None else {"trained_length": trained}
    for head in (
        gguf(tmp_path, tiny_head(GGUF), keys=keys),
        original_folder(
            tmp_path / "head", tiny_head(), config={"max_position_embeddings": positions, **made}
        ),
    ):
        assert read(head).whole_prompt == whole


def test_the_first_converters_named_the_layers_otherwise(tmp_path: Path) -> None:
    keys = {"eagle3.target_layers": None, "eagle3.extract_layers": [1, 4, 5]}
    assert read(gguf(tmp_path, tiny_head(GGUF), keys=keys)).layers == (1, 4, 5)


def test_switches_of_the_speculators_format(tmp_path: Path) -> None:
    dims = HeadDims(norm_before_residual=True, state_norms=True, norm_output=True, layers=2, qk_norms=True)
    head = read(speculators_folder(tmp_path, tiny_head(dims)))
    spec = head.spec
    assert (spec.norm_before_residual, spec.state_norms, spec.norm_output, spec.joint_norm) == (
        True,
        True,
        True,
        False,
    )
    assert head.source.architecture.layers[1].norms.q
    assert head.made_for == "maker/Tiny"


def test_the_first_heads_have_the_class_of_a_llama(tmp_path: Path) -> None:
    folder = original_folder(tmp_path, tiny_head(), config={"architectures": ["LlamaForCausalLM"]})
    assert head_kind(folder) == "EAGLE-3"
    assert read(folder).source.architecture.vocab_size == 96


def test_models_are_no_heads(tmp_path: Path) -> None:
    assert open_head(tiny_gguf(tmp_path / "model.gguf")) is None
    assert open_head(tiny_hf(tmp_path / "folder")) is None
    assert open_head(tmp_path / "nothing.gguf") is None
    (tmp_path / "text").write_text("hello")
    assert open_head(tmp_path / "text") is None


def test_what_a_head_lacks_is_its_targets(tmp_path: Path) -> None:
    other = target(tmp_path)
    head = read(original_folder(tmp_path / "head", tiny_head(HeadDims(embedding=False))))
    assert "token_embd.weight" not in head.source.tensors
    bound = head.for_target(other)
    embedding = bound.source.tensors["token_embd.weight"]
    assert embedding.data is other.tensors["token_embd.weight"].data
    assert loaded_type(quantized(bound.source, "q4"), embedding) == "F32", "the target's stay as they are"
    dims = HeadDims(embedding=False, rows=0, taps=(1, 2, 3))
    made = tiny_head(dims)
    made = replace(made, weights={k: v for k, v in made.weights.items() if k != "lm_head.weight"})
    head = read(gguf(tmp_path / "gguf", made, keys={"eagle3.vocab_size": 320}))
    bound = head.for_target(other)
    assert bound.source.borrowed == {"token_embd.weight", "output.weight"}
    assert bound.source.tensors["output.weight"].data is other.tensors["output.weight"].data


@pytest.mark.parametrize(
    ("dims", "sizes", "what"),
    [
        (HeadDims(target_hidden=128), {}, "hidden states of 128 columns, the target's 64"),
        (HeadDims(vocab=400), {}, "vocabulary of 400 ids, the target's 320"),
        (HeadDims(taps=(2, 5, 9)), {}, r"layers \[2, 5, 9\], the target has 6 layers"),
        (HeadDims(), {"layers": 2}, r"layers \[2, 1, -1\], the target has 2 layers"),
        (HeadDims(embedding=False), {"hidden": 128}, "hidden states of 64 columns, the target's 128"),
    ],
)
def test_a_head_for_another_target_is_refused_with_what_differs(
    tmp_path: Path, dims: HeadDims, sizes: dict[str, int], what: str
) -> None:
    head = read(speculators_folder(tmp_path / "head", tiny_head(dims)))
    with pytest.raises(UnsupportedModelError, match=what) as error:
        head.for_target(target(tmp_path, **sizes))
    assert "another target (maker/Tiny)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_part_of_the_vocabulary_needs_its_ids(tmp_path: Path) -> None:
    made = tiny_head(replace(GGUF, rows=0, vocab=96, embedding=False))
    head = read(gguf(tmp_path / "head", made))
    with pytest.raises(
        UnsupportedModelError, match="its output of 96 rows without d2t, the target's 320 ids"
    ):
        head.for_target(target(tmp_path))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["MedusaModel"]}, "Medusa"),
        ({"medusa_num_heads": 4, "architectures": None}, "Medusa"),
        ({"architectures": ["DFlashDraftModel"]}, "DFlash or DSpark"),
        ({"architectures": ["Qwen3_5MTP"]}, r"multi-token prediction \(MTP\)"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "EAGLE-1 or EAGLE-2"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "MLP speculator"),
        ({"architectures": ["Gemma4AssistantForCausalLM"]}, "assistant"),
        ({"speculators_model_type": "peagle"}, "P-EAGLE"),
        ({"speculators_model_type": "new"}, "'new'"),
    ],
)
def test_other_kinds_of_heads_are_named(tmp_path: Path, config: dict[str, Any], kind: str) -> None:
    folder = original_folder(tmp_path, tiny_head(), config=config)
    with pytest.raises(UnsupportedModelError, match=f"a head of the kind {kind}, which is not supported"):
        open_head(folder)


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_head_that_is_taken_for_a_model_is_told(tmp_path: Path, dialect: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"a head \(EAGLE-3\), which drafts for a model: give it"):
        open_model(WRITERS[dialect](tmp_path / "head", tiny_head(GGUF)))


def test_pickled_heads_are_not_read(tmp_path: Path) -> None:
    folder = original_folder(tmp_path, tiny_head())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="pickle"):
        open_head(folder)


OFFSETS = np.zeros(96, np.int64)


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"d2t": None}, "d2t is missing"),
        ({"d2t": OFFSETS[:-1]}, "95 entries for 96 rows"),
        ({"d2t": OFFSETS - 1}, "ids from -1 to 94"),
        ({"d2t": OFFSETS + 250, "t2d": None}, "ids from 250 to 345 of 320"),
        ({"d2t": -np.arange(96), "t2d": None}, "an id twice"),
        ({"d2t": OFFSETS}, "t2d and d2t do not name the same ids"),
        ({"d2t": OFFSETS + 2**62}, "impossible offsets"),
        ({"d2t": np.full(96, np.iinfo(np.int64).min)}, "impossible offsets"),
        ({"d2t": np.zeros((96, 1), np.int64)}, "not a list of integers"),
        ({"d2t": np.zeros(96, np.float32)}, "not a list of integers"),
        ({"t2d": np.zeros(320, np.int64)}, "t2d is not a list of truth values"),
        ({"fc.weight": None}, "fc.weight is missing"),
        ({"fc.weight": np.zeros((), np.float32)}, "fc.weight is a single number"),
        ({"fc.weight": np.zeros((64, 193), np.float32)}, "fc.weight is 64 x 193"),
        ({"fc.weight": np.zeros((64, 192, 1), np.float32)}, "fc.weight is"),
        ({"fc.weight": np.zeros((64, 192), np.int64)}, "fc.weight has type I64"),
        ({"midlayer.hidden_norm.weight": None}, "hidden_norm.weight is missing"),
        ({"midlayer.self_attn.q_proj.weight": np.zeros((64, 64), np.float32)}, "is 64 x 64, not 64 x 128"),
        ({"midlayer.self_attn.q_proj.bias": np.zeros(64, np.float32)}, "not part of an EAGLE-3 head"),
        ({"layers.0.hidden_norm.weight": np.zeros(64, np.float32)}, "beside"),
        ({"midlayer.self_attn.q_norm.weight": np.zeros(16, np.float32)}, "not part of a eagle3 model"),
        ({"lm_head.weight": None}, "lm_head.weight is missing"),
    ],
)
def test_damaged_tensors_are_named(tmp_path: Path, tensors: dict[str, Any], what: str) -> None:
    folder = original_folder(tmp_path, tiny_head(), tensors=tensors)
    with pytest.raises(ModelError, match=what):
        read(folder)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"draft_vocab_size": 0}, "draft_vocab_size is not between"),
        ({"trained_length": 0}, "trained_length is not between"),
        ({"trained_length": "long"}, "trained_length is not an integer"),
        ({"draft_vocab_size": True}, "draft_vocab_size is not an integer"),
        ({"target_hidden_size": 1 << 40}, "target_hidden_size is not between"),
        ({"norm_before_residual": "yes"}, "norm_before_residual is not true or false"),
        ({"norm_before_fc": True, "fc_norm": True}, "both norm_before_fc and fc_norm"),
        ({"fc_norm": True}, "fc_norm.0.weight is missing"),
        ({"norm_before_fc": True}, "input_norm.weight is missing"),
        ({"eagle_aux_hidden_state_layer_ids": [1] * 17}, "not a list of up to 16 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 3]}, "not a list of up to 16 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1.5]}, "not a list of up to 16 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1] * 5}, "fc.weight is 64 x 192"),
        ({"transformer_layer_config": None}, "transformer_layer_config is missing"),
        ({"transformer_layer_config": {"model_type": "mamba"}}, "layers of the model_type 'mamba'"),
        ({"transformer_layer_config": {"attention_bias": True}}, "sets attention_bias"),
        ({"transformer_layer_config": {"layer_types": ["sliding_attention"]}}, "more than full attention"),
        ({"transformer_layer_config": {"hidden_size": 64}}, "is missing"),
    ],
)
def test_impossible_configurations_are_named(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    folder = speculators_folder(tmp_path, tiny_head(), config=config)
    with pytest.raises((ModelFileError, UnsupportedModelError), match=what):
        read(folder)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"eagle3.target_layers": None}, "not a list of up to 16 layers"),
        ({"eagle3.target_layers": [1, 2]}, "fc.weight is 64 x 192"),
        ({"eagle3.target_layers": [1, 2, 99999]}, "not a list of up to 16 layers"),
        ({"eagle3.target_hidden_size": None}, "target_hidden_size is missing"),
        ({"eagle3.target_hidden_size": 0}, "not between 1 and"),
        ({"eagle3.trained_length": 0}, "trained_length is 0, not between 1 and"),
        ({"eagle3.norm_before_fc": True}, "enc.output_norm.weight is missing"),
        ({"eagle3.norm_before_residual": 1}, "not a truth value"),
        ({"eagle3.expert_count": 4}, "sets eagle3.expert_count"),
        ({"eagle3.block_count": 2}, "blk.1.attn_norm.weight is missing"),
        ({"eagle3.attention.head_count": 3}, "heads do not divide"),
    ],
)
def test_impossible_keys_are_named(tmp_path: Path, keys: dict[str, Any], what: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=what):
        read(gguf(tmp_path, tiny_head(GGUF), keys=keys))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-5, 2**40), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


SMALL = tiny_head(HeadDims(hidden=16, target_hidden=16, heads=1, kv_heads=1, ffn=16, rows=8, taps=(1, 2, 3)))


def error_of(path: Path) -> str:
    """What is wrong with it, in one line; "" for a head, and for no head."""
    try:
        found = open_head(path)
    except ModelError as error:
        return str(error)
    return "" if found is None or found.source.tensors else "no tensors\n"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_configuration_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("head")
    data.draw(st.sampled_from([original_folder, speculators_folder]))(folder, SMALL)
    config = json.loads((folder / "config.json").read_text())
    for where in (config, config.get("transformer_layer_config", config)):
        for key in data.draw(st.lists(st.sampled_from(sorted(where)), max_size=2)):
            where[key] = data.draw(VALUES)
    (folder / "config.json").write_text(json.dumps(config))
    assert "\n" not in error_of(folder)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_damaged_file_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("head")
    path = gguf(folder, SMALL) if data.draw(st.booleans()) else original_folder(folder, SMALL)
    file = path / "model.safetensors" if path.is_dir() else path
    raw = bytearray(file.read_bytes())
    head = min(len(raw), 3000)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, head - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(raw[: data.draw(st.integers(head, len(raw)))])
    found = error_of(path)
    assert "\n" not in found
    assert not found or str(path) in found
