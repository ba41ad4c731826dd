"""The step loop: propose, score, verify, commit, emit, for a batch of sequences at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Controller, DraftLimits
from outrider.decoding.events import Event, FinishEvent, FinishReason, TokenEvent
from outrider.decoding.metrics import CONSTRAINT, RequestMetrics
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.logprobs import TokenLogprobs, token_logprobs
from outrider.decoding.sampling.sampler import RowSampler, Sampler, certainty
from outrider.decoding.stops import Emitter, Finish
from outrider.decoding.types import Draft, StepRecord, TargetScores, TokenKind, Verdict
from outrider.decoding.verifiers.base import Verifier, check_draft
from outrider.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from outrider.drafters.base import Drafter
    from outrider.engines.base import SeqHandle, StepEngine

logger = logging.getLogger(__name__)

PROMPT_ROWS = 32  # rows of logits held at a time for prompt_logprobs: 150k tokens are 0.6 MB a row


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request in the loop; it has a `handle` once it is `opened`."""

    request: Request
    context: TokenContext
    sampler: Sampler
    emitter: Emitter
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    forced: int = 0  # of this step's draft, what the constraint left no choice about
    handle: SeqHandle = field(init=False)
    opened: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def room(self) -> DraftLimits:
        """What it could use of the next step."""
        return DraftLimits(
            self.request_id,
            max(0, self.emitter.remaining - 1),
            len(self.context.tokens),
            self.request.constraint is not None,
            self.request.draft_limit,
        )


@dataclass(frozen=True, slots=True)
class _Cost:
    """A sequence's share of a step's drafting and of its pass, in seconds, and the pass's tokens."""

    draft: float
    verify: float
    width: int


class _Guard:
    """A context in which an exception ends a request, by `finish`. (As a generator it would take longer.)"""

    __slots__ = ("_finish", "_seq")

    def __init__(self, finish: Callable[..., None], seq: _Sequence) -> None:
        self._finish, self._seq = finish, seq

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._finish(self._seq, "error", error=error)
        return True


class StepLoop:
    """Drives a step engine. One thread at a time; a request that fails ends alone, with an error event.

    drafter:       None decodes plainly, through the same code.
    clock:         seconds, for metrics and the controller only; the output never depends on it.
    max_num_seqs:  most sequences in one pass; further requests wait their turn.
    prefill_chunk: most prompt tokens computed per step while nothing decodes, all sequences together; beside
                   decoding the controller says how many.
    max_context:   most tokens of prompt and output; never more than the engine's own limit.
    rows:          filters and draws for the samplers, see `RowSampler`; None draws in NumPy.
    vocab_size:    ids from here on are padding without a token, and are never drawn.

    Raises ConfigError when the engine lacks what the drafter or the verifier needs.
    """

    def __init__(
        self,
        engine: StepEngine,
        drafter: Drafter | None,
        verifier: Verifier,
        controller: Controller,
        *,
        clock: Callable[[], float],
        max_num_seqs: int = 8,
        prefill_chunk: int = 256,
        max_context: int | None = None,
        vocab_size: int | None = None,
        rows: RowSampler | None = None,
    ) -> None:
        for part in (drafter, verifier) if drafter is not None else (verifier,):
            for need in sorted(part.needs):
                if not getattr(engine.caps, need, False):
                    raise ConfigError(f"{part.name} needs {need}, which this engine does not have")
        for name, value in (("max_num_seqs", max_num_seqs), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self._engine, self._drafter, self._verifier, self._controller = engine, drafter, verifier, controller
        self._clock = clock
        self._max_num_seqs = max_num_seqs
        self._prefill_chunk = prefill_chunk
        self._max_context = min(engine.max_positions, max_context or engine.max_positions)
        self._vocab_size = min(engine.vocab_size, vocab_size or engine.vocab_size)
        self._rows = rows
        self._live: dict[str, _Sequence] = {}  # in order of arrival; the first max_num_seqs are in work
        self._outbox: list[Event] = []

    @property
    def unfinished(self) -> bool:
        """Whether `step` has more to do or to tell."""
        return bool(self._live or self._outbox)

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptError or ConfigError when it cannot be run here."""
        if request.request_id in self._live:
            raise ConfigError(f"request id {request.request_id!r} is already in use")
        size, limit = len(request.prompt), self._max_context
        if size >= limit:
            raise PromptError(f"the prompt has {size} tokens; a context of {limit} has room for {limit - 1}")
        for token in request.prompt:
            if not 0 <= token < self._engine.vocab_size:
                last = self._engine.vocab_size - 1
                raise PromptError(f"the prompt has the token id {token}; the vocabulary ends at {last}")
        self._live[request.request_id] = _Sequence(
            request,
            TokenContext(request.prompt),
            Sampler(
                request.params,
                self._vocab_size,
                request.eos_ids,
                request.seed,
                bad_words=request.bad_words,
                constraint=request.constraint,
                rows=self._rows,
            ),
            Emitter(request, limit),
            RequestMetrics(arrived=self._clock()),
        )

    def abort(self, request_id: str) -> None:
        """End a request now; its FinishEvent comes with the next step. An unknown id is ignored."""
        if request_id in self._live:
            seq = self._live[request_id]
            with self._guard(seq):
                self._finish(seq, "abort", text_tail=seq.emitter.drain())

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests to their ends. Leaving the iterator early gives every cache back."""
        try:
            for request in requests:
                self.add(request)
            while self.unfinished:
                yield from self.step()
        finally:
            self.close()

    def close(self) -> None:
        """Drop all requests and give their caches back, without events."""
        for seq in list(self._live.values()):
            self._release(seq)
        self._outbox.clear()

    def step(self) -> list[Event]:
        """One step of every sequence in work. An exception of the engine closes the loop and is raised."""
        try:
            batch = list(islice(self._live.values(), self._max_num_seqs))
            for seq in batch:
                if not seq.opened:
                    self._open(seq)
            batch = [seq for seq in batch if seq.opened]
            ready = [seq for seq in batch if not len(seq.handle.pending)]
            waiting = [seq for seq in batch if len(seq.handle.pending)]
            beside = self._beside(ready, waiting) if ready else []
            if not ready:
                self._prefill(waiting, min(self._prefill_chunk, self._controller.beside(0)))
                ready = [seq for seq in self._alive(waiting) if not len(seq.handle.pending)]
            if ready:
                self._decode(ready, beside)
        except BaseException:
            self.close()
            raise
        events, self._outbox = self._outbox, []
        return events

    def _alive(self, batch: list[_Sequence]) -> list[_Sequence]:
        """Those of a batch that no error has ended."""
        return [seq for seq in batch if seq.request_id in self._live]

    def _open(self, seq: _Sequence) -> None:
        with self._guard(seq):
            if self._drafter is not None:
                self._drafter.begin(seq.request)
            capacity = len(seq.request.prompt) + seq.emitter.remaining
            # A prompt that is to be reported on is computed as a whole.
            namespace = None if seq.request.params.prompt_logprobs is not None else seq.request.namespace
            seq.handle = self._engine.open(seq.request.prompt, capacity, namespace)
            seq.opened = True

    def _beside(self, ready: list[_Sequence], waiting: list[_Sequence]) -> list[tuple[SeqHandle, int]]:
        """Prompt tokens that join the pass of those that decode, so that no text has to wait for another's
        prompt: how many of which sequence. Prompts that are to be reported on are computed here and now."""
        if not waiting:
            return []
        left = self._controller.beside(len(ready), len(waiting))
        joining = []
        for seq in waiting:
            take = min(left, len(seq.handle.pending))
            if take and seq.request.params.prompt_logprobs is not None:
                self._prefill([seq], take)
            elif take:
                joining.append((seq.handle, take))
            left -= take
        return joining

    def _prefill(self, waiting: list[_Sequence], left: int) -> None:
        """Compute up to so many tokens of prompts, in order."""
        for seq in waiting:
            if left:
                with self._guard(seq):
                    left -= self._compute(seq, left)

    def _compute(self, seq: _Sequence, most: int) -> int:
        """Compute at most `most` tokens of a prompt, and what is to be reported of them. Returns how many."""
        waiting, wanted = len(seq.handle.pending), seq.request.params.prompt_logprobs
        if wanted is None:
            return waiting - self._engine.prefill(seq.handle, most)
        end = max(0, waiting - most)
        while (left := len(seq.handle.pending) - end) > 0:
            for row in self._engine.prefill_scores(seq.handle, min(left, PROMPT_ROWS)):
                token = seq.request.prompt[len(seq.prompt_logprobs) + 1]
                seq.prompt_logprobs.append(token_logprobs(row[: self._vocab_size], token, wanted))
        return waiting - end

    def _decode(self, batch: list[_Sequence], prompts: list[tuple[SeqHandle, int]]) -> None:
        """Propose, score, then verify, emit and commit each sequence on its own. `prompts` share the pass."""
        began = self._clock()
        prompt_tokens = sum(count for _, count in prompts)
        drafts = self._propose(batch, prompt_tokens)
        batch = self._alive(batch)
        if not batch:
            return
        drafted = self._clock()
        nothing = Draft.empty()
        pairs = [(seq.handle, drafts.get(seq.request_id, nothing)) for seq in batch]
        scores = self._engine.score(pairs, prompts)
        cost = _Cost(
            draft=(drafted - began) / max(1, len(drafts)),
            verify=(self._clock() - drafted) / len(batch),
            width=prompt_tokens + sum(1 + len(draft) for _, draft in pairs),
        )
        for seq, rows in zip(batch, scores, strict=True):
            with self._guard(seq):
                self._settle(seq, drafts.get(seq.request_id), rows, cost)

    def _propose(self, batch: list[_Sequence], prompt_tokens: int) -> dict[str, Draft]:
        """Drafts by request, for those that the controller gives a budget: what the constraint leaves no
        choice about, and behind it what the drafter proposes."""
        rooms = [seq.room() for seq in batch]
        budgets = self._controller.choose(rooms, prompt_tokens)
        drafter = self._drafter
        if drafter is None:
            return {}
        asked: list[tuple[_Sequence, ProposeJob]] = []
        drafts: dict[str, Draft] = {}
        for seq, room, budget in zip(batch, rooms, budgets, strict=True):
            most, seq.forced = min(budget, room.most), 0
            if most > 0:
                with self._guard(seq):
                    ahead = seq.context.along(seq.sampler.forced(seq.context, most)[:most])
                    seq.forced = len(ahead.path)
                    if (left := most - len(ahead.path)) and not seq.sampler.ended(ahead):
                        job = ProposeJob(
                            seq.request_id, ahead, left, seq.sampler, drafters=seq.request.drafters
                        )
                        asked.append((seq, job))
                    else:
                        drafts[seq.request_id] = Draft.chain(ahead.path, CONSTRAINT)
        found: list[Draft | None] = [None] * len(asked)
        try:
            if asked:
                proposed = drafter.propose([job for _, job in asked])
                found = [draft for _, draft in zip(asked, proposed, strict=True)]
        except Exception as error:  # whose fault it is shows when each is asked alone
            logger.warning("drafter %s failed on a batch: %r", drafter.name, error)
        for (seq, job), draft in zip(asked, found, strict=True):
            with self._guard(seq):
                mine = draft if draft is not None else drafter.propose([job])[0]
                tree = self._engine.caps.tree_attention
                mine = check_draft(mine, self._engine.vocab_size, job.budget, tree=tree)
                drafts[seq.request_id] = mine.after(job.context.path, CONSTRAINT)
        return drafts

    def _settle(self, seq: _Sequence, drafted: Draft | None, scores: TargetScores, cost: _Cost) -> None:
        """Verify one sequence's draft, emit what survives up to the output's end, and commit the rest."""
        draft = drafted or Draft.empty()
        began = self._clock()
        verdict = self._verifier.verify(draft, scores, seq.sampler, seq.context)
        sampled = self._clock()
        tokens = [int(draft.tokens[node]) for node in verdict.path] + [verdict.next_token]
        kinds: list[TokenKind] = ["accepted"] * len(verdict.path)
        sources = [*map(draft.origin, verdict.path), None]
        reports = self._reports(seq, scores, verdict, tokens)
        if self._drafter is not None:
            self._drafter.observe(seq.request_id, draft, verdict)
        emitted, finish = 0, None
        told = zip(tokens, [*kinds, verdict.next_kind], sources, reports, strict=True)
        for token, kind, source, report in told:
            text, finish = seq.emitter.push(token)
            seq.context.append(token)
            if (finish is None or finish.reason == "length") and seq.sampler.ended(seq.context):
                text, finish = text + seq.emitter.drain() * (finish is None), Finish("stop")
            prompt = self._prompt_report(seq)
            self._outbox.append(TokenEvent(seq.request_id, token, text, kind, report, prompt, source))
            emitted += 1
            if finish is not None:
                break
        else:
            self._engine.commit(seq.handle, verdict)
        now = self._clock()
        step = StepRecord(
            source=draft.source,
            drafted=len(draft),
            accepted=len(verdict.path),
            emitted=emitted,
            draft_seconds=0.0 if drafted is None else cost.draft,
            verify_seconds=cost.verify,
            other_seconds=now - began,
            accepted_depths=tuple(range(1, len(verdict.path) + 1)),
            sampling_seconds=sampled - began,
            forced=seq.forced,
            width=cost.width,
            certain=self._certain(seq, scores, verdict),
        )
        seq.metrics.record(step, now)
        self._controller.record(seq.request_id, step)
        if finish is not None:
            self._finish(seq, finish.reason, finish.stop_reason)

    def _reports(
        self, seq: _Sequence, scores: TargetScores, verdict: Verdict, tokens: Sequence[int]
    ) -> Iterator[TokenLogprobs | None]:
        """What is to be reported of each token of a verdict, computed when it is emitted."""
        wanted = seq.request.params.logprobs
        for node, token in zip((-1, *verdict.path), tokens, strict=True):
            if wanted is None:
                yield None
            else:
                yield token_logprobs(scores.logits[node + 1][: self._vocab_size], token, wanted)

    def _certain(self, seq: _Sequence, scores: TargetScores, verdict: Verdict) -> tuple[float, ...]:
        """How certain the target was of what survived, as far as the controller would like to know."""
        if (wanted := self._controller.curious(seq.request_id)) <= 0:
            return ()
        rows = islice((-1, *verdict.path), wanted)
        return tuple([certainty(scores.logits[node + 1][: self._vocab_size]) for node in rows])

    def _prompt_report(self, seq: _Sequence) -> tuple[TokenLogprobs, ...] | None:
        """The prompt's log-probabilities, with the first token of output if they are asked for."""
        if seq.request.params.prompt_logprobs is None or seq.context.output_length != 1:
            return None
        report = tuple(seq.prompt_logprobs)
        seq.prompt_logprobs.clear()
        return report

    def _guard(self, seq: _Sequence) -> _Guard:
        """Let an exception end this request only."""
        return _Guard(self._finish, seq)

    def _finish(
        self,
        seq: _Sequence,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        text_tail: str = "",
        error: Exception | None = None,
    ) -> None:
        if self._drafter is None:
            seq.metrics.speculation = "off: there is no drafter"
        elif seq.request.draft_limit == 0:
            seq.metrics.speculation = "off: plain decoding was asked for"
        else:
            seq.metrics.speculation = self._controller.explain(seq.request_id)
        if seq.opened:
            seq.metrics.cached_tokens = seq.handle.cached
        self._release(seq)
        event = FinishEvent(seq.request_id, reason, stop_reason, text_tail, seq.metrics, error)
        self._outbox.append(event)

    def _release(self, seq: _Sequence) -> None:
        """Give back all that is held for a request. Each part gets its turn whatever another does."""
        del self._live[seq.request_id]
        releases: list[Callable[[], None]] = [lambda: self._controller.release(seq.request_id)]
        if seq.opened:
            releases.append(lambda: self._engine.close(seq.handle))
        if (drafter := self._drafter) is not None:
            releases.append(lambda: drafter.end(seq.request_id))
        for release in releases:
            try:
                release()
            except Exception:
                logger.exception("request %s could not be released fully", seq.request_id)
