"""The configuration of `engine="vllm"`: what is handed to vLLM, under its own names of today.

Other engines of Outrider honour a fixed set of options; what vLLM honours depends on the version that is
installed. So nothing is refused here for being unknown: `engines.vllm.translate` judges it by that version.
What is refused here is what no version can do, or what would make the output another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.config.foreign import RENAMED
from outrider.config.quantization import USUAL_KV
from outrider.config.speculative import (
    AS_STORED,
    DEFAULT_DRAFT_TOKENS,
    OLD_SPECULATIVE_NAMES,
    VERIFICATIONS,
    SpeculativeConfig,
    speculative_mapping,
)
from outrider.errors import ConfigError, nearest
from outrider.value_checks import path_or_name, positive

ENGINE = "vllm"
# Methods for which vLLM takes no number from the draft's own configuration file.
_NEED_A_LENGTH = ("ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", None)
_OWN_RULES = {"rejection": "standard", "block": "block"}  # `verification`, and vLLM's name of the rule
_WRONG_ON_PURPOSE = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
# Arguments of Outrider's own engines: the values that ask for nothing, and why others are refused.
_OURS: dict[str, tuple[tuple[object, ...], str]] = {
    "weights_cache": ((None, False), "vLLM packs no weights; leave it out"),
    "kv_quantization": ((None, *USUAL_KV), "use vLLM's own kv_cache_dtype, such as 'fp8'"),
    "exact": ((None, "auto", "fast"), "vLLM's logits depend on the batch; use engine='native' or 'torch'"),
    "device": ((None, "auto"), "vLLM takes the device that it was built for; leave it out"),
}


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """What vLLM is to run.

    model:       a folder, or a name on the hub, as vLLM takes it.
    speculative: keys of vLLM's `speculative_config`; empty for no speculation.
    options:     vLLM's engine arguments by their Python names; None is not among the values.
    threads:     of its CPU build; None for its own choice.
    """

    model: str
    speculative: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None

    @property
    def draft_tokens(self) -> int | None:
        """Most draft tokens of a step; None where the draft's own configuration says it, 0 without
        speculation."""
        return self.speculative.get("num_speculative_tokens") if self.speculative else 0


def parse_vllm(
    model: str | None,
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
    *,
    threads: int | None = None,
    **arguments: Any,
) -> VllmConfig:
    """Parse the arguments of `LLM(engine="vllm", …)`, in old and new spellings. Raises ConfigError."""
    if model is None:
        raise ConfigError("there is no model: give a path or a name as `model`")
    path_or_name("model", model)
    if threads is not None:
        positive("threads", threads)
    old: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in OLD_SPECULATIVE_NAMES:
            old[name] = value
        elif name in _OURS:
            neutral, reason = _OURS[name]
            if value not in neutral:
                raise ConfigError(f"{name}={value!r} is refused: {reason}")
        elif value is not None and (own := RENAMED.get(name)) is not None:
            raise ConfigError(f"unknown argument {name!r}: use {own!r}")
        elif value is not None and name != "engine":
            options[name] = value
    return VllmConfig(_model(model), parse_vllm_speculative(speculative_config, **old), options, threads)


def parse_vllm_speculative(
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None, **old: Any
) -> dict[str, Any]:
    """vLLM's `speculative_config` in its names of today; {} for none. `auto` is its own choice by the draft
    model, or a lookup of n-grams without one.

    speculative_config: in any of the forms of `parse_speculative`. old: the older arguments.
    Raises ConfigError for what no version of vLLM can do, and for what is wrong in itself.
    """
    given = {OLD_SPECULATIVE_NAMES[name]: value for name, value in old.items() if value is not None}
    if speculative_config is not None and given:
        names = ", ".join(sorted(name for name, value in old.items() if value is not None))
        raise ConfigError(f"give either speculative_config or {names}, not both")
    if isinstance(speculative_config, SpeculativeConfig):
        given = _of_config(speculative_config)
    elif speculative_config is not None:
        given = speculative_mapping(speculative_config)
    given = {str(key): value for key, value in given.items() if value is not None}
    return _named_as_today(given) if given else {}


def _of_config(config: SpeculativeConfig) -> dict[str, Any]:
    """The keys of a config object that were set to another value than their default."""
    changed = {
        f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != f.default
    }
    return {"method": config.method, **changed}


def _named_as_today(given: dict[str, Any]) -> dict[str, Any]:
    for key in _WRONG_ON_PURPOSE:
        if key in given:
            raise ConfigError(f"speculative_config: {key} makes the output wrong on purpose; leave it out")
    if given.get("model") in ("[ngram]", "ngram"):
        given = {**given, "method": "ngram"}
        del given["model"]
    found = _with_method(given)
    if not found:
        return {}
    _take_rule(found)
    _take_quantization(found)
    if "model" in found:
        path_or_name("speculative_config: model", found["model"])
        if found["model"] == "auto":
            raise ConfigError(
                "speculative_config: with vLLM name the draft model; 'auto' chooses a GGUF file"
            )
        found["model"] = _model(found["model"])
    if found.get("method") in _NEED_A_LENGTH:
        found.setdefault("num_speculative_tokens", DEFAULT_DRAFT_TOKENS)
    if "num_speculative_tokens" in found:
        positive("num_speculative_tokens", found["num_speculative_tokens"])
    return found


def _with_method(given: dict[str, Any]) -> dict[str, Any]:
    """The keys with vLLM's method: without one it finds out by the draft model what it is."""
    found = dict(given)
    method = found.pop("method", "auto")
    if not isinstance(method, str):
        raise ConfigError(f"speculative_config: method must be a name, not {method!r}")
    if method == "none":
        return {}
    if method == "auto":
        if "model" in found:
            return found
        if found.keys() & {"prompt_lookup_min", "prompt_lookup_max"} or given.get("method") == "auto":
            return {"method": "ngram", **found}
        if found.keys() <= {"num_speculative_tokens", "draft_tensor_parallel_size"}:
            raise ConfigError(
                "speculative_config: there is neither a method nor a draft model; "
                "give method 'ngram', or `model`"
            )
    return {"method": method, **found} if method != "auto" else found


def _take_rule(found: dict[str, Any]) -> None:
    """Bring `verification` and vLLM's older name of the acceptance rule to `rejection_sample_method`."""
    rule = found.pop("verification", None)
    if rule is not None:
        if not isinstance(rule, str) or rule not in _OWN_RULES:
            known = nearest(str(rule), VERIFICATIONS)
            raise ConfigError(
                f"speculative_config: verification={rule!r} is refused: vLLM's rules are "
                f"{' and '.join(map(repr, _OWN_RULES))}{known}; leave it out"
            )
        found.setdefault("rejection_sample_method", _OWN_RULES[rule])
    method = found.pop("acceptance_method", None)
    if method not in (None, "rejection_sampler"):
        raise ConfigError(
            f"speculative_config: acceptance_method={method!r} is refused: it accepts tokens that the target "
            "would not write; leave it out"
        )
    if found.get("rejection_sample_method") == "synthetic":
        raise ConfigError(
            "speculative_config: rejection_sample_method='synthetic' makes the output wrong on purpose; "
            "use 'standard' or 'block'"
        )


def _take_quantization(found: dict[str, Any]) -> None:
    kind = found.get("quantization")
    if kind in (*AS_STORED, "auto"):
        del found["quantization"]
    elif kind in ("q3", "q4"):
        raise ConfigError(
            f"speculative_config: quantization={kind!r} is refused: vLLM does not quantize a draft in this "
            "way; give it a draft that is quantized"
        )


def _model(name: str) -> str:
    """A model as vLLM names it. Raises ConfigError for references that only Outrider reads."""
    plain = name.removeprefix("hf:")
    if plain != name and plain.count(":"):
        raise ConfigError(f"{name!r} is refused: vLLM takes a whole repository, {plain.split(':')[0]!r}")
    if name.startswith(("pypi:", "synthetic:")):
        raise ConfigError(f"{name!r} is refused: vLLM takes a folder, or a name on the hub such as ORG/REPO")
    return plain
