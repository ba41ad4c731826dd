"""The controller that is never slower: it drafts what pays, as far as it pays, and knows why.

A step that verifies a tree costs T(1 + n) instead of T(1), and what drafting costs. It gives the tokens that
are accepted. Time is worth `rate` tokens per second, what decoding reaches at the moment, so a further node
is verified, and a further token drafted, while its chance of acceptance exceeds `rate` times its own price:
the rule that maximises tokens per second over many steps of different kinds (Dinkelbach 1967).
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.acceptance_rates import Acceptance
from outrider.policy.cost_model import WIDEST, CostModel
from outrider.policy.draft_model import DraftModelPlanner, Prices
from outrider.policy.exploration import ExplorationBudget
from outrider.policy.mixed_batches import MixedBatchPolicy
from outrider.policy.report import Report
from outrider.policy.tree import DraftPass, DraftPlan, DraftQuery, Lookup, ModelDraft, Node, chosen, subtree

FIRST_WAIT, LAST_WAIT = 8, 64  # steps between probes of a drafter that is off; doubles
LONGEST_SLEEP, DEAREST_SLEEP = 4, 16  # steps without looking up; the second where it is dear
TOO_DEAR = 0.003  # of a plain step: looking up in vain is worth sleeping for above this
HOPED_GAIN = 0.1  # of a plain step, that looking up is expected to save before anything is known
GAIN_WEIGHT = 8.0  # steps of a text that what looking up saves in all texts counts for
TEXT_MEMORY, TEXTS_MEMORY = 0.95, 0.98  # what is left of that, per step, in the text and in all of them
SHARE = 0.01  # of the time that looking up in vain may take, before sleeps become longer
DEAREST_READING = 14.0  # plain steps that a draft model may take to read a prompt
UNSURE = 0.10  # deviation of log(T(n) / T(1)) at which a plain step is worth its price
LOOKUP_START = 0.3  # what is expected of a lookup before anything is known
LOOKUP_MEMORY = 0.97  # of how a text compares with others, per token: a step teaches of several
FADE = 0.7  # of the evidence for the rate, per step: texts change character within a few
NEW_TEXT = 12  # a match this long, after one of a third, is a change of character
SMOOTH = 0.05  # of a new value in a running mean


class _State:
    """One request."""

    __slots__ = (
        *("expected", "found", "gained", "idle", "left", "length", "looks", "offered"),
        *("nodes", "probe", "probes", "sleep", "unread"),
        *("lookup_wait", "lookup_waited", "model_wait", "model_waited"),
    )

    def __init__(self) -> None:
        self.nodes: list[Node] = []  # as drafted in this step
        self.offered: DraftQuery | None = None  # what a lookup has found in this step
        self.expected = 1.0  # tokens that the step will emit
        self.left = 0  # tokens that may still be drafted until the output ends
        self.probe = 0.0  # seconds taken from the allowance for this step
        self.probes = 0  # of the draft model so far
        self.length = 0  # of the last lookup's match
        self.found = 0  # steps in which a lookup found something
        self.unread = 0  # tokens that the draft model would have had to be fed in the last step
        self.gained = 0.0  # seconds that its lookups saved, their verification paid; older ones count less
        self.looks = 0.0  # steps that those are of, likewise
        self.idle = 0  # looks in a row after which looking up was not worth it
        self.sleep = 0  # steps left without looking up
        self.lookup_waited = self.model_waited = 0  # steps since the drafter was last tried
        self.lookup_wait = self.model_wait = FIRST_WAIT  # steps until it may be probed


class AutoController:
    """Chooses drafter and tree for each request of each step; a `AutoDrafter` carries it out.

    target:    what a pass of the target costs; None starts from a guess.
    model:     what a pass of the draft model costs, or None without one.
    most:      nodes that one request may have in a step.
    longest:   tokens that the draft model may draw in a step.
    confident: whether the draft model says how confident it is, so that it can stop early.
    tree:      whether drafts may branch; else it is the lookup's chain or the draft model's.
    names:     of the lookup drafter and of the draft model, for reports.
    Deterministic: what it does follows from its arguments and the numbers it is told.
    """

    def __init__(
        self,
        target: CostModel | None = None,
        model: CostModel | None = None,
        *,
        most: int = 16,
        longest: int = 8,
        confident: bool = True,
        tree: bool = True,
        names: tuple[str, str] = ("suffix", "draft_model"),
    ) -> None:
        self.target = CostModel() if target is None else target
        self.drawing = (
            None
            if model is None
            else DraftModelPlanner(model, longest=longest, confident=confident, tree=tree)
        )
        self._joining = MixedBatchPolicy(self.target)
        self.by_lookup = Acceptance(LOOKUP_START, memory=LOOKUP_MEMORY)
        self.allowance = ExplorationBudget()
        self.report = Report()
        self.names = names
        self._most = most
        self._states: dict[str, _State] = {}
        self._base = 1  # tokens in the pass without any draft: the texts' own, and prompt tokens of others
        self._curve = self.target.at(0)  # what passes cost at the length of the texts at hand
        self._plain = self._curve.seconds(1)  # seconds of a plain step, without prompt tokens of others
        self._prompts = 0.0  # seconds that those add to this step, drafts or not
        self._rate = 1.0 / self._plain  # tokens per second that time is worth
        self._overhead = 0.0  # seconds of a step beside passes and sampling
        self._looking = 0.0  # seconds of looking up and planning, in one step for one request
        self._gain = HOPED_GAIN * self._plain  # seconds that looking up saves in a step of any text
        self._looked = 1  # requests that it was done for in this step
        self._worth = self._paid = 1.0  # plain seconds of what steps emit, and their own; fading

    # --- Controller ------------------------------------------------------------------------------

    def beside(self, sequences: int, joining: int = 0) -> int:
        return self._joining.count(sequences, joining)

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        """Most nodes for each request; 0 where not even looking up is worth its time."""
        self._joining.begin([room.context for room in batch])
        width, context = self._joining.width, self._joining.context
        self._base = width + prompt_tokens
        self._curve = self.target.at(context)
        # (A prompt's tokens have to be computed in this pass or another one: they make time no cheaper.)
        self._plain = self._curve.seconds(width) + self._overhead
        self._prompts = self._curve.seconds(self._base) - self._curve.seconds(width)
        fresh = sum([room.request_id not in self._states for room in batch])
        if fresh:  # what the texts before them gained says little of these
            self._worth = self._paid + (1.0 - fresh / width) * (self._worth - self._paid)
        # What decoding reaches now, at least plainly.
        self._rate = max(1.0, self._worth / self._paid) * width / self._plain
        if self.drawing is not None:
            self.drawing.at(context)
        budgets = []
        for room in batch:
            state = self._states.get(room.request_id)
            if state is None:
                state = self._states[room.request_id] = _State()
                if self.drawing is not None:
                    self.drawing.begin()
            state.nodes, state.offered, state.expected = [], None, 1.0
            state.left = room.tokens
            state.lookup_waited += 1
            state.model_waited += 1
            if state.sleep and not room.constrained:
                state.sleep -= 1
                budgets.append(0)
            else:
                budgets.append(min(room.most, self._most))
        if not any(budgets):
            self._settle_rate(width, self._curve.seconds(self._base))
        return budgets

    def curious(self, request_id: str) -> int:
        return 0 if self.drawing is None else self.drawing.certainty.wanted(request_id)

    def record(self, request_id: str, step: StepRecord) -> None:
        """What a step cost and gave. A pass is learned from when all its sequences have reported."""
        state = self._states.get(request_id)
        if state is not None and state.probe:
            self.allowance.give_back(min(state.probe, (step.accepted - step.forced) / self._rate))
            state.probe = 0.0
        if step.certain and self.drawing is not None:
            self.drawing.certainty.learn(request_id, step.certain)
        sampling = step.sampling_seconds / (step.accepted + 1)
        plain = (self._plain + self._prompts) / self._joining.width
        expected = 1.0 if state is None else state.expected
        self.report.add(request_id, step, step.emitted * (plain + sampling), expected)
        self.allowance.pass_time(step.draft_seconds + step.verify_seconds + step.other_seconds)
        if (done := self._joining.record(step)) is not None:
            self._overhead += SMOOTH * (min(done) - self._overhead)

    def explain(self, request_id: str) -> str:
        """Which drafter ran how often, why, and what it gave."""
        return self.report.explain(request_id, self._why_off(request_id))

    def pass_seconds(self, most: int = WIDEST) -> tuple[int, tuple[float, ...]]:
        """(length of the texts at hand, seconds of a pass over 1 .. most tokens for them)."""
        return self._joining.context, tuple(self._curve.seconds(n) for n in range(1, most + 1))

    def release(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        self.by_lookup.forget(request_id)
        if self.drawing is not None:
            self.drawing.forget(request_id)
        self.report.release(request_id)

    # --- What a step is worth ---------------------------------------------------------------------

    def _settle_rate(self, expected: float, seconds: float) -> None:
        """A step is expected to emit so many tokens in so many seconds."""
        self._worth = FADE * self._worth + expected * self._plain / self._joining.width
        self._paid = FADE * self._paid + seconds - self._prompts + self._overhead

    def _why_off(self, request_id: str) -> str:
        """At what chance a first token would pay, what the chances are, and what else stood in the way."""
        state = self._states.get(request_id, _State())
        width, seconds = self._joining.width, self._curve.seconds
        rate, more = width / self._plain, seconds(width + 1) - seconds(width)
        lookup, model = self.names
        need, mean = rate * more, self.by_lookup.mean
        said = f"a token of {lookup} pays from a chance of {need:.0%}, and the mean chance is {mean:.0%}"
        if mean >= need:
            steps = self.report.of(request_id).steps.total()
            said += f" where it finds one (in {state.found} of {steps} steps)"
        if self.drawing is not None:
            need, mean = rate * (more + self.drawing.draw(1)), self.drawing.accepted.mean
            said += f"; one of {model} from {need:.0%}, and it is {mean:.0%}"
            if mean >= need and state.unread > 1:
                reading = self.drawing.draw(state.unread) / self._plain
                said += f", but reading what it has missed takes as long as {reading:.1f} plain steps"
        return said

    # --- The step, for the drafter that carries it out --------------------------------------------

    def looked(self, seconds: float) -> None:
        """How long looking up and planning took in this step, for all requests."""
        self._looking += SMOOTH * (seconds / self._looked - self._looking)

    def plan(self, asks: Sequence[DraftQuery]) -> list[DraftPlan]:
        """What to draft for each request."""
        rate, seconds = self._rate, self._curve.seconds
        self._looked = max(1, len(asks))
        base = self._base + sum([ask.ahead for ask in asks])
        choices = [DraftPlan() for _ in asks]
        for ask, choice in zip(asks, choices, strict=True):
            state = self._states[ask.request_id]
            state.unread = ask.behind or 0
            if ask.lookup is not None and ask.lookup.tokens:
                state.found += 1
                state.offered = ask
                self._greet(ask.request_id, ask.lookup)
                choice.chances, choice.paths = self.by_lookup.chances(
                    ask.request_id, ask.lookup.parents, ask.lookup.confidence, ask.room
                )
        best, count, value = self._curve.best_nodes([choice.paths for choice in choices], base, rate)
        for choice, nodes in zip(choices, best, strict=True):
            choice.nodes = nodes
        if self.drawing is not None:
            left = {ask.request_id: self._states[ask.request_id].left for ask in asks}
            value = self.drawing.plan(asks, choices, base, value, Prices(seconds, rate, left))
        self._probe(asks, choices, base, value)
        more = (seconds(base + count) - seconds(base)) / max(1, count)
        for ask, choice in zip(asks, choices, strict=True):
            gain = choice.looked / rate - more * len(choice.nodes)
            self._rest(self._states[ask.request_id], gain, choice.draft > 0)
        return choices

    @property
    def alone(self) -> bool:
        """Whether one text has the step to itself."""
        return self._base == 1

    def dear(self, missed: int) -> bool:
        """Whether the draft model would take too long to read so many tokens of a prompt: what is gained by
        all of it, over the end alone, would not make up for that in most texts."""
        return self.drawing is not None and self.drawing.draw(missed) > DEAREST_READING * self._plain

    def foretell(self, request_id: str, confidence: Sequence[float], sharers: int) -> int:
        """See `DraftModelPlanner.foretell`; 0 without a draft model."""
        return 0 if self.drawing is None else self.drawing.foretell(request_id, confidence, sharers)

    def foretold(self, request_id: str, rank: int, confidence: float, drawn: bool) -> None:
        """A token that was foretold, `rank` tokens on, was drawn or was not."""
        if self.drawing is not None:
            self.drawing.foretold.learn(request_id, rank, confidence, drawn)

    def covered(self, request_id: str, tokens: int) -> None:
        """See `DraftPrefillPolicy.covered`."""
        if self.drawing is not None:
            self.drawing.catching_up.covered(request_id, tokens)

    def finish(
        self,
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        seconds: float = 0.0,
        fed: Sequence[DraftPass] = (),
    ) -> list[list[Node]]:
        """The trees to verify, after the draft model has drawn `drafts` in `seconds` and these passes."""
        drawing = 0.0
        if self.drawing is None or drafts.count(None) == len(drafts):
            trees = [chosen(ask.lookup, choice) for ask, choice in zip(asks, choices, strict=True)]
        else:
            context = self._joining.context
            drawing = self.drawing.learn(asks, choices, drafts, seconds=seconds, fed=fed, context=context)
            trees = [
                chosen(ask.lookup, choice) if drawn is None else self.drawing.grow(ask, choice, drawn)
                for ask, choice, drawn in zip(asks, choices, drafts, strict=True)
            ]
            trees = self._cut(self.drawing, asks, trees, drafts)
        base = self._base + sum([ask.ahead for ask in asks])
        size = sum([len(tree) for tree in trees])
        probing, expected = False, float(self._joining.width)
        for ask, tree in zip(asks, trees, strict=True):
            state, tokens = self._states[ask.request_id], sum([node.path for node in tree])
            state.nodes = tree
            state.expected = 1.0 + tokens
            probing = probing or state.probe > 0.0
            expected += tokens
        if not probing:
            self._settle_rate(expected, drawing + self._curve.seconds(base + size))
        return trees

    def observe(self, request_id: str, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        """The nodes that were kept of the tree that `finish` gave, from the anchor on, and the tokens that
        the text went on with. They tell of all that a lookup has offered: what is not verified for its small
        chance would else have that for good."""
        state = self._states.get(request_id)
        if state is None:
            return
        if (asked := state.offered) is not None and (found := asked.lookup) is not None:
            self.by_lookup.learn_tree(
                request_id, found.tokens, found.parents, found.confidence, asked.room, emitted
            )
        if self.drawing is not None:
            self.drawing.tried(request_id, state.nodes, {-1, *accepted})

    def _greet(self, request_id: str, lookup: Lookup) -> None:
        """A long match after short ones: the text has changed character, and old misses count no more."""
        state = self._states[request_id]
        if lookup.length >= NEW_TEXT and 3 * state.length <= lookup.length:
            self.by_lookup.forget(request_id)
            state.lookup_wait = state.model_wait = FIRST_WAIT
        state.length = lookup.length

    def _probe(self, asks: Sequence[DraftQuery], choices: list[DraftPlan], base: int, value: float) -> None:
        """Spend some of the allowance on finding out: what a plain pass costs now, or how a drafter that is
        off would do."""
        seconds, allowance = self._curve.seconds, self.allowance
        size = sum([max(choice.draft, len(choice.nodes)) for choice in choices])
        if size and self._curve.doubt(base + size) > UNSURE and allowance.take(value / self._rate):
            for choice in choices:
                choice.nodes, choice.draft, choice.after = [], 0, -1
            return
        more = seconds(base + size + 1) - seconds(base + size)
        for ask, choice in zip(asks, choices, strict=True):
            state = self._states[ask.request_id]
            if choice.nodes:
                state.lookup_waited, state.lookup_wait = 0, FIRST_WAIT
            if choice.draft:
                state.model_waited, state.model_wait = 0, FIRST_WAIT
            if choice.nodes or choice.draft or not ask.room:
                continue
            if choice.paths and state.lookup_waited >= state.lookup_wait and allowance.take(more):
                state.probe, choice.nodes = more, [0]
                state.lookup_waited, state.lookup_wait = 0, min(LAST_WAIT, 2 * state.lookup_wait)
                return
            if self.drawing is None or ask.behind is None or state.model_waited < state.model_wait:
                continue
            price = more + self.drawing.draw(ask.behind)
            if allowance.take(price):
                state.probe, choice.draft = price, 1
                state.probes += 1
                if state.probes % 2 == 0:  # in pairs: once caught up, the second is nearly free
                    state.model_waited, state.model_wait = 0, min(LAST_WAIT, 2 * state.model_wait)
                return

    def _rest(self, state: _State, gain: float, drawing: bool) -> None:
        """Looking up saved `gain` seconds of this step. Where that is less than it takes in the mean, leave
        it out for a while. (What it takes is a request's own; what it saves of a pass is less, the more share
        it.) A text counts as one like those before until it shows: a long copy makes up for dozens of vain
        looks, and most texts begin without one."""
        self._gain += (1.0 - TEXTS_MEMORY) * (gain - self._gain)
        state.gained = TEXT_MEMORY * state.gained + gain
        state.looks = TEXT_MEMORY * state.looks + 1.0
        hoped = (state.gained + GAIN_WEIGHT * self._gain) / (state.looks + GAIN_WEIGHT)
        if drawing or hoped > self._looking:
            state.idle = 0
            return
        state.idle += 1
        # Its share of the time, if all others look up as well.
        share = self._looking * self._joining.width / self._plain
        if share > TOO_DEAR:
            longest = min(DEAREST_SLEEP, max(LONGEST_SLEEP, round(share / SHARE)))
            state.sleep = min(longest, 1 << min(10, state.idle - 1))

    def _cut(
        self,
        drawing: DraftModelPlanner,
        asks: Sequence[DraftQuery],
        trees: list[list[Node]],
        drafts: Sequence[ModelDraft | None],
    ) -> list[list[Node]]:
        """Keep the nodes that pay, whatever comes with stated distributions, and probes, which are paid for;
        what a lookup has beside a probe of the draft model is not."""
        probes = [self._states[ask.request_id].probe > 0.0 for ask in asks]
        fixed = [
            probe or (drawn is not None and drawn.stated) for probe, drawn in zip(probes, drafts, strict=True)
        ]
        trees = [
            subtree(tree, [i for i, node in enumerate(tree) if node.drawn])
            if probe and drawn is not None
            else tree
            for tree, probe, drawn in zip(trees, probes, drafts, strict=True)
        ]
        base = self._base + sum([ask.ahead for ask in asks])
        base += sum([len(tree) for tree, all_of_it in zip(trees, fixed, strict=True) if all_of_it])
        order = sorted(
            (-node.path, t, i) for t, tree in enumerate(trees) if not fixed[t] for i, node in enumerate(tree)
        )
        gains = [0.0] * len(trees)  # of second choices
        count, _ = self._curve.best_count([-path for path, _, _ in order], base, self._rate)
        seconds = self._curve.seconds
        for n, (path, t, i) in enumerate(order[:count], start=base):
            if trees[t][i].beside:
                gains[t] += -path - self._rate * (seconds(n + 1) - seconds(n))
        kept: list[list[int]] = [[] for _ in trees]
        for _, t, i in sorted(order[:count], key=lambda node: node[1:]):
            if len(kept[t]) < asks[t].room:
                kept[t].append(i)
        out = []
        for gain, drawn in zip(gains, drafts, strict=True):
            if drawn is not None:
                drawing.spread(gain)
        for ask, tree, nodes, all_of_it in zip(asks, trees, kept, fixed, strict=True):
            if not all_of_it:
                drawing.suppose(ask.request_id, tree, nodes)
            out.append(tree if all_of_it else subtree(tree, nodes))
        return out
