"""What a controller did for each request, in numbers and in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from outrider.decoding.controller import Controller
from outrider.decoding.types import StepRecord

PLAIN = "none"  # the source of steps without a draft


@dataclass(slots=True)
class Account:
    """Sums over steps.

    steps, drafted, accepted: by drafter; the steps of PLAIN drafted nothing.
    emitted:       tokens.
    seconds:       that the steps took.
    plain_seconds: that plain decoding would have taken for the same tokens, by the cost curve.
    expected:      tokens that the steps were expected to emit.
    """

    steps: Counter[str] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    emitted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    expected: float = 0.0

    def add(self, step: StepRecord, plain_seconds: float, expected: float) -> None:
        source = step.source if step.drafted else PLAIN
        self.steps[source] += 1
        if step.drafted:
            self.drafted[source] += step.drafted
            self.accepted[source] += step.accepted
        self.emitted += step.emitted
        self.seconds += step.draft_seconds + step.verify_seconds + step.other_seconds
        self.plain_seconds += plain_seconds
        self.expected += expected

    def merge(self, other: Account) -> None:
        """Add another account's sums."""
        for mine, more in (
            (self.steps, other.steps),
            (self.drafted, other.drafted),
            (self.accepted, other.accepted),
        ):
            mine.update(more)
        self.emitted += other.emitted
        self.seconds += other.seconds
        self.plain_seconds += other.plain_seconds
        self.expected += other.expected

    def reset(self) -> None:
        """Everything begins at 0."""
        self.steps.clear()
        self.drafted.clear()
        self.accepted.clear()
        self.emitted, self.seconds, self.plain_seconds, self.expected = 0, 0.0, 0.0, 0.0

    @property
    def measured(self) -> float | None:
        """Speed-up over plain decoding; None before the first token."""
        return self.plain_seconds / self.seconds if self.seconds > 0.0 and self.emitted else None

    @property
    def predicted(self) -> float | None:
        """The speed-up if as many tokens had come as were expected."""
        measured = self.measured
        return None if measured is None else measured * self.expected / self.emitted

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": dict(self.steps),
            "measured_speedup": self.measured,
            "predicted_speedup": self.predicted,
        }


class Reporting(Controller, Protocol):
    """A controller that may keep accounts, and know what passes cost."""

    def account(self) -> Account | None:
        """Of all requests so far; None if it keeps none."""

    def take_account(self) -> Account | None:
        """The same, and begin a new account."""

    def pass_seconds(self) -> tuple[int, tuple[float, ...]] | None:
        """(mean context of the current requests in tokens, seconds of a pass over 1, 2, … tokens); None if it
        knows of no costs."""


class Report:
    """Accounts of the requests under way, and the sum over those that have ended."""

    def __init__(self) -> None:
        self.ended = Account()
        self._running: dict[int, Account] = {}  # by identity, in order of their first step

    def open(self, account: Account) -> None:
        self._running[id(account)] = account

    def close(self, account: Account) -> None:
        """Its request has ended; it need not have been opened."""
        if self._running.pop(id(account), None) is not None:
            self.ended.merge(account)

    def total(self) -> Account:
        """Of all requests, those under way and those that have ended."""
        total = Account()
        for account in (self.ended, *self._running.values()):
            total.merge(account)
        return total

    def take(self) -> Account:
        """The total; everything begins at 0 again."""
        total = self.total()
        for account in (self.ended, *self._running.values()):
            account.reset()
        return total


def explain(account: Account, why_off: str) -> str:
    """One line: on or off, which drafter in how many steps, and what it gave."""
    steps = account.steps.total()
    drafted = steps - account.steps[PLAIN]
    if not steps:
        return "off: no step was taken"
    used = ", ".join(
        f"{name} in {count} ({account.accepted[name]} of {account.drafted[name]} tokens accepted)"
        for name, count in account.steps.most_common()
        if name != PLAIN
    )
    if 2 * drafted < steps:
        return f"off in {steps - drafted} of {steps} steps: {why_off}" + (f"; {used}" if used else "")
    measured, predicted = account.measured, account.predicted
    gain = "" if measured is None else f"; ×{measured:.2f} measured, ×{predicted:.2f} predicted"
    return f"on in {drafted} of {steps} steps: {used}{gain}"
