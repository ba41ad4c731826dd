"""Claim `identity`: the same tokens with speculation and without, alone and in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Draft
from outrider.engines.base import StepEngine
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.outputs import CompletionOutput, RequestOutput
from outrider.pipeline import Pipeline
from outrider.verify.claims import Claim, Progress, bound_words, listed

# Every second seed also has these: penalties depend on the text so far, filters on the whole row.
FILTERS: Mapping[str, Any] = {
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.3,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One generation. name: the prompt's id and the parameters, for messages."""

    name: str
    prompt: Any
    params: SamplingParams


_Pair: TypeAlias = tuple[Case, RequestOutput]  # with plain decoding's output


@dataclass(slots=True)
class _Counts:
    """What the comparisons came to."""

    texts: int = 0
    tokens: int = 0
    drafted: int = 0
    differences: list[str] = field(default_factory=list)


def cases(
    prompts: Mapping[str, Any], temperatures: Sequence[float], seeds: int, max_tokens: int
) -> list[Case]:
    """Prompts (by id) × temperatures × seeds. At temperature 0 a seed changes nothing, so there are at
    most two: with and without FILTERS."""
    found = []
    for name, prompt in prompts.items():
        for temperature in temperatures:
            for seed in range(seeds if temperature > 0 else min(seeds, 2)):
                more = FILTERS if seed % 2 else {}
                params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, **more)
                label = f"{name}, temperature {temperature:g}, seed {seed}{', with filters' if more else ''}"
                found.append(Case(label, prompt, params))
    return found


def check(
    plain: Pipeline, variants: Sequence[tuple[str, Pipeline]], batch: Sequence[Case], progress: Progress
) -> Claim:
    """Compare every case's tokens and text with plain decoding's, one request at a time and in a batch.

    plain:    without a drafter.
    variants: a few words about the draft, and a pipeline on the same target with it. All rules but
              `coupled` keep a seed's text at temperature 0 only, so for these the other cases are left out.
              The last variant of each rule is run on all of its cases at once as well, as is `plain`.
    Raises whatever plain decoding raises, and ConfigError when nothing was drafted; an error under
    speculation alone is a difference.
    """
    counts = _Counts()
    reference = LLM.from_pipeline(plain)
    pairs = []
    for case in batch:
        progress(f"identity: {case.name}, plain")
        pairs.append((case, reference.generate(case.prompt, case.params)[0]))
    last = {pipeline.verifier.name: (words, pipeline) for words, pipeline in variants}
    for words, pipeline in variants:
        llm = LLM.from_pipeline(pipeline)
        for pair in _applicable(pairs, pipeline):
            progress(f"identity: {pair[0].name}, {words}")
            _compare(counts, plain, llm, [pair], words)
    for words, pipeline in (("plain", plain), *last.values()):
        mine = _applicable(pairs, pipeline)
        if mine:
            progress(f"identity: {len(mine)} requests in a batch, {words}")
            _compare(counts, plain, LLM.from_pipeline(pipeline), mine, f"{words}, in a batch")
    if counts.differences:
        detail = f"{len(counts.differences)} of {counts.texts} texts differ: {listed(counts.differences)}"
        return Claim("identity", False, counts.texts, detail)
    if not counts.drafted:
        raise ConfigError(
            "nothing was drafted, so nothing was verified: give other prompts or another drafter"
        )
    detail = (
        f"{counts.texts} texts, {counts.tokens} tokens, {counts.drafted} drafted: the same with speculation "
        f"and without, alone and in a batch; {bound_words(counts.texts, 'texts')}"
    )
    return Claim("identity", True, counts.texts, detail)


def _applicable(pairs: Sequence[_Pair], pipeline: Pipeline) -> list[_Pair]:
    """The cases whose text the pipeline's rule keeps."""
    coupled = pipeline.verifier.name == "coupled"
    return [pair for pair in pairs if coupled or pair[0].params.temperature == 0]


def _compare(counts: _Counts, plain: Pipeline, llm: LLM, pairs: Sequence[_Pair], how: str) -> None:
    """Run cases together and add what differs to the counts."""
    counts.texts += len(pairs)
    try:
        outputs = llm.generate([case.prompt for case, _ in pairs], [case.params for case, _ in pairs])
    except Exception as error:  # plain decoding came through
        names = pairs[0][0].name if len(pairs) == 1 else f"{len(pairs)} requests"
        counts.differences.append(f"{names} ({how}) failed: {error!r}")
        return
    for (case, want), output in zip(pairs, outputs, strict=True):
        one, other = want.outputs[0], output.outputs[0]
        counts.tokens += len(one.token_ids)
        counts.drafted += output.metrics.drafts.num_draft_tokens
        if (one.token_ids, one.text) != (other.token_ids, other.text):
            counts.differences.append(
                f"{case.name} ({how}) {_explain(plain, want.prompt_token_ids, one, other)}"
            )


def _explain(plain: Pipeline, prompt: list[int], one: CompletionOutput, other: CompletionOutput) -> str:
    """Where two outputs part, and how near the target was to saying the other thing."""
    at = first_difference(one.token_ids, other.token_ids)
    if at is None:
        return f"has the same tokens and another text: {one.text!r} and {other.text!r}"
    mine, theirs = (_token(plain, o.token_ids, at) for o in (one, other))
    try:
        gap = f"{top_two_gap(plain.engine, [*prompt, *one.token_ids[:at]]):.6g}"
    except Exception as error:
        gap = f"not known ({error!r})"
    return f"at output token {at} has {theirs} instead of {mine}; the target's top-2 logit gap there is {gap}"


def _token(pipeline: Pipeline, tokens: Sequence[int], at: int) -> str:
    return f"{tokens[at]} {pipeline.tokenizer.piece(tokens[at])!r}" if at < len(tokens) else "the end"


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first index at which two sequences differ (the end of the shorter included); None if nowhere."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def top_two_gap(engine: StepEngine, tokens: Sequence[int]) -> float:
    """How far the target's best logit after `tokens` lies above its second."""
    seq = engine.open(tokens, len(tokens))
    try:
        while engine.prefill(seq, 256):
            pass
        row = engine.score([(seq, Draft.empty())])[0].logits[0]
    finally:
        engine.close(seq)
    second, best = np.sort(np.partition(row, -2)[-2:])
    return float(best) - float(second)
