"""The property that holds on every engine, drafter, length and parameter: speculation changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

import pytest

from outrider.decoding.request import Request
from outrider.drafters.auto import AutoDrafter
from outrider.policy.draft_model import DraftModelSource, DraftModelState
from outrider.policy.tree import Node
from tests.conformance.engines import ENGINES, Models, on_engines
from tests.conformance.harness import (
    DRAFTERS,
    PARAMS,
    PROMPTS,
    Output,
    answers,
    make_drafter,
    requests,
    run,
    visible,
)


@cache
def models(engine: str) -> Models:
    return ENGINES[engine]()


def batch_for(engine: str, params: str) -> list[Request]:
    return requests(PARAMS[params], models(engine).target.vocab_size)


@cache
def plain(engine: str, params: str) -> dict[str, Output]:
    return run(models(engine).engine(), None, batch_for(engine, params))


@pytest.mark.grid(4)
@pytest.mark.parametrize(("engine", "drafter", "params"), on_engines(DRAFTERS, PARAMS))
def test_speculation_changes_nothing(engine: str, drafter: str, params: str) -> None:
    expected = plain(engine, params)
    made = make_drafter(drafter, models(engine), answers(expected))
    found = run(models(engine).engine(), made, batch_for(engine, params), length=5)
    assert visible(found) == visible(expected)


@pytest.mark.grid(4)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [0, 1, 2, 9, 40])
@pytest.mark.parametrize("drafter", ["draft_model", "ngram", "random_tree"])
def test_nor_does_its_length(engine: str, drafter: str, length: int) -> None:
    for params in ("greedy", "temperature"):
        expected = plain(engine, params)
        made = make_drafter(drafter, models(engine), answers(expected))
        found = run(models(engine).engine(), made, requests(PARAMS[params]), length=length)
        assert visible(found) == visible(expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("seqs", "chunk"), [(1, 16), (8, 16), (3, 1), (2, 1000)])
def test_nor_does_the_batch(engine: str, seqs: int, chunk: int) -> None:
    expected = plain(engine, "temperature")
    for drafter in (None, make_drafter("draft_model", models(engine), {})):
        batch = requests(PARAMS["temperature"])
        found = run(models(engine).engine(), drafter, batch, max_num_seqs=seqs, prefill_chunk=chunk)
        assert visible(found) == visible(expected)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nor_do_first_tokens_that_come_with_whole_prompts(drafter: str) -> None:
    engine = "toy, whole prompts"
    for params in ("penalties", "constrained"):
        expected = plain("toy", params)
        made = make_drafter(drafter, models(engine), answers(expected))
        found = run(models(engine).engine(), made, requests(PARAMS[params]), max_num_seqs=1)
        assert visible(found) == visible(expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_suite_sees_what_it_should(engine: str) -> None:
    """Texts of every kind of end occur, and the drafts are neither all right nor all wrong."""
    ends = {
        (output.end.finish_reason, type(output.end.stop_reason).__name__)
        for params in PARAMS
        for output in plain(engine, params).values()
        if output.end is not None
    }
    assert {("stop", "NoneType"), ("stop", "str"), ("length", "NoneType")} <= ends
    tokens = [tuple(plain(engine, params)["0"].tokens) for params in PARAMS]
    assert len(set(tokens)) == len(tokens)
    expected = plain(engine, "temperature")
    for drafter, low, high in [
        ("always_right", 1.0, 1.0),
        ("always_wrong", 0.0, 0.0),
        ("draft_model", 0.2, 0.95),
    ]:
        made = make_drafter(drafter, models(engine), answers(expected))
        for output in run(models(engine).engine(), made, requests(PARAMS["temperature"])).values():
            assert output.end is not None
            rate = output.end.metrics.to_dict()["acceptance_rate"]
            assert low <= rate <= high


@pytest.mark.parametrize("engine", ENGINES)
def test_kinds_and_counts_match_the_steps(engine: str) -> None:
    for output in plain(engine, "greedy").values():
        assert set(output.kinds) == {"bonus"}
    expected = plain(engine, "temperature")
    made = make_drafter("right_then_wrong", models(engine), answers(expected))
    for output in run(models(engine).engine(), made, requests(PARAMS["temperature"])).values():
        assert output.end is not None
        metrics = output.end.metrics
        assert metrics.num_tokens == len(output.tokens)
        assert metrics.num_passes == output.kinds.count("bonus") + output.kinds.count("recovered")
        assert metrics.drafts.num_accepted_tokens == output.kinds.count("accepted")
        assert sum(metrics.accepted_at.values()) == output.kinds.count("accepted")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_oracle_writes_a_text_in_the_fewest_passes(engine: str) -> None:
    expected = plain(engine, "temperature")
    made = make_drafter("always_right", models(engine), answers(expected))
    outputs = run(models(engine).engine(), made, requests(PARAMS["temperature"]), length=4)
    for i in range(len(PROMPTS)):
        end = outputs[str(i)].end
        assert end is not None
        assert end.metrics.num_passes == -(-len(outputs[str(i)].tokens) // 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mixed_drafter_is_tried_with_branches_of_its_draft_model(engine: str) -> None:
    """Else the cases above would say nothing of them."""
    siblings = deeper = accepted = 0

    class Watched(DraftModelSource):
        def observe_verified(
            self, state: DraftModelState, nodes: Sequence[Node], accepted_nodes: Collection[int]
        ) -> None:
            nonlocal siblings, deeper, accepted
            branches = {i for i, node in enumerate(nodes) if node.sibling_rank}
            siblings += len(branches)
            accepted += len(branches & set(accepted_nodes))
            deeper += sum(node.parent in branches for node in nodes)
            super().observe_verified(state, nodes, accepted_nodes)

    expected = plain(engine, "temperature")
    made = make_drafter("mixed", models(engine), answers(expected))
    assert isinstance(made, AutoDrafter)
    made.planner.models["draft_model"].__class__ = Watched
    found = run(models(engine).engine(), made, batch_for(engine, "temperature"))
    assert visible(found) == visible(expected)
    assert siblings >= 8
    assert accepted > 0
    assert deeper > 0, "branches are drawn on from"
