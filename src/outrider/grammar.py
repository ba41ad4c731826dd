"""Structured output: JSON schemas, regexes, choices and grammars as token masks, through llguidance.

A mask permits the tokens with which the output can still become a text of the grammar. Where the grammar
leaves no choice of text, llguidance permits only the tokens that the tokenizer itself would write it with;
these are the forced tokens.
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

KEPT_FORMS = 32  # compiled, for requests that ask for the same again
KEPT_MASKS = 64  # of the latest positions: more than a draft is long
_MARK = "\x02"


class Grammars:
    """Makes constraints over one tokenizer's tokens. Safe to share between threads.

    vocab_size: ids from here on are never permitted.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._compiled: OrderedDict[StructuredOutputsParams, LLMatcher] = OrderedDict()
        self._ll: LLTokenizer | None = None  # made when first needed: it takes up to a second
        self._lock, self._making = threading.Lock(), threading.Lock()  # of `_compiled`, of `_ll`

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
        with self._making:
            if self._ll is None:
                table = _Table(self._tokenizer, self._vocab_size)
                self._ll = LLTokenizer(TokenizerWrapper(table), eos_token=table.eos_ids)
        matcher = LLMatcher(self._ll, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise ConfigError(f"{name} cannot be used: {_line(matcher.get_error())}")
        return matcher


class GrammarConstraint:
    """Implements Constraint. One matcher follows the request's output and the draft paths that it is asked
    about: what two contexts share is kept, the rest is rolled back."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._fresh = matcher, matcher.deep_copy()
        self._vocab_size = vocab_size
        self._tokens: list[int] = []  # consumed by the matcher
        self._masks: list[Mask | None] = [None]  # after so many of them
        self._ended: list[bool] = [matcher.is_stopped()]

    def allowed(self, context: TokenContext) -> Mask | None:
        at = self._known(context)
        if at is None:
            return None
        if (mask := self._masks[at]) is None:
            self._rewind(at)
            bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
            self._check()
            mask = self._masks[at] = bits[: self._vocab_size].astype(bool)
        return mask

    def forced(self, context: TokenContext, most: int) -> list[int]:
        at = self._known(context)
        if at is None or self._ended[at]:
            return []
        self._rewind(at)
        tokens = [int(token) for token in self._matcher.compute_ff_tokens()[:most]]
        self._check()
        return tokens

    def ended(self, context: TokenContext) -> bool:
        at = self._known(context)
        return at is not None and self._ended[at]

    def _known(self, context: TokenContext) -> int | None:
        """How many tokens the context's output has, once the matcher has been led along all of them; None
        when the grammar does not permit them."""
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
        """Forget all but the first `length` tokens."""
        extra = len(self._tokens) - length
        if extra > 0:
            self._matcher.rollback(extra)
            self._check()
            del self._tokens[length:], self._masks[length + 1 :], self._ended[length + 1 :]

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        message = _line(self._matcher.get_error())
        self._matcher = self._fresh.deep_copy()  # as errors stay: this may have been on a draft's path only
        self._tokens, self._masks, self._ended = [], [None], self._ended[:1]
        raise ConfigError(f"structured output cannot go on: {message}")


class _Table:
    """What llguidance wants to know about a tokenizer: its tokens' bytes, and how it writes a text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        ids = range(min(vocab_size, tokenizer.vocab_size))
        self.tokens = [tokenizer.piece_bytes(i, skip_special=False) for i in ids]
        self.tokens += [b""] * (vocab_size - len(ids))
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self.eos_ids = [i for i in tokenizer.eos_ids if i < vocab_size]
        if not self.eos_ids:  # none can be drawn, but llguidance wants one
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
        # Text in the middle of a text, without the blank that this tokenizer puts in front of one.
        ids = self._encode(_MARK + plain)
        for at, token in enumerate(ids):
            if self.tokens[token].endswith(_MARK.encode()):
                return ids[at + 1 :]
        return self._encode(plain)

    def _encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special=False, parse_special=False)
        return [i for i in ids if i < len(self.tokens)]


def _grammar(form: StructuredOutputsParams) -> tuple[str, str]:
    """(what it is called in messages, the form in llguidance's terms)."""
    if form.regex is not None:
        return "the regex", LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        texts = (json.dumps(text, ensure_ascii=False) for text in form.choice)
        return "the choice", LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
    if form.grammar is not None:
        try:
            return "the grammar", LLMatcher.grammar_from_lark(any_to_lark(form.grammar))
        except Exception as error:  # of any type, as the converter has it
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
    """Rule further properties out of every object that names some."""
    parts: Iterable[Any] = schema if isinstance(schema, list) else ()
    if isinstance(schema, dict):
        parts = schema.values()
        if "additionalProperties" not in schema and {"properties", "patternProperties"} & schema.keys():
            schema["additionalProperties"] = False
    for part in parts:
        _close(part)


def _line(message: str) -> str:
    """The first thing that a message says, as one line."""
    return " ".join(message.partition("<state>")[0].split())[:300]
