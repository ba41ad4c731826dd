"""Greedy texts are those of transformers' own `generate`: of the families here, and of those that only
transformers has, with drafts and without."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from outrider import LLM, SamplingParams  # noqa: E402
from outrider.engines.base import LanguageModel  # noqa: E402
from outrider.engines.step import CachedStepEngine  # noqa: E402
from outrider.engines.torch import calibrate  # noqa: E402
from outrider.engines.torch.fallback import TransformersModel, describe  # noqa: E402
from outrider.errors import (  # noqa: E402
    ConfigError,
    InsufficientMemoryError,
    ModelFileError,
    OutriderError,
    UnsupportedModelError,
)
from outrider.models.families import FAMILIES  # noqa: E402
from tests.conformance.drafters import SCRIPTS, ScriptedDrafter  # noqa: E402
from tests.conformance.harness import PROMPTS, answers, requests, run, visible  # noqa: E402
from tests.support.models import VOCAB_SIZE, family_dims, tiny_hf  # noqa: E402
from tests.torch.support import CPU, item, load, relative_error, source  # noqa: E402

SIZES = {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SMALL_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", SMALL_GPT),
    "gpt_neox": ("GPTNeoXConfig", {**SHAPE, "rotary_pct": 0.5}),
    "gemma2": ("Gemma2Config", {**SHAPE, "head_dim": 16, "sliding_window": 8}),
    "qwen2_moe": ("Qwen2MoeConfig", {**SHAPE, **EXPERTS, "shared_expert_intermediate_size": 48}),
    "mixtral": ("MixtralConfig", {**SHAPE, "num_local_experts": 4}),
    "phi": ("PhiConfig", SHAPE),
    "stablelm": ("StableLmConfig", SHAPE),
    "starcoder2": ("Starcoder2Config", {**SHAPE, "sliding_window": 8}),
    "cohere": ("CohereConfig", SHAPE),
    "olmoe": ("OlmoeConfig", {**SHAPE, "num_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("OPTConfig", {**SHAPE, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "glm": ("GlmConfig", {**SHAPE, "head_dim": 16}),
}
TREES = ("opt", "gpt2", "gpt_neox", "qwen2_moe", "mixtral", "phi", "stablelm", "cohere", "olmoe", "glm")


def saved(folder: Path, config_class: str, sizes: dict[str, Any]) -> Path:
    """A folder with random weights of a class of transformers, and the tokenizer of the tiny models."""
    torch.manual_seed(3)
    config = getattr(transformers, config_class)(**{**SIZES, **sizes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer = tiny_hf(folder / "tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    shutil.rmtree(tokenizer)
    return folder


def generated(folder: Path, count: int = 24) -> dict[str, list[int]]:
    """What transformers writes after each prompt, up to the harness's end of text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {}
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([list(prompt)])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=min(count, 64 - len(prompt)),
                do_sample=False,
                eos_token_id=3,
                pad_token_id=0,
            )
        found[str(i)] = out[0, len(prompt) :].tolist()
    return found


def check_against_generate(model: LanguageModel, folder: Path) -> None:
    arguments = {"temperature": 0.0}
    plain = run(CachedStepEngine(model), None, requests(arguments))
    assert {name: output.tokens for name, output in plain.items()} == generated(folder)
    trees = ("random_tree", "right_branch_last") if model.caps.tree_attention else ()
    for name in ("always_right", "right_then_wrong", *trees):
        drafter = ScriptedDrafter(name, SCRIPTS[name], answers(plain), model.vocab_size)
        assert visible(run(CachedStepEngine(model), drafter, requests(arguments))) == visible(plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_here_write_what_transformers_generates(tmp_path: Path, family: str) -> None:
    opened = source(tmp_path, family)
    check_against_generate(load(opened), opened.path)


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    return name, saved(tmp_path_factory.mktemp("others") / name, *OTHERS[name])


def test_other_families_write_what_transformers_generates(other: tuple[str, Path]) -> None:
    name, folder = other
    model = TransformersModel.load(describe(folder), CPU, torch.float32)
    assert model.caps.tree_attention == (name in TREES)
    assert not model.caps.exact_bits
    check_against_generate(model, folder)


def test_trees_rollbacks_and_neighbours(other: tuple[str, Path]) -> None:
    name, folder = other
    model = TransformersModel.load(describe(folder), CPU, torch.float32)
    prompt = [int(i) for i in np.random.default_rng(1).integers(3, VOCAB_SIZE, 21)]
    path = [5, 7, 3, 6]
    whole = model.forward([item(model.new_cache(32), [*prompt, *path])])[0][21:]
    cache, beside = model.new_cache(32), model.new_cache(32)
    model.forward([item(cache, prompt, rows=[]), item(beside, prompt[:4], rows=[])])
    tree, parents, rows = path, None, [0, 1, 2, 3]
    if name in TREES:
        tree, parents, rows = [5, 9, 7, 11, 3, 6], [-1, 0, 0, 1, 2, 4], [0, 2, 4, 5]
    found, _ = model.forward([item(cache, tree, parents, rows=rows), item(beside, [9, 8])])
    assert relative_error(found, whole) < 1e-5
    cache.keep(21, [21 + row for row in rows[:2]])
    assert (cache.length, beside.length) == (23, 6)
    assert relative_error(model.forward([item(cache, path[2:])])[0], whole[2:]) < 1e-5
    with pytest.raises(ValueError, match="cannot be cut"):
        cache.truncate(26)
    with pytest.raises(ValueError, match="token ids"):
        model.forward([item(beside, [1]), item(cache, [VOCAB_SIZE])])
    assert (cache.length, beside.length) == (25, 6)
    if name not in TREES:
        with pytest.raises(ValueError, match="no drafts that branch"):
            model.forward([item(cache, [1, 2], [-1, -1])])


def test_memory_that_is_used_up_ends_the_pass_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of all caches is told, and a pass that runs out of memory leaves them as they were."""
    folder = saved(tmp_path / "gpt2", *OTHERS["gpt2"])
    model = TransformersModel.load(describe(folder), CPU, torch.float32, lambda: 500)
    pooled = CachedStepEngine(model).pooled
    assert pooled is not None
    assert (pooled.pool_positions, pooled.slot_bytes) == (500, 2 * 2 * 64 * 4)
    assert CachedStepEngine(TransformersModel.load(describe(folder), CPU, torch.float32)).pooled is None
    first, second = model.new_cache(32), model.new_cache(32)
    model.forward([item(first, [5, 6, 7]), item(second, [5, 6])])
    wanted = model.forward([item(first, [8])])[0]
    first.truncate(3)
    inner = model._model

    def short(input_ids: Any, **more: Any) -> Any:
        if input_ids.shape[1] == 2:
            raise torch.OutOfMemoryError
        return inner(input_ids=input_ids, **more)

    short.dtype = inner.dtype  # type: ignore[attr-defined]
    monkeypatch.setattr(model, "_model", short)
    with pytest.raises(InsufficientMemoryError, match="--max-num-seqs"):
        model.forward([item(first, [8]), item(second, [8, 9])])
    assert (first.length, second.length) == (3, 2)
    assert relative_error(model.forward([item(first, [8])])[0], wanted) < 1e-6


def test_caches_take_over_positions_of_others(other: tuple[str, Path]) -> None:
    model = TransformersModel.load(describe(other[1]), CPU, torch.float32)
    prompt = [int(i) for i in np.random.default_rng(1).integers(3, VOCAB_SIZE, 40)]
    first, second = model.new_cache(48), model.new_cache(48)
    model.forward([item(first, prompt, rows=[])])
    blocks = [first.share(0, 16), first.share(16, 32)]
    assert all(block.nbytes > 0 and block.whole for block in blocks)
    for block in blocks:
        second.adopt(block)
    assert second.length == 32
    first.truncate(32)
    wanted, found = model.forward([item(first, prompt[32:]), item(second, prompt[32:])])
    assert relative_error(found, wanted) < 1e-6
    for bad in ((0, 8), (32, 48), (16, 16)):
        with pytest.raises(ValueError, match="cannot share"):
            second.share(*bad)
    with pytest.raises(ValueError, match="do not follow"):
        second.adopt(blocks[0])


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ("MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
        ("FalconH1Config", {**SHAPE, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}),
    ],
)
def test_recurrent_families_are_refused_by_name(tmp_path: Path, config: str, sizes: dict[str, Any]) -> None:
    getattr(transformers, config)(**{**SIZES, **sizes}).save_pretrained(tmp_path)
    name = config.removesuffix("Config")
    with pytest.raises(UnsupportedModelError, match=f"{name}ForCausalLM keeps a recurrent state"):
        describe(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"model_type": "bert"}', '{"model_type": "new-thing"}', "[]", "{}"])
def test_damaged_or_unknown_configurations(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises((UnsupportedModelError, ModelFileError)) as caught:
        describe(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_its_passes_are_timed(other: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "SECONDS", 0.0)
    opened = describe(other[1])
    costs = calibrate.cost_model(TransformersModel.load(opened, CPU, torch.float32), None)
    assert not costs.guessed
    assert costs.at(32).seconds(32) > 0


def test_auto_takes_transformers_where_it_must(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = saved(tmp_path / "gpt2", *OTHERS["gpt2"])
    with LLM(str(folder), threads=1, max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        (output,) = llm.generate("the cat sat on the cat sat", params)
        assert len(output.outputs[0].token_ids) == 12
    assert "engine: torch, as only transformers has GPT2LMHeadModel" in caplog.text
    with pytest.raises(UnsupportedModelError, match="GPT2LMHeadModel"):
        LLM(str(folder), engine="native")
    with pytest.raises(ConfigError, match=r"exact='strict' is refused: .*gpt2 is run by transformers'"):
        LLM(str(folder), engine="torch", exact="strict")


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    folder = saved(tmp_path / "gpt2", *OTHERS["gpt2"])
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(OutriderError, match="transformers cannot load it"):
        TransformersModel.load(describe(folder), CPU, torch.float32)


def test_the_families_are_tried() -> None:
    assert set(OTHERS) > set(TREES)
    assert family_dims("llama").layers > 1
