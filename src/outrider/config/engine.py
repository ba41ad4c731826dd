"""The engine's configuration (`EngineConfig`), under vLLM's names.

See `outrider.config.speculative` for the drafter's, and for how unsupported parameters are treated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.config import foreign
from outrider.config.quantization import check_quantization
from outrider.config.speculative import (
    IN_THE_FILE,
    OLD_SPECULATIVE_NAMES,
    ONE_PROCESS,
    AutoConfig,
    SpeculativeConfig,
    parse_speculative,
)
from outrider.errors import ConfigError, nearest
from outrider.value_checks import Neutral, anything, is_int, only, path_or_name, positive


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
                   target; None keeps them as stored.
    weights_cache: True or a folder keeps the packed weights on disk, so that the next start maps them; None
                   uses OUTRIDER_WEIGHTS_CACHE.
    engine:        what runs the target: "native", or "auto" for the best there is. A name that
                   `pipeline.ENGINES` does not have is refused when the pipeline is built.

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
    weights_cache: bool | str | os.PathLike[str] | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        path_or_name("model", self.model)
        path_or_name("engine", self.engine)
        for name in ("tokenizer", "revision"):
            if getattr(self, name) is not None:
                path_or_name(name, getattr(self, name))
        for name in ("max_model_len", "max_num_seqs", "threads"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.quantization is not None:
            check_quantization(self.quantization)
        if not isinstance(self.weights_cache, bool | None):
            if not isinstance(self.weights_cache, str | os.PathLike):
                raise ConfigError(
                    f"weights_cache must be True, False or a folder, not {self.weights_cache!r}"
                )
            path_or_name("weights_cache", os.fspath(self.weights_cache))
        if self.seed is not None and not (is_int(self.seed) and 0 <= self.seed < 2**64):
            raise ConfigError(f"seed must be an integer from 0 to 2**64 - 1, not {self.seed!r}")


_GPU = "it is a setting of GPU engines"
_SPEED = "it is not built; leave it out"

# Arguments of vLLM's LLM that are not supported: the values that change nothing, and why others are refused.
_REFUSED_ENGINE: dict[str, tuple[Neutral, str]] = {
    "runner": (only("auto", "generate"), "Outrider generates text only"),
    "task": (only("auto", "generate"), "Outrider generates text only"),
    "tokenizer_mode": (only("auto"), "the tokenizer is built from the model's own data"),
    "skip_tokenizer_init": (only(False), "stop strings and text need the tokenizer"),
    "trust_remote_code": (only(False), "no code of a model repository is ever run"),
    "tensor_parallel_size": (only(1), ONE_PROCESS),
    "pipeline_parallel_size": (only(1), ONE_PROCESS),
    "data_parallel_size": (only(1), ONE_PROCESS),
    "dtype": (only("auto"), IN_THE_FILE),
    "load_format": (only("auto"), "the format is read from the file"),
    "kv_cache_dtype": (only("auto"), "the engine chooses how keys and values are stored"),
    "tokenizer_revision": (only(), "give `tokenizer` a reference that says it"),
    "code_revision": (only(), "no code of a model repository is ever run"),
    "hf_overrides": (only(), "change the model's own configuration file"),
    "chat_template": (only(), "give it to chat() or change the model's own"),
    "gpu_memory_utilization": (anything, ""),
    "swap_space": (anything, ""),
    "enforce_eager": (anything, ""),
    "disable_log_stats": (anything, ""),
    "disable_custom_all_reduce": (anything, ""),
    "enable_chunked_prefill": (anything, ""),
    "max_num_batched_tokens": (only(), _SPEED),
    "enable_prefix_caching": (only(False), _SPEED),
    "block_size": (only(), "the engine chooses its blocks"),
    "cpu_offload_gb": (only(0, 0.0), "the whole model is kept in memory"),
    "device": (only("auto", "cpu"), "the native engine runs on the CPU"),
    "distributed_executor_backend": (only(), ONE_PROCESS),
    "compilation_config": (only(), _GPU),
    "enable_lora": (only(False), "adapters are not built; merge them into the model"),
    "max_logprobs": (only(), "log-probabilities are asked for in SamplingParams"),
    "download_dir": (only(), "the cache folder is set by the environment; see the documentation of pull"),
}


def parse_engine(
    model: str | None,
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
    **arguments: Any,
) -> EngineConfig:
    """Parse the arguments of `LLM(…)`. Raises ConfigError, which names the nearest name to an unknown one, or
    the name here of an argument of another library."""
    own = {f.name for f in fields(EngineConfig)} - {"model", "speculative"}
    known = own | OLD_SPECULATIVE_NAMES.keys() | _REFUSED_ENGINE.keys() | {"model", "speculative_config"}
    values: dict[str, Any] = {}
    old: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in own:
            if value is not None:
                values[name] = value
        elif name in OLD_SPECULATIVE_NAMES:
            old[name] = value
        elif name in _REFUSED_ENGINE:
            neutral, reason = _REFUSED_ENGINE[name]
            if not neutral(value):
                raise ConfigError(f"{name}={value!r} is refused: {reason}")
        elif (problem := foreign.problem(name, value)) is None:
            raise ConfigError(f"unknown argument {name!r}{nearest(name, known)}")
        elif problem:
            raise ConfigError(problem)
    if model is None:
        raise ConfigError("there is no model: give a path or a name as `model`")
    if values.get("quantization") == "gguf":  # in vLLM: as stored
        del values["quantization"]
    if values.get("max_model_len") == -1:  # in vLLM: as long as fits
        del values["max_model_len"]
    return EngineConfig(model=model, speculative=parse_speculative(speculative_config, **old), **values)
