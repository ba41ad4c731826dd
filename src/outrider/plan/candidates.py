"""`outrider plan --candidates`: which of several models drafts best for a target, by their headers alone.

Each is opened, and refused with the reason if it cannot draft: another vocabulary, no smaller than the
target, no memory for both. The rest are ranked by the speed-up that is expected of them: at the acceptance
that is on record for the pair here, else that which comes with the package for a known pair, else at one
stated acceptance for all. At one acceptance the fastest draft always wins, which is right only among models
that guess alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from outrider import memory
from outrider.acceptance_record import recorded
from outrider.errors import OutriderError
from outrider.models.quantization import for_draft, held_as, quantized
from outrider.models.source import ModelSource
from outrider.models.sources.known import known_name
from outrider.models.text.vocabulary import compare_vocabularies
from outrider.plan import memory_parts, profiles, speed
from outrider.plan.document import CurveOf, Pair
from outrider.plan.expected import expected
from outrider.plan.speed import PassCosts

if TYPE_CHECKING:
    from outrider.plan.curves import Curve

MOST = 32  # candidates that are looked at
STATED = "stated"  # where an acceptance is from that is neither on record nor in the package


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that could draft: how it is written after -md, and what opens it (raises OutriderError)."""

    reference: str
    open: Callable[[], ModelSource]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A draft model for the target.

    seconds_ratio: of a token of the draft, to one of the target.
    acceptance:    of the tokens that are tried; acceptance_from: "record", "package" or "stated".
    speedup:       expected, with num_speculative_tokens draft tokens in a step (0: none pays; None: `auto`'s
                   own choice).
    bytes:         that the pair needs.
    """

    name: str
    reference: str
    seconds_ratio: float
    acceptance: float | None
    acceptance_from: str
    speedup: float
    num_speculative_tokens: int | None
    times: str
    bytes: int


class _RefusedError(Exception):
    """A model that cannot draft; the reason as text."""


def document(
    pair: Pair,
    offers: Sequence[Offer],
    curves: CurveOf,
    acceptance: float,
    *,
    stated_for_all: bool = False,
    on_offer: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """The ranking for `pair.target`, whose draft is not looked at.

    acceptance: where none is on record. stated_for_all: also where one is.
    on_offer:   called with each reference before the model is opened.
    """
    once = curves(pair.target, pair.threads)

    def known(source: ModelSource, threads: int | None, *, drafts: bool = False) -> Curve:
        """The target's curve is not measured anew for each candidate."""
        return curves(source, threads, drafts=True) if drafts else once

    found: list[Ranked] = []
    refused: list[dict[str, str]] = []
    for number, offer in enumerate(offers):
        try:
            if number >= MOST:
                raise _RefusedError(f"only the first {MOST} are looked at")
            on_offer(offer.reference)
            found.append(_ranked(pair, offer, known, acceptance, stated_for_all))
        except (_RefusedError, OutriderError) as error:
            refused.append({"reference": offer.reference, "reason": " ".join(str(error).split())})
    return {
        "target": pair.target.display_name,
        "acceptance": acceptance,
        "context": pair.context,
        "slots": pair.slots,
        "limit": pair.limit,
        "candidates": [asdict(row) for row in sorted(found, key=lambda row: -row.speedup)],
        "refused": refused,
    }


def _ranked(pair: Pair, offer: Offer, curves: CurveOf, acceptance: float, stated_for_all: bool) -> Ranked:
    opened = offer.open()
    if opened.path == pair.target.path:
        raise _RefusedError("it is the target")
    match = compare_vocabularies(pair.target.tokenizer, opened.tokenizer)
    if not match.compatible:
        raise _RefusedError(f"the vocabulary differs: {match.first_difference}")
    draft = held_as(pair.target, quantized(opened, for_draft("auto", opened, pair.target)))
    if opened.parameters >= pair.target.parameters:
        raise _RefusedError("it is no smaller than the target")
    most = memory_parts.needed(pair.target, draft, pair.context, pair.slots).most
    if most > pair.limit:
        raise _RefusedError(f"{memory.size(most)} are needed and {memory.size(pair.limit)} are there")
    target, curve = curves(pair.target, pair.threads), curves(draft, pair.threads, drafts=True)
    rows = [] if stated_for_all else _known(pair.target, draft, target, curve.at(1))
    if rows:
        # Texts of different kinds count alike.
        gain = sum(row["speedup"] for row in rows) / len(rows)
        shares = [row["acceptance"] for row in rows if row["acceptance"] is not None]
        rate = sum(shares) / len(shares) if shares else None
        source = "record" if rows[0]["source"] == "record" else "package"
        lengths = [row["length"] for row in rows]
        length = None if None in lengths else round(sum(lengths) / len(lengths))
    else:
        best = speed.best(target, curve.at(1), acceptance)
        gain, rate, source, length = best.speedup, acceptance, STATED, best.length
    return Ranked(
        draft.display_name,
        offer.reference,
        curve.at(1) / target.at(1),
        rate,
        source,
        gain,
        length,
        curve.how,
        most,
    )


def _known(
    target: ModelSource, draft: ModelSource, costs: PassCosts, draft_seconds: float
) -> list[dict[str, Any]]:
    """What is expected of drafts on record, here or in the package; of `auto` only where nothing else is."""
    rows = expected(costs, draft_seconds, recorded(target, draft))
    if not rows:
        for profile in profiles.of_pair(known_name(target), known_name(draft)):
            rows += expected(costs, draft_seconds, profile.groups, profile.name)
    fixed = [row for row in rows if row["length"] is not None]
    return fixed or rows


def text(found: dict[str, Any]) -> str:
    """The document for a reader."""
    rows = [["", "speed-up", "length", "acceptance", "token / target's", "memory", "times", "draft model"]]
    for place, row in enumerate(found["candidates"], start=1):
        length = {None: "its own", 0: "none pays"}.get(
            row["num_speculative_tokens"], str(row["num_speculative_tokens"])
        )
        rate = "" if row["acceptance"] is None else f"{row['acceptance']:.0%} "
        rows.append(
            [str(place), f"{row['speedup']:.2f}", length, f"{rate}({row['acceptance_from']})",
             f"{row['seconds_ratio']:.2f}", memory.size(row["bytes"]), row["times"],
             f"{row['name']}  {row['reference']}"]
        )  # fmt: skip
    lines = [f"Draft models for {found['target']}, context {found['context']}, by the speed-up to expect:"]
    lines.append(_aligned(rows) if found["candidates"] else "  none of these can draft for it")
    if any(row["acceptance_from"] == STATED for row in found["candidates"]):
        lines.append(
            f"An acceptance of {found['acceptance']:.0%} is assumed where none is on record; the fastest "
            "draft wins then. --acceptance states another."
        )
    if found["refused"]:
        lines.append("Refused:")
        lines += [f"  {row['reference']}: {row['reason']}" for row in found["refused"]]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
