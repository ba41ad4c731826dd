"""How likely a drafter's next token is to be accepted, learned as the drafts are verified.

A drafter's own confidence is sorted into bins and calibrated by what came of it (a histogram calibration,
Zadrozny and Elkan 2001, with Beta posteriors), all requests together; a bin of which little is known is taken
at its word as far as confidence has foretold better than the mean. How much better or worse a drafter does in
one request than expected is a factor on the odds, learned from its latest tokens.

It runs in every step, after a pass has emptied the processor's caches, so it is in C++ (csrc/policy/).
"""

from __future__ import annotations

from outrider.policy._estimates import CENTRES, EDGES, MOST, SHARED_MEMORY, Acceptance, stage_of

__all__ = ["CENTRES", "EDGES", "MOST", "SHARED_MEMORY", "Acceptance", "count_in", "stage_of"]


def count_in(count: list[float], got: float) -> None:
    """One token more, of which `got` is to be summed: older ones count less."""
    count[0] = SHARED_MEMORY * count[0] + got
    count[1] = SHARED_MEMORY * count[1] + 1.0
