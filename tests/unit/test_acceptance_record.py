"""What is kept of a pair's drafts: counts by position, bounded, and never a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import acceptance_record
from outrider.acceptance_record import Group, TextCounts, add, place_of, read, recorded
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, DraftModelConfig, SpeculativeConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.engines.base import LanguageModel
from outrider.llm import LLM
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, quantized
from outrider.pipeline import build, build_all
from tests.conftest import ToyLoader, load_toy

GROUP = Group("draft_model", "coupled", "greedy")


def text(tokens: int, proposed: tuple[int, ...] = (3, 2), accepted: tuple[int, ...] = (2, 1)) -> TextCounts:
    return TextCounts(tokens, tokens, 0.5, 0.25, proposed, accepted)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_engine: ToyLoader) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setenv(acceptance_record.SWITCH, "1")
    return tmp_path


def generated(target: Path, draft: Path, choice: SpeculativeConfig, **sampling: object) -> LLM:
    llm = LLM.from_pipeline(build(EngineConfig(str(target), choice), progress=False))
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    llm.generate(["the sea", "a hill"], params)
    llm.generate("the sea", SamplingParams(temperature=0.7, seed=1, max_tokens=40, ignore_eos=True))
    llm.generate("a hill", SamplingParams(temperature=0.0, max_tokens=20, regex="[a-z]+"))
    return llm


@pytest.mark.parametrize("method", ["draft_model", "auto"])
def test_outputs_of_a_pair_leave_their_counts(
    cache: Path, target_file: Path, draft_file: Path, method: str
) -> None:
    name = str(draft_file)
    choice = DraftModelConfig(name, 4) if method == "draft_model" else AutoConfig(name)
    llm = generated(target_file, draft_file, choice)
    del llm  # what is pending is written
    target, draft = open_model(target_file), open_model(draft_file)
    draft = quantized(draft, for_draft("auto", draft, target))
    found = recorded(target, draft)
    assert {(g.method, g.rule, g.temperature): len(texts) for g, texts in found.items()} == {
        (method, "coupled", "greedy"): 2,
        (method, "coupled", "sampled"): 1,
    }, "a text whose form is given says nothing about the drafter"
    for counts in found[Group(method, "coupled", "greedy")]:
        assert counts.tokens == 40
        assert all(a <= p for a, p in zip(counts.accepted, counts.proposed, strict=True))
        # Of a chain, a token is only proposed where the one before it was accepted.
        if method == "draft_model":
            assert counts.passes < 40, "the toy draft resembles its target"
            assert all(p <= a for p, a in zip(counts.proposed[1:], counts.accepted, strict=False))
            assert counts.passes + sum(counts.accepted) >= counts.tokens - 4
            assert counts.seconds == 0.0
        else:
            assert counts.seconds > 0.0
            assert counts.plain_s > 0.0
    (file,) = (cache / acceptance_record.FOLDER).iterdir()
    words = {word for word in file.read_text("utf-8").replace('"', " ").split() if word.isalpha()}
    assert words <= {
        "groups",
        "method",
        "rule",
        "temperature",
        "texts",
        "auto",
        "coupled",
        "greedy",
        "sampled",
    }


def test_nothing_is_kept_where_it_is_switched_off(
    cache: Path, target_file: Path, draft_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(acceptance_record.SWITCH, "0")
    generated(target_file, draft_file, DraftModelConfig(str(draft_file), 4))
    assert not (cache / acceptance_record.FOLDER).exists()


def test_only_the_engines_own_passes_are_on_record(cache: Path, target_file: Path, draft_file: Path) -> None:
    """Of passes that are observed, as `verify` does, and of another loader's the times would be others'."""
    config = EngineConfig(str(target_file), DraftModelConfig(str(draft_file), 4))

    class Observed:
        def __init__(self, model: LanguageModel) -> None:
            self._model = model

        def __getattr__(self, name: str) -> object:
            return getattr(self._model, name)

    def observed(model: LanguageModel) -> LanguageModel:
        return Observed(model)  # type: ignore[return-value]

    (plain,) = build_all(config, [config.speculative], progress=False)
    assert plain.recorder is not None
    assert all(pipeline.recorder is None for pipeline in plain.fixed(3))
    assert build(config, load_toy, progress=False).recorder is None
    (pipeline,) = build_all(config, [config.speculative], wrap=observed, progress=False)
    assert pipeline.recorder is None
    (pipeline,) = build_all(config, [AutoConfig()], progress=False)
    assert pipeline.recorder is None, "there is no pair"


def test_a_record_is_bounded_and_a_repeated_text_counts_once(tmp_path: Path) -> None:
    place = tmp_path / "a" / "pair.json"
    for tokens in range(2, 100):
        add(place, [(GROUP, text(tokens)), (GROUP, text(tokens))])
    assert [counts.tokens for counts in read(place)[GROUP]] == list(range(100 - acceptance_record.TEXTS, 100))
    for method in "abcdefgh":
        add(place, [(GROUP._replace(method=method), text(1))])
    assert [group.method for group in read(place)] == list("defgh")
    most = TextCounts(99_999, 99_999, 1e5 / 3, 1e5 / 3, (99_999,) * 16, (99_999,) * 16)
    for group in list(read(place)):
        add(
            place,
            [(group, TextCounts(n, *(getattr(most, f) for f in most.__slots__[1:]))) for n in range(60)],
        )
    assert sum(map(len, read(place).values())) == acceptance_record.TEXTS * acceptance_record.GROUPS
    assert [path.name for path in place.parent.iterdir()] == ["pair.json"]


def test_old_pairs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance_record, "FILES", 3)
    for number in range(5):
        add(tmp_path / f"{number}.json", [(GROUP, text(5))])
    assert len(list(tmp_path.iterdir())) == 3


def test_a_pair_is_its_files_and_their_quantization(
    target_file: Path, draft_file: Path, tmp_path: Path
) -> None:
    target, draft = open_model(target_file), open_model(draft_file)
    places = {
        place_of(target, draft, tmp_path),
        place_of(draft, target, tmp_path),
        place_of(target, quantized(draft, "q4"), tmp_path),
    }
    assert len(places) == 3


numbers = st.integers(-2, 5) | st.floats(allow_nan=True) | st.text(max_size=2) | st.none() | st.booleans()
values = st.recursive(numbers, lambda inner: st.lists(inner, max_size=7), max_leaves=12)


@settings(max_examples=30)
@given(rows=st.lists(values | st.fixed_dictionaries({"texts": values, "method": values}), max_size=3))
def test_a_damaged_record_is_none(rows: list[object], tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "damaged.json"
    full = [{**GROUP._asdict(), **row} if isinstance(row, dict) else row for row in rows]
    place.write_text(json.dumps({"groups": full}), "utf-8")
    for texts in read(place).values():
        for counts in texts:
            assert all(0 <= a <= p for a, p in zip(counts.accepted, counts.proposed, strict=True))
            assert counts.seconds >= 0.0
