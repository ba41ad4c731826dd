"""What a controller did for each request, in numbers and in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from outrider.decoding.controller import Controller
from outrider.decoding.types import StepRecord

PLAIN = "none"  # the source of steps without a draft


class Off(NamedTuple):
    """Why a source drafted nothing in a step.

    reason: a key of _WORDS.
    chance: UNLIKELY: that its first token would have been accepted, 0..1.
    need:   UNLIKELY: the chance from which that would have paid; PREFILL: plain steps that it would take.
    """

    source: str
    reason: str
    chance: float = 0.0
    need: float = 0.0


NOTHING, UNLIKELY, PRUNED, CANNOT = "nothing", "unlikely", "pruned", "cannot"
PREFILL, COLD = "prefill", "cold"
MEASURING, ASLEEP, NO_ROOM, NO_DRAFTER = "measuring", "asleep", "no room", "no drafter"
SLOW = "slow"  # UNLIKELY where no chance would have been enough

_WORDS = {
    NOTHING: "{source} found nothing in {steps}",
    UNLIKELY: "{source} was too unlikely to be right in {steps} ({chance}, and it pays from {need})",
    SLOW: "{source} was too slow to pay in {steps}, however likely",
    PRUNED: "what {source} drew was too unlikely to be right in {steps}",
    CANNOT: "{source} could not draft in {steps}",
    PREFILL: "{source} would have had to read what it had missed first in {steps} (for {need} plain steps)",
    COLD: "{source} was being tried on another text in {steps}",
    MEASURING: "a plain pass was timed in {steps}",
    ASLEEP: "lookups, which had saved less time than they take, were left out in {steps}",
    NO_ROOM: "there was room for one token only in {steps}",
    NO_DRAFTER: "there is no drafter",
}

_CLAUSE = re.compile(r"(.+?) in (\d+)(?: \(.*\))?(.*)")  # words, steps, figures and further words


@dataclass(slots=True)
class Account:
    """Sums over steps.

    steps, drafted, accepted: by drafter; the steps of PLAIN drafted nothing.
    emitted:       tokens.
    seconds:       that the steps took.
    plain_seconds: that plain decoding would have taken for the same tokens, by the cost curve.
    expected:      tokens that the steps were expected to emit.
    off:           of steps without a draft, by source and reason: how many, and the sums of Off.chance and
                   Off.need.
    """

    steps: Counter[str] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    emitted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    expected: float = 0.0
    off: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add_off(self, reasons: Iterable[Off]) -> None:
        """A step without a draft, and why."""
        for source, reason, chance, need in reasons:
            self._add_off((source, reason), 1.0, chance, need)

    def _add_off(self, key: tuple[str, str], steps: float, chance: float, need: float) -> None:
        sums = self.off.setdefault(key, [0.0, 0.0, 0.0])
        sums[0] += steps
        sums[1] += chance
        sums[2] += need

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
        for key, sums in other.off.items():
            self._add_off(key, *sums)

    def reset(self) -> None:
        """Everything begins at 0."""
        self.steps.clear()
        self.drafted.clear()
        self.accepted.clear()
        self.off.clear()
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


def explain(account: Account) -> str:
    """One line: on or off, which drafter in how many steps, and what it gave; or why nothing was drafted."""
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
        return f"off in {steps - drafted} of {steps} steps: {_why_off(account)}" + (
            f"; {used}" if used else ""
        )
    measured, predicted = account.measured, account.predicted
    gain = "" if measured is None else f"; ×{measured:.2f} measured, ×{predicted:.2f} predicted"
    return f"on in {drafted} of {steps} steps: {used}{gain}"


def brief(text: str) -> str:
    """The reasons of a text of `explain` that says "off", without numbers, as labels need: those of at least
    half of the plain steps, or else the most frequent one. "" for "on"."""
    head, _, tail = text.partition(": ")
    if not head.startswith("off"):
        return ""
    found = [clause for said in tail.split("; ") if (clause := _CLAUSE.fullmatch(said))]
    counts = {f"{m[1]}{m[3]}": int(m[2]) for m in found if "tokens accepted" not in m.string}
    if not counts:
        return tail.partition("; ")[0]
    number = re.search(r"\d+", head)
    enough = min(int(number[0]) if number else 0, 2 * max(counts.values()))
    return "; ".join(words for words, count in counts.items() if 2 * count >= enough)


def _why_off(account: Account) -> str:
    """The reasons, each source's most frequent first."""
    order = list(dict.fromkeys(source for source, _ in account.off))
    reasons = sorted(account.off.items(), key=lambda item: (order.index(item[0][0]), -item[1][0]))
    said = [_reason(source, reason, *sums) for (source, reason), sums in reasons]
    return "; ".join(said) or "no draft was asked for"


def _reason(source: str, reason: str, steps: float, chance: float, need: float) -> str:
    """One reason, with the means of its steps."""
    chance, need = chance / steps, need / steps
    if reason == UNLIKELY and need >= 1.0:
        reason = SLOW
    shown = f"{need:.1f}" if reason == PREFILL else _percent(need, chance)
    words = _WORDS[reason]
    return words.format(source=source, steps=f"{steps:.0f}", chance=_percent(chance, need), need=shown)


def _percent(value: float, other: float) -> str:
    """A probability, with as many digits as tell it from the other."""
    digits = next((n for n in range(3) if f"{value:.{n}%}" != f"{other:.{n}%}"), 0)
    return f"{value:.{digits}%}"
