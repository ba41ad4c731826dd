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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from outrider.drafters.drawing import Draws
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.base import HiddenStateModel, LanguageModel, StepEngine
from outrider.engines.heads import HeadModel
from outrider.engines.native import NativeModel
from outrider.engines.native.head import NativeHead
from outrider.engines.step import CachedStepEngine
from outrider.models.eagle3.open import open_head
from outrider.models.open import open_model
from tests.support.heads import HeadDims, NumpyHead, TinyHead, knowing_head, speculators_folder, tiny_head
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyModel


@dataclass(frozen=True)
class Models:
    """A target, and a draft and a head over the same vocabulary."""

    target: LanguageModel
    draft: LanguageModel
    head: HeadModel | None = None  # on `target`, see `head_drafter`

    def engine(self) -> StepEngine:
        return CachedStepEngine(self.target)


def toy_models() -> Models:
    target = ToyModel(48, 128, seed=1, sharpness=2.5, memory=0.4)
    draft = ToyModel(48, 128, seed=2, sharpness=2.5, memory=0.4, like=target, similarity=0.95)
    return Models(target, draft, NumpyHead(knowing_head(target, HEAD_TAPS, rows=46, sway=0.1)))


def whole_prompt_models() -> Models:
    """The same, where the last pass over a prompt scores its last token, too."""
    models = toy_models()
    assert isinstance(models.target, ToyModel)
    models.target.caps = replace(models.target.caps, whole_prompts=64)
    return models


HEAD_TAPS = (2, 0, 2)  # the layers whose inputs the heads read: in no order, and one of them twice


def head_of(target: HiddenStateModel) -> TinyHead:
    """A random head for a model, with a part of its vocabulary."""
    size, vocab = target.hidden_size, target.vocab_size
    dims = HeadDims(
        hidden=16, target_hidden=size, heads=1, kv_heads=1, ffn=16, vocab=vocab, rows=40, taps=HEAD_TAPS
    )
    return tiny_head(dims, seed=5)


def random_head(target: LanguageModel) -> HeadModel | None:
    """The same in NumPy, for models that give hidden states."""
    return NumpyHead(head_of(target)) if isinstance(target, HiddenStateModel) else None


def head_drafter(models: Models, draws: Draws = "coupled") -> Eagle3Drafter:
    """A drafter with the models' head."""
    head = models.head
    assert isinstance(models.target, HiddenStateModel)
    assert head is not None
    made = head.made if isinstance(head, NumpyHead) else head_of(models.target)
    ids = made.ids.astype(np.int32)
    return Eagle3Drafter(
        head, taps=(0, 2), order=(1, 0, 1), target_ids=ids, max_context=128, chunk=8, draws=draws
    )


def native_models(
    arch: str = "llama", dims: Dims | None = None, *, kv_type: str | None = None, **keys: Any
) -> Models:
    """The same random weights twice, the draft rounded to 4 bits: it agrees most of the time. kv_type: of
    keys and values in all caches; None for the usual one."""
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
                kv_dtype=kv_type,
            )
            for kind in ("Q8_0", "Q4_0")
        )
        with_head = open_head(speculators_folder(Path(folder) / "head", head_of(target)))
        assert with_head is not None
        head = NativeHead.load(with_head.for_target(target.source).source, threads=2, kv_dtype=kv_type)
    return Models(target, draft, head)


def windowed_models() -> Models:
    """Gemma's layers: one sees twelve positions, one all. (test_windows.py has them with the usual cache.)"""
    pattern: dict[str, Any] = {"attention.sliding_window_pattern": 2}
    return native_models("gemma3", Dims(window=12), kv_type="q8_0", **pattern)


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

        target = made("Q8_0", True)
        return Models(target, made("Q4_0", False), random_head(target))


ENGINES: dict[str, Callable[[], Models]] = {
    "toy": toy_models,
    "toy, whole prompts": whole_prompt_models,
    "native": native_models,
    "native qwen3": functools.partial(native_models, "qwen3"),
    "native windows, q8_0 cache": windowed_models,
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
