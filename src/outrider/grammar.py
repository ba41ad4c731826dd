"""Structured output: JSON schemas, regexes, choices and grammars as token masks, through llguidance.

A mask permits the tokens after which the output can still become a text of the grammar. Where the grammar
permits only one text, llguidance permits only the tokens that the tokenizer encodes it to; these are the
forced tokens.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.constraint import Mask
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.errors import ConfigError
from outrider.models.text.tokenizer import Tokenizer

KEPT_FORMS = 32  # compiled forms that are cached for later requests
KEPT_MASKS = 64  # masks of the latest positions that are cached, more than a draft is long
_MARK = "\x02"  # put before a text, so that the tokenizer takes it for the middle of one


class Grammars:
    """Makes constraints over one tokenizer's tokens. Safe to share between threads.

    vocab_size: ids from here on are never permitted.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._compiled: OrderedDict[StructuredOutputsParams, LLMatcher] = OrderedDict()
        self._ll: LLTokenizer | None = None  # made at first use: that takes up to a second
        self._lock, self._ll_lock = threading.Lock(), threading.Lock()  # of `_compiled`, of `_ll`

    def constraint(self, form: StructuredOutputsParams) -> GrammarConstraint:
        """A constraint for one request. Raises ConfigError when the form cannot be compiled."""
        with self._lock:
            matcher = self._compiled.get(form)
        if matcher is None:
            matcher = self._compile(form)
        with self._lock:
            matcher = self._compiled.setdefault(form, matcher)
            self._compiled.move_to_end(form)
            if len(self._compiled) > KEPT_FORMS:
                self._compiled.popitem(last=False)
            return GrammarConstraint(matcher.deep_copy(), self._vocab_size)

    def _compile(self, form: StructuredOutputsParams) -> LLMatcher:
        name, grammar = _grammar(form)
        with self._ll_lock:
            if self._ll is None:
                table = _Table(self._tokenizer, self._vocab_size)
                self._ll = LLTokenizer(TokenizerWrapper(table), eos_token=table.eos_ids)
        matcher = LLMatcher(self._ll, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise ConfigError(f"{name} cannot be used: {_line(matcher.get_error())}")
        return matcher


class GrammarConstraint:
    """Implements `Constraint` with one matcher, which is moved to each context that is asked for: tokens
    shared with the context before are kept, the others are rolled back."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._fresh = matcher, matcher.deep_copy()
        self._vocab_size = vocab_size
        self._tokens: list[int] = []  # consumed by the matcher
        self._masks: list[Mask | None] = [None]  # by number of consumed tokens; None is not computed
        self._ended: list[bool] = [matcher.is_stopped()]

    def allowed(self, context: TokenContext) -> Mask | None:
        at = self._move_to(context)
        if at is None:
            return None
        if (mask := self._masks[at]) is None:
            self._rewind(at)
            bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
            self._check()
            mask = self._masks[at] = bits[: self._vocab_size].astype(bool)
        return mask

    def forced(self, context: TokenContext, max_tokens: int) -> list[int]:
        at = self._move_to(context)
        if at is None or self._ended[at]:
            return []
        self._rewind(at)
        tokens = [int(token) for token in self._matcher.compute_ff_tokens()[:max_tokens]]
        self._check()
        return tokens

    def ended(self, context: TokenContext) -> bool:
        at = self._move_to(context)
        return at is not None and self._ended[at]

    def _move_to(self, context: TokenContext) -> int | None:
        """Let the matcher consume the context's output. Returns the output's length in tokens, or None when
        the grammar does not permit it."""
        wanted = context.output
        shared = min(len(wanted), len(self._tokens))
        if wanted[:shared] != self._tokens[:shared]:
            pairs = zip(wanted, self._tokens, strict=False)
            self._rewind(next(i for i, (one, other) in enumerate(pairs) if one != other))
        for token in wanted[len(self._tokens) :]:
            if self._ended[-1] or not self._matcher.try_consume_tokens([token]):
                self._check()
                return None
            self._tokens.append(token)
            self._masks.append(None)
            self._ended.append(self._matcher.is_stopped())
            self._check()
            if len(self._masks) > KEPT_MASKS:
                self._masks[-KEPT_MASKS - 1] = None
        return len(wanted)

    def _rewind(self, length: int) -> None:
        """Roll back all but the first `length` tokens."""
        extra = len(self._tokens) - length
        if extra > 0:
            self._matcher.rollback(extra)
            self._check()
            del self._tokens[length:], self._masks[length + 1 :], self._ended[length + 1 :]

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        message = _line(self._matcher.get_error())
        # A matcher with an error cannot be used again, but the error may be of a rejected draft path.
        self._matcher = self._fresh.deep_copy()
        self._tokens, self._masks, self._ended = [], [None], self._ended[:1]
        raise ConfigError(f"structured output cannot go on: {message}")


class _Table:
    """A tokenizer as llguidance needs it: the tokens' bytes, special ids, and encoding of text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        ids = range(min(vocab_size, tokenizer.vocab_size))
        self.tokens = [tokenizer.piece_bytes(i, skip_special=False) for i in ids]
        self.tokens += [b""] * (vocab_size - len(ids))
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self.eos_ids = [i for i in tokenizer.eos_ids if i < vocab_size]
        if not self.eos_ids:  # llguidance requires one: an id outside the vocabulary, which is never drawn
            self.eos_ids = [vocab_size]
            self.special_token_ids.append(vocab_size)
            self.tokens.append(b"<end>")
        self.special_token_ids = sorted({*self.special_token_ids, *self.eos_ids})
        self.eos_token_id = self.eos_ids[0]
        self.bos_token_id = tokenizer.bos_id

    def __call__(self, text: bytes | str) -> list[int]:
        plain = text.decode() if isinstance(text, bytes) else text
        if not self._tokenizer.strips_space:
            return self._encode(plain)
        # This tokenizer puts a space before a text; in the middle of a text there is none.
        ids = self._encode(_MARK + plain)
        for at, token in enumerate(ids):
            if self.tokens[token].endswith(_MARK.encode()):
                return ids[at + 1 :]
        return self._encode(plain)

    def _encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special=False, parse_special=False)
        return [i for i in ids if i < len(self.tokens)]


def _grammar(form: StructuredOutputsParams) -> tuple[str, str]:
    """(its name in error messages, the grammar for llguidance)."""
    if form.regex is not None:
        return "the regex", LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        texts = (json.dumps(text, ensure_ascii=False) for text in form.choice)
        return "the choice", LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
    if form.grammar is not None:
        try:
            return "the grammar", LLMatcher.grammar_from_lark(any_to_lark(form.grammar))
        except Exception as error:  # the converter raises errors of any type
            raise ConfigError(f"the grammar cannot be used: {_line(str(error))}") from None
    schema: Any = {"type": "object"} if form.json is None else json.loads(str(form.json))
    schema = {} if schema is True else schema
    if form.disable_additional_properties:
        _close(schema)
    options: Any = {"whitespace_flexible": not form.disable_any_whitespace}
    if form.whitespace_pattern is not None:
        options["whitespace_pattern"] = form.whitespace_pattern
    try:
        return "the JSON schema", LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=options)
    except ValueError as error:
        raise ConfigError(f"the JSON schema cannot be used: {_line(str(error))}") from None


def _close(schema: Any) -> None:
    """Forbid additional properties in every object that names some."""
    parts: Iterable[Any] = schema if isinstance(schema, list) else ()
    if isinstance(schema, dict):
        parts = schema.values()
        if "additionalProperties" not in schema and {"properties", "patternProperties"} & schema.keys():
            schema["additionalProperties"] = False
    for part in parts:
        _close(part)


def _line(message: str) -> str:
    """The first part of an llguidance message, as one line."""
    return " ".join(message.partition("<state>")[0].split())[:300]
