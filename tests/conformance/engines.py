"""The engines that the suite runs on. A further one joins by adding a factory to ENGINES.

A factory makes models small enough for hundreds of texts, with a vocabulary of at least 48 ids and a
context of at least 96 positions: a target, and a draft that agrees with it part of the time.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.engines.base import LanguageModel, StepEngine
from outrider.engines.native import NativeModel
from outrider.engines.step import CachedStepEngine
from outrider.models.open import open_model
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyModel


@dataclass(frozen=True)
class Models:
    """A target and a draft over the same vocabulary."""

    target: LanguageModel
    draft: LanguageModel

    def engine(self) -> StepEngine:
        return CachedStepEngine(self.target)


def toy_models() -> Models:
    target = ToyModel(48, 128, seed=1, sharpness=2.5, memory=0.4)
    return Models(target, ToyModel(48, 128, seed=2, sharpness=2.5, memory=0.4, like=target, similarity=0.95))


def native_models(arch: str = "llama", dims: Dims | None = None, **keys: Any) -> Models:
    """The same random weights twice, the draft rounded to 4 bits: it agrees most of the time."""
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (
            NativeModel.load(
                open_model(
                    tiny_gguf(
                        Path(folder) / f"{kind}.gguf",
                        arch=arch,
                        types=kind,
                        dims=dims,
                        tied=False,
                        seed=3,
                        keys={f"{arch}.{key}": value for key, value in keys.items()},
                    )
                ),
                threads=2,
            )
            for kind in ("Q8_0", "Q4_0")
        )
    return Models(target, draft)


def windowed_models() -> Models:
    """Gemma's layers: one sees twelve positions, one all."""
    pattern = {"attention.sliding_window_pattern": 2}
    return native_models("gemma3", Dims(window=12), **pattern)


def torch_models(arch: str = "llama", dims: Dims | None = None, **keys: Any) -> Models:
    """The same weights in PyTorch, as float32: the target in strict mode, as its bits are compared."""
    from outrider.engines.torch.model import TorchModel
    from tests.torch.support import load

    with tempfile.TemporaryDirectory() as folder:

        def made(kind: str, strict: bool) -> TorchModel:
            given = {f"{arch}.{key}": value for key, value in keys.items()}
            path = Path(folder) / f"{kind}.gguf"
            path = tiny_gguf(path, arch=arch, types=kind, dims=dims, tied=False, seed=3, keys=given)
            return load(open_model(path), strict=strict)

        return Models(made("Q8_0", True), made("Q4_0", False))


ENGINES: dict[str, Callable[[], Models]] = {
    "toy": toy_models,
    "native": native_models,
    "native qwen3": functools.partial(native_models, "qwen3"),
    "native windows": windowed_models,
}
if importlib.util.find_spec("torch") is not None:  # of the extra `torch`
    ENGINES["torch"] = torch_models
    ENGINES["torch windows"] = functools.partial(
        torch_models, "gemma3", Dims(window=12), **{"attention.sliding_window_pattern": 2}
    )


def on_engines(*factors: Iterable[str]) -> list[tuple[str, ...]]:
    """(engine, …) for every combination of the factors, in turns on the engines, so that every value of a
    factor meets every engine."""
    engines, found = list(ENGINES), []
    for indices in itertools.product(*(enumerate(factor) for factor in factors)):
        turn = sum(index for index, _ in indices) % len(engines)
        found.append((engines[turn], *(value for _, value in indices)))
    return found
