"""Computes the exact distribution of what an acceptance rule emits, by enumeration on small vocabularies.

A `World` is two tables of random probabilities, the target's and the draft model's, with a row for each text.
A proposal samples a draft from the draft model's rows, and a rule verifies it. Each random decision of either
is a branch, and all branches are enumerated, so the distribution is a sum over them and not an estimate from
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import LazyDistribution
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.distributions import siblings
from outrider.decoding.verifiers.rejection import RejectionVerifier

Floats: TypeAlias = npt.NDArray[np.float64]
Path: TypeAlias = tuple[int, ...]
Rule: TypeAlias = type[RejectionVerifier] | type[BlockVerifier]
T = TypeVar("T")


class Branches(StepRandomness):
    """Takes the decisions of a script and then, after its end, the first possible ones; records the
    others."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(0, 0)
        self._script = script
        self.taken: list[int] = []
        self.others: list[list[int]] = []
        self.weight = 1.0

    def uniform(self, purpose: int, number: int) -> float:
        raise AssertionError("a rule must use draft_token, accepts and next_token only")

    def draft_token(self, distribution: Distribution, node: int) -> int:
        return self._token(distribution)

    def accepts(self, probability: float, node: int) -> bool:
        probability = min(1.0, max(0.0, probability))
        return self._branch([probability, 1.0 - probability]) == 0

    def next_token(self, distribution: Distribution) -> int:
        return self._token(distribution)

    def _token(self, distribution: Distribution) -> int:
        probs = distribution.probs / distribution.probs.sum()  # as `sample_inverse_cdf` does
        return int(distribution.ids[self._branch(probs.tolist())])

    def _branch(self, weights: list[float]) -> int:
        possible = [i for i, weight in enumerate(weights) if weight > 0.0]
        at = len(self.taken)
        way = self._script[at] if at < len(self._script) else possible[0]
        self.taken.append(way)
        self.others.append([i for i in possible if i > way])
        self.weight *= weights[way]
        return way


def enumerate_branches(run: Callable[[Branches], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) for each sequence of decisions in `run`; the probabilities sum to 1."""
    waiting: list[list[int]] = [[]]
    while waiting:
        script = waiting.pop()
        branches = Branches(script)
        result = run(branches)
        for at in range(len(script), len(branches.taken)):
            waiting += [[*branches.taken[:at], other] for other in branches.others[at]]
        yield branches.weight, result


@dataclass(frozen=True)
class World:
    """target, draft: for each text of 0 .. depth tokens a row of float64[vocab] that sums to 1.
    end_tokens: tokens after which the target has no distribution, as after the end of a text.
    """

    vocab: int
    depth: int
    target: dict[Path, Floats]
    draft: dict[Path, Floats]
    end_tokens: tuple[int, ...] = ()

    def drafts(self, text: Path) -> Distribution:
        return distribution(self.draft[text])

    def joint(self, start: Path, length: int) -> Floats:
        """float64[vocab] * length: the target's joint distribution of the `length` tokens after `start`."""
        if length == 0:
            return np.ones(())
        row = self.target[start]
        return np.stack([row[x] * self.joint((*start, x), length - 1) for x in range(self.vocab)])


def texts(vocab: int, depth: int) -> list[Path]:
    """All texts of 0 .. depth tokens."""
    found: list[Path] = [()]
    for text in found:
        if len(text) < depth:
            found += [(*text, token) for token in range(vocab)]
    return found


def distribution(row: Floats) -> Distribution:
    some = np.flatnonzero(row)
    return Distribution(some, row[some])


class Rows:
    """Replaces the sampler: a row of scores is already the target's distribution.

    end_tokens: after a draft token of these it raises ValueError, as after the end of a text.
    """

    seed = 0

    def __init__(self, end_tokens: Sequence[int] = ()) -> None:
        self._end_tokens = end_tokens

    def distribution(self, row: Any, context: TokenContext) -> Distribution:
        if context.path and context.path[-1] in self._end_tokens:
            raise ValueError("the text has ended")
        return distribution(row)

    def lazy_distribution(self, row: Any, context: TokenContext) -> LazyDistribution:
        known = self.distribution(row, context)
        return LazyDistribution(lambda: known)


class Propose(Protocol):
    """Samples a draft. The rule gets only its tokens and the distributions that it states."""

    def __call__(self, world: World, randomness: StepRandomness) -> Draft: ...


def chain(length: int) -> Propose:
    def propose(world: World, randomness: StepRandomness) -> Draft:
        text: Path = ()
        stated = []
        for node in range(length):
            stated.append(world.drafts(text))
            text = (*text, randomness.draft_token(stated[-1], node))
        return Draft.chain(text, "chain", tuple(stated))

    return propose


def unstated(propose: Propose) -> Propose:
    """The same drafts without stated distributions, so that each token counts as a point mass."""

    def bare(world: World, randomness: StepRandomness) -> Draft:
        draft = propose(world, randomness)
        return Draft(draft.tokens, draft.parents, None, "unstated")

    return bare


def half_stated(propose: Propose) -> Propose:
    def half(world: World, randomness: StepRandomness) -> Draft:
        draft = propose(world, randomness)
        probs = tuple(draft.distribution(i) if i % 2 else None for i in range(len(draft)))
        return Draft(draft.tokens, draft.parents, probs, "half stated")

    return half


Siblings: TypeAlias = Callable[
    [Distribution, int, StepRandomness, int], tuple[Sequence[int], Sequence[Distribution | None]]
]


def with_replacement(
    q: Distribution, count: int, randomness: StepRandomness, first: int
) -> tuple[list[int], list[Distribution]]:
    """Independent candidates, which may be equal (SpecInfer)."""
    return [randomness.draft_token(q, first + i) for i in range(count)], [q] * count


def likeliest(
    q: Distribution, count: int, randomness: StepRandomness, first: int
) -> tuple[list[int], list[None]]:
    """The likeliest tokens in order, without sampling."""
    best = np.argsort(-q.probs, kind="stable")[:count]
    return q.ids[best].tolist(), [None] * len(best)


def tree(arity: Sequence[int], kind: Siblings = siblings) -> Propose:
    """Up to arity[d] children for each node of depth d."""

    def propose(world: World, randomness: StepRandomness) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        stated: list[Distribution | None] = []
        level: list[tuple[int, Path]] = [(-1, ())]
        for count in arity:
            below = []
            for parent, text in level:
                first = len(tokens)
                children, probs = kind(world.drafts(text), count, randomness, first)
                tokens += children
                parents += [parent] * len(children)
                stated += probs
                below += [(first + i, (*text, token)) for i, token in enumerate(children)]
            level = below
        return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), tuple(stated), "tree")

    return propose


def scores(world: World, draft: Draft) -> TargetScores:
    """The target's rows, as probabilities, after the anchor and after each node."""
    walks: list[Path] = [()]
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        walks.append((*walks[parent + 1], token))
    return TargetScores(np.stack([world.target[walk] for walk in walks]))


Step: TypeAlias = tuple[Path, Verdict]


def steps(world: World, propose: Propose, rule: Rule) -> Iterator[tuple[float, Step]]:
    """(probability, (emitted tokens, verdict)) for each sequence of decisions in one step."""

    def run(branches: Branches) -> Step:
        draft = propose(world, branches)
        verifier = rule(randomness=lambda seed, position: branches)
        verdict = verifier.verify(draft, scores(world, draft), Rows(world.end_tokens), TokenContext([0]))  # type: ignore[arg-type]
        emitted = (*draft.tokens[list(verdict.path)].tolist(), verdict.next_token)
        return emitted, verdict

    return enumerate_branches(run)


def deviation(world: World, propose: Propose, rule: Rule) -> Floats:
    """float64[vocab] * (depth + 1): for each text, its probability under the rule minus the target's. Tokens
    after the step are taken from the target."""
    length = world.depth + 1
    found = np.zeros((world.vocab,) * length)
    for weight, (emitted, _) in steps(world, propose, rule):
        found[emitted] += weight * world.joint(emitted, length - len(emitted))
    return found - world.joint((), length)


def error(world: World, propose: Propose, rule: Rule) -> float:
    """The largest deviation of a text's probability."""
    return float(np.abs(deviation(world, propose, rule)).max())


def distance(world: World, propose: Propose, rule: Rule) -> float:
    """The total-variation distance between the rule's texts and the target's: 0 .. 1."""
    return float(np.abs(deviation(world, propose, rule)).sum() / 2)


def accepted(world: World, propose: Propose, rule: Rule) -> float:
    """The expected number of accepted nodes."""
    return sum(weight * len(verdict.path) for weight, (_, verdict) in steps(world, propose, rule))
