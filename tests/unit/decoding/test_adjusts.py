"""`Sampler.adjusts` against what `Sampler.adjusted` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler

PLAIN: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.1},
    {"seed": 4, "logprobs": 2},
    {"min_tokens": 1, "ignore_eos": True},
)
CHANGED: tuple[dict[str, Any], ...] = (
    {"logit_bias": {3: 2.0}},
    {"allowed_token_ids": [1, 2]},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 0.5},
    {"min_tokens": 1},
    {"logits_processors": [lambda ids, logits: logits + 1]},
)


@pytest.mark.parametrize("values", [*PLAIN, *CHANGED])
def test_it_says_whether_rows_change(values: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(**values), 8, [7])
    row, context = np.ones(8, np.float32), TokenContext([1, 3])
    changed = sampler.adjusted(row, context)
    assert sampler.adjusts(context) == (values in CHANGED) == (changed is not row)


def test_bad_words_and_the_end_of_min_tokens() -> None:
    context = TokenContext([1, 3])
    assert Sampler(SamplingParams(), 8, [7], bad_words=[[2, 5]]).adjusts(context)
    assert not Sampler(SamplingParams(min_tokens=1), 8, [7]).adjusts(context.then(2))
