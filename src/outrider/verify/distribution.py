"""Claim `distribution`: over seeds, output tokens follow the target's distribution.

The probabilities of all texts of LENGTH tokens after a prompt are computed from the target's logits, without
the sampler that is under test. Then thousands of samples, each with its own seed, are generated through the
whole system and counted. One G-test compares the first token, one the first two, one all three.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from outrider.bench.workloads import Item
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.pipeline import Pipeline
from outrider.verify import gtest
from outrider.verify.claims import Claim, Progress
from outrider.verify.g_tests import NamedTest, first_broken, held_words
from outrider.verify.memoized_model import MemoizedModel, Text

TOP_K = 6  # so that there are at most 6 + 36 + 216 texts
LENGTH = 3
PROGRESS_EVERY = 200  # samples between two progress reports

# Several next words are likely, and words repeat, so that lookups have something to propose.
PROMPTS = {
    "animals": "cat, dog, cat, horse, cat, dog, cow, cat, dog, horse, dog, cat,",
    "story": "The boy saw the dog. The girl saw the cat. The man saw the bird. The woman saw the",
}
ITEMS = [Item(name, name, words) for name, words in PROMPTS.items()]


def probabilities(
    model: MemoizedModel, prompt: Text, temperature: float, vocab_size: int
) -> dict[Text, float]:
    """Of every text of LENGTH tokens after the prompt, under temperature and TOP_K; they sum to 1."""
    texts: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        texts = {
            (*text, token): mass * share
            for text, mass in texts.items()
            for token, share in _next(model.row((*prompt, *text))[:vocab_size], temperature)
        }
    return texts


def _next(row: npt.NDArray[np.float32], temperature: float) -> list[tuple[int, float]]:
    """(token, probability) of the TOP_K likeliest, the lowest ids on ties."""
    best = np.argsort(-row, kind="stable")[:TOP_K]
    mass = np.exp((row[best].astype(np.float64) - float(row[best[0]])) / temperature)
    return list(zip(best.tolist(), (mass / mass.sum()).tolist(), strict=True))


def check(
    pipeline: Pipeline,
    models: Sequence[MemoizedModel],
    temperatures: Sequence[float],
    samples: int,
    progress: Progress,
) -> Claim | None:
    """Test one pipeline's rule. None when its drafter proposed nothing, so that there is nothing to test.

    models: those that the pipeline runs on, the target first.
    Raises whatever the engine raises.
    """
    rule = pipeline.verifier.name
    llm = LLM.from_pipeline(pipeline)
    vocab_size = pipeline.vocab_size
    tests: list[NamedTest] = []
    drafted = 0
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(model.memoizing())
        for (name, words), temperature in itertools.product(PROMPTS.items(), temperatures):
            prompt = tuple(pipeline.tokenizer.encode(words))
            where = f"{name}, temperature {temperature:g}"
            counts: Counter[Text] = Counter()
            for start in range(0, samples, PROGRESS_EVERY):
                progress(f"distribution: {rule}, {where}, {start} of {samples} samples")
                seeds = range(start, min(start + PROGRESS_EVERY, samples))
                params = [_params(temperature, seed) for seed in seeds]
                for output in llm.generate([list(prompt)] * len(params), params):
                    counts[tuple(output.outputs[0].token_ids)] += 1
                    drafted += output.metrics.drafts.num_draft_tokens
            expected = probabilities(models[0], prompt, temperature, vocab_size)
            tests += [_test(counts, expected, size, where) for size in range(1, LENGTH + 1)]
        passes = models[0].texts
    return _claim(rule, tests, samples, drafted, passes) if drafted else None


def _params(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_k=TOP_K, seed=seed, max_tokens=LENGTH, ignore_eos=True)


def _test(counts: Counter[Text], expected: Mapping[Text, float], size: int, where: str) -> NamedTest:
    """Test the first `size` tokens. Whatever has no probability shares one cell of probability 0."""
    index: dict[Text, int] = {}
    for text in expected:
        index.setdefault(text[:size], len(index))
    wanted, found = np.zeros(len(index) + 1), np.zeros(len(index) + 1)
    for text, mass in expected.items():
        wanted[index[text[:size]]] += mass
    for text, count in counts.items():
        found[index.get(text[:size], -1)] += count
    name = f"{where}, first {size} token{'s' if size > 1 else ''}"
    return NamedTest(name, gtest.g_test(found, wanted), int(found.sum()))


def _claim(rule: str, tests: Sequence[NamedTest], samples: int, drafted: int, passes: int) -> Claim:
    cases = sum(int(test.samples) for test in tests) // LENGTH
    about = f"{rule}: {cases} samples of {LENGTH} tokens ({drafted} drafted), {len(tests)} G-tests"
    if (broken := first_broken(tests)) is not None:
        return Claim("distribution", False, cases, f"{about}: not the target's distribution: {broken[1]}")
    detail = f"{about}{held_words(tests)}; {passes} target texts scored"
    return Claim("distribution", True, cases, detail)
