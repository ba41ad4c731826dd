"""The configuration of speculation: `SpeculativeConfig`, a tagged union by `method`.

It accepts vLLM's parameters under their current and older names. Each parameter is supported, accepted where
its value changes nothing here, or refused with the reason; an unknown name is refused with the nearest known
one. Nothing is silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from outrider.config.quantization import DRAFT_QUANTIZATIONS, check_quantization
from outrider.errors import ConfigError, nearest
from outrider.value_checks import Neutral, anything, one_of, only, path_or_name, positive

DEFAULT_DRAFT_TOKENS = 5
MAX_DRAFT_TOKENS = 128
DEFAULT_TREE_NODES = 16  # most draft tokens of a step with `auto` and `suffix`
VERIFICATIONS = ("coupled", "rejection", "block")  # acceptance rules, the default first
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
AS_STORED = ("stored", "gguf")  # no quantization of the draft's weights; the second is vLLM's name

# vLLM's parameters for the rule: their values, and the rule here.
_RULES = {
    "rejection_sample_method": {"standard": "rejection", "block": "block", "coupled": "coupled"},
    "acceptance_method": {"rejection_sampler": "rejection"},
}


@dataclass(frozen=True, slots=True)
class NoneConfig:
    """No speculation: plain decoding."""

    method: ClassVar[str] = "none"


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Propose the tokens that followed the latest earlier occurrence of the last n-gram (prompt lookup).

    num_speculative_tokens: most draft tokens of a step.
    prompt_lookup_min, prompt_lookup_max: lengths of the n-grams, in tokens.
    verification: the acceptance rule, one of VERIFICATIONS.
    """

    method: ClassVar[str] = "ngram"
    num_speculative_tokens: int = DEFAULT_DRAFT_TOKENS
    prompt_lookup_max: int = 5
    prompt_lookup_min: int = 5
    verification: str = VERIFICATIONS[0]


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What a draft model and a head have in common.

    model: a reference or path, as for the target.
    num_speculative_tokens: most draft tokens of a step.
    max_model_len: most tokens in the draft model's context; None for its own limit.
    revision: branch, tag or commit when `model` is a repository on the hub.
    verification: the acceptance rule, one of VERIFICATIONS.
    quantization: of the draft's weights (models/quantization.py). By default about 3 or 4 bits, for a fast
        draft; None as stored; for a float model also those of the engine.
    draft_sample_method: "greedy" drafts the likeliest tokens; "probabilistic", or None, draws them from the
        draft model's distribution, in the way that suits the rule.
    """

    model: str
    num_speculative_tokens: int = DEFAULT_DRAFT_TOKENS
    max_model_len: int | None = None
    revision: str | None = None
    verification: str = VERIFICATIONS[0]
    draft_sample_method: str | None = None
    quantization: str | None = DRAFT_QUANTIZATIONS[0]


@dataclass(frozen=True, slots=True)
class DraftModelConfig(_Drafted):
    """Propose with a draft model: a smaller model of the same vocabulary.

    model: "auto" is one that is on this machine (draft_choice.py).
    """

    method: ClassVar[str] = "draft_model"


@dataclass(frozen=True, slots=True)
class Eagle3Config(_Drafted):
    """Propose with an EAGLE-3 head (Li et al. 2025): a small model that reads the target's hidden states.

    model: the head, in any of its formats.
    quantization: by default 4 bits.
    """

    method: ClassVar[str] = "eagle3"


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """Propose a tree of the tokens that followed earlier matches (SuffixDecoding, Oliaro et al. 2024).

    num_speculative_tokens: most nodes of a step's tree.
    suffix_decoding_max_tree_depth: most tokens of a path.
    suffix_decoding_max_cached_requests: outputs kept for the other requests of a namespace.
    suffix_decoding_max_spec_factor: a path is at most this many times as long as its match.
    suffix_decoding_min_token_prob: paths less likely than this, by frequency, are left out.
    verification: the acceptance rule, one of VERIFICATIONS.
    """

    method: ClassVar[str] = "suffix"
    num_speculative_tokens: int = DEFAULT_TREE_NODES
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    verification: str = VERIFICATIONS[0]


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Suffix lookup, and a draft model or a head if one is given, each used only where it saves time.

    model: the reference or path of the draft model or of the head, "auto" as for DraftModelConfig, or None.
    num_speculative_tokens: most draft tokens of a step.
    The other fields are as those of DraftModelConfig and SuffixConfig.
    """

    method: ClassVar[str] = "auto"
    model: str | None = None
    num_speculative_tokens: int = DEFAULT_TREE_NODES
    max_model_len: int | None = None
    revision: str | None = None
    verification: str = VERIFICATIONS[0]
    draft_sample_method: str | None = None
    quantization: str | None = DRAFT_QUANTIZATIONS[0]
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1


WithDraft: TypeAlias = DraftModelConfig | Eagle3Config | AutoConfig  # those that have a `model`
SpeculativeConfig: TypeAlias = NoneConfig | NgramConfig | SuffixConfig | WithDraft
METHODS: dict[str, type[SpeculativeConfig]] = {
    c.method: c for c in (AutoConfig, SuffixConfig, NgramConfig, DraftModelConfig, Eagle3Config, NoneConfig)
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

ONE_PROCESS = "Outrider runs in one process; leave it at 1, or use engine 'vllm'"
IN_THE_FILE = "the model file says how its weights are stored; choose a file of the type you want"
_NOT_BUILT_DRAFT = "no drafter here uses it; leave it out"
_OTHER_HEADS = ("eagle", "medusa", "mtp", "mlp_speculator", "dflash", "dspark", "hydra")
_LOOKED_UP = "it is about a draft model's draws; the method 'ngram' looks its tokens up"

# vLLM's parameters that are not supported: the values that change nothing, and why others are refused.
_REFUSED_SPECULATIVE: dict[str, tuple[Neutral, str]] = {
    "draft_tensor_parallel_size": (only(1), ONE_PROCESS),
    "tensor_parallel_size": (only(1), ONE_PROCESS),
    "quantization": (only(*AS_STORED), IN_THE_FILE),
    "enforce_eager": (anything, ""),
    "code_revision": (only(), "no code of a model repository is ever run; leave it out"),
    "draft_sample_method": (only("greedy"), _LOOKED_UP),
    "synthetic_acceptance_rates": (only(), "it makes the output wrong on purpose; leave it out"),
    "synthetic_acceptance_length": (only(), "it makes the output wrong on purpose; leave it out"),
    "use_heterogeneous_vocab": (only(False), "the draft needs the target's vocabulary; choose such a draft"),
    "parallel_drafting": (only(False), _NOT_BUILT_DRAFT),
    "num_speculative_tokens_per_batch_size": (only(), "give one num_speculative_tokens instead"),
    "disable_by_batch_size": (only(), "give one num_speculative_tokens for every batch size instead"),
    "moe_backend": (only(), _NOT_BUILT_DRAFT),
    "attention_backend": (only(), _NOT_BUILT_DRAFT),
    "kv_cache_dtype": (only("auto"), "the draft's cache is stored as the target's; leave it out"),
    "draft_load_config": (only(), "give `model` a path or a reference instead"),
    "disable_padded_drafter_batch": (anything, ""),
    "disable_eagle_block_drop": (only(False), _NOT_BUILT_DRAFT),
    "use_local_argmax_reduction": (only(False), ONE_PROCESS),
    "index_share_for_mtp_iteration": (only(), _NOT_BUILT_DRAFT),
    "enable_adaptive_verification": (only(False), _NOT_BUILT_DRAFT),
    "dspark_draft_topk": (only(), _NOT_BUILT_DRAFT),
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
    """Parse the drafter's configuration, in any of vLLM's forms.

    speculative_config: a mapping with `method`, `model`, `num_speculative_tokens`, …; its JSON text; the
        name of a method that needs nothing else; a SpeculativeConfig; or None.
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
    if isinstance(speculative_config, SpeculativeConfig):
        return _checked(speculative_config)
    return _from_mapping(speculative_mapping(speculative_config))


def speculative_mapping(value: object) -> dict[str, Any]:
    """The keys of a mapping, of its JSON text, or the name of a method as one. Raises ConfigError."""
    if isinstance(value, str):
        return _mapping_of_text(value)
    if isinstance(value, Mapping):
        return dict(value)
    kind = type(value).__name__
    raise ConfigError(f"speculative_config must be a mapping, JSON text or a method's name, not {kind}")


def _mapping_of_text(text: str) -> dict[str, Any]:
    if text.lstrip()[:1] not in ("{", "[", '"'):
        return {"method": text.strip()}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"speculative_config is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"speculative_config must be a JSON object or a method's name, not {text[:80]!r}")
    return value


def _from_mapping(given: dict[str, Any]) -> SpeculativeConfig:
    """Build the config of `given`'s method. Without a method it is `auto`, or `ngram` if only the lengths of
    n-grams are given."""
    for key in given:
        if key not in _KNOWN:
            raise ConfigError(f"speculative_config: unknown key {key!r}{nearest(str(key), _KNOWN)}")
    kind = METHODS[_method(given)]
    if kind is NoneConfig:  # "none" turns speculation off whatever else is set
        return NoneConfig()
    own = {f.name for f in fields(kind)}
    values = {k: v for k, v in given.items() if k != "method" and not (k in own and v is None)}
    if "quantization" in own and values.get("quantization") in AS_STORED:
        values["quantization"] = None
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
    if kind in (DraftModelConfig, Eagle3Config) and "model" not in values:
        raise ConfigError(
            f"speculative_config: the method {kind.method!r} needs `model`, the draft's path or name"
        )
    return _checked(kind(**values))


def _take_rule(key: str, values: dict[str, Any]) -> None:
    """Replace one of vLLM's parameters for the rule by `verification`."""
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
    """Raise for a known key that `method` does not support, unless its value changes nothing."""
    neutral, reason = _REFUSED_SPECULATIVE.get(key, (only(), f"it has no meaning for the method {method!r}"))
    if not neutral(value):
        raise ConfigError(f"speculative_config: {key}={value!r} is refused: {reason}")


def _method(given: Mapping[str, Any]) -> str:
    method, model = given.get("method"), given.get("model")
    if method is None:
        if model in ("[ngram]", "ngram"):
            return "ngram"
        if model is None and ("prompt_lookup_max" in given or "prompt_lookup_min" in given):
            return "ngram"
        return "auto"
    if method in _OTHER_HEADS:
        raise ConfigError(f"speculative method {method!r} is not built; of heads, 'eagle3' is")
    if not isinstance(method, str) or method not in METHODS:
        hint = nearest(str(method), METHODS)
        raise ConfigError(
            f"speculative method {method!r} is not available{hint}: choose one of {', '.join(METHODS)}"
        )
    return method


def _checked(config: SpeculativeConfig) -> SpeculativeConfig:
    """The config, if its values are in range. `SuffixDrafter` checks those of suffix lookup."""
    if isinstance(config, NoneConfig):
        return config
    n = config.num_speculative_tokens
    positive("num_speculative_tokens", n)
    if n > MAX_DRAFT_TOKENS:
        raise ConfigError(f"num_speculative_tokens must be at most {MAX_DRAFT_TOKENS}, not {n}")
    one_of("verification", config.verification, VERIFICATIONS)
    if isinstance(config, NgramConfig):
        positive("prompt_lookup_max", config.prompt_lookup_max)
        positive("prompt_lookup_min", config.prompt_lookup_min)
        if config.prompt_lookup_min > config.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({config.prompt_lookup_min}) must not be larger than "
                f"prompt_lookup_max ({config.prompt_lookup_max})"
            )
        return config
    if isinstance(config, SuffixConfig):
        return config
    if not (isinstance(config, AutoConfig) and config.model is None):
        path_or_name("model", config.model)
    if config.draft_sample_method is not None:
        one_of("draft_sample_method", config.draft_sample_method, DRAFT_SAMPLE_METHODS)
    if config.quantization is not None:
        check_quantization(config.quantization, draft=True)
    if config.max_model_len is not None:
        positive("max_model_len", config.max_model_len)
    if config.revision is not None:
        path_or_name("revision", config.revision)
        if config.model == "auto":
            raise ConfigError("speculative_config: a revision needs a model by name; 'auto' chooses one")
    return config
