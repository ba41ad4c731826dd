"""`rejection` and `block` through the whole loop: greedy texts are the plain ones, drawn ones are the seed's,
and no token appears that the target's own sampling would not let through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.decoding.verifiers.base import VERIFIERS, Verifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.engines.base import ForwardItem
from tests.conformance.engines import ENGINES, Models, on_engines
from tests.conformance.harness import (
    DRAFTERS,
    EOS,
    PARAMS,
    PROMPTS,
    Output,
    answers,
    make_drafter,
    run,
    visible,
)
from tests.conformance.test_broken_twins import ForgetsThePath
from tests.conformance.test_exactness import batch_for, models, plain

RULES = ["rejection", "block"]
GREEDY = [name for name, arguments in PARAMS.items() if arguments.get("temperature") == 0.0]
DRAWN = [name for name in PARAMS if name not in GREEDY]


def under(engine: str, rule: Verifier, drafter: str, params: str, **options: int) -> dict[str, Output]:
    made = make_drafter(drafter, models(engine), answers(plain(engine, params)))
    return run(models(engine).engine(), made, batch_for(engine, params), verifier=rule, **options)


@pytest.mark.grid(4)
@pytest.mark.parametrize(("engine", "rule", "params", "drafter"), on_engines(RULES, GREEDY, DRAFTERS))
def test_at_temperature_0_speculation_changes_nothing(
    engine: str, rule: str, drafter: str, params: str
) -> None:
    found = under(engine, VERIFIERS[rule](), drafter, params, length=5)
    assert visible(found) == visible(plain(engine, params))


def impossible_tokens(
    found: dict[str, Output], made: Models, engine: str, params: str
) -> Iterator[tuple[str, int]]:
    """(request, index) of tokens that the target, given the text before, could not have sampled."""
    for request in batch_for(engine, params):
        sampler = Sampler(request.params, made.target.vocab_size, EOS, constraint=request.constraint)
        output = found[request.request_id].tokens
        text = np.array([*request.prompt, *output], np.int32)
        cache, parents = made.target.new_cache(len(text)), np.arange(-1, len(text) - 1, dtype=np.int32)
        wanted = np.arange(len(request.prompt) - 1, len(text) - 1, dtype=np.int32)
        (rows,) = made.target.forward([ForwardItem(cache, text, parents, wanted)])
        cache.close()
        context = TokenContext(request.prompt)
        for i, (token, row) in enumerate(zip(output, rows, strict=True)):
            if sampler.distribution(row, context).of(token) == 0.0:
                yield request.request_id, i
            context.append(token)


@pytest.mark.grid(4)
@pytest.mark.parametrize(("engine", "rule", "params"), on_engines(RULES, DRAWN))
def test_sampled_texts_are_possible_for_the_target(engine: str, rule: str, params: str) -> None:
    for drafter in (
        "independent draft_model",
        "draft_model",
        "ngram",
        "tree",
        "random_tree",
        "twins",
        "bad_parents",
    ):
        found = under(engine, VERIFIERS[rule](), drafter, params)
        for output in found.values():
            assert output.end is not None
            assert output.end.error is None
            metrics = output.end.metrics
            assert metrics.num_tokens == len(output.tokens)
            assert metrics.num_passes >= output.kinds.count("bonus") + output.kinds.count("recovered")
        assert list(impossible_tokens(found, models(engine), engine, params)) == []


@pytest.mark.grid(4)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", ["independent draft_model", "ngram", "tree"])
def test_a_seed_gives_one_text_whatever_the_batch(engine: str, rule: str, drafter: str) -> None:
    texts = [
        visible(
            under(engine, VERIFIERS[rule](), drafter, "temperature", max_num_seqs=seqs, prefill_chunk=size)
        )
        for seqs, size in ((3, 16), (1, 16), (4, 5))
    ]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != visible(plain(engine, "temperature"))  # but not the text without drafts


def test_drafts_are_kept_and_given_up() -> None:
    for rule in RULES:
        counts = [0, 0]
        for output in under("toy", VERIFIERS[rule](), "independent draft_model", "temperature").values():
            assert output.end is not None
            drafts = output.end.metrics.drafts
            counts = [counts[0] + drafts.num_accepted_tokens, counts[1] + drafts.num_draft_tokens]
        assert 0.2 < counts[0] / counts[1] < 0.95
    assert len(PROMPTS) > 1


# --- Broken twins ------------------------------------------------------------------------------------------


class AcceptsAlways(StepRandomness):
    def accepts(self, probability: float, node: int) -> bool:
        return True


class RowsOfTheWrongNode(RejectionVerifier):
    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        return super().verify(draft, TargetScores(scores.logits[[0, *range(len(draft))]]), sampler, context)


class WithoutThePath(RejectionVerifier):
    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        return super().verify(draft, scores, sampler, ForgetsThePath(context))  # type: ignore[arg-type]


@pytest.mark.parametrize("params", ["filters", "allowed", "constrained"])
def test_accepting_what_the_target_rules_out_is_caught(params: str) -> None:
    found = under("toy", RejectionVerifier(AcceptsAlways), "right_then_wrong", params)
    assert any(impossible_tokens(found, models("toy"), "toy", params))


@pytest.mark.parametrize("twin", [RowsOfTheWrongNode, WithoutThePath])
def test_a_broken_rule_is_caught_at_temperature_0(twin: type[RejectionVerifier]) -> None:
    caught = [
        (drafter, params)
        for drafter in ("right_branch_last", "random_tree", "draft_model")
        for params in GREEDY
        if visible(under("toy", twin(), drafter, params)) != visible(plain("toy", params))
    ]
    assert caught
