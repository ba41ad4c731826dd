"""A small model that writes ahead of the target (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from outrider.decoding.chance import Chance
from outrider.decoding.context import TokenContext
from outrider.decoding.plan import Fed, Guide, refed
from outrider.decoding.request import Foretell, ProposeJob, Request
from outrider.decoding.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, FloatArray, Verdict
from outrider.drafters.confidence import RunnersUp, confidence
from outrider.drafters.likely import LikelyTokens, frequent, together
from outrider.drafters.reading import Reading
from outrider.engines.base import BlockModel, Cache, ForwardItem, LanguageModel
from outrider.engines.prefix import PrefixCache
from outrider.errors import ConfigError

Draws: TypeAlias = Literal["shared", "own", "greedy"]


@dataclass(slots=True, eq=False)
class _Stream:
    """One request in the draft model.

    reading: what it reads of the request's text.
    likely:  the part of the vocabulary that is computed, or None for all.
    checked: leading cache slots known to hold what is to be read.
    guessed: tokens in the slots after those, drafted and not compared with the text yet.
    above:   for each of them the one that it hangs from; -1 for the checked ones.
    """

    cache: Cache
    reading: Reading
    sampler: Sampler
    likely: LikelyTokens | None
    checked: int = 0
    guessed: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def roll_back(self) -> None:
        """Keep what the text confirms, but not its last token: a draft starts from that one's row."""
        tokens, known = self.reading.tokens, list[int]()
        if self.guessed:
            below = {edge: i for i, edge in enumerate(zip(self.above, self.guessed, strict=True))}
            at = -1
            for token in tokens[self.checked : -1]:
                at = below.get((at, token), -1)
                if at < 0:
                    break
                known.append(at)
        self.hold(known)
        self.checked = min(self.checked + len(known), len(tokens) - 1)
        self.cache.truncate(self.checked)
        self.guessed.clear()
        self.above.clear()
        self.reading.leave_out(self.checked)

    def hold(self, path: Sequence[int]) -> None:
        """Of what was guessed keep a path from the top only."""
        count = len(path)
        if count == len(self.guessed):
            return
        if count and path[-1] != count - 1:
            self.cache.keep(self.checked, [self.checked + i for i in path])
        else:
            self.cache.truncate(self.checked + count)
        self.guessed = [self.guessed[i] for i in path]
        self.above = list(range(-1, count - 1))

    def wrote(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """These were fed, none of them the text's own; -1 hangs from all before."""
        before = len(self.guessed)
        self.guessed += tokens
        self.above += [before + parent for parent in parents]


@dataclass(slots=True, eq=False)
class _Turn:
    """One job of one propose call: what has been drawn (and from what), and what is to be fed next.

    limit:       ids from here on the model does not know.
    contexts:    where the draft starts, then what each node completes.
    feed, above: tokens, and the one of them that each hangs from; -1 for all that the cache holds.
    frontier:    the nodes to draw below next, -1 for where the draft starts; `rows` of `feed` are theirs.
    places:      of nodes in the cache, their index behind the checked tokens.
    foretold:    fed behind the frontier's only node, one after the other.
    """

    stream: _Stream
    limit: int
    contexts: list[TokenContext]
    budget: int
    feed: list[int]
    above: list[int]
    chance: Chance
    guide: Guide | None
    foretell: Foretell | None
    frontier: list[int] = field(default_factory=lambda: [-1])
    rows: list[int] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    foretold: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    drawn_from: list[Distribution | None] = field(default_factory=list)

    def draft(self, source: str) -> Draft:
        stated = any(d is not None for d in self.drawn_from)
        probs = tuple(self.drawn_from) if stated else None
        return Draft(np.array(self.tokens, np.int32), np.array(self.parents, np.int32), probs, source)

    def add(self, parent: int, token: int, drawn_from: Distribution | None) -> None:
        self.contexts.append(self.contexts[parent + 1].then(token))
        self.tokens.append(token)
        self.parents.append(parent)
        self.drawn_from.append(drawn_from)

    def go_on(self, ready: int = -1) -> list[int]:
        """The nodes to draw below next; the one that is `ready` takes no pass if it is the only one."""
        if self.guide is None:
            nodes = [len(self.tokens) - 1]
        else:
            nodes = self.guide.frontier() if ready < 0 else self.guide.frontier((ready,))
        stop_ids = self.stream.sampler.stop_ids
        return [node for node in nodes if self.tokens[node] not in stop_ids][: self.budget - len(self.tokens)]

    def look_ahead(self) -> None:
        """Choose what is fed behind the frontier."""
        self.foretold = []
        left = self.budget - len(self.tokens) - 1  # one is drawn below the frontier itself
        if self.foretell is None or len(self.frontier) > 1 or left <= 0:
            return
        for token in self.foretell(self.contexts[self.frontier[0] + 1])[:left]:
            if token >= self.limit:
                return
            self.foretold.append(token)

    def place_ahead(self, i: int) -> int:
        """Where the cache has the foretold token i, behind the checked tokens."""
        node = self.frontier[0]
        return (self.places[node] if node >= 0 else len(self.contexts[0].path) - 1) + 1 + i

    def prepare(self, frontier: list[int]) -> bool:
        """Make ready what the next pass is to be fed, to draw below these; whether there is anything."""
        self.frontier = frontier
        if not self.frontier:
            return False
        kept, fed = refed(self.parents, self.frontier)
        ahead = len(self.contexts[0].path)
        self.stream.hold([*range(ahead), *[self.places[node] for node in kept]])
        for i, node in enumerate((*kept, *fed)):
            self.places[node] = ahead + i
        first = ahead + len(kept)
        self.feed = [self.tokens[node] for node in fed]
        self.above = [
            -1 if (parent := self.parents[node]) < 0 else max(-1, self.places[parent] - first) for node in fed
        ]
        self.rows = [self.places[node] - first for node in self.frontier]
        self.look_ahead()
        return True

    def next_feed(self, size: int | None) -> tuple[list[int], list[int], list[int]]:
        """(tokens, what each hangs from, rows) of the next pass, or of one over the first `size` tokens of a
        chain that is longer."""
        if size is not None:
            return self.feed[:size], self.above[:size], []
        cache, count = self.stream.cache, len(self.feed)
        del self.foretold[max(0, cache.capacity - cache.length - count) :]
        new = range(count, count + len(self.foretold))
        hung = [*self.rows[:1], *new][: len(new)]
        return [*self.feed, *self.foretold], [*self.above, *hung], [*self.rows, *new]


class DraftModelDrafter:
    """Drafts with a LanguageModel, for all jobs in the same passes: chains, and trees where a job's guide
    asks for more than one token at a place (with shared noise: those that come next under it).

    Each request has a cache of its own, which catches up only when the request next drafts: what the
    target did not keep is rolled back, and what it wrote since is fed in chunks of at most `chunk`
    tokens. Tokens are chosen by
    the request's own sampling parameters, from ids below common_size, the part of the vocabulary that both
    models share. A draft ends early at a stop token or where the draft model's context does.

    Where a job foretells what follows, that is fed along with the token that is drawn from, as the target
    verifies a draft: what the model itself draws in its place, it has passed already. The draft is the
    same, in fewer passes.

    Of a large vocabulary only the likely part is computed (drafters/likely.py), if the model can.

    draws: how a token is drawn from the draft's distribution. "shared": with the target's noise, so
           that both draw the same token as often as may be (the rule `coupled`). "own": with randomness
           of its own; the draft states the distributions (`rejection`, `block`). "greedy": the likeliest.
           Each is exact under each rule, since what is not stated counts as a point mass.
    """

    name = "draft_model"
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        model: LanguageModel,
        *,
        common_size: int | None = None,
        max_context: int | None = None,
        chunk: int = 512,
        draws: Draws = "shared",
    ) -> None:
        self._model = model
        self._common_size = min(model.vocab_size, common_size or model.vocab_size)
        self._max_context = min(model.max_positions, max_context or model.max_positions)
        self._chunk = chunk
        self._draws = draws
        self._always = frequent(model)
        self._capacity: dict[str, int] = {}
        self._namespaces: dict[str, str | None] = {}
        self._readings: dict[str, Reading] = {}
        self._prefixes: PrefixCache | None = None
        self._streams: dict[str, _Stream] = {}
        self.fed: list[Fed] = []  # the passes of the last propose

    def share_prefixes(self, max_bytes: int) -> PrefixCache:
        """See `SharesPrefixes`."""
        self._prefixes = PrefixCache(self._model, max_bytes)
        return self._prefixes

    def begin(self, request: Request) -> None:
        self._namespaces[request.request_id] = request.namespace
        self._readings[request.request_id] = Reading(len(request.prompt))
        most = request.params.max_tokens
        wanted = self._max_context if most is None else len(request.prompt) + most
        self._capacity[request.request_id] = min(self._max_context, wanted)

    def propose(self, jobs: Sequence[ProposeJob], patience: int | None = None) -> list[Draft]:
        """With a `patience`, at most so many tokens are fed before anything is drawn, so that no text has to
        wait for another's prompt: who has more to catch up gets an empty draft."""
        self.fed = []
        turns = [self._turn(job) for job in jobs]
        active = [turn for turn in turns if turn is not None]
        if patience is not None:
            active = self._caught_up(active, patience)
        while active:
            rows = self._forward(active)
            active = [turn for turn, row in zip(active, rows, strict=True) if self._draw(turn, row)]
        return [Draft.empty(self.name) if turn is None else turn.draft(self.name) for turn in turns]

    def _caught_up(self, turns: list[_Turn], left: int) -> list[_Turn]:
        """Those that may draw now; one that has more to be fed than is left of the patience is fed that."""
        ready = []
        for turn in sorted(turns, key=lambda turn: len(turn.feed)):
            size = len(turn.feed)
            if size <= max(2, left):  # two tokens are what every step leaves to be fed
                ready.append(turn)
            elif left > 0:
                self._pass([turn], left)
            left -= size
        return ready

    def behind(self, job: ProposeJob, copied: int = 0) -> int | None:
        """How many tokens would be fed before the first draw, without feeding any; None when the request's
        place in the draft model is full. The text's last `copied` tokens stand further up in it as well."""
        reading, ahead = self._readings[job.request_id], job.context.path
        reading.follow(job.context.tokens, copied)
        stream = self._streams.get(job.request_id)
        if stream is not None:
            stream.roll_back()
            known = stream.checked
        else:
            reading.leave_out(0)
            namespace, prefixes = self._namespaces[job.request_id], self._prefixes
            known = 0 if prefixes is None else prefixes.known(reading.tokens[:-1], namespace)
        if len(reading.tokens) + len(ahead) > self._capacity[job.request_id]:
            return None
        return len(reading.tokens) - known + len(ahead)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict) -> None:
        pass  # the text itself tells what was kept, when it is next drafted from

    def end(self, request_id: str) -> None:
        self._capacity.pop(request_id, None)
        self._readings.pop(request_id, None)
        stream, namespace = self._streams.pop(request_id, None), self._namespaces.pop(request_id, None)
        if stream is not None:
            try:
                self._keep(stream, namespace)
            finally:
                stream.cache.close()

    def _keep(self, stream: _Stream, namespace: str | None) -> None:
        if self._prefixes is not None:
            self._prefixes.keep(stream.cache, stream.reading.tokens[: stream.checked], namespace)

    def _turn(self, job: ProposeJob) -> _Turn | None:
        """Roll the cache back to what the text confirms; the rest of it is to be fed. None when the draft
        model cannot help: its context is full, or the text has ids that it does not know."""
        reading, ahead = self._readings[job.request_id], job.context.path
        reading.follow(job.context.tokens)
        tokens, capacity = reading.tokens, self._capacity[job.request_id]
        room = capacity - len(tokens) - len(ahead) + 1  # the last drafted token needs no slot
        budget = min(job.budget, room)
        if budget <= 0:
            return None
        stream = self._streams.get(job.request_id)
        if stream is None:
            stream = self._streams[job.request_id] = self._stream(job, capacity)
        stream.roll_back()
        feed = [*tokens[stream.checked :], *ahead]
        if max(feed) >= self._model.vocab_size:
            return None
        chance = Chance(job.sampler.seed, len(job.context.tokens))
        above = list(range(-1, len(feed) - 1))
        limit, rows = self._model.vocab_size, [len(feed) - 1]
        contexts = [job.context]
        return _Turn(stream, limit, contexts, budget, feed, above, chance, job.guide, job.foretell, rows=rows)

    def _stream(self, job: ProposeJob, capacity: int) -> _Stream:
        """A request's place in the draft model, with what is kept of its text."""
        likely, reading = None, self._readings[job.request_id]
        if self._always is not None and isinstance(self._model, BlockModel):
            likely = LikelyTokens(self._model, self._always, job.sampler.stop_ids)
        sampler = job.sampler.restricted(self._common_size)
        stream = _Stream(self._model.new_cache(capacity), reading, sampler, likely)
        if self._prefixes is not None:
            namespace = self._namespaces[job.request_id]
            stream.checked = self._prefixes.take(stream.cache, reading.tokens[:-1], namespace)
            if likely is not None:
                likely.add(reading.tokens[: stream.checked])
        return stream

    def _forward(self, turns: Sequence[_Turn]) -> list[FloatArray]:
        """Feed each turn's tokens. Returns the logits for its frontier: float32[len(frontier), vocab]."""
        for turn in turns:
            while turn.frontier[0] < 0 and len(turn.feed) > self._chunk:
                self._pass([turn], self._chunk)
            if turn.frontier[0] < 0:
                turn.look_ahead()
        return self._pass(turns)

    def _pass(self, turns: Sequence[_Turn], size: int | None = None) -> list[FloatArray]:
        """One pass over each turn's tokens, or up to `size` of a chain that is longer."""
        feeds = [turn.next_feed(size) for turn in turns]
        items = []
        for turn, feed in zip(turns, feeds, strict=True):
            tokens, parents, rows = (np.array(part, np.int32) for part in feed)
            items.append(ForwardItem(turn.stream.cache, tokens, parents, rows))
            if turn.stream.likely is not None:
                turn.stream.likely.add(feed[0])
        logits = self._logits(items, turns)
        missed = 0
        for turn, (fed, above, _) in zip(turns, feeds, strict=True):
            stream = turn.stream
            written = min(len(fed), len(stream.reading.tokens) - stream.checked)
            stream.checked += written
            missed += max(0, written - 2) if size is None else written
            stream.wrote(fed[written:], [max(-1, parent - written) for parent in above[written:]])
            if size is not None:
                turn.feed = turn.feed[size:]
                turn.above = list(range(-1, len(turn.feed) - 1))
                turn.rows = [len(turn.feed) - 1]
        self.fed.append((sum([len(feed[0]) for feed in feeds]), missed))
        return logits

    def _logits(self, items: Sequence[ForwardItem], turns: Sequence[_Turn]) -> list[FloatArray]:
        likely = [turn.stream.likely for turn in turns if turn.stream.likely is not None]
        if isinstance(self._model, BlockModel) and likely:
            return self._model.forward_within(items, together(likely))
        return self._model.forward(items)

    def _draw(self, turn: _Turn, logits: FloatArray) -> bool:
        """Draw below each node of the frontier, and below what was foretold as far as it is drawn; whether
        the turn goes on."""
        first, size = len(turn.tokens), len(turn.frontier)
        for parent, row in zip(turn.frontier, logits[:size], strict=True):
            if len(turn.tokens) < turn.budget:
                self._draw_below(turn, parent, row)
        for i, (token, row) in enumerate(zip(turn.foretold, logits[size:], strict=True)):
            if len(turn.tokens) == first or turn.tokens[first] != token:
                break
            nodes = turn.go_on(ready=first)
            if nodes != [first]:
                return turn.prepare(nodes)
            turn.places[first] = turn.place_ahead(i)
            drawn, first = first, len(turn.tokens)
            self._draw_below(turn, drawn, row)
        return len(turn.tokens) > first and turn.prepare(turn.go_on())

    def _draw_below(self, turn: _Turn, parent: int, row: FloatArray) -> None:
        """Draw the children of one node, whose logits are `row`: float32[vocab]."""
        sampler, guide = turn.stream.sampler, turn.guide
        context = turn.contexts[parent + 1]
        own = self._draws != "shared" and sampler.params.temperature > 0.0
        allowed = row
        try:
            if own:
                token, drawn_from = self._own(turn.chance, sampler.distribution(row, context), context)
            else:
                row = row[: sampler.vocab_size]
                allowed = sampler.adjusted(row, context)
                token, drawn_from = sampler.draw(allowed, row, context.position), None
        except ConfigError:  # the request allows no token that this model knows
            return
        turn.add(parent, token, drawn_from)
        if guide is None:
            return
        if own:
            guide.drew(parent, confidence(row, token, sampler.params.temperature))
            return
        others = RunnersUp(sampler, allowed, row, context.position)
        try:
            following = others.after(token)
            more = guide.drew(parent, others.lead(following))
            while more and following is not None and len(turn.tokens) < turn.budget:
                turn.add(parent, following, None)
                more = guide.drew(parent, 1.0 - others.lead(following))
                following = others.after(following) if more else None
        finally:
            others.restore()

    def _own(
        self, chance: Chance, distribution: Distribution, context: TokenContext
    ) -> tuple[int, Distribution | None]:
        """A token of the draft's own choice, and what it was drawn from where the draft is to state it."""
        if self._draws == "greedy":
            return int(distribution.ids[distribution.probs.argmax()]), None
        return chance.draws(distribution, len(context.path)), distribution
