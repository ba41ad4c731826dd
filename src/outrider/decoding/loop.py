"""The step loop: propose, score, verify, emit and commit, for a batch of sequences at a time.

`step` chooses what shares a pass, `_decode` runs the pass, `_settle` finishes it for one sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, cast

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Controller, RequestState
from outrider.decoding.drawing import row_draws
from outrider.decoding.events import Event, FinishEvent, FinishReason, TokenEvent
from outrider.decoding.guard import Guard
from outrider.decoding.metrics import CONSTRAINT, EARLIER_OUTPUTS, PREDICTION, RequestMetrics
from outrider.decoding.prefill import PromptLogprobs, PromptPace, prefill
from outrider.decoding.request import ProposeJob, Request, check_prompt
from outrider.decoding.running import Cost, Running
from outrider.decoding.sampling.logprobs import token_reports
from outrider.decoding.sampling.sampler import RowSampler, Sampler, top_probability
from outrider.decoding.stops import Emitter, Finish
from outrider.decoding.types import Draft, StepRecord, TargetScores, TokenKind, Verdict
from outrider.decoding.verifiers.base import Verifier, check_draft
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.drafters.base import Drafter, HiddenStateDrafter
    from outrider.engines.base import SeqHandle, StepEngine

logger = logging.getLogger(__name__)


class StepLoop:
    """Drives a step engine; implements `engines.runner.Runner`. Use it from one thread at a time. A request
    that fails ends alone, with an error event.

    drafter:       None is plain decoding, through the same code.
    clock:         seconds, for metrics and the controller only; the output never depends on it.
    max_num_seqs:  most sequences in one pass; further requests wait.
    prefill_chunk: most prompt tokens of a pass in which no sequence decodes, all sequences together; those of
                   engines with `whole_prompts` may be wider, see `PromptPace`. How many prompt tokens a mixed
                   batch has is the controller's choice.
    max_context:   most tokens of prompt and output; never more than the engine's own limit.
    vocab_size:    ids from here on are padding without a token, and are never sampled.
    rows:          filters and samples rows of logits, see `RowSampler`; None is the NumPy implementation.
    pace:          of prompts, as earlier loops on this engine have learned it.
    on_end:        called when a request has ended, with what its controller kept; must not raise.

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
        pace: PromptPace | None = None,
        on_end: Callable[[Request, RequestMetrics, RequestState], object] = lambda *_: None,
    ) -> None:
        self._taps: tuple[int, ...] = getattr(drafter, "taps", ())  # see HiddenStateDrafter
        for part in (drafter, verifier) if drafter is not None else (verifier,):
            tapped = {"hidden_states"} if part is drafter and self._taps else set[str]()
            for need in sorted(part.needs | tapped):
                if not getattr(engine.caps, need, False):
                    raise ConfigError(f"{part.name} needs {need}, which this engine does not have")
        for name, value in (("max_num_seqs", max_num_seqs), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self._engine, self._drafter, self._verifier, self._controller = engine, drafter, verifier, controller
        self._drawn_rows = engine.caps.draws_rows and verifier.drawn_rows
        self._clock, self._on_end = clock, on_end
        self._max_num_seqs = max_num_seqs
        self._prefill_chunk, self._pace = prefill_chunk, pace or PromptPace()
        self._max_context = min(engine.max_positions, max_context or engine.max_positions)
        self._vocab_size = min(engine.vocab_size, vocab_size or engine.vocab_size)
        self._rows = rows
        self._live: dict[str, Running] = {}  # in order of arrival; the first max_num_seqs are running
        self._outbox: list[Event] = []

    @property
    def unfinished(self) -> bool:
        """Whether `step` has tokens to compute or events to return."""
        return bool(self._live or self._outbox)

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptError or ConfigError when it cannot be run here."""
        if request.request_id in self._live:
            raise ConfigError(f"request id {request.request_id!r} is already in use")
        check_prompt(request.prompt, self._engine.vocab_size, self._max_context)
        self._live[request.request_id] = seq = Running(
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
            Emitter(request, self._max_context),
            RequestMetrics(arrived=self._clock()),
            PromptLogprobs(request),
        )
        seq.state = self._controller.begin()

    def abort(self, request_id: str) -> None:
        """End a request now; its FinishEvent comes with the next step. An unknown id is ignored."""
        if (seq := self._live.get(request_id)) is not None:
            with self._guard(seq):
                self._finish(seq, "abort", text_tail=seq.emitter.drain())

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests to their ends. Leaving the iterator early frees every cache."""
        try:
            for request in requests:
                self.add(request)
            while self.unfinished:
                yield from self.step()
        finally:
            self.close()

    def close(self) -> None:
        """Drop all requests and free their caches, without events."""
        for seq in list(self._live.values()):
            self._release(seq)
        self._outbox.clear()

    def step(self) -> list[Event]:
        """One step of every running sequence. An exception of the engine closes the loop and is raised."""
        try:
            batch = list(islice(self._live.values(), self._max_num_seqs))
            for seq in batch:
                if not seq.opened:
                    self._open(seq)
            batch = self._hand_over([seq for seq in batch if seq.opened])
            ready = [seq for seq in batch if not len(seq.handle.pending)]
            waiting = [seq for seq in batch if len(seq.handle.pending)]
            prompts = self._mixed(ready, waiting) if ready else []
            if not ready and not self._prompts(waiting):
                waiting = self._hand_over(self._alive(waiting))
                ready = [seq for seq in waiting if not len(seq.handle.pending)]
            if ready:
                self._decode(ready, prompts)
        except BaseException:
            self.close()
            raise
        events, self._outbox = self._outbox, []
        return events

    def _alive(self, batch: list[Running]) -> list[Running]:
        """The sequences of a batch that no error has ended."""
        return [seq for seq in batch if seq.request_id in self._live]

    def _open(self, seq: Running) -> None:
        with self._guard(seq):
            if self._drafter is not None:
                self._drafter.begin(seq.request)
            capacity = len(seq.request.prompt) + seq.emitter.remaining
            # prompt_logprobs need the whole prompt computed: nothing of it may come from the prefix cache.
            namespace = None if seq.prompt_logprobs.count is not None else seq.request.namespace
            seq.handle = self._engine.open(seq.request.prompt, capacity, namespace, self._taps)
            seq.opened = True

    def _hand_over(self, batch: list[Running]) -> list[Running]:
        """Give the drafter the prompts' hidden states since the last time. Returns the batch without those
        that an error has ended."""
        if not self._taps:
            return batch
        drafter = cast("HiddenStateDrafter", self._drafter)
        for seq in batch:
            assert seq.handle.hidden is not None, "opened with taps"
            with self._guard(seq):
                for start, rows in seq.handle.hidden.take_prompt():
                    drafter.prefilled(seq.request_id, start, rows)
        return self._alive(batch)

    def _mixed(self, ready: list[Running], waiting: list[Running]) -> list[tuple[SeqHandle, int]]:
        """Chunked prefill: how many prompt tokens of which sequence share the pass of those that decode.
        Prompts with log-probabilities cannot share it; their chunks are computed here."""
        if not waiting:
            return []
        left = self._controller.prefill_budget(len(ready), len(waiting))
        prompts = []
        for seq in waiting:
            count = min(left, len(seq.handle.pending))
            if count and seq.prompt_logprobs.count is not None:
                self._prefill([seq], count)
            elif count:
                prompts.append((seq.handle, count))
            left -= count
        return prompts

    def _prompts(self, waiting: list[Running]) -> bool:
        """Passes of prompts alone. Returns whether they gave the first tokens of some."""
        left, first = min(self._prefill_chunk, self._controller.prefill_budget(0)), False
        if not (most := self._engine.caps.whole_prompts):
            self._prefill(waiting, left)
            return first
        left = self._pace.budget(left, most)
        for seq in waiting:
            began, pending, cached = self._clock(), len(seq.handle.pending), seq.handle.cached
            # Under other rules a seed's text depends on where drafts begin, and none begins with this token.
            last = pending < left and seq.prompt_logprobs.count is None and self._verifier.drawn_rows
            if last:
                with self._guard(seq):
                    self._first(seq)
                first, left = True, left - pending - 1
            elif left:
                self._prefill([seq], left)
                left -= pending - len(seq.handle.pending)
            computed = pending - len(seq.handle.pending) - (seq.handle.cached - cached)
            self._pace.observe(computed, self._clock() - began)
        return first

    def _first(self, seq: Running) -> None:
        """The rest of a prompt and the token after it in one pass, without a draft. The controller learns
        nothing of it, as it learns nothing of prompts."""
        (scores,) = self._engine.score(
            [(seq.handle, Draft.empty())], (), [row_draws(seq.sampler, seq.context, Draft.empty())]
        )
        if self._hand_over([seq]):
            self._settle(seq, None, scores, None)

    def _prefill(self, waiting: list[Running], left: int) -> None:
        """Compute up to `left` prompt tokens, sequence by sequence."""
        for seq in waiting:
            if left:
                with self._guard(seq):
                    left -= prefill(self._engine, seq.handle, seq.prompt_logprobs, left, self._vocab_size)

    def _decode(self, batch: list[Running], prompts: list[tuple[SeqHandle, int]]) -> None:
        """Propose, score, then verify, emit and commit sequence by sequence. `prompts` share the pass."""
        began = self._clock()
        prompt_tokens = sum(count for _, count in prompts)
        drafts = self._propose(batch, prompt_tokens)
        batch = self._alive(batch)
        if not batch:
            return
        drafted = self._clock()
        nothing = Draft.empty()
        pairs = [(seq.handle, drafts.get(seq.request_id, nothing)) for seq in batch]
        each = zip(batch, pairs, strict=True) if self._drawn_rows else ()
        draws = [row_draws(seq.sampler, seq.context, draft) for seq, (_, draft) in each]
        scores = self._engine.score(pairs, prompts, draws)
        cost = Cost(
            draft=(drafted - began) / max(1, len(drafts)),
            verify=(self._clock() - drafted) / len(batch),
            width=prompt_tokens + sum(1 + len(draft) for _, draft in pairs),
        )
        for seq, rows in zip(batch, scores, strict=True):
            with self._guard(seq):
                self._settle(seq, drafts.get(seq.request_id), rows, cost)

    def _propose(self, batch: list[Running], prompt_tokens: int) -> dict[str, Draft]:
        """Drafts by request, for those that the controller gives a budget: first the tokens that the
        constraint leaves no choice about, then what the drafter proposes to follow them."""
        limits = [seq.limits() for seq in batch]
        budgets = self._controller.choose(limits, prompt_tokens)
        drafter = self._drafter
        if drafter is None:
            return {}
        asked: list[tuple[Running, ProposeJob]] = []
        drafts: dict[str, Draft] = {}
        for seq, limit, budget in zip(batch, limits, budgets, strict=True):
            most, seq.forced = min(budget, limit.max_tokens), 0
            if most > 0:
                with self._guard(seq):
                    ahead = seq.context.along(seq.sampler.forced(seq.context, most)[:most])
                    seq.forced = len(ahead.path)
                    if (left := most - len(ahead.path)) and not seq.sampler.ended(ahead):
                        job = ProposeJob(
                            seq.request_id,
                            ahead,
                            left,
                            seq.sampler,
                            drafters=seq.request.drafters,
                            state=seq.state,
                        )
                        asked.append((seq, job))
                    else:
                        drafts[seq.request_id] = Draft.chain(ahead.path, CONSTRAINT)
        found: list[Draft | None] = [None] * len(asked)
        try:
            if asked:
                proposed = drafter.propose([job for _, job in asked])
                found = [draft for _, draft in zip(asked, proposed, strict=True)]
        except Exception as error:  # asking job by job finds the request that fails
            logger.warning("drafter %s failed on a batch: %r", drafter.name, error)
        for (seq, job), draft in zip(asked, found, strict=True):
            with self._guard(seq):
                mine = draft if draft is not None else drafter.propose([job])[0]
                tree = self._engine.caps.tree_attention
                mine = check_draft(mine, self._engine.vocab_size, job.budget, tree=tree)
                drafts[seq.request_id] = mine.after(job.context.path, CONSTRAINT)
        return drafts

    def _settle(self, seq: Running, drafted: Draft | None, scores: TargetScores, cost: Cost | None) -> None:
        """Verify one sequence's draft, emit the accepted tokens up to the output's end, commit. cost: None
        for the pass of a prompt."""
        draft = drafted or Draft.empty()
        began = self._clock()
        verdict = self._verifier.verify(draft, scores, seq.sampler, seq.context)
        sampled = self._clock()
        if self._drafter is not None:
            self._drafter.observe(seq.request_id, draft, verdict, scores)
        emitted, finish = self._emit(seq, draft, scores, verdict)
        if finish is None:
            self._engine.commit(seq.handle, verdict)
        now = self._clock()
        step = StepRecord(
            source=draft.source,
            drafted=len(draft),
            accepted=len(verdict.path),
            emitted=emitted,
            draft_seconds=0.0 if drafted is None or cost is None else cost.draft,
            verify_seconds=0.0 if cost is None else cost.verify,
            other_seconds=now - began,
            accepted_depths=tuple(range(1, len(verdict.path) + 1)),
            rejected_depth=emitted if verdict.next_kind == "recovered" and emitted > len(verdict.path) else 0,
            sampling_seconds=sampled - began,
            forced=seq.forced,
            width=1 if cost is None else cost.width,
            certain=() if cost is None else self._certain(seq, scores, verdict),
            predicted=draft.count_of(PREDICTION, verdict.path[:emitted]),
            earlier=draft.count_of(EARLIER_OUTPUTS, verdict.path[:emitted]),
        )
        seq.metrics.record(step, now)
        if cost is not None:
            self._controller.record(seq.state, step)
        if finish is not None:
            self._finish(seq, finish.reason, finish.stop_reason)

    def _emit(
        self, seq: Running, draft: Draft, scores: TargetScores, verdict: Verdict
    ) -> tuple[int, Finish | None]:
        """Emit a verdict's tokens one by one until one ends the output. Returns how many were emitted."""
        tokens = [int(draft.tokens[node]) for node in verdict.path] + [verdict.next_token]
        kinds: list[TokenKind] = ["accepted"] * len(verdict.path)
        kinds.append(verdict.next_kind)
        sources = [*map(draft.origin, verdict.path), None]
        reports = token_reports(seq.request.params, scores, verdict.path, tokens, self._vocab_size)
        emitted, finish = 0, None
        for token, kind, source, report in zip(tokens, kinds, sources, reports, strict=True):
            text, finish = seq.emitter.push(token)
            seq.context.append(token)
            if (finish is None or finish.reason == "length") and seq.sampler.ended(seq.context):
                text, finish = text + seq.emitter.drain() * (finish is None), Finish("stop")
            prompt = seq.prompt_logprobs.take()
            self._outbox.append(TokenEvent(seq.request_id, token, text, kind, report, prompt, source))
            emitted += 1
            if finish is not None:
                break
        return emitted, finish

    def _certain(self, seq: Running, scores: TargetScores, verdict: Verdict) -> tuple[float, ...]:
        """The target's probability of its likeliest token, for as many rows as the controller wants."""
        if (wanted := self._controller.confidence_rows_wanted(seq.state)) <= 0:
            return ()
        rows = islice((-1, *verdict.path), wanted)
        if scores.drawn is not None:
            return tuple([scores.drawn.likeliest[node + 1] for node in rows])
        return tuple([top_probability(scores.logits[node + 1][: self._vocab_size]) for node in rows])

    def _guard(self, seq: Running) -> Guard:
        """A context manager: an exception inside ends this request only."""
        return Guard(lambda error: self._finish(seq, "error", error=error))

    def _finish(
        self,
        seq: Running,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        text_tail: str = "",
        error: Exception | None = None,
    ) -> None:
        plain = self._drafter is None or seq.request.draft_limit == 0
        off = "there is no drafter" if self._drafter is None else "plain decoding was asked for"
        seq.metrics.speculation = f"off: {off}" if plain else self._controller.explain(seq.state)
        if seq.opened:
            seq.metrics.cached_tokens = seq.handle.cached
        self._on_end(seq.request, seq.metrics, seq.state)
        self._release(seq)
        event = FinishEvent(seq.request_id, reason, stop_reason, text_tail, seq.metrics, error)
        self._outbox.append(event)

    def _release(self, seq: Running) -> None:
        """Free what the controller, engine and drafter hold for a request; an error of one skips no other."""
        del self._live[seq.request_id]
        releases: list[Callable[[], None]] = [lambda: self._controller.release(seq.state)]
        if seq.opened:
            releases.append(lambda: self._engine.close(seq.handle))
        if (drafter := self._drafter) is not None:
            releases.append(lambda: drafter.end(seq.request_id))
        for release in releases:
            try:
                release()
            except Exception:
                logger.exception("request %s could not be released fully", seq.request_id)
