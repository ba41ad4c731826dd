"""Structured output: JSON schemas, regexes, choices and grammars as token masks, through llguidance.

A mask permits the tokens after which the output can still become a text of the grammar. Where the grammar
permits only one text, llguidance permits only the tokens that the tokenizer encodes it to; these are the
forced tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark, gbnf_to_lark

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.constraint import Mask
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.errors import ConfigError
from outrider.json_schema import prepared
from outrider.models.text.tokenizer import Tokenizer

KEPT_FORMS = 32  # compiled forms that are cached for later requests
KEPT_MASKS = 64  # masks of the latest positions that are cached, more than a draft is long
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)  # whatever else any_to_lark takes for Lark's syntax
_START = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|(?<![\w-])start(?![\w-])'
)  # in GBNF: texts, characters and comments, and the rule
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
            return "the grammar", LLMatcher.grammar_from_lark(_lark(form.grammar))
        except Exception as error:  # the converter raises errors of any type
            raise ConfigError(f"the grammar cannot be used: {_line(str(error))}") from None
    schema, options = _schema(form)
    try:
        return "the JSON schema", LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=options)
    except ValueError as error:
        raise ConfigError(f"the JSON schema cannot be used: {_line(str(error))}") from None


def _lark(grammar: str) -> str:
    """A grammar in Lark's syntax."""
    if not _GBNF.search(grammar):
        return any_to_lark(grammar)
    # The converter's own name for `root` is `start`; a rule that is called so needs another name.
    return gbnf_to_lark(_START.sub(lambda m: "start-rule" if m[0] == "start" else m[0], grammar))


def _schema(form: StructuredOutputsParams) -> tuple[Any, Any]:
    """A JSON form's schema, and its options in llguidance's terms. Raises ConfigError."""
    schema: Any = {"type": "object"} if form.json is None else json.loads(str(form.json))
    options: Any = {"whitespace_flexible": not form.disable_any_whitespace}
    if form.whitespace_pattern is not None:
        options["whitespace_pattern"] = form.whitespace_pattern
    try:
        return prepared({} if schema is True else schema), options
    except ConfigError as error:
        raise ConfigError(f"the JSON schema cannot be used: {error}") from None


def lark_rule(form: StructuredOutputsParams) -> str | None:
    """The right side of a Lark rule for a form, to be used within a larger grammar; None for a grammar, which
    has rules of its own. Raises ConfigError as a constraint's making does."""
    if form.grammar is not None:
        return None
    if form.regex is not None:
        return "/" + form.regex.replace("\\/", "/").replace("/", r"\/").replace("\n", r"\n") + "/"
    if form.choice is not None:
        return " | ".join(json.dumps(text, ensure_ascii=False) for text in form.choice)
    schema, options = _schema(form)
    if not isinstance(schema, dict):
        raise ConfigError("the JSON schema cannot be used: it accepts nothing")
    return "%json " + json.dumps({"x-guidance": options, **schema})


def lark_grammar(form: StructuredOutputsParams) -> str:
    """A form as a grammar in Lark's syntax. Raises ConfigError as a constraint's making does."""
    if form.grammar is None:
        return f"start: {lark_rule(form)}"
    try:
        return _lark(form.grammar)
    except Exception as error:  # the converter raises errors of any type
        raise ConfigError(f"the grammar cannot be used: {_line(str(error))}") from None


def form_fault(form: StructuredOutputsParams) -> str | None:
    """What is wrong with a form, in one line; None if it can be enforced."""
    try:
        name, grammar = _grammar(form)
    except ConfigError as error:
        return str(error)
    fault = _line(LLMatcher.validate_grammar(grammar))
    return f"{name} cannot be used: {fault}" if fault else None


def schema_fault(schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a JSON schema, in one line; None if it can be enforced."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(prepared(schema)))
    except (ConfigError, ValueError) as error:
        return _line(str(error))
    return _line(LLMatcher.validate_grammar(grammar)) or None


def _line(message: str) -> str:
    """The first part of an llguidance message, as one line, in words of this package where it has others."""
    if "coerce_one_of" in message:
        return "oneOf cannot be enforced where two of its schemas may match the same value; use anyOf"
    return " ".join(message.partition("<state>")[0].split())[:300]
