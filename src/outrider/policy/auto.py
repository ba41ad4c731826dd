"""The controller that is never slower: drafts are chosen as far as they pay.

A step that verifies a tree of n nodes costs T(1 + n) instead of T(1), and what drafting costs; it emits the
tokens that are accepted. `Planner` decides by the token rate (token_rate.py); this is the loop's side of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.cost_model import WIDEST
from outrider.policy.mixed_batches import MixedBatchPolicy
from outrider.policy.planner import Planner
from outrider.policy.report import ASLEEP, NO_ROOM, Account, Off, Report, explain
from outrider.policy.request_state import RequestState

_ASLEEP, _NO_ROOM = [Off("", ASLEEP)], [Off("", NO_ROOM)]


class AutoController:
    """Chooses the draft budgets of each step and learns what steps cost; an `AutoDrafter` with the same
    `planner` drafts.

    max_nodes: that one request may have in a step.
    """

    def __init__(self, planner: Planner, *, max_nodes: int = 16) -> None:
        self.planner = planner
        self._max_nodes = max_nodes
        self._batches = MixedBatchPolicy(planner.target, planner.tuning)
        self._report = Report()
        self.step = planner.begin_step(1, 0)  # the last one

    def begin(self) -> RequestState:
        return RequestState()

    def prefill_budget(self, decoding: int, joining: int = 0) -> int:
        return self._batches.prefill_budget(decoding, joining)

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        """Most nodes for each request; 0 where not even looking up is worth its time."""
        self._batches.begin_pass([limits.context for limits in batch])
        new: list[RequestState] = [limits.state for limits in batch if limits.state.step is None]
        step = self.step = self.planner.begin_step(
            self._batches.width, self._batches.context, prompt_tokens=prompt_tokens, new=len(new)
        )
        for state in new:
            self._report.open(state.account)
            self.planner.begin_request(state)
        budgets = []
        for limits in batch:
            state = limits.state
            state.begin_step(step, limits.tokens)
            if state.backoff.sleep and not limits.constrained:
                state.backoff.sleep -= 1
                state.off = _ASLEEP
                budgets.append(0)
            else:
                if limits.max_tokens < 1:
                    state.off = _NO_ROOM
                budgets.append(min(limits.max_tokens, self._max_nodes))
        if not any(budgets):
            self.planner.token_rate.observe(step, step.width, step.curve.seconds(step.base))
        return budgets

    def confidence_rows_wanted(self, state: RequestState) -> int:
        return max(
            (
                self.planner.models[name].target_confidence.rows_wanted(model.confidence)
                for name, model in state.models.items()
            ),
            default=0,
        )

    def record(self, state: RequestState, step: StepRecord) -> None:
        """What a step cost and gave. A pass is learned from when all its requests are recorded."""
        planner, here = self.planner, self.step
        if state.probe_price:
            gained = (step.accepted - step.forced) / here.rate
            planner.budget.give_back(min(state.probe_price, gained))
            state.probe_price = 0.0
        if step.certain:
            for name, model in state.models.items():
                planner.models[name].observe_target(model, step.certain)
        for model in state.models.values():
            model.prefill.tokens += step.emitted
        sampling = step.sampling_seconds / (step.accepted + 1)
        plain = (here.plain + here.prompts) / here.width
        state.account.add(step, step.emitted * (plain + sampling), state.expected)
        if not step.drafted:
            state.account.add_off(state.off)
        planner.budget.pass_time(step.draft_seconds + step.verify_seconds + step.other_seconds)
        if (done := self._batches.record(step)) is not None:
            planner.token_rate.observe_overhead(min(done))

    def explain(self, state: RequestState) -> str:
        """Which drafter ran how often, and what it gave; or why nothing was drafted."""
        return explain(state.account)

    def release(self, state: RequestState) -> None:
        self.planner.end_request(state)
        self._report.close(state.account)

    # --- Accounts ----------------------------------------------------------------------------------

    def account(self) -> Account:
        return self._report.total()

    def take_account(self) -> Account:
        return self._report.take()

    def pass_seconds(self) -> tuple[int, tuple[float, ...]]:
        return self.step.context, tuple(self.step.curve.seconds(n) for n in range(1, WIDEST + 1))
