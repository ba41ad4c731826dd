"""The seam between the step loop and whatever guesses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, Verdict

__all__ = ["Drafter", "ProposeJob"]


class Drafter(Protocol):
    """Proposes drafts. It may be wrong at no cost but time: the output never depends on it.

    needs: names of EngineCaps fields that the target's engine must have, such as "tree_attention".
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    def begin(self, request: Request) -> None:
        """A request starts. Anything costly waits for its first `propose`."""

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        """One draft of at most `budget` nodes for each job, in order; empty when there is no idea.

        If it raises, the loop asks again job by job, so a failed call must leave a state to go on from.
        """

    def observe(self, request_id: str, draft: Draft, verdict: Verdict) -> None:
        """What the target kept of a draft. `context` already holds the new tokens at the next propose."""

    def end(self, request_id: str) -> None:
        """The request has ended, well or not; it may never have begun."""
