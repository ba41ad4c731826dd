"""The engine's configuration (`EngineConfig`), under vLLM's names.

See `outrider.config.speculative` for the drafter's, and for how unsupported parameters are treated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.config import foreign
from outrider.config.quantization import TORCH_QUANTIZATIONS, check_quantization, kv_quantization
from outrider.config.speculative import (
    IN_THE_FILE,
    OLD_SPECULATIVE_NAMES,
    AutoConfig,
    SpeculativeConfig,
    parse_speculative,
)
from outrider.config.unused import UNUSED_BY_ENGINE
from outrider.errors import ConfigError, nearest
from outrider.value_checks import is_int, path_or_name, positive

CPU_DEVICES = ("auto", "cpu", "none")  # "none" is llama.cpp's
EXACT = ("auto", "strict", "fast")
KV_CACHE_DTYPE = "kv_cache_dtype"  # vLLM's name of kv_quantization


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of an engine.

    model:         reference or path of the target.
    speculative:   the drafter's configuration.
    tokenizer:     reference or path of the model whose tokenizer is used; None for the target's own.
    max_model_len: most tokens of a sequence; None for the model's own limit.
    max_num_seqs:  most sequences in a pass.
    seed:          makes the seeds of requests without one repeatable; None takes them from the system.
    threads:       of the engine; None for one for each processor.
    revision:      branch, tag or commit when `model` is a repository on the hub.
    quantization:  "q8_0" or "q4_k" quantizes the target's float weights at load, which makes it another
                   target, and so do "torchao" (8 bits) and "bitsandbytes" (4 bits) on the torch engine; None
                   keeps them as stored.
    kv_quantization: "q8_0" holds keys and values in 8 bits (vLLM's name: kv_cache_dtype), which makes it
                   another target, too; None holds them in binary16.
    weights_cache: True or a folder keeps the packed weights on disk, so that the next start maps them; None
                   uses OUTRIDER_WEIGHTS_CACHE.
    generation_config: the sampling defaults of requests: "auto" (or "model") takes those that the model
                   recommends, "vllm" none, and anything else is a generation_config.json or its folder.
    override_generation_config: sampling defaults in the place of these, as a mapping or JSON text.
    engine:        what runs the models: "native" (the CPU), "torch" (PyTorch, on any device), or "auto":
                   torch where there is a GPU (`engine_choice`) or one is asked for, else native. A name that
                   `pipeline.ENGINES` does not have is refused when the pipeline is built.
    device:        "auto", "cpu", "cuda", "cuda:1" or "mps"; other ones than the CPU need the torch engine.
    dtype:         of the torch engine's weights: "auto", "bfloat16", "float16" or "float32".
    exact:         of the torch engine: "strict" (a token's logits have the same bits in all passes), "fast",
                   or "auto", strict where that costs little. The native engine is always strict.
    gpu_memory_utilization: the part of a GPU's memory that the torch engine uses; None for 0.9.

    Raises ConfigError for a value of the wrong type or out of range.
    """

    model: str
    speculative: SpeculativeConfig = field(default_factory=AutoConfig)
    tokenizer: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 4
    seed: int | None = None
    threads: int | None = None
    revision: str | None = None
    quantization: str | None = None
    kv_quantization: str | None = None
    weights_cache: bool | str | os.PathLike[str] | None = None
    engine: str = "auto"
    device: str | None = None
    dtype: str | None = None
    exact: str | None = None
    gpu_memory_utilization: float | None = None
    generation_config: str = "auto"
    override_generation_config: Mapping[str, Any] | str | None = None

    def __post_init__(self) -> None:
        path_or_name("model", self.model)
        path_or_name("engine", self.engine)
        self._check_device()
        for name in ("tokenizer", "revision"):
            if getattr(self, name) is not None:
                path_or_name(name, getattr(self, name))
        for name in ("max_model_len", "max_num_seqs", "threads"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.quantization is not None:
            check_quantization(self.quantization)
            if self.quantization in TORCH_QUANTIZATIONS and self.engine == "native":
                raise ConfigError(
                    f"quantization={self.quantization!r} is of the torch engine; the native one has 'q8_0' "
                    "and 'q4_k'"
                )
        object.__setattr__(self, "kv_quantization", kv_quantization(self.kv_quantization))
        if not isinstance(self.weights_cache, bool | None):
            if not isinstance(self.weights_cache, str | os.PathLike):
                raise ConfigError(
                    f"weights_cache must be True, False or a folder, not {self.weights_cache!r}"
                )
            path_or_name("weights_cache", os.fspath(self.weights_cache))
        object.__setattr__(self, "seed", _seed(self.seed))
        if isinstance(self.generation_config, os.PathLike):
            object.__setattr__(self, "generation_config", os.fspath(self.generation_config))
        path_or_name("generation_config", self.generation_config)
        object.__setattr__(self, "override_generation_config", _override(self.override_generation_config))

    @property
    def wants_device(self) -> bool:
        """Whether a device is asked for that is not the CPU."""
        return self.device not in (None, *CPU_DEVICES)

    @property
    def wants_torch(self) -> bool:
        """Whether something is asked for that only the torch engine has."""
        return self.wants_device or self.quantization in TORCH_QUANTIZATIONS

    def _check_device(self) -> None:
        for name in ("device", "dtype", "exact"):
            if getattr(self, name) is not None:
                path_or_name(name, getattr(self, name))
        if self.engine == "native" and self.wants_device:
            raise ConfigError(
                f"device={self.device!r} is refused: the native engine runs on the CPU; use engine='torch'"
            )
        takes_dtype = self.wants_torch or self.engine not in ("auto", "native")
        if self.dtype not in (None, "auto") and not takes_dtype:
            raise ConfigError(f"dtype={self.dtype!r} is refused: {IN_THE_FILE}, or use engine='torch'")
        if self.exact not in (None, *EXACT):
            raise ConfigError(f"exact must be {', '.join(map(repr, EXACT))}, not {self.exact!r}")
        part = self.gpu_memory_utilization
        is_number = isinstance(part, float | int) and not isinstance(part, bool)
        if part is not None and not (is_number and 0 < part <= 1):
            raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, not {part!r}")


def _seed(seed: object) -> int | None:
    """A seed of 64 bits, signed or not, as an unsigned one; None for -1, which is a random one."""
    if seed is None or (is_int(seed) and seed == -1):
        return None
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**64:
        raise ConfigError(f"seed must be an integer from -2**63 to 2**64 - 1, not {seed!r}")
    return seed % 2**64


def _override(given: object) -> Mapping[str, Any] | None:
    """The mapping that was given, or its JSON text."""
    if isinstance(given, str):
        text = given
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(f"override_generation_config is not JSON: {text[:80]!r}") from None
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"override_generation_config must be a mapping, not {type(given).__name__}")
    return given


def _with_kv_quantization(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with vLLM's kv_cache_dtype under its name here. Raises ConfigError."""
    found = {name: value for name, value in arguments.items() if name != KV_CACHE_DTYPE}
    dtype, given = arguments.get(KV_CACHE_DTYPE), found.get("kv_quantization")
    if dtype in (None, "auto"):
        return found
    if given is not None and kv_quantization(given) != kv_quantization(dtype):
        raise ConfigError(
            f"{KV_CACHE_DTYPE}={dtype!r} and kv_quantization={given!r} differ; give one of them"
        )
    return found | {"kv_quantization": dtype}


def parse_engine(
    model: str | None,
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
    **arguments: Any,
) -> EngineConfig:
    """Parse the arguments of `LLM(…)`. Raises ConfigError, which names the nearest name to an unknown one, or
    the name here of an argument of another library."""
    own = {f.name for f in fields(EngineConfig)} - {"model", "speculative"}
    known = own | OLD_SPECULATIVE_NAMES.keys() | {"model", "speculative_config", KV_CACHE_DTYPE}
    values: dict[str, Any] = {}
    old: dict[str, Any] = {}
    for name, value in _with_kv_quantization(arguments).items():
        if name in own:
            if value is not None:
                values[name] = value
        elif name in OLD_SPECULATIVE_NAMES:
            old[name] = value
        elif name in UNUSED_BY_ENGINE:
            neutral, reason = UNUSED_BY_ENGINE[name]
            if not neutral(value):
                raise ConfigError(f"{name}={value!r} is refused: {reason}")
        elif (problem := foreign.problem(name, value)) is None:
            raise ConfigError(f"unknown argument {name!r}{nearest(name, known)}")
        elif problem:
            raise ConfigError(problem)
    if values.get("engine") == "vllm":
        raise ConfigError(
            "engine 'vllm' is a process of its own: use `outrider serve --engine vllm` or LLM(engine='vllm')"
        )
    if model is None:
        raise ConfigError("there is no model: give a path or a name as `model`")
    if values.get("quantization") == "gguf":  # in vLLM: as stored
        del values["quantization"]
    if values.get("max_model_len") == -1:  # in vLLM: as long as fits
        del values["max_model_len"]
    return EngineConfig(model=model, speculative=parse_speculative(speculative_config, **old), **values)
