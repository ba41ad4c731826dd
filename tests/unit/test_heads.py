"""Heads from a file to texts: found out by themselves, put together with a target, refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams, draft_choice, memory
from outrider.config.engine import parse_engine
from outrider.config.speculative import AutoConfig, DraftModelConfig, Eagle3Config, parse_speculative
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.base import LanguageModel
from outrider.engines.native import calibrate
from outrider.engines.native.head import NativeHead
from outrider.errors import (
    ConfigError,
    InsufficientMemoryError,
    ModelError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from outrider.models.eagle3.open import open_head
from outrider.models.open import open_model
from outrider.models.sources.bundled import BundledHead
from outrider.models.text.tokenizer import Tokenizer
from outrider.pipeline import Pipeline, build_all
from outrider.verify import distribution
from outrider.verify.memoized_model import MemoizedModel
from tests.support.heads import HeadDims, gguf_head, original_folder, speculators_folder, tiny_head
from tests.support.models import Dims, tiny_gguf

TAPS = HeadDims(taps=(2, 3, 4))
PROMPTS = ["the quick brown fox", "def function(self, name): return"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, max_tokens=16, seed=4, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("target") / "target.gguf", dims=Dims(layers=6), tied=False)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    own = tiny_head(TAPS)
    return {
        "original": original_folder(folder / "original", tiny_head(HeadDims(embedding=False))),
        "speculators": speculators_folder(folder / "speculators", own),
        "gguf": gguf_head(folder / "head.gguf", own),
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "SECONDS", 0.0)


def texts(llm: LLM) -> list[list[int]]:
    return [o.outputs[0].token_ids for params in (GREEDY, SEEDED) for o in llm.generate(PROMPTS, params)]


def pipeline_of(llm: LLM) -> Pipeline:
    made = llm._pipeline
    assert isinstance(made, Pipeline)
    return made


def test_a_head_of_each_dialect_changes_no_text(target: Path, heads: dict[str, Path]) -> None:
    plain = texts(LLM(target, speculative_config="none"))
    for path in heads.values():
        llm = LLM(
            target, speculative_config={"method": "eagle3", "model": str(path), "num_speculative_tokens": 3}
        )
        drafter = pipeline_of(llm).drafting.drafter
        assert isinstance(drafter, Eagle3Drafter)
        assert texts(llm) == plain
        assert pipeline_of(llm).draft is not None
        assert "(q4 at load)" in str(pipeline_of(llm).models["draft"])
        metrics = llm.generate(PROMPTS[0], GREEDY)[0].metrics
        assert metrics.drafts.num_draft_tokens > 10
        assert metrics.to_dict()["drafters"].keys() == {"eagle3"}


def test_a_draft_is_found_out_to_be_a_head(target: Path, heads: dict[str, Path]) -> None:
    """As -md gives it, under auto, where it takes part beside lookups; and under draft_model."""
    plain = texts(LLM(target, speculative_config="none"))
    llm = LLM(target, speculative_model=str(heads["gguf"]))
    drafter = pipeline_of(llm).drafting.drafter
    assert isinstance(drafter, AutoDrafter)
    assert list(drafter.models) == ["eagle3"]
    assert drafter.taps == (2, 3, 4)
    assert texts(llm) == plain
    assert pipeline_of(llm).fresh().drafting.names == ("suffix", "eagle3")
    share = pipeline_of(llm).drafting.share
    assert share is not None
    assert 0.0 < share < 10.0
    llm = LLM(target, speculative_config={"method": "draft_model", "model": str(heads["original"])})
    assert pipeline_of(llm).drafting.names == ("eagle3",)
    assert texts(llm) == plain


@pytest.fixture
def bundled(target: Path, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> BundledHead:
    """A head that comes with the package, for the target and for another one."""
    name = open_model(target).display_name
    own = BundledHead("tiny-head", "A tiny head", str(heads["gguf"]), "tiny", name, "MIT")
    other = replace(own, name="other-head", file_name="none", made_for="Another")
    monkeypatch.setattr(draft_choice, "BUNDLED", {"other-head": other, "tiny-head": own})
    return own


@pytest.mark.parametrize("method", ["auto", "draft_model"])
def test_the_bundled_head_of_a_target_is_taken_by_itself(
    target: Path, bundled: BundledHead, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with LLM(str(target), speculative_config="none") as llm:
        plain = texts(llm)
    with LLM(str(target), speculative_config={"method": method, "model": "auto"}) as llm:
        chosen = pipeline_of(llm).speculative
        assert isinstance(chosen, AutoConfig | DraftModelConfig)
        assert chosen.model == str(bundled.path)
        assert texts(llm) == plain
    assert "A tiny head, which comes with Outrider" in caplog.text


def test_a_bundled_head_is_for_its_target_where_there_is_room(target: Path, bundled: BundledHead) -> None:
    source = open_model(target)
    tokenizer = Tokenizer.from_data(source.tokenizer)

    def none(*drafts: object) -> None:
        if drafts:
            raise InsufficientMemoryError("no room")

    assert draft_choice.choose(source, tokenizer, lambda *_: None, "auto").path == bundled.path
    assert draft_choice.choose(source, tokenizer, lambda *_: None, "auto", heads=False).path is None
    assert draft_choice.choose(source, tokenizer, none, "auto").path is None
    other = replace(source, display_name="Yet another")
    assert draft_choice.choose(other, tokenizer, lambda *_: None, "auto").path is None


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_other_rules_keep_greedy_texts(target: Path, heads: dict[str, Path], rule: str) -> None:
    plain = LLM(target, speculative_config="none").generate(PROMPTS, GREEDY)
    given = {"method": "eagle3", "model": str(heads["speculators"]), "rejection_sample_method": rule}
    if rule == "rejection":
        given["rejection_sample_method"] = "standard"
    found = LLM(target, speculative_config=given).generate(PROMPTS, GREEDY)
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in plain]


def test_one_head_serves_several_choices(target: Path, heads: dict[str, Path]) -> None:
    config = parse_engine(model=str(target))
    head = str(heads["gguf"])
    choices = [parse_speculative({"method": method, "model": head}) for method in ("eagle3", "auto")]
    first, second = build_all(config, choices)
    parts = [part for made in (first, second) for part in made.drafting.parts if part.name == "eagle3"]
    assert len(parts) == 2
    assert isinstance(parts[0], Eagle3Drafter)
    assert isinstance(parts[1], Eagle3Drafter)
    assert parts[0]._head is parts[1]._head


def test_the_distribution_of_its_texts_can_be_verified(target: Path, heads: dict[str, Path]) -> None:
    """As `outrider verify` does, on a target whose rows and hidden states are remembered."""
    choice = Eagle3Config(str(heads["gguf"]), 3, verification="rejection")
    models: list[MemoizedModel] = []

    def watched(model: LanguageModel) -> LanguageModel:
        models.append(MemoizedModel(model))
        return models[-1]

    (made,) = build_all(parse_engine(model=str(target)), [choice], wrap=watched)
    claim = distribution.check(made.fixed(3)[-1], models, [0.8], 40, lambda text: None)
    assert claim is not None
    assert claim.held
    assert len(models) == 1, "the head is no model of its own"


@pytest.mark.parametrize(
    ("dims", "given", "what"),
    [
        (HeadDims(target_hidden=128), {}, "for another target: its hidden states of 128 columns"),
        (HeadDims(vocab=400), {}, "vocabulary of 400 ids"),
        (HeadDims(), {"quantization": "q5"}, "quantization='q5' is refused"),
    ],
)
def test_what_does_not_fit_is_refused_before_weights_are_loaded(
    tmp_path: Path, target: Path, dims: HeadDims, given: dict[str, Any], what: str
) -> None:
    folder = original_folder(tmp_path / "head", tiny_head(dims))
    with pytest.raises((ModelError, ConfigError), match=what):
        LLM(target, speculative_config={"method": "eagle3", "model": str(folder), **given})


def test_a_head_with_another_tokenizer_is_refused(tmp_path: Path, target: Path) -> None:
    pieces = [f"piece{i}" for i in range(320)]
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [1] * 320,
        "tokenizer.ggml.merges": ["a b"],
    }
    head = gguf_head(tmp_path / "head.gguf", tiny_head(TAPS), keys=keys)
    with pytest.raises(VocabularyMismatchError):
        LLM(target, speculative_config={"method": "eagle3", "model": str(head)})


def test_methods_and_engines_that_do_not_fit_a_draft_are_told(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="is no EAGLE-3 head; the method 'draft_model'"):
        LLM(target, speculative_config={"method": "eagle3", "model": str(target)})
    for method in ("medusa", "mtp", "eagle"):
        with pytest.raises(ConfigError, match="'eagle3' is"):
            parse_speculative({"method": method, "model": "x"})
    folder = original_folder(tmp_path / "medusa", tiny_head(), config={"architectures": ["MedusaModel"]})
    with pytest.raises(UnsupportedModelError, match="a head of the kind Medusa"):
        LLM(target, speculative_model=str(folder))


def test_names_of_the_method() -> None:
    assert parse_speculative({"method": "eagle3", "model": "h"}) == Eagle3Config("h")
    given = {"method": "eagle3", "model": "o/h", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1}
    assert parse_speculative(given) == Eagle3Config("o/h", 2)
    with pytest.raises(ConfigError, match="'eagle3' needs `model`"):
        parse_speculative({"method": "eagle3"})


def test_memory_counts_the_states_that_wait(target: Path, heads: dict[str, Path]) -> None:
    head = open_head(heads["original"])
    assert head is not None
    source = head.for_target(open_model(target)).source
    counted = memory.estimate(source, 256, 2, target=False)
    keys = 2 * 2 * 16 * 2 * 256  # of key heads, head size and bytes
    assert counted.cache == 2 * (keys + 2 * memory.HELD_STATES * 4 * 3 * 64)
    borrowed = source.tensors["token_embd.weight"].nbytes
    assert counted.weights == sum(t.nbytes for t in source.tensors.values()) - borrowed


def test_what_passes_cost_is_measured_and_kept(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    head = open_head(heads["speculators"])
    assert head is not None
    native = NativeHead.load(head.for_target(open_model(target)).source, threads=1)
    cost = calibrate.head_cost_model(native, tmp_path / "curves")
    assert 0 < cost.at(0).seconds(1) < 1
    assert 0 < cost.at(0).seconds(16) < 1
    if any(tmp_path.glob("curves/*")):  # not kept where other load came or went meanwhile
        found = calibrate.recorded(native.source, native.isa, 1, None, tmp_path / "curves")
        assert found is not None
        assert found.seconds[1] == pytest.approx(cost.at(0).seconds(1))
    other = head.for_target(open_model(target)).source
    changed = replace(other, display_name="another", quantization="q4")
    assert calibrate.recorded(changed, native.isa, 1, None, tmp_path / "curves") is None
