"""`-md auto`: which draft model a target gets of those that are on this machine, or none, and why.

A head that comes with the package for this target is taken before any draft model. Of draft models, first
come the pairs of the table of known models, then what lies beside the target, then the cache. Nothing is
fetched. Of several the one is taken whose weights are nearest to a tenth of the target's bytes: a token of
a larger draft costs too much, a smaller one guesses worse than it needs to. With chains of five tokens such
a draft adds half a pass of the target to a step. What fits nowhere in memory is not taken.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from outrider.config.speculative import AutoConfig, DraftModelConfig, SpeculativeConfig
from outrider.errors import InsufficientMemoryError, OutriderError, UnsupportedModelError
from outrider.models.eagle3.open import open_head
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, held_as, loaded_bytes, quantized
from outrider.models.source import ModelSource, TokenizerData
from outrider.models.sources.bundled import BUNDLED
from outrider.models.sources.cached import cached_models
from outrider.models.sources.download import cache_root
from outrider.models.sources.folder import models_in, size_of
from outrider.models.sources.known import MOST_SHARE, KnownModel, known_drafts, known_name
from outrider.models.sources.known_fetch import present_known
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.vocabulary import compare_vocabularies
from outrider.opening import head_on

logger = logging.getLogger("outrider")

AUTO = "auto"  # in the place of a draft model's reference
BEST_SHARE = 0.1  # of the target's bytes
LARGEST_FILE = 2.5  # files of more than so many times the target's bytes are not opened: no draft is so large

Vocabulary: TypeAlias = Tokenizer | TokenizerData
Fits: TypeAlias = Callable[..., object]
"""Called with a draft model or nothing: raises InsufficientMemoryError if the target and it do not fit, and
UnsupportedModelError if the engine cannot run one."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The answer: the draft model's path, or None, and one line that says why."""

    path: Path | None
    why: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A model that could draft. share: its bytes, as loaded, of the target's."""

    path: Path
    source: ModelSource
    where: str
    share: float


def settled(
    choices: Sequence[SpeculativeConfig],
    target: ModelSource,
    tokenizer: Vocabulary,
    fits: Fits,
    quantizes: bool,
) -> list[SpeculativeConfig]:
    """The same choices with the model "auto" replaced by a path; without any draft model they go on as `auto`
    does without one. One line is logged. quantizes: whether the engine quantizes drafts at load. Raises what
    `fits` raises of the target alone."""
    asking = [c for c in choices if isinstance(c, DraftModelConfig | AutoConfig) and c.model == AUTO]
    if not asking:
        return list(choices)
    fits()  # else no draft model would seem to be the reason
    chosen = choose(target, tokenizer, fits, asking[0].quantization if quantizes else None)
    logger.warning("%s", chosen.why)
    return [_with_model(choice, chosen.path) if choice in asking else choice for choice in choices]


def _with_model(choice: SpeculativeConfig, path: Path | None) -> SpeculativeConfig:
    assert isinstance(choice, DraftModelConfig | AutoConfig)
    if path is not None:
        return replace(choice, model=str(path))
    if isinstance(choice, AutoConfig):
        return replace(choice, model=None)
    return AutoConfig(verification=choice.verification)


def choose(
    target: ModelSource, tokenizer: Vocabulary, fits: Fits, quantization: str | None, *, heads: bool = True
) -> Chosen:
    """The draft model for a target. quantization: of the draft, as DraftModelConfig has it. heads: whether it
    may be a head."""
    if heads and (head := _bundled(target, fits)) is not None:
        return head
    name = known_name(target)
    short: _Candidate | None = None
    for found in (_known(name), _beside(target), _cached()):
        ranked = sorted(_candidates(found, target, tokenizer, quantization), key=_distance)
        for candidate in ranked:
            try:
                fits(candidate.source)
            except InsufficientMemoryError:
                short = short or candidate
                continue
            except UnsupportedModelError:
                continue
            return Chosen(candidate.path, _why(candidate))
    if short is not None:
        return Chosen(
            None,
            f"no draft model: {short.source.display_name} ({short.where}) and the target do not fit in "
            "memory together; going on with lookups",
        )
    return Chosen(None, _nothing(target, known_drafts(name) if name else ()))


def _bundled(target: ModelSource, fits: Fits) -> Chosen | None:
    """The head that comes with the package for a target, if there is one that fits."""
    for bundled in BUNDLED.values():
        try:
            if bundled.made_for != target.display_name or (head := open_head(bundled.path)) is None:
                continue
            fits(head_on(head, target).source)
        except OutriderError as error:
            logger.debug("%s is no draft: %s", bundled.path, error)
            continue
        return Chosen(bundled.path, f"draft: {bundled.title}, which comes with Outrider")
    return None


def _known(name: str | None) -> Iterator[tuple[Path, str]]:
    root = cache_root()
    for model in known_drafts(name) if name else ():
        if (path := present_known(model, root)) is not None:
            yield path, f"{model.name}, a known pair with {name}"


def _beside(target: ModelSource) -> Iterator[tuple[Path, str]]:
    if target.path.exists():  # a shape has no folder
        for path in models_in(target.path.absolute().parent):
            yield path, "beside the target"


def _cached() -> Iterator[tuple[Path, str]]:
    for model in cached_models():
        yield model.path, "in the cache"


def _candidates(
    found: Iterator[tuple[Path, str]], target: ModelSource, tokenizer: Vocabulary, quantization: str | None
) -> Iterator[_Candidate]:
    """Those that can draft for the target. What cannot be opened is passed over."""
    seen = {target.path.resolve()}
    whole = loaded_bytes(target)
    for path, where in found:
        place = path.resolve()
        if place in seen or size_of(path) > LARGEST_FILE * whole:
            continue
        seen.add(place)
        try:
            source = open_model(path).for_context(target.architecture.max_positions)
            source = held_as(target, quantized(source, for_draft(quantization, source, target)))
            share = loaded_bytes(source) / whole
            small = max(share, source.parameters / target.parameters) <= MOST_SHARE
            if small and compare_vocabularies(tokenizer, source.tokenizer).compatible:
                yield _Candidate(path, source, where, share)
        except OutriderError as error:
            logger.debug("%s is no draft model: %s", path, error)


def _distance(candidate: _Candidate) -> float:
    return abs(math.log(candidate.share / BEST_SHARE))


def _why(candidate: _Candidate) -> str:
    return (
        f"draft model: {candidate.source.display_name} ({candidate.where}); it has the target's vocabulary, "
        f"and {candidate.share:.0%} of its bytes"
    )


def _nothing(target: ModelSource, known: Sequence[KnownModel]) -> str:
    """What to do where there is none."""
    if known:
        names = " or ".join(f"`outrider pull {model.name}`" for model in known)
        advice = f"{names} fetches one"
    else:
        advice = f"no pair is known for {target.display_name}; -md takes one of its vocabulary"
    return f"no draft model: there is none of the target's vocabulary here; {advice}; going on with lookups"
