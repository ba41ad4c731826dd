"""From the model's logits to the logits that a token is drawn from: every stage that works id by id.

Stages, in vLLM's order: the tokens that are ruled out (allowed_token_ids, bad_words, min_tokens, the
constraint of structured output); logit_bias; logits_processors, after which what was ruled out stays so;
repetition penalty over prompt and output, then frequency and presence penalty over the output.
Temperature and the filters that look at the row as a whole are the sampler's.
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
    """One request's changes to logits, over the first `vocab_size` ids.

    eos_ids:    ids that end a text of this model.
    bad_words:  sequences of token ids; the last of one cannot follow the others.
    constraint: what structured output permits, or None.
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
        self._memory: Row | None = None
        self._prepare(vocab_size)

    def restricted(self, vocab_size: int) -> LogitsPipeline:
        """The same request's adjuster over the first `vocab_size` ids only."""
        twin = LogitsPipeline(self.params, vocab_size, self.eos_ids, self.bad_words, self.constraint)
        twin.full_size = self.full_size
        return twin

    def _prepare(self, vocab_size: int) -> None:
        """Turn the parameters that name tokens into arrays, without ids that cannot occur."""
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

    def row(self, logits: Row, context: TokenContext) -> Row:
        """The adjusted row, good until the next call; or `logits` itself (float32[vocab_size]) if nothing
        changes it.

        Raises ConfigError when a logits processor fails or gives something else than a row of numbers.
        """
        bias_ids, biases = self._bias
        processors = self._processors
        moves = bool(len(bias_ids) or processors or self._penalised)
        ruled_out = self._ruled_out(context)
        if not (moves or ruled_out):
            return logits
        row = self._copy(logits, np.dtype(np.float64) if moves else logits.dtype)
        _rule_out(row, ruled_out)
        row[bias_ids] += biases
        if processors:
            for processor, count in processors:
                row = self._processed(processor, count, row, context)
            _rule_out(row, ruled_out)
        if self._penalised:
            self._penalise(row, context)
        return row

    def _copy(self, logits: Row, dtype: np.dtype[Any]) -> Row:
        """A copy in memory that is kept: getting so much anew takes longer than filling it."""
        if self._memory is None or self._memory.dtype != dtype or len(self._memory) != len(logits):
            self._memory = np.empty(len(logits), dtype)
        self._memory[:] = logits
        return self._memory

    def _ruled_out(self, context: TokenContext) -> list[npt.NDArray[Any]]:
        """What cannot be drawn: bool[vocab] or int64[k] arrays of ids."""
        found: list[npt.NDArray[Any]] = []
        if self._allowed is not None:
            outside = np.ones(self.vocab_size, bool)
            outside[self._allowed] = False
            found.append(outside)
        bad = [last for before, last in self._bad if context.ends_with(before)]
        if bad:
            found.append(np.array(bad, np.int64))
        early = context.output_length < self.params.min_tokens
        if self.constraint is None:
            if early and len(self._stops):
                found.append(self._stops)
        elif (permitted := self.constraint.allowed(context)) is not None:
            permitted = permitted[: self.vocab_size]
            # The text goes on for as long as the constraint lets it, and ends where it does not.
            for held, ids in ((early, self._stops), (self.params.ignore_eos, self._eos)):
                if held and permitted[ids].any():
                    longer = permitted.copy()
                    longer[ids] = False
                    permitted = longer if longer.any() else permitted
            found.append(~permitted)
        return found

    def _processed(self, processor: LogitsProcessor, count: int, row: Row, context: TokenContext) -> Row:
        """What a user's processor makes of a row. It sees float32[full vocabulary], a copy."""
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
        inside = ids < self.vocab_size
        ids, counts = ids[inside], counts[inside]
        values = row[ids]
        values = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values -= params.frequency_penalty * counts
        values -= params.presence_penalty * (counts > 0)
        row[ids] = values


def _rule_out(row: Row, parts: Iterable[npt.NDArray[Any]]) -> None:
    for part in parts:
        row[part] = -np.inf


def _sorted(ids: Iterable[int], vocab_size: int) -> Ids:
    return np.array(sorted({i for i in ids if i < vocab_size}), np.int64)
