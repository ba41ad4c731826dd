"""What is kept of the target for a draft model, how training goes along, and the speed-up that is told."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.engine import parse_engine
from outrider.engines.base import ForwardItem, StepEngine
from outrider.engines.native import NativeModel
from outrider.engines.native.head import NativeHead
from outrider.errors import ConfigError
from outrider.models.open import open_model
from outrider.pipeline import build
from outrider.plan.slices import with_random_weights
from outrider.plan.speed import Curve, best_chain, speedup
from outrider.training import payoff, schedule
from outrider.training.probabilities import KEPT, ProbabilityStore, capture, likeliest
from outrider.training.progress import Acceptance, Evaluation, Held, Likeness, accepted, chains, worse
from outrider.training.settings import DRAFT_DEFAULTS, RunFolder, Settings, replacing
from outrider.training.sizes import sizes_of
from outrider.training.texts import Text, divided
from tests.support.models import VOCAB_SIZE, Dims, tiny_gguf

DIMS = Dims(layers=6)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("t") / "target.gguf", dims=DIMS)


@pytest.fixture(scope="module")
def engine(target: Path) -> StepEngine:
    return build(parse_engine(str(target), {"method": "none"}, threads=1)).engine


def text(prompt: int, answer: int, seed: int = 0, held_out: bool = False) -> Text:
    ids = np.random.default_rng(seed).integers(0, VOCAB_SIZE, prompt + answer).tolist()
    return Text(0, tuple(ids[:prompt]), tuple(ids[prompt:]), 0.0, held_out)


# --- Probabilities --------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.booleans())
def test_records_are_the_likeliest(seed: int, kept: int, coarse: bool) -> None:
    """Against a sort of all, with many equal logits where they are coarse."""
    logits = np.random.default_rng(seed).normal(0, 4, (3, 17)).astype(np.float32)
    if coarse:
        logits = np.round(logits / 4)
    found = likeliest(logits, kept)
    for record, row in zip(found, logits.astype(np.float64), strict=True):
        order = sorted(range(17), key=lambda i: (-row[i], i))[:kept]
        assert record["ids"].tolist() == order
        shares = np.exp(row - row.max())
        np.testing.assert_allclose(record["probs"], (shares / shares.sum())[order], rtol=1e-5)


def test_a_probability_on_record_is_above_0() -> None:
    found = likeliest(np.array([[0.0, 500.0, 1.0]], np.float32), 2)
    assert found["ids"].tolist() == [[1, 2]]
    assert found["probs"][0, 0] == 1
    assert found["probs"][0, 1] > 0


@pytest.mark.parametrize("prompt", [1, 2, 7, 130])
def test_records_are_of_the_places_before_the_answers_tokens(
    target: Path, engine: StepEngine, prompt: int
) -> None:
    one = text(prompt, 20)
    found = capture(engine, one, VOCAB_SIZE)
    model = NativeModel.load(open_model(target), threads=1)
    everything = np.arange(len(one.ids), dtype=np.int32)
    item = ForwardItem(model.new_cache(256), np.array(one.ids, np.int32), everything - 1, everything)
    (logits,) = model.forward([item])
    wanted = likeliest(logits[prompt - 1 : -1], KEPT)
    assert len(found) == len(one.answer)
    np.testing.assert_array_equal(found["ids"], wanted["ids"])
    np.testing.assert_array_equal(found["probs"], wanted["probs"])
    shifted = likeliest(logits[prompt:], KEPT)  # the broken twin: one place on
    assert (found["ids"] != shifted["ids"]).any()


def test_ids_of_padding_are_not_on_record(engine: StepEngine) -> None:
    assert capture(engine, text(3, 30), 100)["ids"].max() < 100


def test_a_store_goes_on_after_the_last_whole_text(tmp_path: Path, engine: StepEngine) -> None:
    texts = [text(2, 5), text(4, 3, 1), text(3, 6, 2)]
    whole = ProbabilityStore(tmp_path / "whole", texts, VOCAB_SIZE)
    whole.fill(engine, lambda: False, lambda _: None)
    parts = ProbabilityStore(tmp_path / "parts", texts, VOCAB_SIZE)
    parts.fill(engine, lambda: parts.done == 2, lambda _: None)
    with open(tmp_path / "parts", "ab") as file:
        file.write(b"x" * (parts.record.itemsize + 1))
    parts = ProbabilityStore(tmp_path / "parts", texts, VOCAB_SIZE)
    assert (parts.done, parts.done_rows, parts.rows) == (2, 8, 14)
    parts.fill(engine, lambda: False, lambda _: None)
    assert parts.whole
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
    np.testing.assert_array_equal(parts.of(1), capture(engine, texts[1], VOCAB_SIZE))


# --- How training goes along ----------------------------------------------------------------------


def test_the_rate_rises_and_falls() -> None:
    rates = [schedule.rate(i, 200, 2.0) for i in range(200)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(rates) == rates[9] == rates[10] == 2.0
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(0.2, rel=0.01)
    assert rates[105] == pytest.approx((2.0 + 0.2) / 2, rel=0.01)
    assert schedule.rate(0, 1, 2.0) == 2.0


@given(st.integers(1, 10**7), st.integers(1, 10**5))
def test_evaluations_take_little_of_the_time(trained: int, tested: int) -> None:
    count = schedule.evaluations(trained, tested)
    assert schedule.LEAST_EVALUATIONS <= count <= schedule.EVALUATIONS
    if count > schedule.LEAST_EVALUATIONS:
        assert count * tested <= schedule.EVALUATING * schedule.BACKWARD * trained


def test_texts_are_divided() -> None:
    texts = [text(2, 4, held_out=held) for held in (False, True, False, True)]
    assert divided(texts, lambda _: True) == ([0, 2], [1, 3])
    assert divided(texts, lambda t: t is not texts[0]) == ([2], [1, 3])
    with pytest.raises(ConfigError, match="too few texts"):
        divided(texts[:1], lambda _: True)


# --- Progress -------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_chains_end_at_the_first_that_is_wrong(right: list[bool], steps: int) -> None:
    """Against counting each draft by itself."""
    counts = [0] * steps
    starts = range(max(0, len(right) - steps + 1))
    for start in starts:
        for k in range(steps):
            counts[k] += all(right[start : start + k + 1])
    found = chains(np.array(right, np.bool_), steps)
    assert found == Acceptance(len(starts), tuple(counts))
    assert found.reached == tuple(count / max(1, len(starts)) for count in counts)


def test_acceptance_of_heads_is_as_before() -> None:
    flags = [np.array([True, False, True]), np.array([True, True, False])]
    assert accepted(flags, [np.ones(3, np.bool_)] * 2) == Acceptance(3, (2, 1))


def test_likeness_adds_up() -> None:
    found = Likeness(4, 1, 2.0) + Likeness(6, 4, 5.0)
    assert found == Likeness(10, 5, 7.0)
    assert (found.agreement, found.mean_overlap) == (0.5, 0.7)
    assert Likeness(0, 0, 0.0).agreement == 0.0


def test_harm_is_noticed() -> None:
    before, after = Held(Acceptance(10, (6, 3))), Held(Acceptance(10, (6, 2)))
    assert worse(before, after)
    assert not worse(after, before)
    assert not worse(before, before)


@pytest.mark.parametrize("likeness", [None, Likeness(3, 2, 1.5)])
def test_evaluations_survive_a_checkpoint(likeness: Likeness | None) -> None:
    one = Evaluation(3, 40, 0.5, Held(Acceptance(10, (5, 2)), likeness))
    assert Evaluation.read(asdict(one)) == one


# --- The speed-up ---------------------------------------------------------------------------------


class Line:
    def __init__(self, slope: float) -> None:
        self._slope = slope

    def at(self, n: int) -> float:
        return 1 + self._slope * (n - 1)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_best_chain_is_the_best_of_all(acceptance: float, slope: float, draft: float) -> None:
    reached = [acceptance**k for k in range(1, 6)]
    length, gain = best_chain(Line(slope), draft, reached)
    each = [speedup(Line(slope), draft, acceptance, k) for k in range(1, 6)]
    assert gain == pytest.approx(max(1.0, *each))
    assert length == 0 or each[length - 1] == pytest.approx(gain)


def test_it_is_told_in_words() -> None:
    made = payoff.Payoff(Curve({1: 1.0, 16: 1.0}, "measured", None), 0.1)
    assert made.words(Acceptance(10, (8, 6, 0))) == "about ×2.00 here with drafts of 2"
    assert made.words(Acceptance(10, (0, 0, 0))) == "no speed-up here yet"


def test_a_head_that_is_not_made_yet_has_the_costs_of_its_shapes(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the engine would load it: 4 bits, and the rows of its output."""
    seen: list[Any] = []

    def curve(source: Any, threads: int | None, **more: Any) -> Curve:
        seen.append(source)
        return Curve({1: 1.0 / (1 + len(more))}, "predicted", None)

    monkeypatch.setattr(payoff, "curve_of", curve)
    source = open_model(target)
    ids = np.arange(0, 64, 2)
    made = payoff.of_head(source, sizes_of(source, 3), ids, (2, 3, 3), 1)
    assert (made.target.at(1), made.draft) == (1.0, 0.5)
    assert seen[0] is source
    head = seen[1]
    assert head.architecture.vocab_size == len(ids)
    assert head.quantization == "q4"
    assert NativeHead.load(with_random_weights(head), threads=1).token_count == VOCAB_SIZE


# --- The folder -----------------------------------------------------------------------------------


def test_runs_of_heads_and_of_drafts_are_told_apart(tmp_path: Path) -> None:
    target = {"name": "T", "weights": "1"}
    settings = Settings(**{"data": "self", "tokens": 9, **DRAFT_DEFAULTS})
    one, other = ({**target, "draft": {"name": name}} for name in "AB")
    RunFolder(tmp_path / "draft").begin(one, settings, frozenset())
    assert RunFolder(tmp_path / "draft").begin(one, settings, frozenset()) == settings
    with pytest.raises(ConfigError, match=r"trains another draft model, 'A'"):
        RunFolder(tmp_path / "draft").begin(other, settings, frozenset())
    with pytest.raises(ConfigError, match=r"another draft model, 'A'"):
        RunFolder(tmp_path / "draft").begin(target, settings, frozenset())
    RunFolder(tmp_path / "head").begin(target, settings, frozenset())
    with pytest.raises(ConfigError, match=r"trains a head"):
        RunFolder(tmp_path / "head").begin(one, settings, frozenset())
    with pytest.raises(ConfigError, match=r"another target, 'T'"):
        RunFolder(tmp_path / "draft").begin({**one, "weights": "2"}, settings, frozenset())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
