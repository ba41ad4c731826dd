"""A claim: what was checked, whether it held, on how many cases, and the error rate that this bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

CONFIDENCE = 0.95
MAX_LISTED = 3  # contradictions listed in full

Progress: TypeAlias = Callable[[str], object]
"""Called with a few words on what comes next, for a progress bar. May raise to stop."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the report.

    claim:  "identity", "bits" or "distribution".
    held:   False when a single case contradicts it.
    cases:  how many were checked (texts, rows of logits, samples; `detail` says which).
    detail: one line: what was compared, the bound that follows, or the first contradiction.
    """

    claim: str
    held: bool
    cases: int
    detail: str

    def __str__(self) -> str:
        detail = "".join(c if c.isprintable() else " " for c in self.detail)
        return f"{'held' if self.held else 'broken':<7} {self.claim:<13} {detail}"


def document(claims: Sequence[Claim]) -> dict[str, Any]:
    """What `outrider verify --json` prints."""
    return {"claims": [asdict(claim) for claim in claims], "held": all(claim.held for claim in claims)}


def rate_bound(cases: int) -> float:
    """The largest rate of contradictions, 0..1, that would show none in `cases` independent cases with a
    probability of 5%: 1 - 0.05^(1/n), just below the rule of three's 3/n (Hanley and Lippman-Hand 1983)."""
    return float(1.0 - (1.0 - CONFIDENCE) ** (1.0 / cases))


def bound_words(cases: int, what: str) -> str:
    """`rate_bound` in words; it applies only to cases like those checked."""
    return f"fewer than {rate_bound(cases):.2g} of such {what} can differ (95% confidence)"


def listed(contradictions: Sequence[str]) -> str:
    """The first contradictions, and how many more there are."""
    more = len(contradictions) - MAX_LISTED
    return "; ".join([*contradictions[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])
