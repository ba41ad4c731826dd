"""The protocol between the step loop and the drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict

__all__ = ["Drafter", "HiddenStateDrafter", "ProposeJob"]


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

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        """The verdict on a draft, and what the target's pass gave for the anchor and the draft. `scores` is
        valid during the call only. The context of the request's next job has the emitted tokens."""

    def end(self, request_id: str) -> None:
        """The request has ended, with or without an error; it may never have begun."""


@runtime_checkable
class HiddenStateDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states (a head: EAGLE, Li et al. 2024).

    It gets those of every position once: prompt positions by `prefilled`, later ones by `observe`, whose
    `scores.hidden` has the rows of the anchor and of every draft node. The engine must have `hidden_states`.
    """

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers, ascending, as `HiddenStateModel` numbers them; () for none."""

    def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
        """Hidden states of the prompt's positions from `start` on, in order and without gaps, before the
        request's first `propose`. The prompt's last token is the first anchor: it comes with `observe`.

        hidden: float32[n, len(taps) * hidden size]; may be kept, and does not change any more.
        """
