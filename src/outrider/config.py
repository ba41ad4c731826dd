"""What a user may ask for: the drafter (`SpeculativeConfig`) and the engine (`EngineConfig`).

Both take vLLM's names, the ones of today and the older ones that guides still use. Each of its names
is honoured, accepted where it changes nothing here, or refused with the reason; a name that nobody
knows is refused with the nearest one that is known. Nothing is ever ignored in silence.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from outrider.errors import ConfigError, nearest

DEFAULT_DRAFT_TOKENS = 5
MAX_DRAFT_TOKENS = 128
VERIFICATIONS = ("coupled", "rejection", "block")  # acceptance rules, the default first
QUANTIZATIONS = ("q8_0", "q4_k")  # of float models, at load (models/quantization.py)
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")

# vLLM's names of the rule, and what they mean here.
_RULES = {
    "rejection_sample_method": {"standard": "rejection", "block": "block", "coupled": "coupled"},
    "acceptance_method": {"rejection_sampler": "rejection"},
}

# --- The drafter -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoneConfig:
    """No speculation: plain decoding."""

    method: ClassVar[str] = "none"


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Propose what followed the last occurrence of the text's last words (prompt lookup).

    num_speculative_tokens: most draft tokens of a step.
    prompt_lookup_min, prompt_lookup_max: lengths, in tokens, of the n-grams looked up.
    verification: the acceptance rule, one of VERIFICATIONS.
    """

    method: ClassVar[str] = "ngram"
    num_speculative_tokens: int = DEFAULT_DRAFT_TOKENS
    prompt_lookup_max: int = 5
    prompt_lookup_min: int = 5
    verification: str = VERIFICATIONS[0]


@dataclass(frozen=True, slots=True)
class DraftModelConfig:
    """A smaller model of the same vocabulary proposes.

    model: a reference or path, as for the target.
    num_speculative_tokens: most draft tokens of a step.
    max_model_len: positions, in tokens, beyond which the draft rests; None for the draft's own limit.
    revision: branch, tag or commit when `model` names a repository on the hub.
    verification: the acceptance rule, one of VERIFICATIONS.
    quantization: as the engine's, for the draft's weights.
    draft_sample_method: "greedy" drafts the draft's likeliest tokens; "probabilistic", or None, draws them
        from its distribution, as suits the rule.
    """

    method: ClassVar[str] = "draft_model"
    model: str
    num_speculative_tokens: int = DEFAULT_DRAFT_TOKENS
    max_model_len: int | None = None
    revision: str | None = None
    verification: str = VERIFICATIONS[0]
    draft_sample_method: str | None = None
    quantization: str | None = None


SpeculativeConfig: TypeAlias = NoneConfig | NgramConfig | DraftModelConfig
METHODS: dict[str, type[NoneConfig] | type[NgramConfig] | type[DraftModelConfig]] = {
    c.method: c for c in (NoneConfig, NgramConfig, DraftModelConfig)
}

OLD_SPECULATIVE_NAMES = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_model_quantization": "quantization",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "spec_decoding_acceptance_method": "acceptance_method",
}

Neutral: TypeAlias = Callable[[Any], bool]


def _is(*values: object) -> Neutral:
    """True for None and for values equal to one of `values` and of the same type (1 is not True)."""
    return lambda v: v is None or any(type(v) is type(w) and v == w for w in values)


def _anything(_: object) -> bool:
    return True


_ONE_PROCESS = "Outrider runs in one process on the CPU; leave it at 1"
_IN_THE_FILE = "the model file says how its weights are stored; choose a file of the type you want"
_NOT_BUILT_DRAFT = "no drafter here uses it; leave it out"
_LOOKED_UP = "it is about a draft model's draws; the method 'ngram' looks its tokens up"

# vLLM's fields that no drafter here reads: the values that change nothing, and why others are refused.
_REFUSED_SPECULATIVE: dict[str, tuple[Neutral, str]] = {
    "draft_tensor_parallel_size": (_is(1), _ONE_PROCESS),
    "tensor_parallel_size": (_is(1), _ONE_PROCESS),
    "quantization": (_is("gguf"), _IN_THE_FILE),
    "enforce_eager": (_anything, ""),
    "code_revision": (_is(), "no code of a model repository is ever run; leave it out"),
    "draft_sample_method": (_is("greedy"), _LOOKED_UP),
    "synthetic_acceptance_rates": (_is(), "it makes the output wrong on purpose; leave it out"),
    "synthetic_acceptance_length": (_is(), "it makes the output wrong on purpose; leave it out"),
    "use_heterogeneous_vocab": (_is(False), "the draft needs the target's vocabulary; choose such a draft"),
    "parallel_drafting": (_is(False), _NOT_BUILT_DRAFT),
    "num_speculative_tokens_per_batch_size": (_is(), "give one num_speculative_tokens instead"),
    "disable_by_batch_size": (_is(), "give one num_speculative_tokens for every batch size instead"),
    "moe_backend": (_is(), _NOT_BUILT_DRAFT),
    "attention_backend": (_is(), _NOT_BUILT_DRAFT),
    "kv_cache_dtype": (_is("auto"), "the draft's cache is stored as the target's; leave it out"),
    "draft_load_config": (_is(), "give `model` a path or a reference instead"),
    "disable_padded_drafter_batch": (_anything, ""),
    "disable_eagle_block_drop": (_is(False), _NOT_BUILT_DRAFT),
    "use_local_argmax_reduction": (_is(False), _ONE_PROCESS),
    "index_share_for_mtp_iteration": (_is(), _NOT_BUILT_DRAFT),
    "enable_adaptive_verification": (_is(False), _NOT_BUILT_DRAFT),
    "dspark_draft_topk": (_is(), _NOT_BUILT_DRAFT),
    **{
        f"suffix_decoding_{name}": (_is(), "the method 'suffix' is not built; use 'ngram'")
        for name in ("max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob")
    },
}

_KNOWN = (
    {"method"}
    | {f.name for c in METHODS.values() for f in fields(c)}
    | _REFUSED_SPECULATIVE.keys()
    | _RULES.keys()
)


def parse_speculative(
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None, **old: Any
) -> SpeculativeConfig:
    """Read the drafter's configuration, in any spelling of vLLM's.

    speculative_config: a mapping with `method`, `model`, `num_speculative_tokens`, …; its JSON text; the
        name of a method that needs nothing else; a ready config; or None.
    old: the older arguments, `speculative_model`, `num_speculative_tokens`, `ngram_prompt_lookup_max`, …
        (None counts as not given). The model "[ngram]" means the method `ngram`.
    Raises ConfigError for an unknown or refused key, a value out of range, or a contradiction.
    """
    unknown = [name for name in old if name not in OLD_SPECULATIVE_NAMES]
    if unknown:
        hint = nearest(unknown[0], OLD_SPECULATIVE_NAMES)
        raise ConfigError(f"unknown argument {unknown[0]!r}{hint}")
    given = {OLD_SPECULATIVE_NAMES[k]: v for k, v in old.items() if v is not None}
    if speculative_config is None:
        return _from_mapping(given)
    if given:
        names = ", ".join(sorted(k for k, v in old.items() if v is not None))
        raise ConfigError(f"give either speculative_config or {names}, not both")
    if isinstance(speculative_config, NoneConfig | NgramConfig | DraftModelConfig):
        return _checked(speculative_config)
    return _from_mapping(_mapping(speculative_config))


def _mapping(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return _mapping_of_text(value)
    if isinstance(value, Mapping):
        return dict(value)
    kind = type(value).__name__
    raise ConfigError(f"speculative_config must be a mapping, JSON text or a method's name, not {kind}")


def _mapping_of_text(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"method": text.strip()}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"speculative_config is not JSON: {e}") from None
    return dict(value)  # it starts with a brace, so JSON made it a dict


def _from_mapping(given: dict[str, Any]) -> SpeculativeConfig:
    if not given:
        return NoneConfig()
    for key in given:
        if key not in _KNOWN:
            raise ConfigError(f"speculative_config: unknown key {key!r}{nearest(str(key), _KNOWN)}")
    kind = METHODS[_method(given)]
    if kind is NoneConfig:  # "none" turns speculation off whatever else is set
        return NoneConfig()
    own = {f.name for f in fields(kind)}
    values = {k: v for k, v in given.items() if k != "method" and not (k in own and v is None)}
    if kind is DraftModelConfig and values.get("quantization") == "gguf":  # vLLM: as the file has it
        del values["quantization"]
    for key in [k for k in _RULES if k in values]:
        _take_rule(key, values)
    if kind is NgramConfig:
        if values.get("model") in ("[ngram]", "ngram"):
            del values["model"]
        for one, other in (("min", "max"), ("max", "min")):  # one alone sets both
            if f"prompt_lookup_{other}" in values:
                values.setdefault(f"prompt_lookup_{one}", values[f"prompt_lookup_{other}"])
    for key in [k for k in values if k not in own]:
        _refuse_key(key, values.pop(key), kind.method)
    if kind is DraftModelConfig and "model" not in values:
        raise ConfigError(
            "speculative_config: the method 'draft_model' needs `model`, the draft's path or name"
        )
    return _checked(kind(**values))


def _take_rule(key: str, values: dict[str, Any]) -> None:
    """Put `verification` in the place of one of vLLM's names of it."""
    value = values.pop(key)
    if value is None:
        return
    known = _RULES[key]
    if not isinstance(value, str) or value not in known:
        raise ConfigError(
            f"speculative_config: {key}={value!r} is refused: only exact rules are built here, "
            f"so choose one of {', '.join(known)}"
        )
    if values.setdefault("verification", known[value]) != known[value]:
        raise ConfigError(
            f"speculative_config: {key}={value!r} and verification={values['verification']!r} "
            "are different rules; give one"
        )


def _refuse_key(key: str, value: object, method: str) -> None:
    """Raise for a known key that `method` does not read, unless its value changes nothing."""
    neutral, reason = _REFUSED_SPECULATIVE.get(key, (_is(), f"it has no meaning for the method {method!r}"))
    if not neutral(value):
        raise ConfigError(f"speculative_config: {key}={value!r} is refused: {reason}")


def _method(given: Mapping[str, Any]) -> str:
    method, model = given.get("method"), given.get("model")
    if method is None:
        if model in ("[ngram]", "ngram"):
            return "ngram"
        if model is not None:
            return "draft_model"
        if "prompt_lookup_max" in given or "prompt_lookup_min" in given:
            return "ngram"
        raise ConfigError(
            f"speculative_config: {', '.join(given)} without a drafter: "
            "give a draft `model`, or the method 'ngram'"
        )
    if not isinstance(method, str) or method not in METHODS:
        hint = nearest(str(method), METHODS)
        raise ConfigError(
            f"speculative method {method!r} is not available{hint}: choose one of {', '.join(METHODS)}"
        )
    return method


def _checked(config: SpeculativeConfig) -> SpeculativeConfig:
    if isinstance(config, NoneConfig):
        return config
    n = config.num_speculative_tokens
    _positive("num_speculative_tokens", n)
    if n > MAX_DRAFT_TOKENS:
        raise ConfigError(f"num_speculative_tokens must be at most {MAX_DRAFT_TOKENS}, not {n}")
    _one_of("verification", config.verification, VERIFICATIONS)
    if isinstance(config, NgramConfig):
        _positive("prompt_lookup_max", config.prompt_lookup_max)
        _positive("prompt_lookup_min", config.prompt_lookup_min)
        if config.prompt_lookup_min > config.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({config.prompt_lookup_min}) must not be larger than "
                f"prompt_lookup_max ({config.prompt_lookup_max})"
            )
        return config
    _text("model", config.model)
    if config.draft_sample_method is not None:
        _one_of("draft_sample_method", config.draft_sample_method, DRAFT_SAMPLE_METHODS)
    if config.quantization is not None:
        check_quantization(config.quantization)
    if config.max_model_len is not None:
        _positive("max_model_len", config.max_model_len)
    if config.revision is not None:
        _text("revision", config.revision)
    return config


# --- The engine ------------------------------------------------------------------------------------


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
    speculative: SpeculativeConfig = NoneConfig()
    tokenizer: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 4
    seed: int | None = None
    threads: int | None = None
    revision: str | None = None
    quantization: str | None = None
    weights_cache: bool | str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _text("model", self.model)
        for name in ("tokenizer", "revision"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))
        for name in ("max_model_len", "max_num_seqs", "threads"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.quantization is not None:
            check_quantization(self.quantization)
        if not isinstance(self.weights_cache, bool | None):
            if not isinstance(self.weights_cache, str | os.PathLike):
                raise ConfigError(
                    f"weights_cache must be True, False or a folder, not {self.weights_cache!r}"
                )
            _text("weights_cache", os.fspath(self.weights_cache))
        if self.seed is not None and not (_is_int(self.seed) and 0 <= self.seed < 2**64):
            raise ConfigError(f"seed must be an integer from 0 to 2**64 - 1, not {self.seed!r}")


_GPU = "it speaks of a GPU"
_SPEED = "it is not built; leave it out"

# Arguments of vLLM's LLM that nothing here reads: the values that change nothing, and why others are refused.
_REFUSED_ENGINE: dict[str, tuple[Neutral, str]] = {
    "runner": (_is("auto", "generate"), "Outrider generates text only"),
    "task": (_is("auto", "generate"), "Outrider generates text only"),
    "tokenizer_mode": (_is("auto"), "the tokenizer is built from the model's own data"),
    "skip_tokenizer_init": (_is(False), "stop strings and text need the tokenizer"),
    "trust_remote_code": (_is(False), "no code of a model repository is ever run"),
    "tensor_parallel_size": (_is(1), _ONE_PROCESS),
    "pipeline_parallel_size": (_is(1), _ONE_PROCESS),
    "data_parallel_size": (_is(1), _ONE_PROCESS),
    "dtype": (_is("auto"), _IN_THE_FILE),
    "load_format": (_is("auto"), "the format is read from the file"),
    "kv_cache_dtype": (_is("auto"), "the engine chooses how keys and values are stored"),
    "tokenizer_revision": (_is(), "give `tokenizer` a reference that says it"),
    "code_revision": (_is(), "no code of a model repository is ever run"),
    "hf_overrides": (_is(), "change the model's own configuration file"),
    "chat_template": (_is(), "give it to chat() or change the model's own"),
    "gpu_memory_utilization": (_anything, ""),
    "swap_space": (_anything, ""),
    "enforce_eager": (_anything, ""),
    "disable_log_stats": (_anything, ""),
    "disable_custom_all_reduce": (_anything, ""),
    "enable_chunked_prefill": (_anything, ""),
    "max_num_batched_tokens": (_is(), _SPEED),
    "enable_prefix_caching": (_is(False), _SPEED),
    "block_size": (_is(), "the engine chooses its blocks"),
    "cpu_offload_gb": (_is(0, 0.0), "the model lives in memory as it is"),
    "device": (_is("auto", "cpu"), "the native engine runs on the CPU"),
    "distributed_executor_backend": (_is(), _ONE_PROCESS),
    "compilation_config": (_is(), _GPU),
    "enable_lora": (_is(False), "adapters are not built; merge them into the model"),
    "max_logprobs": (_is(), "log-probabilities are asked for in SamplingParams"),
    "download_dir": (_is(), "the cache folder is set by the environment; see the documentation of pull"),
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


def check_quantization(name: object) -> None:
    """Raise ConfigError unless `name` is one of QUANTIZATIONS."""
    if not isinstance(name, str) or name not in QUANTIZATIONS:
        hint = nearest(str(name), QUANTIZATIONS)
        raise ConfigError(
            f"quantization={name!r} is refused{hint}: {' and '.join(QUANTIZATIONS)} quantize a float model "
            "when it is loaded; for any other type choose a file that is stored so"
        )


# --- Checks ----------------------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _positive(name: str, value: object) -> None:
    if not (_is_int(value) and isinstance(value, int) and value >= 1):
        shown = "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
        raise ConfigError(f"{name} must be a whole number of at least 1, not {shown}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        hint = nearest(str(value), known)
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}{hint}")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be a path or a name, not {value!r}")
