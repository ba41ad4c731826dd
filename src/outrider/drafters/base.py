"""The protocol between the step loop and the drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, Verdict

__all__ = ["Drafter", "ProposeJob"]


class Drafter(Protocol):
    """Proposes drafts. A wrong draft costs time only: the output never depends on what is proposed.

    name:  for metrics, and for requests that choose their drafters.
    needs: names of `EngineCaps` fields that the target's engine must have, such as "tree_attention".
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    def begin(self, request: Request) -> None:
        """A request starts. Costly work belongs into its first `propose`."""

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        """One draft of at most `budget` nodes for each job, in order; an empty draft to propose nothing.

        When it raises, the loop calls it again for each job alone, so a failed call must leave the drafter
        usable.
        """

    def observe(self, request_id: str, draft: Draft, verdict: Verdict) -> None:
        """The verdict on a draft. The context of the request's next job has the emitted tokens."""

    def end(self, request_id: str) -> None:
        """The request has ended, with or without an error; it may never have begun."""
