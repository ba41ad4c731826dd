"""A small model that writes ahead of the target (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Distribution, Draft, FloatArray, Verdict
from outrider.decoding.verifiers.distributions import StepRandomness
from outrider.drafters.confidence import RunnersUp, confidence
from outrider.drafters.draft_context import HEAD, TAIL, DraftContext
from outrider.drafters.draft_sequence import DraftSequence, DraftTree
from outrider.drafters.vocab_subset import VocabSubset, frequent, together
from outrider.engines.base import ForwardItem, LanguageModel, VocabSubsetModel
from outrider.engines.prefix import PrefixCache
from outrider.errors import ConfigError
from outrider.policy.tree import DraftPass

Draws: TypeAlias = Literal["shared", "own", "greedy"]


@dataclass(slots=True, eq=False)
class _Request:
    """What is known of one request.

    capacity:  most tokens of it that the draft model holds.
    outgrows:  whether its text may become longer than that.
    namespace: whom it shares prefixes with.
    reading:   what the draft model reads of its text.
    stream:    its place in the draft model, once it has been drafted for.
    """

    capacity: int
    outgrows: bool
    namespace: str | None
    reading: DraftContext
    stream: DraftSequence | None = None


class DraftModelDrafter:
    """Drafts with a LanguageModel, for all jobs in the same passes: chains, and trees where a job's guide
    asks for more than one token at a place (with shared noise: those that come next under it).

    Each request has a cache of its own, which catches up only when the request next drafts: what the
    target did not keep is rolled back, and what it wrote since is fed in chunks of at most `chunk`
    tokens. Tokens are chosen by the request's own sampling parameters, from ids below common_size, the part
    of the vocabulary that both models share. A draft ends early at a stop token or where the draft model's
    context does; then the model goes on behind the text's beginning and its end.

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
        self._requests: dict[str, _Request] = {}
        self._prefixes: PrefixCache | None = None
        self.fed: list[DraftPass] = []  # the passes of the last propose

    def share_prefixes(self, max_bytes: int) -> PrefixCache:
        """See `SharesPrefixes`."""
        self._prefixes = PrefixCache(self._model, max_bytes)
        return self._prefixes

    def begin(self, request: Request) -> None:
        most = request.params.max_tokens
        wanted = self._max_context if most is None else len(request.prompt) + most
        capacity, outgrows = min(self._max_context, wanted), most is None or wanted > self._max_context
        self._requests[request.request_id] = _Request(
            capacity, outgrows, request.namespace, DraftContext(len(request.prompt))
        )

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

    def _caught_up(self, turns: list[DraftTree], left: int) -> list[DraftTree]:
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

    def behind(
        self, job: ProposeJob, copied: int = 0, dear: Callable[[int], bool] | None = None
    ) -> int | None:
        """How many tokens would be fed before the first draw, without feeding any; None when the request's
        place in the draft model is full for good.

        copied: of the text's last tokens, how many stand further up in it as well.
        dear:   whether feeding so many takes too long, so that the middle of what is missed is left out.
        """
        request, ahead = self._requests[job.request_id], job.context.path
        request.reading.follow(job.context.tokens, copied)
        known = self._known(request)
        if dear is not None and dear(request.reading.prompt_left(known)):
            request.reading.skim(known)
        held = self._fit(request, len(ahead), known)
        return None if held is None else len(request.reading.tokens) - held + len(ahead)

    def _known(self, request: _Request) -> int:
        """Roll back what the text does not confirm. Returns how many tokens need not be fed."""
        reading = request.reading
        if request.stream is not None:
            request.stream.roll_back()
            return request.stream.checked
        reading.leave_out(0)
        return 0 if self._prefixes is None else self._prefixes.known(reading.tokens[:-1], request.namespace)

    def _fit(self, request: _Request, ahead: int, known: int) -> int | None:
        """How many of the `known` tokens still need not be fed once the text and `ahead` tokens more fit into
        the draft model; None where they do not. A text that outgrows it loses the middle of what is not read
        yet, and if that is not enough, the middle of all."""
        reading, room = request.reading, request.capacity - ahead
        if request.outgrows and len(reading.tokens) > room >= HEAD + TAIL:
            reading.skim(known)
            if len(reading.tokens) > room:
                reading.skim(0)
                known = min(known, HEAD)
                if request.stream is not None:
                    request.stream.forget(HEAD)
        return known if len(reading.tokens) <= room else None

    def observe(self, request_id: str, draft: Draft, verdict: Verdict) -> None:
        pass  # the text itself tells what was kept, when it is next drafted from

    def end(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None or request.stream is None:
            return
        stream = request.stream
        try:
            if self._prefixes is not None:
                read = request.reading.tokens[: stream.checked]
                self._prefixes.keep(stream.cache, read, request.namespace)
        finally:
            stream.cache.close()

    def _turn(self, job: ProposeJob) -> DraftTree | None:
        """Roll the cache back to what the text confirms; the rest of it is to be fed. None when the draft
        model cannot help: its context is full, or the text has ids that it does not know."""
        request, ahead = self._requests[job.request_id], job.context.path
        request.reading.follow(job.context.tokens)
        if job.budget <= 0 or self._fit(request, len(ahead), self._known(request)) is None:
            return None
        tokens = request.reading.tokens
        room = request.capacity - len(tokens) - len(ahead) + 1  # the last drafted token needs no slot
        budget = min(job.budget, room)
        stream = request.stream
        if stream is None:
            stream = request.stream = self._stream(job, request)
        feed = [*tokens[stream.checked :], *ahead]
        if max(feed) >= self._model.vocab_size:
            return None
        chance = StepRandomness(job.sampler.seed, len(job.context.tokens))
        above = list(range(-1, len(feed) - 1))
        limit, rows = self._model.vocab_size, [len(feed) - 1]
        contexts = [job.context]
        return DraftTree(
            stream, limit, contexts, budget, feed, above, chance, job.guide, job.foretell, rows=rows
        )

    def _stream(self, job: ProposeJob, request: _Request) -> DraftSequence:
        """A request's place in the draft model, with what is kept of its text."""
        likely, reading = None, request.reading
        if self._always is not None and isinstance(self._model, VocabSubsetModel):
            likely = VocabSubset(self._model, self._always, job.sampler.stop_ids)
        sampler = job.sampler.restricted(self._common_size)
        stream = DraftSequence(self._model.new_cache(request.capacity), reading, sampler, likely)
        if self._prefixes is not None:
            stream.checked = self._prefixes.take(stream.cache, reading.tokens[:-1], request.namespace)
            if likely is not None:
                likely.add(reading.tokens[: stream.checked])
        return stream

    def _forward(self, turns: Sequence[DraftTree]) -> list[FloatArray]:
        """Feed each turn's tokens. Returns the logits for its frontier: float32[len(frontier), vocab]."""
        for turn in turns:
            while turn.frontier[0] < 0 and len(turn.feed) > self._chunk:
                self._pass([turn], self._chunk)
            if turn.frontier[0] < 0:
                turn.look_ahead()
        return self._pass(turns)

    def _pass(self, turns: Sequence[DraftTree], size: int | None = None) -> list[FloatArray]:
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

    def _logits(self, items: Sequence[ForwardItem], turns: Sequence[DraftTree]) -> list[FloatArray]:
        likely = [turn.stream.likely for turn in turns if turn.stream.likely is not None]
        if isinstance(self._model, VocabSubsetModel) and likely:
            return self._model.forward_subset(items, together(likely))
        return self._model.forward(items)

    def _draw(self, turn: DraftTree, logits: FloatArray) -> bool:
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

    def _draw_below(self, turn: DraftTree, parent: int, row: FloatArray) -> None:
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
        self, chance: StepRandomness, distribution: Distribution, context: TokenContext
    ) -> tuple[int, Distribution | None]:
        """A token of the draft's own choice, and what it was drawn from where the draft is to state it."""
        if self._draws == "greedy":
            return int(distribution.ids[distribution.probs.argmax()]), None
        return chance.draws(distribution, len(context.path)), distribution
