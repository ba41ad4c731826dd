"""What a user may ask of one generation, under vLLM's names and with vLLM's defaults."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from outrider.errors import ConfigError, nearest

T = TypeVar("T")


def _reject_unknown(cls: type[T]) -> type[T]:
    """Make a dataclass answer an unknown keyword with a ConfigError that names the nearest known one."""
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    init = cls.__init__

    @functools.wraps(init)
    def checked(self: T, /, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}{nearest(name, known)}")
        init(self, *args, **kwargs)

    setattr(cls, "__init__", checked)  # noqa: B010 (mypy refuses the plain assignment)
    return cls


@_reject_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when generation ends. Every field is honoured, with speculation too.

    n:                   samples per prompt; sample i uses `derive_seed(seed, i)`.
    presence_penalty:    subtracted from the logit of every token already in the output, -2..2.
    frequency_penalty:   the same, times how often the token is in the output, -2..2.
    repetition_penalty:  divides positive and multiplies negative logits of tokens in prompt or output, > 0.
    temperature:         divides the logits; 0 takes the most likely token (lowest id on ties).
    top_p:               keep the smallest set of likeliest tokens whose probability reaches top_p, (0, 1].
    top_k:               keep the k likeliest tokens (lowest ids on ties); 0 or -1 keeps all.
    min_p:               drop tokens less likely than min_p times the likeliest one, 0..1.
    seed:                64-bit; None (or -1) lets the caller draw one.
    stop:                strings that end the text; each may span tokens.
    stop_token_ids:      ids that end the text, besides the model's own EOS ids.
    include_stop_str_in_output: leave the stop string, or the stop token's text, in the text.
    ignore_eos:          treat EOS as any other token.
    max_tokens:          most tokens to generate; None means to the end of the context.
    min_tokens:          EOS and stop tokens cannot be drawn, nor stop strings end the text, before.
    logit_bias:          added to the logits, by token id.
    allowed_token_ids:   no other token can be drawn.
    skip_special_tokens: leave special tokens out of the text (applied by the detokenizer).

    Raises ConfigError for an unknown keyword and for any value out of range.
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
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Iterable[int] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._integer("n", 1)
        self._number("presence_penalty", -2.0, 2.0)
        self._number("frequency_penalty", -2.0, 2.0)
        self._number("repetition_penalty", 0.0, math.inf, above=True)
        self._number("temperature", 0.0, math.inf)
        self._number("top_p", 0.0, 1.0, above=True)
        self._integer("top_k", -1)
        self._number("min_p", 0.0, 1.0)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.seed == -1:
            self._set("seed", None)
        if self.seed is not None:
            self._integer("seed", 0, 2**64 - 1)
        if self.max_tokens is not None:
            self._integer("max_tokens", 1)
        self._integer("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})")
        self._set("stop", _strings(self.stop))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids or ()))
        if self.allowed_token_ids is not None:
            allowed = _ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise ConfigError("allowed_token_ids is empty: no token could be drawn")
            self._set("allowed_token_ids", allowed)
        if self.logit_bias is not None:
            self._set("logit_bias", _biases(self.logit_bias))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop or ())

    def stop_ids(self, eos_ids: Iterable[int]) -> frozenset[int]:
        """Every id that ends a text of a model with these EOS ids."""
        return frozenset(self.stop_token_ids or ()) | (frozenset() if self.ignore_eos else frozenset(eos_ids))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _integer(self, name: str, low: int, high: int | None = None) -> None:
        value = _integer(name, getattr(self, name))
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"in {low}..{high}"
            raise ConfigError(f"{name} must be {bounds}, not {value}")
        self._set(name, value)

    def _number(self, name: str, low: float, high: float, *, above: bool = False) -> None:
        value = _number(name, getattr(self, name))
        if value < low or value > high or (above and value == low):
            bounds = f"{'above' if above else 'at least'} {low:g}"
            bounds += "" if math.isinf(high) else f" and at most {high:g}"
            raise ConfigError(f"{name} must be {bounds}, not {value:g}")
        self._set(name, value)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, not {value!r}") from None


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be a finite number, not {value!r}")
    return number


def _strings(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"stop must be strings that are not empty, not {text!r}")
    return stops


def _ids(name: str, values: Any) -> tuple[int, ...]:
    try:
        ids = tuple(_integer(name, value) for value in values)
    except TypeError:
        raise ConfigError(f"{name} must be a list of token ids, not {values!r}") from None
    for token in ids:
        if token < 0:
            raise ConfigError(f"{name} has the id {token}; token ids start at 0")
    return ids


def _biases(values: Any) -> dict[int, float]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"logit_bias must map token ids to numbers, not {values!r}")
    ids = _ids("logit_bias", values)
    return {i: _number(f"logit_bias[{i}]", v) for i, v in zip(ids, values.values(), strict=True)}
