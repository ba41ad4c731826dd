"""What a user may ask of the engine (`EngineConfig`), drafting included, in vLLM's names.

See `outrider.config.speculative` for the drafter, and for what is done with names that mean nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.config.checks import Neutral, anything, is_, is_int, positive, quantization, text
from outrider.config.speculative import (
    IN_THE_FILE,
    OLD_SPECULATIVE_NAMES,
    ONE_PROCESS,
    AutoConfig,
    SpeculativeConfig,
    parse_speculative,
)
from outrider.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything about an engine but the drafter's details.

    model:         reference or path of the target.
    speculative:   the drafter.
    tokenizer:     reference or path of the model whose tokenizer is taken; None for the target's own.
    max_model_len: most positions of a sequence, in tokens; None for the model's own limit.
    max_num_seqs:  most sequences that share a pass.
    seed:          makes the seeds of unseeded requests repeatable; None draws them from the system.
    threads:       of the engine; None for its own choice.
    revision:      branch, tag or commit when `model` names a repository on the hub.
    quantization:  "q8_0" or "q4_k" quantizes the target's float weights when they are loaded, which makes
                   it another target; None leaves them as the file has them.
    weights_cache: True or a folder keeps the packed weights on disk, so that the next start maps them; None
                   leaves it to OUTRIDER_WEIGHTS_CACHE.
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

    def __post_init__(self) -> None:
        text("model", self.model)
        for name in ("tokenizer", "revision"):
            if getattr(self, name) is not None:
                text(name, getattr(self, name))
        for name in ("max_model_len", "max_num_seqs", "threads"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.quantization is not None:
            quantization(self.quantization)
        if not isinstance(self.weights_cache, bool | None):
            if not isinstance(self.weights_cache, str | os.PathLike):
                raise ConfigError(
                    f"weights_cache must be True, False or a folder, not {self.weights_cache!r}"
                )
            text("weights_cache", os.fspath(self.weights_cache))
        if self.seed is not None and not (is_int(self.seed) and 0 <= self.seed < 2**64):
            raise ConfigError(f"seed must be an integer from 0 to 2**64 - 1, not {self.seed!r}")


_GPU = "it speaks of a GPU"
_SPEED = "it is not built; leave it out"

# Arguments of vLLM's LLM that nothing here reads: the values that change nothing, and why others are refused.
_REFUSED_ENGINE: dict[str, tuple[Neutral, str]] = {
    "runner": (is_("auto", "generate"), "Outrider generates text only"),
    "task": (is_("auto", "generate"), "Outrider generates text only"),
    "tokenizer_mode": (is_("auto"), "the tokenizer is built from the model's own data"),
    "skip_tokenizer_init": (is_(False), "stop strings and text need the tokenizer"),
    "trust_remote_code": (is_(False), "no code of a model repository is ever run"),
    "tensor_parallel_size": (is_(1), ONE_PROCESS),
    "pipeline_parallel_size": (is_(1), ONE_PROCESS),
    "data_parallel_size": (is_(1), ONE_PROCESS),
    "dtype": (is_("auto"), IN_THE_FILE),
    "load_format": (is_("auto"), "the format is read from the file"),
    "kv_cache_dtype": (is_("auto"), "the engine chooses how keys and values are stored"),
    "tokenizer_revision": (is_(), "give `tokenizer` a reference that says it"),
    "code_revision": (is_(), "no code of a model repository is ever run"),
    "hf_overrides": (is_(), "change the model's own configuration file"),
    "chat_template": (is_(), "give it to chat() or change the model's own"),
    "gpu_memory_utilization": (anything, ""),
    "swap_space": (anything, ""),
    "enforce_eager": (anything, ""),
    "disable_log_stats": (anything, ""),
    "disable_custom_all_reduce": (anything, ""),
    "enable_chunked_prefill": (anything, ""),
    "max_num_batched_tokens": (is_(), _SPEED),
    "enable_prefix_caching": (is_(False), _SPEED),
    "block_size": (is_(), "the engine chooses its blocks"),
    "cpu_offload_gb": (is_(0, 0.0), "the model lives in memory as it is"),
    "device": (is_("auto", "cpu"), "the native engine runs on the CPU"),
    "distributed_executor_backend": (is_(), ONE_PROCESS),
    "compilation_config": (is_(), _GPU),
    "enable_lora": (is_(False), "adapters are not built; merge them into the model"),
    "max_logprobs": (is_(), "log-probabilities are asked for in SamplingParams"),
    "download_dir": (is_(), "the cache folder is set by the environment; see the documentation of pull"),
}


def parse_engine(
    model: str,
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
    **arguments: Any,
) -> EngineConfig:
    """Read the arguments of `LLM(…)`. Raises ConfigError; an unknown name is told with its neighbour."""
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
        else:
            raise ConfigError(f"unknown argument {name!r}{nearest(name, known)}")
    if values.get("quantization") == "gguf":  # vLLM: as the file has it
        del values["quantization"]
    if values.get("max_model_len") == -1:  # vLLM: as long as fits
        del values["max_model_len"]
    return EngineConfig(model=model, speculative=parse_speculative(speculative_config, **old), **values)
