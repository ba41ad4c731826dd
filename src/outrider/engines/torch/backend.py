"""The torch engine as `pipeline.ENGINES` knows it: what it refuses, what it counts, how it loads models."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider import memory
from outrider.config.engine import EngineConfig
from outrider.config.quantization import STORED_METHODS, TORCH_QUANTIZATIONS
from outrider.device_memory import PATH, slot_bytes, usable, weights_bytes
from outrider.engines.base import Cache, ForwardItem, LanguageModel
from outrider.engines.heads import HeadModel
from outrider.engines.torch.choice import choose_ops
from outrider.engines.torch.device import find_device, find_dtype, name_of
from outrider.engines.torch.head import TorchHead, load_head_weights
from outrider.engines.torch.model import TorchModel
from outrider.engines.torch.module import Weights
from outrider.engines.torch.weights import load_weights, unsupported
from outrider.errors import ConfigError, InsufficientMemoryError, UnsupportedModelError
from outrider.memory import ModelMemory, size
from outrider.models.source import ModelSource
from outrider.policy.cost_model import CostModel

if TYPE_CHECKING:
    from outrider.engines.torch.fallback import TransformersModel  # imports transformers

STRICT_COST = 1.05  # strict is the default where passes take at most so many times as long
PROBED = (1, 8)  # tokens of the passes that are timed for that

logger = logging.getLogger("outrider")


class TorchLoader:
    """Loads models for one configuration: the first is the target, and those after it draft models."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.device = find_device(config.device or "auto")
        self.dtype = find_dtype(config.dtype or "auto", self.device)
        self._models: list[TorchModel | TransformersModel | TorchHead] = []
        self._target_loaded = False
        self._slots: int | None = None

    def __call__(self, source: ModelSource, threads: int | None) -> LanguageModel:
        """Load `source`. Raises UnsupportedModelError, InsufficientMemoryError, and ConfigError where strict
        bits are asked for and do not hold."""
        draft, self._target_loaded = self._target_loaded, True
        if threads is not None and self.device.type == "cpu":
            torch.set_num_threads(threads)
        try:
            if source.transformers_class is not None:
                from outrider.engines.torch.fallback import TransformersModel

                other = TransformersModel.load(source, self.device, self.dtype, self._room)
                self._models.append(other)
                return other
            weights = load_weights(source, self.device, self.dtype)
            model = self._draft(source, weights) if draft else self._target(source, weights)
        except torch.OutOfMemoryError:
            raise self._does_not_fit(source) from None
        self._models.append(model)
        return model

    def load_head(self, source: ModelSource, threads: int | None) -> TorchHead:
        """Load a head on the target, which is loaded. Raises as loading a model does."""
        del threads  # the target's
        target = self._models[0]
        assert isinstance(target, TorchModel)
        try:
            weights = load_head_weights(source, self.device, self.dtype, target.weights)
        except torch.OutOfMemoryError:
            raise self._does_not_fit(source) from None
        positions = self._positions(source)
        ops = choose_ops(self.device, positions + PATH, strict=False)
        head = TorchHead(source, weights, ops=ops, positions=positions, slots=self._pool_slots)
        self._models.append(head)
        return head

    def _draft(self, source: ModelSource, weights: Weights) -> TorchModel:
        """Which tokens a draft model proposes may depend on the width of its passes: the target decides."""
        return self._make(source, weights, strict=False)

    def _target(self, source: ModelSource, weights: Weights) -> TorchModel:
        wanted = self._config.exact or "auto"
        if wanted == "fast":
            return self._make(source, weights, strict=False)
        strict = self._make(source, weights, strict=True, slots=4096)
        problem = broken_bits(strict)
        if wanted == "strict":
            if problem:
                raise ConfigError(
                    f"exact='strict' is refused on {name_of(self.device)}: {problem}; use exact='fast'"
                )
            return self._make(source, weights, strict=True)
        if problem:
            logger.warning("exact: fast, as %s", problem)
            return self._make(source, weights, strict=False)
        ratio = _seconds(strict) / _seconds(self._make(source, weights, strict=False, slots=4096))
        cost = f"strict passes take {ratio:.2f} times as long"
        logger.warning("exact: %s, as %s", "strict" if ratio <= STRICT_COST else "fast", cost)
        return self._make(source, weights, strict=ratio <= STRICT_COST)

    def _make(
        self, source: ModelSource, weights: Weights, *, strict: bool, slots: int | None = None
    ) -> TorchModel:
        positions = self._positions(source)
        return TorchModel(
            source.architecture,
            weights,
            ops=choose_ops(self.device, positions + PATH, strict=strict),
            strict=strict,
            positions=positions,
            slots=self._pool_slots if slots is None else lambda model: _few(model, slots),
        )

    def _positions(self, source: ModelSource) -> int:
        most = source.architecture.max_positions
        return min(most, self._config.max_model_len or most)

    def _does_not_fit(self, source: ModelSource) -> InsufficientMemoryError:
        return InsufficientMemoryError(
            f"{source.path}: does not fit in the memory of {name_of(self.device)} as "
            f"{str(self.dtype)[6:]}: take a smaller model, or the CPU (device='cpu')"
        )

    def _room(self) -> int | None:
        """Positions for the caches of each model: as many as its pool has, if it had one."""
        slots = self._pool_slots()
        return None if slots is None else slots - 1

    def _pool_slots(self, model: TorchModel | None = None) -> int | None:
        """Slots of each model's pool: what the device's memory has left for all, as all are loaded by now; no
        more than there can be sequences for. None on a device whose pools grow."""
        if self.device.type != "cuda":
            return None
        if self._slots is None:
            longest = max(other.max_positions for other in self._models)
            most = self._config.max_num_seqs * (min(longest, self._config.max_model_len or longest) + PATH)
            share = sum(other.slot_bytes for other in self._models)
            self._slots = max(2, min(most + 1, self._left() // share))
            logger.info(
                "%d positions on %s, %s", self._slots, name_of(self.device), size(self._slots * share)
            )
        return self._slots

    def _left(self) -> int:
        """Bytes of the device's memory that caches may take."""
        free, total = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return usable(free + unused, total, self._config.gpu_memory_utilization)


def head_engine(
    loader: Callable[[ModelSource, int | None], LanguageModel],
) -> tuple[Callable[[ModelSource, int | None], HeadModel], Callable[[HeadModel], CostModel]]:
    """(loads a head beside the models of `loader`, what its passes cost)."""
    from outrider.engines.torch.calibrate import head_cost_model

    def load(source: ModelSource, threads: int | None) -> HeadModel:
        if not isinstance(loader, TorchLoader):
            raise ConfigError(f"{source.path}: a head of the torch engine needs a target on it")
        return loader.load_head(source, threads)

    return load, head_cost_model


def check_memory(config: EngineConfig, positions: int, sources: Sequence[ModelSource]) -> None:
    """Raise for what the torch engine cannot run, before a weight is loaded: a device or type that is not
    there (ConfigError), parts of a model (UnsupportedModelError), and more than fits
    (InsufficientMemoryError): the weights, and one sequence of `positions` positions on a GPU, or
    max_num_seqs of them in main memory."""
    device = find_device(config.device or "auto")
    dtype = find_dtype(config.dtype or "auto", device)
    if config.quantization is not None:
        _check_quantization(config.quantization, device)
    if config.kv_quantization is not None:
        raise ConfigError(
            f"kv_quantization={config.kv_quantization!r} is of the native engine; the torch engine holds "
            "keys and values in the dtype of the weights"
        )
    for source in sources:
        if source.transformers_class is not None and config.exact == "strict":
            raise ConfigError(
                f"exact='strict' is refused: {source.path} is run by transformers' "
                f"{source.transformers_class}, whose bits depend on the width of passes"
            )
        if (missing := unsupported(source.architecture)) is not None:
            raise UnsupportedModelError(f"{source.path}: {missing}")
    held = (positions + PATH) if device.type == "cuda" else positions * config.max_num_seqs
    parts = [
        ModelMemory(
            source.display_name,
            _weights_bytes(source, dtype),
            slot_bytes(source.architecture, int(dtype.itemsize)) * held,
            memory.buffer_bytes(source.architecture),
        )
        for source in sources
    ]
    if device.type != "cuda":
        memory.check(parts, positions)
        return
    free, total = torch.cuda.mem_get_info(device)
    left = usable(free, total, config.gpu_memory_utilization)
    needed = sum(part.weights + part.cache for part in parts)
    if needed > left:
        raise InsufficientMemoryError(
            f"not enough memory on {name_of(device)}: {' + '.join(part.name for part in parts)} take "
            f"{size(needed)} with one sequence of {positions} tokens, usable are {size(max(0, left))}; try "
            "a shorter context (-c / max_model_len), a smaller model, a higher --gpu-memory-utilization, or "
            "--engine native"
        )


def _check_quantization(name: str, device: torch.device) -> None:
    """Raise ConfigError for a quantization that is not of this engine, or not possible here."""
    if name in STORED_METHODS:
        return
    if name not in TORCH_QUANTIZATIONS:
        raise ConfigError(
            f"quantization={name!r} is of the native engine; the torch engine has "
            f"{' and '.join(map(repr, TORCH_QUANTIZATIONS))}, or holds weights in their dtype"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"quantization={name!r} is for CUDA devices and the CPU, not for {name_of(device)}")
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"quantization={name!r} needs {name}: install outrider[quantized]")


def _weights_bytes(source: ModelSource, dtype: torch.dtype) -> int:
    """Bytes of the weights on the device; where transformers runs the model, of the files."""
    if source.transformers_class is None:
        return weights_bytes(source, int(dtype.itemsize))
    return sum(path.stat().st_size for path in source.path.glob("*.safetensors"))


def broken_bits(model: TorchModel) -> str | None:
    """Whether a token's logits depend on what shares its pass, by a quick test: in words where they do, None
    where they do not."""
    tokens = _tokens(model, 40)
    one, other = model.new_cache(64), model.new_cache(64)
    try:
        (rows,) = model.forward([_chain(one, tokens)])
        single, done = [], 0
        for n in (1, 2, 3, 5, 8, 17, 4):
            single += model.forward([_chain(other, tokens[done : done + n])])
            done += n
    finally:
        one.close()
        other.close()
    parts = np.concatenate(single)
    if np.array_equal(parts.view(np.uint32), rows.view(np.uint32)):
        return None
    differ = int((parts.view(np.uint32) != rows.view(np.uint32)).any(axis=1).sum())
    largest = float(np.abs(parts - rows).max())
    flips = int((parts.argmax(axis=1) != rows.argmax(axis=1)).sum())
    return (
        f"a token's logits depend on the width of its pass there ({differ} of {len(rows)} rows differ, by up "
        f"to {largest:.2g}; {flips} argmax flips)"
    )


def _few(model: TorchModel, slots: int) -> int | None:
    return slots if model.device.type == "cuda" else None


def _chain(cache: Cache, tokens: Sequence[int]) -> ForwardItem:
    n = len(tokens)
    every = np.arange(n, dtype=np.int32)
    return ForwardItem(cache, np.array(tokens, np.int32), every - 1, every)


def _tokens(model: TorchModel, count: int) -> list[int]:
    return [(7919 * i + 13) % model.vocab_size for i in range(count)]


def _seconds(model: TorchModel) -> float:
    """Seconds of passes of a few widths, after their kernels and graphs were made."""
    cache = model.new_cache(64)
    total = 0.0
    try:
        for n in PROBED:
            times = []
            for _ in range(8):
                cache.truncate(0)
                began = time.perf_counter()
                model.forward([_chain(cache, _tokens(model, n))])
                times.append(time.perf_counter() - began)
            total += min(times[2:])
    finally:
        cache.close()
    return total
