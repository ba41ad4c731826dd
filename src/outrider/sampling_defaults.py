"""The sampling parameters of requests that do not say them: the model's recommended values, or an operator's.

As in vLLM: `generation_config` chooses between the model's values ("auto", also "model"), none ("vllm") and
those of a file, and `override_generation_config` changes single ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from outrider.config.engine import EngineConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError, nearest
from outrider.models.formats.generation_config import NAMES, RENAMED, read_generation_config
from outrider.models.source import ModelSource

Values: TypeAlias = Mapping[str, float | int]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values of SamplingParams in the place of its own defaults.

    values: under SamplingParams' names.
    origin: where they come from, for people; "" when there are none.
    set_by_user: the names of those that no model's file, but a flag or an argument gave.
    """

    values: Values = field(default_factory=dict)
    origin: str = ""
    set_by_user: frozenset[str] = frozenset()

    def params(self) -> SamplingParams:
        """The parameters of a request that says nothing."""
        values: dict[str, Any] = dict(self.values)
        return SamplingParams(**values)

    def completion_tokens(self, usual: int) -> int | None:
        """`max_tokens` of a completion: what a flag or an argument gave (None: no limit), else `usual`."""
        if "max_tokens" not in self.set_by_user:
            return usual
        return int(self.values["max_tokens"]) if "max_tokens" in self.values else None

    def line(self) -> str:
        """What applies, in one line."""
        told = ", ".join(f"{name} {value:g}" for name, value in self.values.items())
        if not told:
            return "sampling defaults: temperature 1 without filters (vLLM's); requests may say others"
        return f"sampling defaults: {told} ({self.origin}); requests may say others"


def sampling_defaults(config: EngineConfig, source: ModelSource) -> SamplingDefaults:
    """What applies to a model under a configuration. A value of a file that cannot be used is left out, with
    a warning. Raises ConfigError for a file that is not there and for an override that cannot be used, and
    ModelFileError for a file that is damaged."""
    how, origin = config.generation_config, ""
    given: dict[str, object] = {}
    if how in ("auto", "model"):
        given, origin = dict(source.recommended_sampling), "of the model"
    elif how != "vllm":
        given, origin = _read(Path(how)), f"of {how}"
    values = {name: value for name in NAMES if (value := _usable(name, given.get(name), origin)) is not None}
    changes = config.override_generation_config or {}
    assert not isinstance(changes, str), "the configuration has read JSON text"
    override = _override(changes)
    every = {**values, **override}
    merged = {name: value for name in NAMES if (value := every.get(name)) is not None}
    origins = [origin] if values else []
    if override:
        origins.append(f"{', '.join(override)} set at start" if values else "set at start")
    return SamplingDefaults(merged, "; ".join(origins), frozenset(override))


def _read(path: Path) -> dict[str, object]:
    """The values of a generation_config.json, or of the one in a folder."""
    try:
        return read_generation_config(path / "generation_config.json" if path.is_dir() else path)
    except (OSError, ValueError):
        raise ConfigError(
            f"generation_config {str(path)!r} cannot be read: give auto, vllm, or a generation_config.json"
            " or a folder that has one"
        ) from None


def _usable(name: str, value: object, origin: str) -> float | int | None:
    """A value of a file, or None."""
    if value is None:
        return None
    try:
        return _checked(name, value)
    except ConfigError as error:
        logger.warning("a sampling default %s is left out: %s", origin, error)
        return None


def _override(given: Mapping[str, object]) -> dict[str, float | int | None]:
    """The values of `override_generation_config`; None takes one away. Raises ConfigError."""
    found: dict[str, float | int | None] = {}
    for key, value in given.items():
        name = RENAMED.get(key, key)
        if name not in NAMES:
            hint = nearest(str(key), (*NAMES, *RENAMED))
            raise ConfigError(
                f"override_generation_config has {str(key)[:80]!r}, which is no sampling default{hint}; "
                f"there are {', '.join(NAMES)}"
            )
        found[name] = None if value is None else _checked(name, value)
    return found


def _checked(name: str, value: object) -> float | int:
    """A value as SamplingParams has it. Raises ConfigError."""
    given: Any = value
    if name in ("top_k", "max_tokens") and isinstance(given, float) and given.is_integer():
        given = int(given)
    checked: float | int = getattr(SamplingParams(**{name: given}), name)
    return checked
