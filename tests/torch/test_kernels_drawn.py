"""Tokens drawn on the device: the loop's texts are those that the sampler draws from the logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import LLM, SamplingParams
from outrider.decoding.context import TokenContext
from outrider.decoding.drawing import UNDRAWN, RowDraws, row_draws
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from tests.support.models import VOCAB_SIZE, tiny_gguf, tiny_hf
from tests.torch.kernel_support import torch

from outrider.engines.torch import drawn  # isort: skip
from outrider.engines.torch.model import TorchModel  # isort: skip
from tests.torch.graph_support import FakeCuda, cuda, with_kernels  # isort: skip
from tests.torch.support import load, source  # isort: skip

__all__ = ["cuda"]  # the fixture

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the models of this test are on the CPU"),
    pytest.mark.grid(4, whole_file=True),  # slow in the interpreter
]

PROMPTS = ["the cat sat on the mat the cat sat", "a b c a b"]
SETTINGS = (
    SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True),
    SamplingParams(temperature=0.9, max_tokens=10, seed=7, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=12, max_tokens=10, seed=8, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.8, presence_penalty=1.5, max_tokens=10, seed=9, ignore_eos=True),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hf(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "draft.gguf", types="Q8_0")


def texts(folder: Path, speculative: dict[str, Any]) -> list[Any]:
    llm = LLM(
        str(folder),
        threads=1,
        max_model_len=64,
        max_num_seqs=4,  # a strict pass on the CPU has 16 rows
        seed=3,
        engine="torch",
        device="cpu",
        exact="strict",
        speculative_config=speculative,
    )
    prompts = [prompt for prompt in PROMPTS for _ in SETTINGS]
    outputs = llm.generate(prompts, list(SETTINGS) * len(PROMPTS))
    return [(list(o.outputs[0].token_ids), o.outputs[0].logprobs) for o in outputs]


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_texts_are_those_of_the_sampler(
    folder: Path, draft: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several requests at once: greedy, sampled, filtered with log-probabilities, and one with a penalty,
    whose rows the sampler must have."""
    config = {"method": method, "num_speculative_tokens": 3}
    config |= {"prompt_lookup_min": 1} if method == "ngram" else {}
    config |= {"model": str(draft)} if method == "draft_model" else {}
    wanted = texts(folder, {"method": "none"})
    asked: list[int] = []
    right: Any = drawn.RowDrawer.draw

    def counted(self: Any, *given: Any) -> Any:
        asked.append(sum(draw is not None for draw in given[-1]))
        return right(self, *given)

    monkeypatch.setattr(TorchModel, "_has_kernels", lambda _: True)
    monkeypatch.setattr(drawn.RowDrawer, "draw", counted)
    assert texts(folder, config) == wanted
    assert max(asked) == 3, "all of four but the one with a penalty"


def test_a_draw_at_a_wrong_position_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = texts(folder, {"method": "none"})
    right: Any = drawn.RowDrawer.draw

    def late(self: Any, *given: Any) -> Any:
        moved = [None if draw is None else replace(draw, positions=draw.positions + 1) for draw in given[-1]]
        return right(self, *given[:-1], moved)

    monkeypatch.setattr(TorchModel, "_has_kernels", lambda _: True)
    monkeypatch.setattr(drawn.RowDrawer, "draw", late)
    found = texts(folder, {"method": "none"})
    greedy = range(0, len(found), len(SETTINGS))
    assert [found[i] for i in greedy] == [wanted[i] for i in greedy]
    assert found != wanted


def test_rows_of_a_tree_and_of_a_prompt(tmp_path: Path) -> None:
    """Each row's token, by the sampler from the row that the same call gives; and what fails."""
    model = load(source(tmp_path, "llama"), draws=True)
    params = SamplingParams(temperature=1.0)
    prompt = [5, 9, 30, 7]
    sampler, context = Sampler(params, VOCAB_SIZE, seed=11), TokenContext(prompt)
    engine = CachedStepEngine(model)
    seq, other = engine.open(prompt, 64), engine.open([8, 4, 6], 64)
    engine.prefill(seq, 64)
    tree = Draft(np.array([3, 4, 5, 6], np.int32), np.array([-1, -1, 0, 2], np.int32), None, "test")
    draws = row_draws(sampler, context, tree)
    assert draws is not None
    assert draws.positions.tolist() == [4, 5, 5, 6, 7]
    (scores,) = engine.score([(seq, tree)], [(other, 2)], [draws])
    assert not len(other.pending), "the prompt shares the pass"
    assert scores.drawn is not None
    for row, position in enumerate(draws.positions.tolist()):
        at = TokenContext(list(range(3, 3 + position)))
        assert scores.drawn.tokens[row] == sampler.token(scores.logits[row], at)
        logits = scores.logits[row].astype(np.float64)
        share = 1.0 / np.exp(logits - logits.max()).sum()
        assert scores.drawn.likeliest[row] == pytest.approx(share, rel=1e-5)

    seq.cache.truncate(seq.committed)
    (late,) = engine.score([(seq, tree)], (), [draws])
    seq.cache.truncate(seq.committed)
    engine.score([(seq, tree)])
    with pytest.raises(RuntimeError, match="gone with the next one"):
        _ = late.logits


def test_graphs_draw_the_same_tokens(tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows at other places in each pass, whose logits can still be fetched."""
    with_kernels(cuda, monkeypatch)
    params = (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0))
    found = []
    for graphs in (False, True):
        opened = source(tmp_path / str(graphs), "llama")
        model = load(opened, draws=True, strict=True, graphs=graphs, slots=lambda _: 512)
        one, two = model.new_cache(64), model.new_cache(64)
        each = []
        for first, counts in ((4, (3, 2)), (9, (2, 4)), (20, (1, 3))):
            items, draws = [], []
            for cache, count, own in zip((one, two), counts, params, strict=True):
                rows = np.arange(count, dtype=np.int32)
                items.append(ForwardItem(cache, rows + first, rows - 1, rows))
                draws.append(RowDraws(own, 5, VOCAB_SIZE, np.arange(count) + cache.length + 1))
            for fetch, drawn_rows in model.forward_drawn(items, draws):
                assert drawn_rows is not None
                assert callable(fetch)
                each.append((drawn_rows.tokens, drawn_rows.likeliest, fetch().tobytes()))
        found.append(each)
    assert found[0] == found[1]
    assert len({id(graph.pool) for graph in cuda.graphs}) == 2, "a draw leaves the logits of its pass"


def test_rows_that_are_not_finite_are_left_to_the_sampler() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 4] = 1.0
    logits[1, 2] = float("nan")
    draws = RowDraws(SamplingParams(temperature=0.0), 0, VOCAB_SIZE, np.array([3, 4]))
    other = RowDraws(SamplingParams(temperature=0.0), 0, VOCAB_SIZE, np.array([9]))
    drawer, each = drawn.RowDrawer(torch.device("cpu")), np.arange(3, dtype=np.int32)
    first, nothing, last = drawer.draw(logits, None, each, [2, 0, 1], [draws, None, other])
    assert first is not None
    assert nothing is None
    assert last is not None
    assert first.tokens == [4, UNDRAWN]
    assert last.tokens == [4]


def test_no_more_than_a_pass_holds_is_drawn(tmp_path: Path) -> None:
    """Items of several passes come back as logits."""
    model = load(source(tmp_path, "llama"), draws=True, strict=True)
    assert model.fixed_width == 16
    n = 20
    tokens = np.arange(4, 4 + n, dtype=np.int32)
    each = np.arange(n, dtype=np.int32)
    item = ForwardItem(model.new_cache(64), tokens, each - 1, each)
    draws = RowDraws(SamplingParams(temperature=0.0), 0, VOCAB_SIZE, np.arange(1, n + 1))
    ((rows, none),) = model.forward_drawn([item], [draws])
    assert none is None
    assert isinstance(rows, np.ndarray)
    assert rows.shape == (n, VOCAB_SIZE)
