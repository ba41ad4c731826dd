"""EAGLE-3 heads on the torch engine: against float64, and from a file to texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider import LLM, SamplingParams  # noqa: E402
from outrider.drafters.eagle3 import Eagle3Drafter  # noqa: E402
from outrider.engines.heads import HeadItem  # noqa: E402
from outrider.engines.torch import backend  # noqa: E402
from outrider.engines.torch.calibrate import head_cost_model  # noqa: E402
from outrider.engines.torch.head import HeadModule, TorchHead, load_head_weights  # noqa: E402
from outrider.engines.torch.weights import load_weights  # noqa: E402
from outrider.errors import ConfigError, UnsupportedModelError  # noqa: E402
from outrider.models.eagle3.open import open_head  # noqa: E402
from outrider.models.open import open_model  # noqa: E402
from outrider.pipeline import Pipeline  # noqa: E402
from tests.native.test_heads import CASES, TRUE, N, embedding_of, error, inputs, opened, run, target  # noqa: E402
from tests.support.heads import HeadDims, ReferenceHead, gguf_head, original_folder, tiny_head  # noqa: E402
from tests.support.models import Dims, tiny_gguf, tiny_hf  # noqa: E402
from tests.torch.support import CPU  # noqa: E402

PROMPTS = ["the cat sat on the mat the cat sat", "a b c a b"]
TAPS = HeadDims(taps=(2, 3, 4))


def load(source: Any, **more: Any) -> TorchHead:
    return TorchHead(source, load_head_weights(source, CPU, torch.float32, None), **more)


@pytest.mark.parametrize("case", CASES)
def test_it_agrees_with_float64(tmp_path: Path, case: str) -> None:
    dialect, dims = CASES[case]
    made = tiny_head(dims)
    head = opened(tmp_path, dialect, made)
    tokens, states = inputs(dims)
    wanted = ReferenceHead(made, embedding=embedding_of(tmp_path, dims)).run(tokens, states[:TRUE])
    found = run(load(head.source), tokens, states, [7, 1, 16])
    assert error(found[0], wanted[0]) < 1e-4
    assert error(found[1], wanted[1]) < 1e-4


@pytest.mark.parametrize(
    "broken",
    [
        lambda m, states: setattr(m, "spec", replace(m.spec, head=replace(m.spec.head, norm_output=False))),
        lambda m, states: m.weights.hidden_norm.mul_(1.01),
        lambda m, states: states.__setitem__(slice(0, 1), 0.0),
    ],
    ids=["no final norm is fed back", "a norm that is 1% off", "the first token without its states"],
)
def test_a_broken_head_is_seen(tmp_path: Path, broken: Callable[[HeadModule, Any], Any]) -> None:
    dialect, dims = CASES["speculators, norms of each state"]
    made = tiny_head(dims)
    head = load(opened(tmp_path, dialect, made).source)
    tokens, states = inputs(dims)
    wanted = ReferenceHead(made).run(tokens, states[:TRUE])
    broken(head._module, states)
    assert max(error(a, b) for a, b in zip(run(head, tokens, states, [24]), wanted, strict=True)) > 1e-4


def test_sequences_share_a_pass(tmp_path: Path) -> None:
    dims = HeadDims(layers=2)
    head = load(opened(tmp_path, "speculators", tiny_head(dims)).source)
    tokens, states = inputs(dims)
    alone = run(head, tokens[:9], states, [9])
    caches = [head.new_cache(32) for _ in range(3)]
    ids = np.array(tokens, np.int32)
    every = np.arange(9, dtype=np.int32)
    items = [
        HeadItem(caches[0], ids[20:33], np.resize(states, (13, dims.width)), every[:0]),
        HeadItem(caches[1], ids[:9], states[:9], every),
        HeadItem(caches[2], ids[33:], np.resize(states, (N - 33, dims.width)), every[1:2]),
    ]
    logits, given = head.forward_head(items, fed_back=False)
    assert [len(rows) for rows in logits] == [0, 9, 1]
    assert [cache.length for cache in caches] == [13, 9, N - 33]
    np.testing.assert_allclose(logits[1], alone[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(given[1], alone[1], rtol=1e-4, atol=1e-4)


def test_long_prompts_take_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dims = HeadDims()
    head = load(opened(tmp_path, "speculators", tiny_head(dims)).source)
    tokens, states = inputs(dims)
    whole = run(head, tokens[:TRUE], states, [TRUE])
    monkeypatch.setattr("outrider.engines.torch.head.WIDEST", 7)
    parts = run(head, tokens[:TRUE], states, [TRUE])
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_bad_items_change_nothing(tmp_path: Path) -> None:
    dims = HeadDims()
    head = load(opened(tmp_path, "original", tiny_head(dims)).source)
    tokens, states = inputs(dims)
    cache, ids, none = head.new_cache(8), np.array(tokens, np.int32), np.empty(0, np.int32)
    for item, words in (
        (HeadItem(cache, ids[:4], states[:3], none), "states are"),
        (HeadItem(cache, ids[:9], states[:9], none), "do not fit"),
        (HeadItem(cache, np.array([dims.vocab], np.int32), states[:1], none), "token ids"),
    ):
        with pytest.raises(ValueError, match=words):
            head.forward_head([item], fed_back=False)
    assert cache.length == 0
    with pytest.raises(TypeError, match="own new_cache"):
        load(head.source).forward_head([HeadItem(cache, ids[:1], states[:1], none)], fed_back=False)


def test_what_its_file_lacks_is_the_targets(tmp_path: Path) -> None:
    head = opened(tmp_path, "original", tiny_head(HeadDims(embedding=False))).source
    theirs = load_weights(target(tmp_path), CPU, torch.float32)
    assert load_head_weights(head, CPU, torch.float32, theirs).embedding is theirs.embedding
    own = load_head_weights(head, CPU, torch.float32, None).embedding
    assert torch.equal(own, theirs.embedding)


def test_its_passes_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.engines.torch.calibrate.SECONDS", 0.0)
    head = load(opened(tmp_path, "original", tiny_head()).source)
    assert head_cost_model(head).at(0).seconds(1) > 0


# --- From a file to texts -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    goal = tiny_gguf(folder / "target.gguf", dims=Dims(layers=6), tied=False)
    return goal, original_folder(folder / "head", tiny_head(HeadDims(embedding=False)))


def texts(target: Path, temperature: float, **arguments: Any) -> tuple[LLM, list[list[int]]]:
    llm = LLM(str(target), threads=1, max_model_len=128, seed=3, engine="torch", device="cpu", **arguments)
    params = SamplingParams(temperature=temperature, max_tokens=16, seed=7, ignore_eos=True)
    return llm, [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_changes_no_text(
    pair: tuple[Path, Path], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.engines.torch.calibrate.SECONDS", 0.0)
    goal, head = pair
    _, plain = texts(goal, temperature, exact="strict", speculative_config={"method": "none"})
    given = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    llm, found = texts(goal, temperature, exact="strict", speculative_config=given)
    assert found == plain
    made = llm._pipeline
    assert isinstance(made, Pipeline)
    assert isinstance(made.drafting.drafter, Eagle3Drafter)
    assert isinstance(made.drafting.drafter._head, TorchHead)
    assert llm.generate(PROMPTS[0])[0].metrics.drafts.num_draft_tokens > 0
    _, found = texts(goal, temperature, exact="strict", speculative_model=str(head))
    assert found == plain


def test_refusals(pair: tuple[Path, Path], tmp_path: Path) -> None:
    goal, head = pair
    given = {"method": "eagle3", "model": str(head), "quantization": "q4"}
    with pytest.raises(ConfigError, match="'q4' is of the native engine only"):
        texts(goal, 0.0, speculative_config=given)
    other = gguf_head(tmp_path / "other.gguf", tiny_head(replace(TAPS, target_hidden=128)))
    with pytest.raises(UnsupportedModelError, match="for another target"):
        texts(goal, 0.0, speculative_model=str(other))
    load, _ = backend.head_engine(lambda source, threads: None)  # type: ignore[arg-type, return-value]
    found = open_head(head)
    assert found is not None
    with pytest.raises(ConfigError, match="needs a target on it"):
        load(found.for_target(open_model(goal)).source, None)


def test_a_model_that_only_transformers_has_gives_no_states(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from outrider.config.speculative import Eagle3Config
    from outrider.models.text.tokenizer import Tokenizer
    from outrider.opening import open_draft

    source = open_model(tiny_hf(tmp_path / "model"))
    other = replace(source, transformers_class="OtherForCausalLM")
    choice, tokenizer = Eagle3Config(str(pair[1]), 3), Tokenizer.from_data(source.tokenizer)
    with pytest.raises(UnsupportedModelError, match="hidden states"):
        open_draft(choice, other, tokenizer, False, quantizes=False)
