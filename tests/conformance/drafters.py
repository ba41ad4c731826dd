"""Drafters that know the right tokens and use them in various ways, and one that samples trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.engines.base import ForwardItem, LanguageModel
from tests.support.enumeration import Siblings

Answers = Mapping[str, Sequence[int]]  # request -> prompt and plain output
Script = Callable[[np.random.Generator, list[int], int, int], Draft]  # (random, truth, budget, vocabulary)


class ScriptedDrafter:
    """Asks its script for a draft, telling it what plain decoding will say next."""

    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, script: Script, answers: Answers, vocab_size: int) -> None:
        self.name = name
        self._script, self._answers, self._vocab_size = script, answers, vocab_size
        self._random = np.random.default_rng(7)

    def begin(self, request: Request) -> None:
        pass

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        drafts = []
        for job in jobs:
            start = job.context.position
            truth = list(self._answers[job.request_id][start : start + job.budget])
            truth += [0] * (job.budget - len(truth))
            drafts.append(self._script(self._random, truth, job.budget, self._vocab_size))
        return drafts

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        pass

    def end(self, request_id: str) -> None:
        pass


def always_right(_: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    return Draft.chain(truth, "right")


def always_wrong(_: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    return Draft.chain([(token + 1) % vocab for token in truth], "wrong")


def right_then_wrong(random: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    """Right for a random while, then off by one, then right again."""
    tokens = truth[: random.integers(0, budget + 1)]
    at = int(random.integers(0, budget))
    if at < len(tokens):
        tokens[at] = (tokens[at] + 1) % vocab
    return Draft.chain(tokens, "mixed")


def nothing(_: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    return Draft.empty("nothing")


def out_of_range(random: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    tokens = list(truth)
    tokens[int(random.integers(0, budget))] = int(random.choice([-1, vocab, vocab + 7, 2**31 - 1, -(2**31)]))
    return Draft.chain(tokens, "out of range")


def too_long(_: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    return Draft.chain([*truth, *range(30)], "too long")


def bad_parents(random: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    parents = random.integers(-3, budget + 3, budget).astype(np.int32)
    return Draft(np.array(truth, np.int32), parents, None, "bad parents")


def ends_in_the_middle(random: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    """Every token that may be an end of the text, somewhere in a draft that is right otherwise."""
    tokens = list(truth)
    tokens[int(random.integers(0, budget))] = int(random.choice([3, 5]))
    return Draft.chain(tokens, "ends")


def twins(random: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    """Each right token twice among siblings, the path going on below either."""
    tokens: list[int] = []
    parents: list[int] = []
    at = -1
    for token in truth:
        size = len(tokens)
        tokens += [token, token]
        parents += [at, at]
        at = size + int(random.integers(0, 2))
    return Draft(np.array(tokens[:budget], np.int32), np.array(parents[:budget], np.int32), None, "twins")


def random_tree(random: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    """A tree whose nodes are right for their depth half of the time."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for node in range(budget):
        parent = int(random.integers(max(-1, node - 4), node))
        depths.append(0 if parent < 0 else depths[parent] + 1)
        right = random.random() < 0.5
        tokens.append(truth[depths[-1]] if right else int(random.integers(0, vocab)))
        parents.append(parent)
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, "tree")


def right_branch_last(_: np.random.Generator, truth: list[int], budget: int, vocab: int) -> Draft:
    """At each depth a wrong sibling comes before the right one, so that no accepted path is a prefix."""
    tokens: list[int] = []
    parents: list[int] = []
    at = -1
    for token in truth:
        tokens += [(token + 1) % vocab, token]
        parents += [at, at]
        at = len(tokens) - 1
    return Draft(np.array(tokens[:budget], np.int32), np.array(parents[:budget], np.int32), None, "branches")


SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        always_right,
        always_wrong,
        right_then_wrong,
        nothing,
        out_of_range,
        too_long,
        bad_parents,
        ends_in_the_middle,
        twins,
        random_tree,
        right_branch_last,
    )
}


class TreeDrafter:
    """Drafts trees with a model, one pass over the whole text for each inner node.

    arity: most children of the nodes of each depth.
    kind:  how siblings are chosen from the model's distribution, and what is stated of them.
    """

    name = "tree"
    needs = frozenset({"tree_attention"})

    def __init__(self, model: LanguageModel, arity: Sequence[int], kind: Siblings) -> None:
        self._model, self._arity, self._kind = model, arity, kind

    def begin(self, request: Request) -> None:
        pass

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        return [self._tree(job) for job in jobs]

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        pass

    def end(self, request_id: str) -> None:
        pass

    def _tree(self, job: ProposeJob) -> Draft:
        randomness, ahead = StepRandomness(job.sampler.seed, len(job.context.tokens)), len(job.context.path)
        tokens: list[int] = []
        parents: list[int] = []
        stated: list[Distribution | None] = []
        level = [(-1, job.context)]
        for arity in self._arity:
            below: list[tuple[int, TokenContext]] = []
            for parent, context in level:
                first = len(tokens)
                count = min(arity, job.budget - first)
                drawn, drawn_from = self._kind(self._drafts(job, context), count, randomness, ahead + first)
                tokens += drawn
                parents += [parent] * len(drawn)
                stated += drawn_from
                below += [(first + i, context.then(token)) for i, token in enumerate(drawn)]
            level = below
        ids, above = np.array(tokens, np.int32), np.array(parents, np.int32)
        return Draft(ids, above, tuple(stated), self.name)

    def _drafts(self, job: ProposeJob, context: TokenContext) -> Distribution:
        text = np.array([*context.tokens, *context.path], np.int32)
        cache, parents = self._model.new_cache(len(text)), np.arange(-1, len(text) - 1, dtype=np.int32)
        item = ForwardItem(cache, text, parents, np.array([len(text) - 1], np.int32))
        (rows,) = self._model.forward([item])
        cache.close()
        return job.sampler.distribution(rows[0], context)
