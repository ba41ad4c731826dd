from __future__ import annotations

import pytest

from outrider.decoding.controller import DraftLimits
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.types import StepRecord
from outrider.errors import ConfigError
from outrider.policy.fixed import FixedController

KEYS = [
    "decode_tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "block_efficiency",
    "draft_ms",
    "verify_ms",
    "other_ms",
    "sampling_ms",
    "accepted_per_pos",
    "drafters",
    "earlier_outputs",
    "speculation",
]


def test_nothing_yet() -> None:
    found = RequestMetrics().to_dict()
    assert list(found) == KEYS
    rates = ["decode_tokens_per_s", "ttft_ms", "tpot_ms", "acceptance_rate", "mean_acceptance_length"]
    assert [found[key] for key in [*rates, "block_efficiency"]] == [None] * 6
    assert found["accepted_per_pos"] == []
    assert found["drafters"] == {}
    assert found["num_drafts"] == 0


def test_the_glossarys_definitions() -> None:
    metrics = RequestMetrics(arrived=1.0, speculation="on")
    metrics.record(StepRecord("none", 0, 0, 1, 0.0, 0.02, 0.001), now=1.5)
    metrics.record(StepRecord("ngram", 4, 3, 4, 0.01, 0.03, 0.001, (1, 2, 3)), now=2.0)
    metrics.record(StepRecord("draft_model", 4, 1, 1, 0.02, 0.03, 0.002, (1,), earlier=(2, 1)), now=3.5)
    found = metrics.to_dict()
    assert found["ttft_ms"] == pytest.approx(500.0)
    assert found["tpot_ms"] == pytest.approx(2000.0 / 5)
    assert found["decode_tokens_per_s"] == pytest.approx(5 / 2.0)
    assert (found["num_drafts"], found["num_draft_tokens"], found["num_accepted_tokens"]) == (2, 8, 4)
    assert found["acceptance_rate"] == 4 / 8
    assert found["mean_acceptance_length"] == 1 + 4 / 2
    assert found["block_efficiency"] == 6 / 3
    assert found["draft_ms"] == pytest.approx(30.0)
    assert found["verify_ms"] == pytest.approx(80.0)
    assert found["other_ms"] == pytest.approx(4.0)
    assert found["accepted_per_pos"] == [2, 1, 1]
    assert found["speculation"] == "on"
    assert found["earlier_outputs"] == {"num_draft_tokens": 2, "num_accepted_tokens": 1}
    assert set(found["drafters"]) == {"ngram", "draft_model"}
    assert found["drafters"]["ngram"]["acceptance_rate"] == 3 / 4
    assert found["drafters"]["draft_model"]["draft_ms"] == pytest.approx(20.0)


def test_forced_tokens_count_as_the_constraints() -> None:
    metrics = RequestMetrics()
    record = StepRecord("ngram", 5, 4, 5, 0.5, 0.1, 0.25, (1, 2, 3, 4), sampling_seconds=0.125, forced=3)
    metrics.record(record, now=1.0)
    metrics.record(StepRecord("constraint", 2, 1, 2, 0.5, 0.1, 0.25, (1,), forced=2), now=2.0)
    metrics.record(StepRecord("ngram", 2, 0, 1, 0.5, 0.1, 0.25), now=3.0)
    found = metrics.to_dict()
    assert (found["num_drafts"], found["num_draft_tokens"], found["num_accepted_tokens"]) == (3, 9, 5)
    assert found["sampling_ms"] == 125.0
    assert found["other_ms"] == 750.0
    counts = {
        name: (d["num_draft_tokens"], d["num_accepted_tokens"]) for name, d in found["drafters"].items()
    }
    assert counts == {"constraint": (5, 4), "ngram": (4, 1)}


def test_one_token_has_no_rate() -> None:
    metrics = RequestMetrics()
    metrics.record(StepRecord("none", 0, 0, 1, 0.0, 0.1, 0.0), now=1.0)
    found = metrics.to_dict()
    assert found["decode_tokens_per_s"] is None
    assert found["tpot_ms"] is None
    assert found["ttft_ms"] == 1000.0


def test_the_fixed_controller_stays_within_the_room() -> None:
    rooms = [DraftLimits("a", 9), DraftLimits("b", 2), DraftLimits("c", 0)]
    assert FixedController(4).choose(rooms) == [4, 2, 0]
    assert FixedController(0).choose(rooms) == [0, 0, 0]
    assert FixedController(4).explain(None).startswith("on")
    assert FixedController(0).explain(None).startswith("off")
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        FixedController(-1)
