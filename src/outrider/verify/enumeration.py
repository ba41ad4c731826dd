"""Claim `distribution` for the acceptance rules: their exact output distribution, by enumeration.

A stochastic rule takes its randomness from a `StepRandomness`. Here it gets one that follows a script, and
the step is run once for every possible script: each draft that could be sampled, each acceptance decision,
each last token. Summed up, this is the exact distribution of the text that the rule writes on a small
vocabulary. It is compared with the target's; the only error is rounding.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, FloatArray, TargetScores
from outrider.decoding.verifiers.base import Verifier
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.verify.claims import Claim, Progress

VOCAB = 3
TABLES = 24  # pairs of a random target and a random draft
TOLERANCE = 1e-12  # of a probability, for float64's rounding
PROMPT = (0,)

Text: TypeAlias = tuple[int, ...]
T = TypeVar("T")


class Rule(Protocol):
    """Makes a verifier whose randomness comes from the factory `randomness`."""

    def __call__(self, *, randomness: Callable[[int, int], StepRandomness]) -> Verifier: ...


RULES: Mapping[str, Rule] = {"rejection": RejectionVerifier, "block": BlockVerifier}


class Script:
    """The decisions of one run: first the given ones, then always the first that is possible."""

    def __init__(self, given: Sequence[int]) -> None:
        self._given = given
        self.taken: list[tuple[int, list[float]]] = []  # (option, probabilities of all options)

    def choose(self, probabilities: Sequence[float]) -> int:
        at, options = len(self.taken), [float(p) for p in probabilities]
        option = self._given[at] if at < len(self._given) else next(i for i, p in enumerate(options) if p > 0)
        self.taken.append((option, options))
        return option


def enumerate_outcomes(run: Callable[[Script], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of every outcome of `run`, which must be a pure function of its script."""
    waiting: list[list[int]] = [[]]
    while waiting:
        given = waiting.pop()
        script = Script(given)
        result = run(script)
        options = [option for option, _ in script.taken]
        for at in range(len(given), len(options)):
            chances = script.taken[at][1]
            waiting += [
                [*options[:at], other] for other in range(options[at] + 1, len(chances)) if chances[other] > 0
            ]
        yield float(np.prod([chances[option] for option, chances in script.taken])), result


class ScriptedRandomness(StepRandomness):
    """Takes each decision of a `StepRandomness` from a script. Raises ValueError when a rule uses one random
    number for two decisions: these would not be independent."""

    def __init__(self, script: Script) -> None:
        super().__init__(0, 0)
        self._script = script
        self._asked: set[int | None] = set()

    def uniform(self, purpose: int, number: int) -> float:
        raise ValueError("a number was asked for that no script can give")

    def accepts(self, probability: float, node: int) -> bool:
        self._once(node)
        likely = 1.0 if probability >= 1.0 else probability if probability > 0.0 else 0.0
        return self._script.choose([likely, 1.0 - likely]) == 0

    def next_token(self, distribution: Distribution) -> int:
        self._once(None)
        return _draw(distribution, self._script)

    def _once(self, number: int | None) -> None:
        if number in self._asked:
            raise ValueError("one random number was used for two decisions")
        self._asked.add(number)


def _draw(distribution: Distribution, script: Script) -> int:
    total = distribution.probs.sum()
    return int(distribution.ids[script.choose([p / total for p in distribution.probs])])


class Table:
    """A language model of random numbers: logits for every text, some of them -inf."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def logits(self, text: Text) -> FloatArray:
        """float32[VOCAB], the same whenever asked."""
        return _row(self._seed, text)

    def distribution(self, text: Text) -> Distribution:
        row = self.logits(text).astype(np.float64)
        mass = np.exp(row - row.max())
        some = np.flatnonzero(mass)
        return Distribution(some, mass[some] / mass.sum())


@lru_cache(4096)
def _row(seed: int, text: Text) -> FloatArray:
    random = np.random.default_rng((seed, len(text), *text))
    row: FloatArray = (random.choice([0.5, 2.0]) * random.standard_normal(VOCAB)).astype(np.float32)
    row[random.permutation(VOCAB)[: int(random.choice([0, 0, 1, 2]))]] = -np.inf
    return row


# A shape draws a draft from a table: (table, script) -> draft.
Shape: TypeAlias = Callable[[Table, Script], Draft]


def _chain(length: int, *, stated: bool = True) -> Shape:
    def shape(table: Table, script: Script) -> Draft:
        text: Text = ()
        probs = []
        for _ in range(length):
            probs.append(table.distribution(text))
            text = (*text, _draw(probs[-1], script))
        return Draft.chain(text, "verify", tuple(probs) if stated else None)

    return shape


def _tree(table: Table, script: Script) -> Draft:
    """Two children of the anchor, sampled one after the other without replacement, with a child each."""
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[Distribution] = []

    def add(distribution: Distribution, parent: int) -> None:
        tokens.append(_draw(distribution, script))
        parents.append(parent)
        probs.append(distribution)

    first = table.distribution(())
    add(first, -1)
    others = first.ids != tokens[0]
    if others.any():
        left = first.probs[others]
        add(Distribution(first.ids[others], left / left.sum()), -1)
    for parent in range(len(tokens)):
        add(table.distribution((tokens[parent],)), parent)
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), tuple(probs), "verify")


SHAPES: Mapping[str, Shape] = {
    "chain of 1": _chain(1),
    "chain of 2": _chain(2),
    "chain of 3": _chain(3),
    "looked-up chain of 3": _chain(3, stated=False),
}
TREES: Mapping[str, Shape] = {"tree": _tree}
LONGEST = 4  # tokens that a step can emit with these


def check(name: str, progress: Progress) -> Claim:
    """Enumerate the rule of this name ("rejection" or "block") over random tables."""
    rule = RULES[name]
    shapes = {**SHAPES, **(TREES if rule(randomness=StepRandomness).trees else {})}
    ways, worst, where = 0, 0.0, ""
    for (kind, shape), seed in itertools.product(shapes.items(), range(TABLES)):
        progress(f"distribution: {name}, {kind}, table {seed + 1} of {TABLES}")
        target = Table(2 * seed)
        draft = target if seed == 0 else Table(2 * seed + 1)  # once a draft that is always right
        try:
            count, error = deviation(rule, shape, target, draft)
        except Exception as failure:
            return Claim("distribution", False, ways, f"{name}: failed on table {seed}, {kind}: {failure!r}")
        ways += count
        if error > worst:
            worst, where = error, f"table {seed}, {kind}"
    about = f"{name}: {ways} ways that a step can go on {TABLES} random tables, {', '.join(shapes)}"
    held = worst <= TOLERANCE
    off = f"off from the target's by at most {worst:.1g}" if held else f"off by {worst:.3g} on {where}"
    return Claim("distribution", held, ways, f"{about}, enumerated: the probabilities of texts are {off}")


def deviation(rule: Rule, shape: Shape, target: Table, draft: Table) -> tuple[int, float]:
    """(ways, largest difference of a probability) between what the rule writes and the target.

    What follows a step is taken from the target, so that texts of different lengths can be compared.
    """
    written: defaultdict[Text, float] = defaultdict(float)
    ways = 0
    for probability, text in enumerate_outcomes(lambda script: _step(rule, shape, target, draft, script)):
        ways += 1
        for ending, mass in _texts(target, text):
            written[ending] += probability * mass
    expected = dict(_texts(target, ()))
    return ways, max(abs(written[text] - expected.get(text, 0.0)) for text in {*written, *expected})


def _step(rule: Rule, shape: Shape, target: Table, draft: Table, script: Script) -> Text:
    """The text that one step emits."""
    proposed = shape(draft, script)
    texts: list[Text] = [()]
    for token, parent in zip(proposed.tokens.tolist(), proposed.parents.tolist(), strict=True):
        texts.append((*texts[parent + 1], token))
    scores = TargetScores(np.stack([target.logits(text) for text in texts]))
    verifier = rule(randomness=lambda seed, position: ScriptedRandomness(script))
    verdict = verifier.verify(proposed, scores, Sampler(SamplingParams(), VOCAB), TokenContext(PROMPT))
    return (*proposed.tokens[list(verdict.path)].tolist(), verdict.next_token)


def _texts(target: Table, start: Text) -> Iterator[tuple[Text, float]]:
    """(text, probability) of every text of LONGEST tokens that goes on from `start`."""
    if len(start) == LONGEST:
        yield start, 1.0
        return
    ids, probs = target.distribution(start)
    for token, mass in zip(ids.tolist(), probs.tolist(), strict=True):
        for text, rest in _texts(target, (*start, token)):
            yield text, mass * rest
