"""How likely a drafter's next token is to be accepted, learned as drafts are verified.

A drafter's own confidence is sorted into bins and calibrated by the outcomes of all requests (histogram
calibration, Zadrozny and Elkan 2001, with Beta posteriors). A bin with few outcomes is taken at its centre as
far as confidence has predicted better than the mean rate. How one request differs from the others is a factor
on the odds, learned from its latest tokens (`RequestRates`).

It runs in every step, right after a pass has emptied the processor's caches, so it is in C++ (csrc/policy/).
"""

from __future__ import annotations

from outrider.policy._estimates import (
    CENTRES,
    EDGES,
    MAX_PROBABILITY,
    SHARED_DECAY,
    AcceptanceRates,
    RequestRates,
    stage_of,
)

__all__ = [
    "CENTRES",
    "EDGES",
    "MAX_PROBABILITY",
    "SHARED_DECAY",
    "AcceptanceRates",
    "RequestRates",
    "stage_of",
]
