"""T(n), the time of a pass over n tokens on this machine: measured in about a second, then kept on disk. Of a
model, a few widths are measured in a longer context too, where attention takes its part of a pass.

A record is found by all that its numbers depend on: the model's file (path, size, time of change), its
quantization, the processor, kernels and threads, the engine's version and build. The file is
not trusted: what is not a small table of plausible numbers is measured again, and so is what was recorded
while other load slowed the machine. The controller corrects a curve with every step, so a bad one costs a few
steps; but an answer of a few tokens has no more.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from outrider.decoding.types import FloatArray, IntArray
from outrider.engines import pass_times
from outrider.engines.base import Cache, ForwardItem, LanguageModel, VocabSubsetModel
from outrider.engines.heads import HeadModel
from outrider.engines.native import _core
from outrider.engines.native.head import NativeHead
from outrider.engines.native.model import NativeModel
from outrider.engines.pass_times import (
    CONTEXT,
    DRAFT_ROWS,
    LONGER,
    LONGER_WIDTHS,
    SECONDS,
    HeadAsModel,
    longer_of,
    measure,
    measure_longer,
)
from outrider.machine import cpu_name
from outrider.models.source import ModelSource
from outrider.models.sources.download import cache_root, read_json, write_json
from outrider.policy.cost_model import CostModel, LongerContext
from outrider.version import __version__

logger = logging.getLogger("outrider")


def pass_widths(token_tile: int, usual_token_tile: int) -> tuple[int, ...]:
    """The widths of passes, in tokens, that are measured for kernels with these token tiles (csrc/kernels).

    Where a pass needs one token tile more, one token more costs much more: the last width before and the
    first one after such a step are among them.
    """
    steps = (token_tile, token_tile + 1, 2 * usual_token_tile + 1, 2 * token_tile)
    return tuple(sorted({1, 2, 3, 4, 6, 8, 12, 16, *steps}))


WIDTHS = pass_widths(*_core.token_tiles("auto"))  # for models that do not say what their kernels' tiles are
UNSTEADY = 1.4  # two measurements of one token may differ by this factor, or other load has changed
PLAUSIBLE = (1e-6, 1e3)  # seconds of a pass
FOLDER = "cost-curves"
HEAD = "head"  # in the facts of a head's curve
SHORT, LONG = "seconds", "seconds_longer"  # in a record


def cost_model(model: NativeModel, blocks: IntArray | None = None, folder: Path | None = None) -> CostModel:
    """What a pass of `model` costs: from the record on disk (`folder`, or one in Outrider's cache), or
    measured now and recorded. Never raises for the record's sake.

    blocks: of the vocabulary, as a draft model computes them, see `VocabSubsetModel`; None for all.
    """
    return _on_record(
        place_of(_facts(model, blocks), folder),
        _widths(model),
        _computing(model, blocks),
        lambda: _one_token(_computing(model, blocks), context=0),
        lambda: measure_curve(model, blocks),
        longer=_longer(model),
    )


def head_cost_model(head: HeadModel, folder: Path | None = None) -> CostModel:
    """What a pass of a head on the native engine costs, in the same way, but for longer contexts: attention
    is little of its one layer. Rows are those that come with the target's hidden states, the dearer ones."""
    if not isinstance(head, NativeHead):
        return CostModel()
    facts = [*head.source.fingerprint(), *facts_of_kernels(head.isa, head.threads), HEAD]
    model = HeadAsModel(head)
    return _on_record(
        place_of(facts, folder), WIDTHS, model, lambda: _one_token(model), lambda: measure_head(head)
    )


def measure_head(head: HeadModel, seconds: float = SECONDS) -> dict[int, float]:
    """`measure` a head, as `measure_curve` does a model."""
    return pass_times.measure_head(head, seconds, WIDTHS)


def spread_of_head(head: HeadModel, curve: Mapping[int, float]) -> float:
    """`spread_of` for a head."""
    return _spread(HeadAsModel(head), curve)


def _on_record(
    path: Path,
    widths: Sequence[int],
    model: LanguageModel,
    least: Callable[[], float],
    measured: Callable[[], dict[int, float]],
    *,
    longer: LongerContext | None = None,
) -> CostModel:
    """What passes of `model` cost, from the record at `path` unless one token takes much less now.

    least:    seconds of a pass of one token, as few as there may be.
    measured: the curve, where there is none on record.
    longer:   a longer context, whose seconds are to be found too; None for no such.
    """
    curve = read(path, widths)
    far = None if longer is None else read_longer(path)
    if curve is not None and ((longer is not None and far is None) or curve[1] > UNSTEADY * least()):
        curve = None
    if curve is None:
        curve = measured()
        far = None if longer is None else measure_longer(model, curve, longer.context)
        spread = _spread(model, curve)
        if 1.0 + spread <= UNSTEADY:  # else good enough for now, not to be kept
            keep(path, curve, spread, far)
    if longer is not None and far is not None:
        longer = replace(longer, seconds=far)
    return CostModel(curve, CONTEXT, longer)


def measure_curve(
    model: NativeModel,
    blocks: IntArray | None = None,
    seconds: float = SECONDS,
    without: Collection[int] = (),
) -> dict[int, float]:
    """`measure` a model at its own widths; as a draft model, where `blocks` of the vocabulary are given.

    without: widths that are left out.
    """
    rows = None if blocks is None else DRAFT_ROWS
    widths = [n for n in _widths(model) if n not in without]
    return measure(_computing(model, blocks), seconds, widths=widths, most_rows=rows)


def spread_of(model: NativeModel, blocks: IntArray | None, curve: Mapping[int, float]) -> float:
    """By how much a pass of one token takes longer or shorter now than `curve` says, as a share: 0 where no
    other load came or went meanwhile."""
    return _spread(_computing(model, blocks), curve)


def _spread(model: LanguageModel, curve: Mapping[int, float]) -> float:
    ratio = _one_token(model) / curve[1]
    return max(ratio, 1 / ratio) - 1.0


def _one_token(model: LanguageModel, context: int = CONTEXT) -> float:
    return measure(model, 0.0, widths=(1,), context=context)[1]


def _computing(model: NativeModel, blocks: IntArray | None) -> LanguageModel:
    return model if blocks is None else SubsetModel(model, blocks)


class SubsetModel:
    """A LanguageModel with the logits of some blocks of its vocabulary only."""

    def __init__(self, model: VocabSubsetModel, blocks: IntArray) -> None:
        self._model, self._blocks = model, blocks
        self.caps, self.vocab_size, self.max_positions = model.caps, model.vocab_size, model.max_positions

    def new_cache(self, capacity: int) -> Cache:
        return self._model.new_cache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        return self._model.forward_subset(items, self._blocks)


def measured_longer(
    model: NativeModel, blocks: IntArray | None, curve: Mapping[int, float]
) -> LongerContext | None:
    """The longer context of a model, measured now; None where its own is too short.

    curve: of the short context.
    """
    return pass_times.measured_longer(_computing(model, blocks), curve, _longer(model))


def _longer(model: NativeModel) -> LongerContext | None:
    return longer_of(model.source.architecture.layers, model.max_positions)


def _widths(model: NativeModel) -> tuple[int, ...]:
    return pass_widths(model.token_tile, model.usual_token_tile)


def _facts(model: NativeModel, blocks: IntArray | None) -> list[object]:
    """Everything that the curve depends on."""
    return [
        *model.source.fingerprint(),
        *facts_of_kernels(model.isa, model.threads),
        None if blocks is None else [len(blocks), DRAFT_ROWS],
    ]


def facts_of_kernels(isa: str, threads: int) -> list[object]:
    """Everything about this machine and engine that a curve depends on."""
    build = Path(_core.__file__).stat()  # kernels change within a version
    widths = pass_widths(*_core.token_tiles(isa))
    contexts = CONTEXT, LONGER, LONGER_WIDTHS
    return [*(cpu_name(), isa, threads, __version__, widths, contexts), *(build.st_size, build.st_mtime_ns)]


def place_of(facts: Sequence[object], folder: Path | None = None) -> Path:
    """The file of a curve that depends on these facts."""
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return (folder or cache_root() / FOLDER) / f"{name}.json"


class Recorded(NamedTuple):
    """A curve on record.

    when:   of the measurement, in seconds since the epoch.
    spread: by how much a measurement right after it differed, as a share; None where it is not on record.
    """

    seconds: dict[int, float]
    when: float
    spread: float | None


def recorded(
    source: ModelSource, isa: str, threads: int, blocks: IntArray | None, folder: Path | None = None
) -> Recorded | None:
    """The curve on record for a model, or a head, that is not loaded; None where there is none."""
    is_head = source.architecture.head is not None
    computed = HEAD if is_head else None if blocks is None else [len(blocks), DRAFT_ROWS]
    path = place_of([*source.fingerprint(), *facts_of_kernels(isa, threads), computed], folder)
    curve = read(path, WIDTHS if is_head else pass_widths(*_core.token_tiles(isa)))
    if curve is None:
        return None
    spread = read_json(path).get("spread")
    known = isinstance(spread, float) and 0.0 <= spread <= UNSTEADY
    return Recorded(curve, path.stat().st_mtime, spread if known else None)  # type: ignore[arg-type]


def keep(
    path: Path, curve: Mapping[int, float], spread: float, longer: Mapping[int, float] | None = None
) -> None:
    """Write a curve and its `spread_of`, and that of the longer context, where that is possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = {SHORT: curve} if longer is None else {SHORT: curve, LONG: longer}
        found = {name: {str(n): seconds for n, seconds in table.items()} for name, table in tables.items()}
        write_json(path, {**found, "spread": float(spread)})
    except OSError as error:
        logger.debug("what passes cost could not be kept in %s: %s", path, error)


def read(path: Path, widths: Sequence[int]) -> dict[int, float] | None:
    """The curve in a file, or None where there is none to be trusted."""
    return _read(path, SHORT, widths)


def read_longer(path: Path) -> dict[int, float] | None:
    """The same in the longer context."""
    return _read(path, LONG, LONGER_WIDTHS)


def _read(path: Path, table: str, widths: Sequence[int]) -> dict[int, float] | None:
    try:
        return _checked(read_json(path)[table], widths)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _checked(found: Any, widths: Sequence[int]) -> dict[int, float]:
    """The seconds by width. Raises ValueError, TypeError or AttributeError for anything but such a table."""
    curve = {int(width): float(seconds) for width, seconds in found.items()}
    least, most = PLAUSIBLE
    if 1 not in curve or not set(curve) <= set(widths) or not all(least <= s <= most for s in curve.values()):
        raise ValueError("its numbers are implausible")
    return curve
