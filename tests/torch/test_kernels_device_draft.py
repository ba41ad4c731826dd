"""Drafts on the device: the tokens of the drafter that asks the host for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.drafters.draft_model import DraftModelDrafter
from tests.support.models import VOCAB_SIZE
from tests.torch.kernel_support import torch

from outrider.engines.torch import device_draft  # isort: skip
from outrider.engines.torch.device_draft import ChainStart, DeviceDraft  # isort: skip
from tests.torch.support import load, source  # isort: skip

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the models of this test are on the CPU")

PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=9, top_p=0.9),
)
BUDGET = 4


def tokens(count: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, VOCAB_SIZE - 40, count)]


def on_the_host(model: Any, texts: list[list[int]], budgets: list[int], size: int) -> list[list[int]]:
    drafter = DraftModelDrafter(model, common_size=size)
    jobs = []
    for i, text in enumerate(texts):
        drafter.begin(Request(str(i), tuple(text), PARAMS[i], seed=50 + i))
        jobs.append(
            ProposeJob(str(i), TokenContext(text), budgets[i], Sampler(PARAMS[i], VOCAB_SIZE, seed=50 + i))
        )
    drafts = [draft.tokens.tolist() for draft in drafter.propose(jobs)]
    for i in range(len(texts)):
        drafter.end(str(i))
    return drafts


def starts(caches: list[Any], texts: list[list[int]], budgets: list[int]) -> list[ChainStart]:
    return [
        ChainStart(cache, text[cache.length :], PARAMS[i], 50 + i, len(text), budgets[i])
        for i, (cache, text) in enumerate(zip(caches, texts, strict=True))
    ]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("size", [VOCAB_SIZE, VOCAB_SIZE - 30])
def test_tokens_are_those_of_the_host(tmp_path: Path, family: str, size: int) -> None:
    model = load(source(tmp_path, family))
    draft = DeviceDraft(model, size)
    texts = [tokens(length, length) for length in (5, 9, 2)]
    caches = [model.new_cache(64) for _ in texts]
    for budgets in ([BUDGET, 2, 3], [1, 1, 1], [2, BUDGET, 1]):
        chains = draft.draft(starts(caches, texts, budgets))
        expected = on_the_host(model, texts, budgets, size)
        assert [chain.tokens for chain in chains] == expected
        assert [len(chain.margins) for chain in chains] == budgets
        assert all(margin >= 0.0 for chain in chains for margin in chain.margins)
        for i, (cache, chain) in enumerate(zip(caches, chains, strict=True)):
            assert cache.length == len(texts[i]) + budgets[i] - 1
            kept = len(chain.tokens) // 2  # half of them are accepted, and a token follows
            texts[i] = [*texts[i], *chain.tokens[:kept], 7]
            cache.truncate(min(cache.length, len(texts[i]) - 1))


def test_a_long_text_is_processed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(source(tmp_path, "llama"))
    monkeypatch.setattr(device_draft, "WIDEST", 16)
    texts = [tokens(30, 1), tokens(3, 2)]
    caches = [model.new_cache(64) for _ in texts]
    chains = DeviceDraft(model).draft(starts(caches, texts, [2, 2]))
    assert [chain.tokens for chain in chains] == on_the_host(model, texts, [2, 2], VOCAB_SIZE)


def test_sequences_that_are_done_touch_no_other_cache(tmp_path: Path) -> None:
    model = load(source(tmp_path, "llama"))
    texts = [tokens(6, 1), tokens(7, 2), tokens(8, 3)]
    caches = [model.new_cache(len(text) + 1) for text in texts]
    beside = model.new_cache(4)
    held = model.pool.keys[:, beside.start : beside.start + 4].clone()
    DeviceDraft(model).draft(starts(caches, texts, [2, 1, 2]))
    used = {slot for cache in caches for slot in range(cache.start, cache.start + cache.length)}
    assert bool(torch.equal(model.pool.keys[:, beside.start : beside.start + 4], held))
    written = model.pool.keys[0].flatten(1).any(1).nonzero().flatten().tolist()
    assert set(written) - {0} == used


def test_a_cache_without_room_is_refused(tmp_path: Path) -> None:
    model = load(source(tmp_path, "llama"))
    cache = model.new_cache(6)
    for budget in (0, 4, 65):
        with pytest.raises(ValueError, match="has room for 3"):
            DeviceDraft(model).draft([ChainStart(cache, tokens(4, 1), PARAMS[0], 1, 4, budget)])
    assert cache.length == 0
