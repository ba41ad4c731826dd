"""The document of `outrider plan`: memory, vocabularies, speed and advice for a pair, as JSON has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from outrider import memory
from outrider.acceptance_record import recorded
from outrider.models.quantization import loaded_bytes, resident_bytes
from outrider.models.source import ModelSource
from outrider.models.sources.known import known_drafts, known_name
from outrider.models.text.vocabulary import VocabularyMatch, compare_vocabularies
from outrider.plan import expected, memory_parts, profiles, speed

if TYPE_CHECKING:
    from outrider.plan.speed import Curve

Failure: TypeAlias = Literal["draft too large", "draft too unlike", "memory short"]

USUAL_ACCEPTANCE = 0.8  # of a good draft model's tokens: what the verdict on its size assumes
WORTH = 1.05  # a smaller speed-up at that acceptance is none: plain decoding varies by as much
CHAINS = (1, 2, 3, 5, 8)  # lengths whose break-even acceptance is told


@dataclass(frozen=True, slots=True)
class Pair:
    """What is planned for.

    draft:   described as it would be loaded, or None.
    context: most tokens of a sequence.
    slots:   sequences at a time.
    limit:   bytes that may be used.
    limit_from: where the limit comes from, in words.
    """

    target: ModelSource
    draft: ModelSource | None
    context: int
    slots: int
    limit: int
    limit_from: str
    threads: int | None = None


CurveOf: TypeAlias = "Callable[..., Curve]"


class Place(Protocol):
    """Where a pair runs, if that is not this machine's CPU: what it takes there."""

    @property
    def lookups(self) -> str:
        """The flag of drafts without a draft model."""

    def describe(self) -> dict[str, Any]:
        """The place itself."""

    def advice(self, pair: Pair) -> list[dict[str, str]]:
        """What is to be said of the pair there, beside the three failures."""

    def model(self, source: ModelSource, role: str) -> dict[str, Any]:
        """`loaded_bytes` and `types` of a model, as it is held there."""

    def memory(self, pair: Pair) -> dict[str, Any]:
        """The section on memory."""

    def curve(self, source: ModelSource, threads: int | None = None, *, drafts: bool = False) -> Curve:
        """The cost curve of a model."""

    def read_bytes(self, source: ModelSource, role: str) -> int:
        """Bytes of weights that a pass reads."""


def document(pair: Pair, curves: CurveOf | None = None, place: Place | None = None) -> dict[str, Any]:
    """All of it. `curves` gives a model's cost curve; None is that of the place, which is this machine's CPU
    when it is None."""
    if place is not None:
        curves = curves or place.curve
    if curves is None:
        from outrider.plan.curves import curve_of  # the compiled extension

        curves = curve_of
    match = None
    if pair.draft is not None and pair.draft.architecture.head is None:  # a head's ids are its target's
        match = compare_vocabularies(pair.target.tokenizer, pair.draft.tokenizer)
    needs = _memory(pair) if place is None else place.memory(pair)
    costs = _speed(pair, curves, match is None or match.compatible, place)
    return {
        "target": _model(pair.target, "target", place),
        "draft": None if pair.draft is None else _model(pair.draft, "draft", place),
        **({} if place is None else {"gpu": place.describe()}),
        "known_drafts": [model.name for model in known_drafts(known_name(pair.target) or "")],
        "context": pair.context,
        "slots": pair.slots,
        "memory": needs,
        "vocabulary": None if match is None else _vocabulary(match),
        "speed": costs,
        "advice": advice(needs, match, costs)
        if place is None
        else [*advice(needs, match, costs, place.lookups), *place.advice(pair)],
        "fits": needs["fits"],
    }


def _model(source: ModelSource, role: str, place: Place | None) -> dict[str, Any]:
    held = (
        {"loaded_bytes": loaded_bytes(source), "types": memory_parts.types(source)}
        if place is None
        else place.model(source, role)
    )
    return {
        "name": source.display_name,
        "path": str(source.path),
        "family": source.architecture.name,
        "head": source.architecture.head is not None,
        "bytes": source.weights_bytes,
        **held,
    }


def _memory(pair: Pair) -> dict[str, Any]:
    asked = (pair.target, pair.draft, pair.context, pair.slots)
    need = memory_parts.needed(*asked)
    fits = need.most <= pair.limit
    return {
        "parts": [asdict(part) for part in need.parts],
        "total": need.total,
        "loading_peak": need.loading_peak,
        "limit": pair.limit,
        "limit_from": pair.limit_from,
        "limit_how": "measured",
        "fits": fits,
        "changes": [] if fits else [asdict(c) for c in memory_parts.changes(*asked, pair.limit)],
    }


def _vocabulary(match: VocabularyMatch) -> dict[str, Any]:
    return {
        "compatible": match.compatible,
        "target_size": match.target_size,
        "draft_size": match.draft_size,
        "common_size": match.common_size,
        "first_difference": None if match.first_difference is None else str(match.first_difference),
        "role_differences": list(match.role_differences),
    }


def _speed(pair: Pair, curves: CurveOf, compatible: bool, place: Place | None) -> dict[str, Any]:
    def read(source: ModelSource, role: str) -> int:
        return resident_bytes(source) if place is None else place.read_bytes(source, role)

    target = curves(pair.target, pair.threads)
    found: dict[str, Any] = {
        "target": _curve(target, read(pair.target, "target")),
        "lookups": [asdict(row) for row in speed.table(target, 0.0)],
        "draft": None,
    }
    if pair.draft is None or not compatible:
        return found
    draft = curves(pair.draft, pair.threads, drafts=True)
    usual = speed.best(target, draft.at(1), USUAL_ACCEPTANCE)
    found["draft"] = {
        **_curve(draft, read(pair.draft, "draft")),
        "seconds_ratio": draft.at(1) / target.at(1),
        "prompt_ms": speed.reading(draft) * 1e3,
        "break_even": {str(n): speed.break_even(target, draft.at(1), n) for n in CHAINS},
        "table": [asdict(row) for row in speed.table(target, draft.at(1))],
        "pays": usual.speedup >= WORTH,
        "expected": _expected(pair, target, draft, here=place is None),
    }
    return found


def _expected(pair: Pair, target: Curve, draft: Curve, *, here: bool) -> list[dict[str, Any]]:
    """What drafts of this pair on record promise; of a pair without any, what comes with the package. here:
    it runs on this machine's CPU, as those whose times are on record."""
    assert pair.draft is not None
    steps = (target, draft.at(1))
    groups = recorded(pair.target, pair.draft)
    found = expected.expected(*steps, {g: texts for g, texts in groups.items() if here or g.counts_only})
    if not found:
        for profile in profiles.of_pair(known_name(pair.target), known_name(pair.draft)):
            found += expected.expected(*steps, profile.groups, profile.name)
    timed = "measured" if target.how == draft.how == "measured" else "predicted"
    return [{**row, "times": "measured" if row["length"] is None else timed} for row in found]


def _curve(curve: Curve, weights: int) -> dict[str, Any]:
    """bytes a second: of the weights, while one token is computed."""
    return {
        "how": curve.how,
        "basis": curve.basis,
        "age_s": None if curve.when is None else max(0.0, time.time() - curve.when),
        "spread": curve.spread,
        "ms": {str(n): seconds * 1e3 for n, seconds in sorted(curve.seconds.items())},
        "tokens_per_s": 1.0 / curve.at(1),
        "weights_gb_per_s": weights / curve.at(1) / 1e9,
    }


# --- Advice ----------------------------------------------------------------------------------------


def advice(
    needs: dict[str, Any],
    match: VocabularyMatch | None,
    costs: dict[str, Any],
    lookups: str = "--spec suffix",
) -> list[dict[str, str]]:
    """What looms of the three failures, and what to do. `lookups`: the flag of drafts without a model."""
    found: list[dict[str, str]] = []

    def add(failure: Failure, text: str, flag: str = "") -> None:
        found.append({"failure": failure, "text": text, "flag": flag})

    if not needs["fits"]:
        least = max(needs["total"], needs["loading_peak"])
        text = f"{memory.size(least)} are needed and {memory.size(needs['limit'])} are there"
        options = needs["changes"]
        add("memory short", text if options else f"{text}: no single change is enough")
        for change in options:
            text = f"{change['what']} needs {memory.size(change['bytes'])}"
            add("memory short", text, change["flag"])
    if match is not None and not match.compatible:
        add(
            "draft too unlike",
            f"the vocabularies differ: {match.first_difference}; take a draft of the target's own family, or "
            "none: lookups need no draft model",
            lookups,
        )
    draft = costs["draft"]
    if draft is not None and not draft["pays"]:
        reachable = [a for a in draft["break_even"].values() if a is not None]
        gains = f"from an acceptance of {min(reachable):.0%} on" if reachable else "at no acceptance"
        add(
            "draft too large",
            f"a token of the draft takes {draft['seconds_ratio']:.0%} of a token of the target, so it gains "
            f"{gains}; take a smaller draft, or lookups alone",
            lookups,
        )
    return found
