"""Decoding without a model or a clock: replays traces of what drafters would have proposed through a policy.

A `Trace` says, for one text, what each drafter proposes at each position; a `World` says what passes take.
`simulate` runs the very plan of the real step over them and adds the seconds up, so that a controller can
be held against every fixed setting on the same texts, thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.tree import (
    DraftPass,
    DraftPlan,
    DraftQuery,
    Lookup,
    ModelDraft,
    Node,
    merge,
    passes,
    path_to,
    refed,
    subtree,
)


class Policy(Protocol):
    """What is simulated: `AutoController`, or a fixed setting."""

    def choose(self, batch: Sequence[DraftLimits]) -> list[int]: ...

    def plan(self, asks: Sequence[DraftQuery]) -> list[DraftPlan]: ...

    def finish(
        self,
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        seconds: float,
        fed: Sequence[DraftPass],
    ) -> list[list[Node]]: ...

    def observe(self, request_id: str, accepted: Sequence[int], emitted: Sequence[int]) -> None: ...

    def record(self, request_id: str, step: StepRecord) -> None: ...

    def looked(self, seconds: float) -> None: ...

    def release(self, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One text and what would be drafted for it.

    prompt:     tokens before it.
    truth:      its tokens.
    lookups:    by position, what a lookup drafter offers there; None without one.
    model:      by position, the token that the draft model has there after the true text; None without one.
    confidence: by position, the draft model's in that token; None where it does not say.
    second, second_confidence: the same of its second choice; None if it never draws one.
    """

    prompt: int
    truth: Sequence[int]
    lookups: Sequence[Lookup] | None = None
    model: Sequence[int] | None = None
    confidence: Sequence[float] | None = None
    second: Sequence[int] | None = None
    second_confidence: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What things take, in seconds.

    target:   a pass of the target over n tokens, in step i of the simulation.
    draft:    a pass of the draft model over n tokens.
    overhead: a step, beside passes.
    looking:  looking up, in a step that may draft.
    """

    target: Callable[[int, int], float]
    draft: Callable[[int], float] = lambda n: 0.0
    overhead: float = 0.0
    looking: float = 0.0


@dataclass(slots=True, eq=False)
class Outcome:
    """seconds and tokens in all; `steps` has one entry a pass: (seconds so far, tokens so far, nodes), and
    `ends` one a text: when it ended, in seconds."""

    seconds: float = 0.0
    tokens: int = 0
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Sequence:
    name: str
    trace: Trace
    at: int = 0
    checked: int = 0  # of prompt and text, tokens in the draft model's cache
    held: list[tuple[int, int]] | None = None  # (parent, token) behind the text that it was fed in this step

    @property
    def left(self) -> int:
        return len(self.trace.truth) - self.at

    def ask(self, room: int) -> DraftQuery:
        trace, size = self.trace, self.trace.prompt + self.at
        lookup = None if trace.lookups is None else trace.lookups[self.at]
        return DraftQuery(self.name, room, size, lookup, None if trace.model is None else size - self.checked)

    def draw(self, ask: DraftQuery, choice: DraftPlan) -> ModelDraft:
        """What the draft model draws: behind something wrong, tokens that are wrong too."""
        trace, out = self.trace, ModelDraft([], [])
        ahead = path_to(ask.lookup, choice.after) if ask.lookup is not None else []
        guide = None if trace.confidence is None else choice.guide
        room = choice.draft if guide is None else ask.room
        # Of each node: the position that it is for, and whether all up to it is right.
        start = self.at + len(ahead)
        places = {-1: (start - 1, ahead == list(trace.truth[self.at : start]))}
        frontier = [-1]
        while frontier:
            for parent in frontier:
                at, right = places[parent][0] + 1, places[parent][1]
                for beside in range(1 + (trace.second is not None)):
                    if at >= len(trace.truth) or len(out.tokens) >= room:
                        self._hold(ahead, out)
                        return out
                    token, confidence = self._choice(at, beside)
                    token = token if right else -1 - beside
                    places[len(out.tokens)] = at, right and token == trace.truth[at]
                    out.tokens.append(token)
                    out.parents.append(parent)
                    out.confidence.append(confidence)
                    if guide is None or confidence is None or not guide.drew(parent, confidence):
                        break
            frontier = [len(out.tokens) - 1] if guide is None else guide.frontier()
        self._hold(ahead, out)
        return out

    def _choice(self, at: int, beside: int) -> tuple[int, float | None]:
        """(token, confidence): what the draft model likes best at a position, or second."""
        trace = self.trace
        tokens, confidence = trace.model, trace.confidence
        if beside:
            tokens, confidence = trace.second, trace.second_confidence
        assert tokens is not None
        return tokens[at], None if confidence is None else confidence[at]

    def _hold(self, ahead: Sequence[int], drawn: ModelDraft) -> None:
        """The draft model's cache behind the text holds what is ahead, and the paths fed in the last pass."""
        self.held = [(i - 1, token) for i, token in enumerate(ahead)]
        levels = passes(drawn.parents)
        if levels:
            kept, fed = refed(drawn.parents, levels[-1])
            place = {-1: len(ahead) - 1}
            for node in (*kept, *fed):
                place[node] = len(self.held)
                self.held.append((place[drawn.parents[node]], drawn.tokens[node]))

    def advance(self, count: int) -> None:
        """`count` tokens of the text were emitted; the draft model's cache keeps what was right in it."""
        if self.held is not None:
            self.checked = self.trace.prompt + self.at
            at = -1
            for wanted in self.trace.truth[self.at : self.at + count - 1]:
                if (at, wanted) not in self.held:
                    break
                at = self.held.index((at, wanted))
                self.checked += 1
            self.held = None
        self.at += count

    def accepted(self, tree: Sequence[Node]) -> list[int]:
        """The nodes that the text goes along."""
        path: list[int] = []
        parent = -1
        for i, node in enumerate(tree):
            wanted = self.at + len(path)
            if (
                node.parent == parent
                and wanted < len(self.trace.truth) - 1
                and node.token == self.trace.truth[wanted]
            ):
                path.append(i)
                parent = i
        return path


def simulate(policy: Policy, traces: Iterable[Trace], world: World, *, width: int = 1) -> Outcome:
    """Decode all texts, `width` at a time, in order."""
    waiting = [_Sequence(str(i), trace) for i, trace in enumerate(traces) if len(trace.truth)]
    waiting.reverse()
    live: list[_Sequence] = []
    out = Outcome()
    while live or waiting:
        while waiting and len(live) < width:
            live.append(waiting.pop())
        _step(policy, live, world, out)
        for seq in [seq for seq in live if not seq.left]:
            policy.release(seq.name)
            live.remove(seq)
            out.ends.append(out.seconds)
    return out


def _step(policy: Policy, live: Sequence[_Sequence], world: World, out: Outcome) -> None:
    rooms = [DraftLimits(seq.name, seq.left - 1, seq.trace.prompt + seq.at) for seq in live]
    budgets = policy.choose(rooms)
    asked = [(seq, seq.ask(budget)) for seq, budget in zip(live, budgets, strict=True) if budget > 0]
    trees: dict[str, list[Node]] = {}
    drafting = world.looking if asked else 0.0
    if asked:
        asks = [ask for _, ask in asked]
        choices = policy.plan(asks)
        drafts = [seq.draw(ask, c) if c.draft else None for (seq, ask), c in zip(asked, choices, strict=True)]
        fed: list[int] = []  # tokens, pass by pass
        missed = 0
        for ask, choice, drawn in zip(asks, choices, drafts, strict=True):
            if drawn is not None:
                ahead = path_to(ask.lookup, choice.after) if ask.lookup is not None else []
                levels = [len(refed(drawn.parents, level)[1]) for level in passes(drawn.parents)]
                own = [(ask.behind or 0) + len(ahead), *levels]
                fed = [a + b for a, b in zip_longest(fed, own, fillvalue=0)]
                missed += max(0, (ask.behind or 0) - 2)
        drawing = sum(map(world.draft, fed))
        drafting += drawing
        passed = [(size, 0 if i else missed) for i, size in enumerate(fed)]
        found = policy.finish(asks, choices, drafts, drawing, passed)
        policy.looked(world.looking)
        trees = {ask.request_id: tree for ask, tree in zip(asks, found, strict=True)}
    size = len(live) + sum(map(len, trees.values()))
    seconds = world.target(size, len(out.steps))
    for seq in live:
        tree = trees.get(seq.name, [])
        path = seq.accepted(tree)
        policy.observe(seq.name, path, seq.trace.truth[seq.at : seq.at + len(path) + 1])
        seq.advance(len(path) + 1)
        out.tokens += len(path) + 1
        share = drafting / len(asked) if seq.name in trees else 0.0
        record = StepRecord(
            "draft",
            len(tree),
            len(path),
            len(path) + 1,
            share,
            seconds / len(live),
            world.overhead / len(live),
        )
        policy.record(seq.name, record)
    out.seconds += drafting + seconds + world.overhead
    out.steps.append((out.seconds, out.tokens, size - len(live)))


class FixedPolicy:
    """Always up to `nodes` of the lookup's likeliest nodes, or `draft` tokens of the draft model; with both,
    the draft model where the lookup offers nothing. `beside` has its second choice at each place verified."""

    def __init__(self, nodes: int = 0, draft: int = 0, *, beside: bool = False) -> None:
        self.nodes, self.draft, self.beside = nodes, draft, beside

    def choose(self, batch: Sequence[DraftLimits]) -> list[int]:
        most = max(self.nodes, self.draft * (1 + self.beside))
        return [min(room.tokens, most) for room in batch]

    def plan(self, asks: Sequence[DraftQuery]) -> list[DraftPlan]:
        choices = []
        for ask in asks:
            offered = len(ask.lookup.tokens) if ask.lookup is not None else 0
            choice = DraftPlan(nodes=list(range(min(offered, self.nodes, ask.room))))
            if not choice.nodes and ask.behind is not None:
                choice.draft = min(self.draft, ask.room)
                choice.guide = _Comb(choice.draft) if self.beside else None
            choices.append(choice)
        return choices

    def finish(
        self,
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        seconds: float,
        fed: Sequence[DraftPass],
    ) -> list[list[Node]]:
        trees = []
        for ask, choice, drawn in zip(asks, choices, drafts, strict=True):
            if drawn is None:
                whole = merge(ask.lookup, [1.0] * len(choice.nodes), ModelDraft([], []), [])
                trees.append(subtree(whole, choice.nodes))
            else:
                trees.append(merge(None, [], drawn, [1.0] * len(drawn.tokens)))
        return trees

    def observe(self, request_id: str, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        pass

    def record(self, request_id: str, step: StepRecord) -> None:
        pass

    def looked(self, seconds: float) -> None:
        pass

    def release(self, request_id: str) -> None:
        pass


class _Comb:
    """Implements `Guide`: a chain of first choices, `length` long, and the second choice beside each."""

    def __init__(self, length: int) -> None:
        self._length, self._parents = length, [-2]

    def drew(self, parent: int, confidence: float) -> bool:
        self._parents.append(parent)
        return self._parents[-2] != parent

    def frontier(self, ready: Collection[int] = ()) -> list[int]:
        parents, self._length = self._parents, self._length - 1
        last = len(parents) - 2
        return [last - (parents[-1] == parents[-2])] if self._length else []
