"""What a controller did for each request, in numbers and in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outrider.decoding.types import StepRecord

PLAIN = "none"


@dataclass(slots=True)
class Account:
    """Sums over steps.

    steps, drafted, accepted: by drafter; the steps of PLAIN drafted nothing.
    emitted:       tokens.
    seconds:       that the steps took; `plain_seconds` is what plain decoding would have taken for the same
                   tokens, as far as the cost curve knows.
    expected:      tokens that were expected.
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


class Report:
    """Accounts by request while they run; `ended` sums up those that have ended."""

    def __init__(self) -> None:
        self.ended = Account()
        self._accounts: dict[str, Account] = {}

    def add(self, request_id: str, step: StepRecord, plain_seconds: float, expected: float) -> None:
        """A step, what plain decoding would have taken for its tokens, and how many were expected."""
        account = self._accounts.get(request_id)
        if account is None:
            account = self._accounts[request_id] = Account()
        account.add(step, plain_seconds, expected)

    def release(self, request_id: str) -> None:
        account = self._accounts.pop(request_id, None)
        if account is not None:
            self.ended.merge(account)

    def of(self, request_id: str) -> Account:
        return self._accounts.get(request_id, Account())

    def total(self) -> Account:
        """Of all requests, those under way and those that have ended."""
        total = Account()
        for account in (self.ended, *self._accounts.values()):
            total.merge(account)
        return total

    def explain(self, request_id: str, why_off: str) -> str:
        """One line: on or off, which drafter in how many steps, and what it gave."""
        account = self.of(request_id)
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
