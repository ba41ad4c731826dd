"""Decoding without a model or a clock: replays traces of what drafters would have proposed through a policy.

A `Trace` says, for one text, what each drafter proposes at each position; a `World` says what passes take.
`simulate` runs the very plan of the real step over them and adds the seconds up, so that a controller can
be held against every fixed setting on the same texts, thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.decoding.controller import Room
from outrider.decoding.plan import Ask, Chain, Choice, Lookup, Node, merge, path_to, subtree
from outrider.decoding.types import StepRecord


class Policy(Protocol):
    """What is simulated: `AutoController`, or a fixed setting."""

    def choose(self, batch: Sequence[Room]) -> list[int]: ...

    def plan(self, asks: Sequence[Ask]) -> list[Choice]: ...

    def finish(
        self, asks: Sequence[Ask], choices: Sequence[Choice], chains: Sequence[Chain | None], seconds: float
    ) -> list[list[Node]]: ...

    def observe(self, request_id: str, accepted: Sequence[int]) -> None: ...

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
    """

    prompt: int
    truth: Sequence[int]
    lookups: Sequence[Lookup] | None = None
    model: Sequence[int] | None = None
    confidence: Sequence[float] | None = None


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
    """seconds and tokens in all; `steps` has one entry a pass: (seconds so far, tokens so far, nodes)."""

    seconds: float = 0.0
    tokens: int = 0
    steps: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Sequence:
    name: str
    trace: Trace
    at: int = 0
    checked: int = 0  # of prompt and text, tokens in the draft model's cache
    fed: list[int] | None = None  # tokens behind the text that it was fed in this step, if it was used

    @property
    def left(self) -> int:
        return len(self.trace.truth) - self.at

    def ask(self, room: int) -> Ask:
        trace, size = self.trace, self.trace.prompt + self.at
        lookup = None if trace.lookups is None else trace.lookups[self.at]
        return Ask(self.name, room, size, lookup, None if trace.model is None else size - self.checked)

    def draw(self, ask: Ask, choice: Choice) -> Chain:
        """What the draft model draws: behind something wrong, tokens that are wrong too."""
        trace = self.trace
        assert trace.model is not None
        ahead = path_to(ask.lookup, choice.after) if ask.lookup is not None else []
        right = ahead == list(trace.truth[self.at : self.at + len(ahead)])
        chain = Chain([], [])
        start = self.at + len(ahead)
        for at in range(start, min(start + choice.draft, len(trace.truth))):
            token = trace.model[at] if right else -1
            right = right and token == trace.truth[at]
            confidence = None if trace.confidence is None else trace.confidence[at]
            chain.tokens.append(token)
            chain.confidence.append(confidence)
            if choice.go_on is not None and confidence is not None and not choice.go_on(confidence):
                break
        self.fed = [*ahead, *chain.tokens[:-1]]  # the last one drawn was not fed
        return chain

    def advance(self, count: int) -> None:
        """`count` tokens of the text were emitted; the draft model's cache keeps what was right in it."""
        if self.fed is not None:
            self.checked = self.trace.prompt + self.at
            for token, wanted in zip(self.fed, self.trace.truth[self.at : self.at + count - 1], strict=False):
                if token != wanted:
                    break
                self.checked += 1
            self.fed = None
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
    return out


def _step(policy: Policy, live: Sequence[_Sequence], world: World, out: Outcome) -> None:
    rooms = [Room(seq.name, seq.left - 1, seq.trace.prompt + seq.at) for seq in live]
    budgets = policy.choose(rooms)
    asked = [(seq, seq.ask(budget)) for seq, budget in zip(live, budgets, strict=True) if budget > 0]
    trees: dict[str, list[Node]] = {}
    drafting = world.looking if asked else 0.0
    if asked:
        asks = [ask for _, ask in asked]
        choices = policy.plan(asks)
        chains = [seq.draw(ask, c) if c.draft else None for (seq, ask), c in zip(asked, choices, strict=True)]
        fed = sum(
            (ask.behind or 0) + len(seq.fed or ()) + 1 - len(chain.tokens)
            for (seq, ask), chain in zip(asked, chains, strict=True)
            if chain
        )
        drawing = world.draft(fed) if fed else 0.0
        for k in range(1, max((len(chain.tokens) for chain in chains if chain), default=0)):
            drawing += world.draft(sum(len(chain.tokens) > k for chain in chains if chain))
        drafting += drawing
        found = policy.finish(asks, choices, chains, drawing)
        policy.looked(world.looking)
        trees = {ask.request_id: tree for ask, tree in zip(asks, found, strict=True)}
    size = len(live) + sum(map(len, trees.values()))
    seconds = world.target(size, len(out.steps))
    for seq in live:
        tree = trees.get(seq.name, [])
        path = seq.accepted(tree)
        policy.observe(seq.name, path)
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
    the draft model where the lookup offers nothing."""

    def __init__(self, nodes: int = 0, draft: int = 0) -> None:
        self.nodes, self.draft = nodes, draft

    def choose(self, batch: Sequence[Room]) -> list[int]:
        return [min(room.tokens, max(self.nodes, self.draft)) for room in batch]

    def plan(self, asks: Sequence[Ask]) -> list[Choice]:
        choices = []
        for ask in asks:
            offered = len(ask.lookup.tokens) if ask.lookup is not None else 0
            choice = Choice(nodes=list(range(min(offered, self.nodes, ask.room))))
            if not choice.nodes and ask.behind is not None:
                choice.draft = min(self.draft, ask.room)
            choices.append(choice)
        return choices

    def finish(
        self, asks: Sequence[Ask], choices: Sequence[Choice], chains: Sequence[Chain | None], seconds: float
    ) -> list[list[Node]]:
        trees = []
        for ask, choice, chain in zip(asks, choices, chains, strict=True):
            if chain is None:
                whole = merge(ask.lookup, [1.0] * len(choice.nodes), Chain([], []), [])
                trees.append(subtree(whole, choice.nodes))
            else:
                trees.append(merge(None, [], chain, [1.0] * len(chain.tokens)))
        return trees

    def observe(self, request_id: str, accepted: Sequence[int]) -> None:
        pass

    def record(self, request_id: str, step: StepRecord) -> None:
        pass

    def looked(self, seconds: float) -> None:
        pass

    def release(self, request_id: str) -> None:
        pass
