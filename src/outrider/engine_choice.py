"""Which engine `--engine auto` takes where there is a GPU."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from outrider.config.engine import EngineConfig
from outrider.errors import InsufficientMemoryError, UnsupportedModelError
from outrider.models.source import ModelSource

logger = logging.getLogger("outrider")

T = TypeVar("T")

DRIVER_FILES = (
    Path("/dev/nvidia0"),
    Path("/dev/dxg"),
    Path("/dev/kfd"),
)  # of NVIDIA, of it under WSL, of AMD


def first_that_fits(config: EngineConfig, source: ModelSource, attempt: Callable[[EngineConfig], T]) -> T:
    """What `attempt` gives for the engine of a configuration. Under `auto`, where there is a GPU and nothing
    is asked for that only the native engine has, it is tried with torch first, and then with the native
    engine where the memory or the model is not for the GPU; one line says which and why.

    attempt: raises InsufficientMemoryError and UnsupportedModelError before anything is loaded.
    """
    settled = config.engine != "auto" or config.device not in (None, "auto") or source.transformers_class
    native = config.quantization or config.kv_quantization or config.weights_cache
    if settled or native or (gpu := gpu_name()) is None:
        return attempt(config)
    try:
        found = attempt(replace(config, engine="torch"))
    except (InsufficientMemoryError, UnsupportedModelError) as error:
        logger.warning("engine: native, as the GPU does not do: %s", error)
        return attempt(replace(config, engine="native"))
    logger.warning("engine: torch, as there is a GPU: %s", gpu)
    return found


def gpu_name() -> str | None:
    """The GPU that PyTorch would use, in words; None where there is none. PyTorch, which takes seconds, is
    imported only where it is installed and a driver is there."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if hidden or not any(path.exists() for path in DRIVER_FILES):
        return None
    if importlib.util.find_spec("torch") is None:
        logger.warning("engine: native; a GPU is here, which the torch engine would use: outrider[torch]")
        return None
    from outrider.engines.torch.device import first_gpu

    return first_gpu()
