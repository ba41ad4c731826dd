"""The parameters of one generation, under vLLM's names and with vLLM's defaults."""

from __future__ import annotations

import copy
import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.decoding.sampling.structured import StructuredOutputsParams, structured
from outrider.errors import ConfigError
from outrider.value_checks import flag, integer, logit_biases, number, one_of, only_known, strings, token_ids

MAX_LOGPROB_TOKEN_IDS = 128  # as in vLLM

LogitsProcessor: TypeAlias = Callable[..., npt.NDArray[np.floating[Any]]]

_BEAMS = "there is no beam search; n samples are independent"
# vLLM's parameters without a counterpart here: the values that change nothing, and why others are refused.
_UNSUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "best_of": ((None, 1), "there is no ranking of samples; draw n and rank them by cumulative_logprob"),
    "use_beam_search": ((False,), _BEAMS),
    "beam_width": ((None,), _BEAMS),
    "length_penalty": ((1.0, 1), _BEAMS),
    "early_stopping": ((False,), _BEAMS),
    "flat_logprobs": ((False,), "logprobs come as a list of mappings"),
    "extra_args": ((None,), "there are no plug-ins to read them"),
    "skip_reading_prefix_cache": ((None, False, True), "there is no prefix cache"),
    "thinking_token_budget": ((None,), "it is not supported; use max_tokens"),
    "repetition_detection": ((None,), "it is not supported; use the penalties"),
    "prompt_adapter": ((None,), "adapters are not supported"),
    "skip_clone": ((None, False, True), ""),
    "do_sample": ((None, True), "temperature=0 takes the likeliest token"),
    "num_beams": ((None, 1), _BEAMS),
}
# What OpenAI, transformers, llama.cpp and Ollama call the parameters below.
_RENAMED: dict[str, str] = {
    **dict.fromkeys(
        ("max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_gen_len", "max_length"),
        "max_tokens",
    ),
    **dict.fromkeys(("n_predict", "num_predict", "max_tokens_to_sample"), "max_tokens"),
    **dict.fromkeys(("min_new_tokens", "min_length"), "min_tokens"),
    **dict.fromkeys(("stop_sequences", "stop_strings", "stop_words", "until"), "stop"),
    "eos_token_id": "stop_token_ids",
    **dict.fromkeys(("num_return_sequences", "num_samples"), "n"),
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
    "random_seed": "seed",
    "bad_words_ids": "bad_words",
    "logits_processor": "logits_processors",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "response_format": "structured_outputs",
    "prediction": "draft_text",
}


class RequestOutputKind(enum.Enum):
    """What each output of `AsyncLLM.generate` holds: everything so far, what is new since the last output,
    or, once at the end, everything. `LLM.generate` returns whole outputs whatever it is."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@partial(only_known, elsewhere=_UNSUPPORTED, renamed=_RENAMED)
@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SamplingParams:
    """How tokens are sampled and when generation ends. Every field works with speculation too.

    n:                   samples per prompt; sample i uses `derive_seed(seed, i)`.
    presence_penalty:    subtracted from the logit of every token already in the output, -2..2.
    frequency_penalty:   the same, times how often the token is in the output, -2..2.
    repetition_penalty:  divides positive and multiplies negative logits of tokens in prompt or output, > 0.
    temperature:         divides the logits; 0 takes the most likely token (lowest id on ties).
    top_p:               keep the smallest set of likeliest tokens whose probability reaches top_p, (0, 1].
    top_k:               keep the k likeliest tokens (lowest ids on ties); 0 or -1 keeps all.
    min_p:               drop tokens less likely than min_p times the likeliest one, 0..1.
    seed:                64-bit, signed or not (a negative one becomes the unsigned number of the same bits);
                         None (or -1) for a random one.
    stop:                strings that end the output; each may span tokens.
    stop_token_ids:      ids that end the output, besides the model's own EOS ids.
    include_stop_str_in_output: keep the stop string, or the stop token's text, in the output.
    ignore_eos:          treat EOS as any other token.
    max_tokens:          most tokens to generate; None for as many as the context holds.
    min_tokens:          before so many tokens, EOS and stop tokens are masked and stop strings are ignored.
    logprobs:            return, for each output token, its log-probability and those of this many likeliest
                         tokens (-1: of all), from the model's own logits: before penalties, temperature,
                         masks and filters. None returns nothing.
    prompt_logprobs:     the same for the prompt's tokens.
    logprob_token_ids:   tokens, 128 at most, whose log-probabilities are returned in the place of those of
                         the likeliest ones; `logprobs` is then None or their number.
    logit_bias:          added to the logits, by token id.
    allowed_token_ids:   all other tokens are masked.
    bad_words:           texts that cannot be generated in the tokens that the tokenizer encodes them to, with
                         or without a space before them.
    logits_processors:   functions f(output ids, logits) or f(prompt ids, output ids, logits) of lists of int
                         and float32[vocab], a copy, that return the changed logits. Each is called for every
                         token, drafted ones included and in any order, so its result must depend on its
                         arguments only.
    structured_outputs:  the form of the output: StructuredOutputsParams, or a mapping of its fields.
    guided_decoding:     the same under vLLM's older name.
    json_schema, regex, choice, grammar: the same, for one form without options.
    detokenize:          False returns token ids without text.
    skip_special_tokens: leave special tokens out of the text (applied by the detokenizer).
    spaces_between_special_tokens: no tokenizer here adds such spaces, so both values mean the same.
    truncate_prompt_tokens: keep only the prompt's last tokens; -1: all that leave room for max_tokens.
    truncation_side:     "right" keeps the first ones instead: the side that is cut off.
    draft_text:          what the output may be like, as text or token ids: a file that is to be edited, say.
                         Drafts are looked up in it, so that what the output repeats of it comes faster. The
                         output does not depend on it (the acceptance rules `rejection` and `block` keep its
                         distribution). As many of its tokens are used as the context holds. It is here as
                         what one request may choose is in vLLM: `generate`, `chat`, `stream` and AsyncLLM
                         take it alike, and a list of SamplingParams gives each prompt its own.
    output_kind:         what each output of AsyncLLM.generate holds, see RequestOutputKind.

    Raises ConfigError for an unknown keyword and for any value out of range, when the parameters are made and
    when one is assigned. A request takes a copy, so a later assignment does not reach it.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Iterable[str] | None = None
    stop_token_ids: Iterable[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Iterable[int] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Iterable[int] | None = None
    bad_words: Iterable[str] | None = None
    logits_processors: Iterable[LogitsProcessor] | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    guided_decoding: StructuredOutputsParams | Mapping[str, Any] | None = None
    json_schema: str | Mapping[str, Any] | type | None = None
    regex: str | None = None
    choice: Iterable[str] | None = None
    grammar: str | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = "left"
    draft_text: str | Iterable[int] | None = None
    output_kind: RequestOutputKind | int = RequestOutputKind.CUMULATIVE  # the last field, see __setattr__

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Parameters of which those that are None have their defaults; `max_tokens=None` is no limit."""
        return cls(**{k: v for k, v in values.items() if v is not None or k == "max_tokens"})

    def clone(self) -> SamplingParams:
        """An independent copy."""
        twin = copy.copy(self)
        if twin.logit_bias is not None:
            twin._set("logit_bias", dict(twin.logit_bias))
        return twin

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], model_eos_token_id: int | None = None
    ) -> None:
        """Let the `eos_token_id`s of a generation_config.json end the text, besides `model_eos_token_id`.
        (The ids in the model's own files do so anyway.) With ignore_eos nothing changes."""
        found = generation_config.get("eos_token_id")
        ids = {found} if isinstance(found, int) else set(found or ())
        ids -= {model_eos_token_id}
        if ids and not self.ignore_eos:
            self.stop_token_ids = sorted(ids | set(self.stop_token_ids or ()))

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign a parameter. Raises ConfigError, and changes nothing, if the result would not be valid."""
        if hasattr(self, "output_kind"):  # complete: not called by __init__ or by a copy in the making
            checked = replace(self, **{name: value})
            if name not in _FIELDS:  # a neutral value of a parameter that is not supported
                return
            value = getattr(checked, name)
        self._set(name, value)

    def __post_init__(self) -> None:
        self._check("n", integer, 1)
        self._check("presence_penalty", number, -2.0, 2.0)
        self._check("frequency_penalty", number, -2.0, 2.0)
        self._check("repetition_penalty", partial(number, above=True), 0.0)
        self._check("temperature", number, 0.0)
        self._check("top_p", partial(number, above=True), 0.0, 1.0)
        self._check("top_k", integer, -1)
        self._check("min_p", number, 0.0, 1.0)
        self._check("min_tokens", integer, 0)
        for name in (
            *("include_stop_str_in_output", "ignore_eos", "detokenize"),
            *("skip_special_tokens", "spaces_between_special_tokens"),
        ):
            self._check(name, flag)
        if self.seed == -1:
            self._set("seed", None)
        for name, low, high in (
            ("seed", -(2**63), 2**64 - 1),
            ("max_tokens", 1, None),
            ("logprobs", -1, None),
            ("prompt_logprobs", -1, None),
            ("truncate_prompt_tokens", -1, None),
        ):
            if getattr(self, name) is not None:
                self._check(name, integer, low, high)
        self._check("output_kind", _output_kind)
        if self.truncation_side is None:  # as vLLM's requests have it
            self._set("truncation_side", "left")
        one_of("truncation_side", self.truncation_side, ("left", "right"))
        if self.seed is not None:
            self._set("seed", self.seed % 2**64)  # a negative one, as OpenAI allows, in two's complement
        self._check("stop", strings)
        self._set("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids or ()))
        self._check_tokens()
        self._check_form()
        self._check_together()

    def _check_tokens(self) -> None:
        """The parameters that name single tokens."""
        if self.allowed_token_ids is not None:
            self._check("allowed_token_ids", token_ids)
            if not self.allowed_token_ids:
                raise ConfigError("allowed_token_ids is empty: no token could be drawn")
        if self.logprob_token_ids is not None:
            chosen = token_ids("logprob_token_ids", self.logprob_token_ids)
            if len(chosen) > MAX_LOGPROB_TOKEN_IDS:
                raise ConfigError(
                    f"logprob_token_ids has {len(chosen)} ids; it can have {MAX_LOGPROB_TOKEN_IDS}"
                )
            self._set("logprob_token_ids", chosen)
        if self.logit_bias is not None:
            self._set("logit_bias", logit_biases(self.logit_bias))
        if self.bad_words is not None:
            self._check("bad_words", strings)
        if self.draft_text is not None and not isinstance(self.draft_text, str):
            self._check("draft_text", token_ids)
        if self.logits_processors is not None:
            if not isinstance(self.logits_processors, Iterable):
                raise ConfigError(f"logits_processors must be a list, not {self.logits_processors!r}")
            self._set("logits_processors", tuple(self.logits_processors))
            for processor in self.logits_processors:
                arity(processor)

    def _check_form(self) -> None:
        if self.choice is not None and not isinstance(self.choice, str):
            self._check("choice", strings)
        self.structured  # noqa: B018 (raises)

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})")
        if self.stop and not self.detokenize:
            raise ConfigError(
                "stop needs detokenize=True: it is text that ends the output; or use stop_token_ids"
            )
        chosen = len(tuple(self.logprob_token_ids or ()))
        if chosen and self.logprobs not in (None, chosen):
            raise ConfigError(
                f"logprobs ({self.logprobs}) must be None or the number of logprob_token_ids ({chosen})"
            )
        if self.truncate_prompt_tokens == 0:
            raise ConfigError(
                "truncate_prompt_tokens must be at least 1, or -1, not 0: nothing would be left"
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop or ())

    @property
    def num_logprobs(self) -> int | None:
        """How many log-probabilities are returned beside each token's own; -1: all; None: not even that."""
        return len(tuple(self.logprob_token_ids or ())) or self.logprobs

    @property
    def structured(self) -> StructuredOutputsParams | None:
        """The form of the output, whichever parameter asked for it."""
        plain = {name: getattr(self, name) for name in ("json_schema", "regex", "choice", "grammar")}
        return structured(self.structured_outputs, self.guided_decoding, plain)

    def stop_ids(self, eos_ids: Iterable[int]) -> frozenset[int]:
        """Every id that ends the output of a model with these EOS ids."""
        return frozenset(self.stop_token_ids or ()) | (frozenset() if self.ignore_eos else frozenset(eos_ids))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check(self, name: str, check: Callable[..., object], *bounds: float | None) -> None:
        self._set(name, check(name, getattr(self, name), *bounds))


_FIELDS = frozenset(field.name for field in fields(SamplingParams))


def _output_kind(name: str, value: object) -> RequestOutputKind:
    try:
        return RequestOutputKind.CUMULATIVE if value is None else RequestOutputKind(value)
    except ValueError:
        known = ", ".join(f"RequestOutputKind.{kind.name}" for kind in RequestOutputKind)
        raise ConfigError(f"{name} must be one of {known}, not {value!r}") from None


def arity(processor: object) -> int:
    """How many arguments a logits processor takes: 2, or 3 with the prompt's ids. Raises ConfigError."""
    if not callable(processor):
        raise ConfigError(f"logits_processors must be functions, not {processor!r}")
    try:
        kinds = [p for p in inspect.signature(processor).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):  # a compiled function without a signature
        return 2
    named = [p for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(named) in (2, 3) and not any(p.kind is p.KEYWORD_ONLY for p in kinds):
        return len(named)
    if not named and any(p.kind is p.VAR_POSITIONAL for p in kinds):
        return 2
    raise ConfigError(
        f"logits_processors: {getattr(processor, '__qualname__', processor)!r} must take "
        "(output ids, logits) or (prompt ids, output ids, logits)"
    )
