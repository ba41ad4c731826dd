"""What speculation keeps of one request."""

from __future__ import annotations

from outrider.policy.draft_model import DraftModelState
from outrider.policy.exploration import ProbeSchedule
from outrider.policy.lookup import LookupState
from outrider.policy.lookup_backoff import BackoffState
from outrider.policy.report import Account, Off
from outrider.policy.token_rate import StepContext
from outrider.policy.tree import Node


class RequestState:
    """Made by `AutoController.begin` and handed along with the request until it is released.

    account:     what its steps did.
    backoff:     when it goes without lookups.
    lookups, models: what each source knows of it, by the drafter's name; filled at its first step.

    Of the current step:
    step:        what is known of it; None before the first.
    tokens_left: tokens that may still be drafted until the output ends.
    tree:        the nodes to verify, until they are learned from; `tree_source` is the draft model that grew
                 some of them.
    expected:    tokens that the step is expected to emit.
    probe_price: seconds taken from the exploration budget.
    proposed:    nodes that the drafter proposed.
    off:         why nothing is drafted, if nothing is; for each source.
    """

    __slots__ = (
        *("account", "backoff", "expected", "lookups", "models", "off"),
        *("probe_price", "proposed", "step", "tokens_left", "tree", "tree_source"),
    )

    def __init__(self) -> None:
        self.account, self.backoff = Account(), BackoffState()
        self.lookups: dict[str, LookupState] = {}
        self.models: dict[str, DraftModelState] = {}
        self.step: StepContext | None = None
        self.tree: list[Node] = []
        self.tree_source: str | None = None
        self.expected = 1.0
        self.tokens_left = self.proposed = 0
        self.probe_price = 0.0
        self.off: list[Off] = []

    def begin_step(self, step: StepContext, tokens_left: int) -> None:
        self.step, self.tokens_left, self.expected = step, tokens_left, 1.0
        self.tree, self.tree_source, self.proposed, self.off = [], None, 0, []
        for lookup in self.lookups.values():
            lookup.offered = None
        for probes in self.probe_schedules:
            probes.begin_step()

    @property
    def probe_schedules(self) -> list[ProbeSchedule]:
        """Of all drafters."""
        lookups = [lookup.probes for lookup in self.lookups.values()]
        return lookups + [model.probes for model in self.models.values()]
