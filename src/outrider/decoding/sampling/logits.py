"""The stages that change logits token by token, before temperature and the filters of the sampler.

Stages, in vLLM's order: masked tokens (allowed_token_ids, bad_words, min_tokens, the constraint of
structured output); logit_bias; logits_processors, after which the masked tokens are masked again;
repetition penalty over prompt and output, then frequency and presence penalty over the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.constraint import Constraint
from outrider.decoding.sampling.params import LogitsProcessor, SamplingParams, arity
from outrider.decoding.sampling.rng import Ids
from outrider.errors import ConfigError

Row: TypeAlias = npt.NDArray[np.floating[Any]]  # float32[vocab] from the model, float64 once changed


class LogitsPipeline:
    """The changes that one request's parameters make to logits, over the first `vocab_size` ids.

    eos_ids:    the model's end-of-sequence ids.
    bad_words:  sequences of token ids; the last id of one is masked after the others.
    constraint: of structured output, or None.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        eos_ids: Iterable[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.eos_ids = frozenset(eos_ids)
        self.stop_ids = params.stop_ids(self.eos_ids)
        self.bad_words = tuple(tuple(word) for word in bad_words)
        self.constraint = constraint
        self.full_size = vocab_size
        self._buffer: Row | None = None
        self._prepare(vocab_size)

    def restricted(self, vocab_size: int) -> LogitsPipeline:
        """The same request's pipeline over the first `vocab_size` ids only."""
        smaller = LogitsPipeline(self.params, vocab_size, self.eos_ids, self.bad_words, self.constraint)
        smaller.full_size = self.full_size
        return smaller

    def _prepare(self, vocab_size: int) -> None:
        """Turn the parameters that name tokens into arrays, without ids outside `vocab_size`."""
        params = self.params
        self.vocab_size = vocab_size
        bias = {i: b for i, b in (params.logit_bias or {}).items() if i < vocab_size}
        self._bias = np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float64, len(bias))
        allowed = params.allowed_token_ids
        self._allowed = None if allowed is None else _sorted(allowed, vocab_size)
        self._stops = _sorted(self.stop_ids, vocab_size)
        self._eos = _sorted(self.eos_ids, vocab_size)
        self._bad = [(word[:-1], word[-1]) for word in self.bad_words if word[-1] < vocab_size]
        self._processors = [(p, arity(p)) for p in params.logits_processors or ()]
        self._penalised = (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )

    def changes(self, context: TokenContext) -> bool:
        """Whether any stage may change the rows of this context or of a later one."""
        early = context.output_length < self.params.min_tokens and len(self._stops) > 0
        fixed = len(self._bias[0]) or self._bad or self._processors or self._penalised
        return bool(early or fixed or self._allowed is not None or self.constraint is not None)

    def row(self, logits: Row, context: TokenContext) -> Row:
        """The adjusted row, valid until the next call; `logits` itself (float32[vocab_size]) if nothing
        changes it.

        Raises ConfigError when a logits processor fails or returns anything but a row of numbers.
        """
        bias_ids, biases = self._bias
        processors = self._processors
        changes_values = bool(len(bias_ids) or processors or self._penalised)
        masked = self._masked(context)
        if not (changes_values or masked):
            return logits
        row = self._copy(logits, np.dtype(np.float64) if changes_values else logits.dtype)
        _mask(row, masked)
        row[bias_ids] += biases
        if processors:
            for processor, count in processors:
                row = self._processed(processor, count, row, context)
            _mask(row, masked)
        if self._penalised:
            self._penalise(row, context)
        return row

    def _copy(self, logits: Row, dtype: np.dtype[Any]) -> Row:
        """A copy in a buffer that is reused: allocating one takes longer than filling it."""
        if self._buffer is None or self._buffer.dtype != dtype or len(self._buffer) != len(logits):
            self._buffer = np.empty(len(logits), dtype)
        self._buffer[:] = logits
        return self._buffer

    def _masked(self, context: TokenContext) -> list[npt.NDArray[Any]]:
        """The masked tokens, as arrays of bool[vocab] or of ids, int64[k]."""
        masks: list[npt.NDArray[Any]] = []
        if self._allowed is not None:
            outside = np.ones(self.vocab_size, bool)
            outside[self._allowed] = False
            masks.append(outside)
        bad = [last for before, last in self._bad if context.ends_with(before)]
        if bad:
            masks.append(np.array(bad, np.int64))
        early = context.output_length < self.params.min_tokens
        if self.constraint is None:
            if early and len(self._stops):
                masks.append(self._stops)
        elif (permitted := self.constraint.allowed(context)) is not None:
            permitted = permitted[: self.vocab_size]
            # min_tokens and ignore_eos mask the end, unless the constraint permits nothing else.
            for applies, ids in ((early, self._stops), (self.params.ignore_eos, self._eos)):
                if applies and permitted[ids].any():
                    without = permitted.copy()
                    without[ids] = False
                    permitted = without if without.any() else permitted
            masks.append(~permitted)
        return masks

    def _processed(self, processor: LogitsProcessor, count: int, row: Row, context: TokenContext) -> Row:
        """The row after a user's processor, which is given a copy as float32[full vocabulary]."""
        given = np.full(self.full_size, -np.inf, np.float32)
        with np.errstate(over="ignore"):
            given[: len(row)] = row
        name = getattr(processor, "__qualname__", type(processor).__name__)
        where = f"logits processor {name} at position {context.position}"
        try:
            made = np.asarray(processor(*(context.prompt, context.output, given)[3 - count :]))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"{where} failed: {reason}") from error
        if made.shape != given.shape or made.dtype.kind not in "fiu":
            raise ConfigError(f"{where} gave {made.dtype} of shape {made.shape}, not a number for each token")
        made = made[: len(row)].astype(np.float64)
        if np.isnan(made).any() or np.isposinf(made).any():
            raise ConfigError(f"{where} gave NaN or +inf")
        return made

    def _penalise(self, row: Row, context: TokenContext) -> None:
        params = self.params
        ids, counts = context.counts()
        known = ids < self.vocab_size
        ids, counts = ids[known], counts[known]
        values = row[ids]
        values = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values -= params.frequency_penalty * counts
        values -= params.presence_penalty * (counts > 0)
        row[ids] = values


def _mask(row: Row, parts: Iterable[npt.NDArray[Any]]) -> None:
    for part in parts:
        row[part] = -np.inf


def _sorted(ids: Iterable[int], vocab_size: int) -> Ids:
    return np.array(sorted({i for i in ids if i < vocab_size}), np.int64)
