"""From a prompt's ids and sampling parameters to requests: everything that needs a tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.errors import ConfigError
from outrider.models.text.detokenizer import IncrementalDetokenizer
from outrider.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outrider.grammar import Grammars

logger = logging.getLogger(__name__)

DOUBLE_BOS = "the prompt begins with two BOS tokens; leave the BOS text out of it, or add no special tokens"


class RequestMaker:
    """Makes the requests of one model.

    vocab_size:  ids from here on cannot be sampled.
    max_context: most tokens of prompt and output.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_context: int) -> None:
        self._tokenizer, self._vocab_size, self._max_context = tokenizer, vocab_size, max_context
        self._warned = False

    @functools.cached_property
    def _grammars(self) -> Grammars:
        from outrider.grammar import Grammars  # only structured output needs it

        return Grammars(self._tokenizer, self._vocab_size)

    def prompt(self, ids: Sequence[int], params: SamplingParams) -> list[int]:
        """The prompt as far as `truncate_prompt_tokens` leaves it. -1 leaves room for `max_tokens` of output,
        as far as there is any beside one token of the prompt."""
        if self.doubles_bos(ids) and not self._warned:
            self._warned = True
            logger.warning("%s", DOUBLE_BOS)
        most = params.truncate_prompt_tokens
        if most is None:
            return list(ids)
        room = self._max_context - (params.max_tokens or 1)
        kept = most if most > 0 else max(1, room)
        return list(ids)[:kept] if params.truncation_side == "right" else list(ids)[-kept:]

    def doubles_bos(self, ids: Sequence[int]) -> bool:
        """Whether a prompt begins with two BOS tokens: one of its own text, and the tokenizer's."""
        return self._tokenizer.bos_id is not None and list(ids[:2]) == [self._tokenizer.bos_id] * 2

    def samples(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        *,
        ends: Iterable[int] = (),
        **fields: Any,
    ) -> list[Request]:
        """The `params.n` requests for one prompt, named `REQUEST_ID-INDEX`.

        prompt: ids, truncated already.
        seed:   of the first sample; the others' are derived from it.
        ends:   ids that end these texts, besides those that end any text of the model.
        fields: of Request, beyond those of the parameters.
        Raises ConfigError when structured output cannot be compiled, PromptError for an empty prompt.
        """
        params = params.clone()  # the caller may change theirs while the requests run
        form, words = params.structured, bad_word_ids(self._tokenizer, params.bad_words or ())
        prediction = self._prediction(params)
        eos_ids = frozenset((*self._tokenizer.eos_ids, *ends))
        later = dataclasses.replace(params, prompt_logprobs=None)  # the prompt is reported once
        return [
            Request(
                request_id=f"{request_id}-{index}",
                prompt=tuple(prompt),
                params=later if index else params,
                eos_ids=eos_ids,
                detokenizer=self._detokenizer(params),
                seed=derive_seed(seed, index),
                bad_words=words,
                constraint=None if form is None else self._grammars.constraint(form),
                prediction=prediction,
                **fields,
            )
            for index in range(params.n)
        ]

    def _prediction(self, params: SamplingParams) -> tuple[int, ...]:
        """The token ids of `draft_text`, as many as the context holds: no more can be written. Raises
        ConfigError for ids outside the vocabulary."""
        given = params.draft_text or ()
        if isinstance(given, str):
            given = self._tokenizer.encode(given, add_special=False, parse_special=False)
        ids = tuple(given)
        if ids and max(ids) >= self._vocab_size:
            last = self._vocab_size - 1
            raise ConfigError(
                f"draft_text has the token id {max(ids)}, and the vocabulary ends at {last}: give ids in "
                f"0..{last}"
            )
        return ids[: self._max_context]

    def _detokenizer(self, params: SamplingParams) -> IncrementalDetokenizer | None:
        if not params.detokenize:
            return None
        return IncrementalDetokenizer(
            self._tokenizer, skip_special=params.skip_special_tokens, continues=True
        )


def bad_word_ids(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The token sequences of words that must not be generated: each as it is, and with a space before it if
    that changes the first token and not their number (vLLM's rule). Raises ConfigError for a word without
    tokens."""
    found: list[tuple[int, ...]] = []
    for word in words:
        text = word.lstrip() or word
        plain, spaced = (
            tuple(tokenizer.encode(form, add_special=False, parse_special=False))
            for form in (text, " " + text)
        )
        if not plain:
            raise ConfigError(f"bad_words has {word!r}, which no token stands for")
        found.append(plain)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(spaced)
    return tuple(found)
