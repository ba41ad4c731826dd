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
from outrider.engines.chains import ChainStart
from tests.support.models import VOCAB_SIZE
from tests.torch.kernel_support import torch

from outrider.engines.torch import device_draft  # isort: skip
from outrider.engines.torch.device_draft import DeviceDraft  # isort: skip
from outrider.engines.torch.model import TorchModel  # isort: skip
from tests.torch.graph_support import FakeCuda, cuda, with_kernels  # isort: skip
from tests.torch.support import load, source  # isort: skip

__all__ = ["cuda"]  # the fixture

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the models of this test are on the CPU"),
    pytest.mark.grid(4, whole_file=True),  # slow in the interpreter
]

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


def test_graphs_give_the_same_tokens(tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(cuda, monkeypatch)
    plain, captured = (
        load(source(tmp_path / str(graphs), "llama"), graphs=graphs, slots=lambda _: 512)
        for graphs in (False, True)
    )
    drafts = [DeviceDraft(model) for model in (plain, captured)]
    texts = [tokens(length, length) for length in (5, 9)]
    caches = [[model.new_cache(64) for _ in texts] for model in (plain, captured)]
    for budgets in ([BUDGET, 2], [2, 3]):
        wanted, found = (
            draft.draft(starts(own, texts, budgets)) for draft, own in zip(drafts, caches, strict=True)
        )
        assert [chain.tokens for chain in found] == [chain.tokens for chain in wanted]
        for i, chain in enumerate(wanted):
            texts[i] = [*texts[i], *chain.tokens[:1], 7]
            for own in caches:
                own[i].truncate(min(own[i].length, len(texts[i]) - 1))
    assert any(graph.pool is None for graph in cuda.graphs), "of drafts; those of passes share a pool"
    alone = [graph for graph in cuda.graphs if graph.pool is None]
    assert len(alone) == 1
    assert cuda.happened.count("replay") >= 5


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


class Bold:
    """A guide that wants chains, until its confidence is below a limit."""

    def __init__(self, least: float) -> None:
        self.least, self.said = least, list[float]()
        self.asked = 0

    def drew(self, parent: int, confidence: float) -> bool:
        self.said.append(confidence)
        return False

    def next_node(self, ready: int = -1) -> int:
        return len(self.said) - 1 if self.said[-1] >= self.least else -1


def rounds(model: Any, least: float | None) -> tuple[list[list[int]], list[float], int]:
    """Drafts of three requests over some rounds, what was said about them, and the number of passes."""
    drafter = DraftModelDrafter(model)
    params = [*PARAMS[:2], SamplingParams(temperature=1.0, presence_penalty=1.0)]
    texts = [tokens(5 + i, i) for i in range(3)]
    samplers = [Sampler(p, VOCAB_SIZE, [9], seed=i) for i, p in enumerate(params)]
    for i, text in enumerate(texts):
        drafter.begin(Request(str(i), tuple(text), params[i], seed=i))
    found, said, passes = [], [], 0
    for turn in range(3):
        guides = [None if least is None else Bold(least) for _ in texts]
        jobs = [
            ProposeJob(str(i), TokenContext(text), 6 - turn, samplers[i], guides[i])
            for i, text in enumerate(texts)
        ]
        drafts = [draft.tokens.tolist() for draft in drafter.propose(jobs)]
        passes += len(drafter.passes)
        found += drafts
        said += [x for guide in guides if guide is not None for x in guide.said]
        for text, draft in zip(texts, drafts, strict=True):
            text += [*draft[: turn + 1], 11]
    return found, said, passes


@pytest.mark.parametrize("least", [None, 0.0, 0.3])
def test_the_drafter_lets_the_model_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float | None
) -> None:
    model = load(source(tmp_path, "llama"))
    drafts, said, _ = rounds(model, least)
    asked: list[int] = []

    class Counted(DeviceDraft):
        def draft(self, starts: Any) -> Any:
            asked.append(len(starts))
            return super().draft(starts)

    def counted(model: TorchModel, size: int) -> Counted:
        return Counted(model, size)

    monkeypatch.setattr(TorchModel, "chains", counted)
    found, confidences, passes = rounds(model, least)
    assert found == drafts
    assert confidences[: len(said)] == pytest.approx(said, abs=1e-4)
    assert asked
    assert max(asked) == 2  # penalties are the host's
    assert passes > 0


def test_there_are_no_chains_without_a_gpu(tmp_path: Path) -> None:
    assert load(source(tmp_path, "llama")).chains(VOCAB_SIZE) is None
