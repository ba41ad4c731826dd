"""The torch engine's entries in `pipeline.ENGINES`: PyTorch is imported when one of them is called."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from outrider.config.engine import EngineConfig
    from outrider.drafting import Costs, HeadEngine
    from outrider.engines.base import LanguageModel
    from outrider.errors import UnsupportedModelError
    from outrider.models.source import ModelSource

logger = logging.getLogger("outrider")


def torch_loader(config: EngineConfig) -> Callable[[ModelSource, int | None], LanguageModel]:
    """Loads models into the torch engine. Raises ConfigError without PyTorch, and for its device and type."""
    _needs_torch()
    from outrider.engines.torch.backend import TorchLoader

    return TorchLoader(config)


def torch_costs() -> Costs:
    """What passes of the torch engine cost, measured at each start."""
    _needs_torch()
    from outrider.engines.torch.calibrate import cost_model

    return cost_model


def torch_heads(loader: Callable[[ModelSource, int | None], LanguageModel]) -> HeadEngine:
    """Runs heads beside the models that `loader`, one of `torch_loader`, has loaded."""
    from outrider.drafting import HeadEngine
    from outrider.engines.torch.backend import head_engine

    return HeadEngine(*head_engine(loader))


def torch_memory(config: EngineConfig, positions: int, sources: Sequence[ModelSource]) -> None:
    """See `engines.torch.backend.check_memory`. Raises ConfigError without PyTorch, too."""
    _needs_torch()
    from outrider.engines.torch.backend import check_memory

    check_memory(config, positions, sources)


def other_model(config: EngineConfig, path: Path, error: UnsupportedModelError) -> ModelSource:
    """A folder of no family that is known here, as transformers knows it. Raises `error`, why it was refused,
    with what may run it, where the native engine is asked for or there is no transformers; else what
    transformers says."""
    if not (path / "config.json").is_file():
        raise error
    here = all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
    if config.engine not in ("auto", "torch") or not here:
        needs = "" if here else ", which needs outrider[torch]"
        raise type(error)(f"{error}; what transformers knows runs with --engine torch{needs}") from None
    from outrider.engines.torch.fallback import describe

    source = describe(path)
    logger.warning("engine: torch, as only transformers has %s", source.transformers_class)
    return source


def _needs_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("the torch engine needs PyTorch: install outrider[torch]")
