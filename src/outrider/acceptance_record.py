"""What became of a pair's drafts, kept on disk: `outrider plan` tells from it what to expect of the pair.

Each text that a draft model drafted for leaves its counts: tokens, passes of the target, and for each
position in a draft how often a token was proposed there, and how often it was accepted. Nothing of the text
itself is kept. A record is found by the files of both models and their quantizations; it holds the latest
texts of each method, and is replaced as a whole. It is not trusted: what is not a small table of plausible
counts is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from outrider.config.speculative import AutoConfig, DraftModelConfig, SpeculativeConfig
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.models.source import ModelSource
from outrider.models.sources.download import cache_root, read_json, write_json
from outrider.policy.report import Account

logger = logging.getLogger("outrider")

SWITCH = "OUTRIDER_ACCEPTANCE_RECORD"  # an environment variable: 0 keeps no record
FOLDER = "acceptance"
POSITIONS = 16  # of a draft, that are told apart
TEXTS = 40  # the latest of each group
GROUPS = 5  # the latest of each pair: texts of 99999 drafts still fit into what `read_json` reads
FILES = 200  # pairs on record
WRITE_SECONDS = 2.0  # between writes of one process, at least
MOST = 10**9  # of any count
_OFF = {"0", "OFF", "NO", "FALSE"}


class Group(NamedTuple):
    """Texts that can be added up: of one method ("draft_model", "auto"), acceptance rule, and temperature (0,
    "greedy", or another, "sampled")."""

    method: str
    rule: str
    temperature: str

    @property
    def counts_only(self) -> bool:
        """Whether its texts have counts and no times of the machine."""
        return self.method == "draft_model"


@dataclass(frozen=True, slots=True)
class TextCounts:
    """One text.

    tokens, passes: that were emitted, and that the target took.
    plain_s, seconds: that plain decoding would have taken by the cost curve, and that it took; 0 where the
                      method keeps no such account.
    proposed: by position, the first first: drafts that had a token there, with all tokens before it accepted.
    accepted: by position, those of them of which that token was accepted too.
    """

    tokens: int
    passes: int
    plain_s: float
    seconds: float
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]

    def same_draft(self, other: TextCounts) -> bool:
        """Whether everything but the times is equal, as when a text is generated again."""
        mine = (self.tokens, self.passes, self.proposed, self.accepted)
        return mine == (other.tokens, other.passes, other.proposed, other.accepted)


Groups: TypeAlias = dict[Group, tuple[TextCounts, ...]]


def counts_of(metrics: RequestMetrics, account: Account | None = None) -> TextCounts:
    """The counts of a text that has ended. account: its controller's, if that keeps one."""
    deepest = min(POSITIONS, max((*metrics.accepted_at, *metrics.rejected_at), default=0))
    accepted = tuple(metrics.accepted_at[depth] for depth in range(1, deepest + 1))
    left = (metrics.rejected_at[depth] for depth in range(1, deepest + 1))
    return TextCounts(
        metrics.num_tokens,
        metrics.num_passes,
        0.0 if account is None else account.plain_seconds,
        0.0 if account is None else account.seconds,
        tuple(a + r for a, r in zip(accepted, left, strict=True)),
        accepted,
    )


def is_on() -> bool:
    """Whether records are kept."""
    return os.environ.get(SWITCH, "").upper() not in _OFF


def place_of(target: ModelSource, draft: ModelSource, folder: Path | None = None) -> Path:
    """The file of a pair's record. Raises OSError when a model's file is gone."""
    facts = [*target.fingerprint(), *draft.fingerprint()]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return (folder or cache_root() / FOLDER) / f"{name}.json"


class Recorder:
    """Adds the texts of one pipeline to the record of its pair; `ended` is for `StepLoop`. What is not
    written at once is written when the recorder goes, or when the process ends."""

    def __init__(self, place: Path, method: str, rule: str) -> None:
        self._method, self._rule = method, rule
        self._pending = _Pending(place)
        weakref.finalize(self, self._pending.write)

    def ended(self, request: Request, metrics: RequestMetrics, state: object) -> None:
        """Take a text, unless something else than the drafter had a part in its drafts: structured output, a
        prediction, or a request that chose its own drafters."""
        choosing = request.drafters is not None or request.draft_limit is not None
        if request.constraint is not None or request.prediction or choosing or metrics.num_tokens < 2:
            return
        account = getattr(state, "account", None)
        counts = counts_of(metrics, account if isinstance(account, Account) else None)
        if not counts.proposed and not counts.seconds:
            return
        temperature = "greedy" if request.params.temperature == 0.0 else "sampled"
        self._pending.add(Group(self._method, self._rule, temperature), counts)


def recorder_of(choice: SpeculativeConfig, target: ModelSource, draft: ModelSource | None) -> Recorder | None:
    """The recorder of a choice of drafter; None where there is no draft model, or records are off."""
    if draft is None or not isinstance(choice, DraftModelConfig | AutoConfig) or not is_on():
        return None
    try:
        return Recorder(place_of(target, draft), choice.method, choice.verification)
    except OSError:  # a model's file has gone meanwhile
        return None


@dataclass(eq=False)
class _Pending:
    """Texts that are not written yet."""

    place: Path
    texts: list[tuple[Group, TextCounts]] = field(default_factory=list)
    written: float = -math.inf

    def add(self, group: Group, counts: TextCounts) -> None:
        self.texts.append((group, counts))
        if time.monotonic() >= self.written + WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        """Add them to what is on record now, where that is possible."""
        texts, self.texts = self.texts, []
        if texts:
            add(self.place, texts)
            self.written = time.monotonic()


def add(place: Path, texts: Sequence[tuple[Group, TextCounts]]) -> None:
    """Add texts to a record. Of two processes at once, the texts of one may be lost. Never raises."""
    known = read(place)
    for group, counts in texts:
        kept = [other for other in known.pop(group, ()) if not other.same_draft(counts)]
        known[group] = (*kept, counts)[-TEXTS:]
    latest = dict(list(known.items())[-GROUPS:])
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            _make_room(place.parent)
        write_json(place, {"groups": [_row(group, found) for group, found in latest.items()]})
    except OSError as error:
        logger.debug("no record of acceptance could be kept in %s: %s", place, error)


def read(place: Path) -> Groups:
    """What is on record in a file; nothing where it is missing or damaged."""
    try:
        return dict(_checked(read_json(place)))
    except (KeyError, ValueError, TypeError, OverflowError):
        return {}


def recorded(target: ModelSource, draft: ModelSource, folder: Path | None = None) -> Groups:
    """What is on record of a pair; nothing for models without a file."""
    try:
        return read(place_of(target, draft, folder))
    except OSError:
        return {}


def _make_room(folder: Path) -> None:
    """Delete the oldest records, where there are too many."""
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[: max(0, len(files) - FILES + 1)]:
        path.unlink(missing_ok=True)


def _row(group: Group, texts: Sequence[TextCounts]) -> dict[str, object]:
    return {**group._asdict(), "texts": [text_row(text) for text in texts]}


def text_row(text: TextCounts) -> list[object]:
    """A text as JSON has it."""
    times = (round(text.plain_s, 6), round(text.seconds, 6))
    return [text.tokens, text.passes, *times, list(text.proposed), list(text.accepted)]


def _checked(found: Mapping[str, Any]) -> list[tuple[Group, tuple[TextCounts, ...]]]:
    """The groups. Raises KeyError, ValueError or TypeError for anything else."""
    groups = []
    for row in found["groups"][:GROUPS]:
        group = Group(*(str(row[name])[:40] for name in Group._fields))
        groups.append((group, tuple(text_of(text) for text in row["texts"][:TEXTS])))
    return groups


def text_of(found: Sequence[Any]) -> TextCounts:
    """The text of a `text_row`. Raises ValueError or TypeError for anything but plausible counts."""
    tokens, passes, plain, seconds, proposed, accepted = found
    for value in (tokens, passes, *proposed, *accepted):
        if type(value) is not int or not 0 <= value <= MOST:
            raise ValueError("a count is none")
    for value in (plain, seconds):
        if type(value) not in (int, float) or not 0.0 <= value <= MOST:
            raise ValueError("a time is none")
    if len(proposed) > POSITIONS or any(a > p for a, p in zip(accepted, proposed, strict=True)):
        raise ValueError("more is accepted than was proposed")
    return TextCounts(tokens, passes, float(plain), float(seconds), tuple(proposed), tuple(accepted))
