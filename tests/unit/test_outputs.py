"""Merging the metrics of several samples."""

from __future__ import annotations

from collections import Counter

from outrider.decoding.metrics import DraftCounts, RequestMetrics
from outrider.outputs import merge


def test_one_part_is_itself() -> None:
    part = RequestMetrics(num_tokens=3)
    assert merge([part]) is part


def test_counts_add_and_times_span() -> None:
    a = RequestMetrics(
        arrived=1.0,
        first_token=2.0,
        last_token=3.0,
        num_passes=2,
        num_tokens=3,
        verify_seconds=0.5,
        drafts=DraftCounts(1, 4, 2, 0.1),
        by_drafter={"ngram": DraftCounts(1, 4, 2, 0.1)},
        accepted_at=Counter({1: 1, 2: 1}),
        speculation="on",
    )
    b = RequestMetrics(
        arrived=1.5, first_token=1.8, last_token=2.5, num_passes=1, num_tokens=1, speculation="on"
    )
    both = merge([a, b])
    assert (both.arrived, both.first_token, both.last_token) == (1.0, 1.8, 3.0)
    assert (both.num_passes, both.num_tokens, both.verify_seconds) == (3, 4, 0.5)
    assert both.drafts == DraftCounts(1, 4, 2, 0.1)
    assert both.by_drafter == {"ngram": DraftCounts(1, 4, 2, 0.1)}
    assert both.accepted_at == Counter({1: 1, 2: 1})
    assert both.speculation == "on"
    assert both.to_dict()["block_efficiency"] == 4 / 3
    assert a.drafts == DraftCounts(1, 4, 2, 0.1)  # the parts are left alone
