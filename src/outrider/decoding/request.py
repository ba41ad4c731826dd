"""A request, and the tokens that it has so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from outrider.decoding.controller import Guide, RequestState
from outrider.decoding.sampling.constraint import Constraint
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from outrider.decoding.context import TokenContext
    from outrider.decoding.sampling.sampler import Sampler

Lookahead: TypeAlias = (
    "Callable[[TokenContext], Sequence[int]]"  # what a draft model is expected to draw after a context
)


def check_prompt(prompt: Sequence[int], vocab_size: int, max_context: int) -> None:
    """Raise PromptError when a prompt is empty, leaves no position for output, or has an id that is not in
    0 .. vocab_size - 1. max_context: most tokens of prompt and output."""
    if not prompt:
        raise PromptError("the prompt is empty: it needs at least one token")
    size = len(prompt)
    if size >= max_context:
        raise PromptError(
            f"the prompt has {size} tokens; a context of {max_context} has room for {max_context - 1}"
        )
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            last = vocab_size - 1
            raise PromptError(
                f"the prompt has the token id {token}; the vocabulary ends at {last}: give ids in 0..{last}"
            )


class Detokenizer(Protocol):
    """Turns one request's output ids into text, piece by piece."""

    def push(self, token_id: int, /) -> str:
        """The text that this token completes; "" while a character is still incomplete."""

    def hidden(self, token_id: int, /) -> str:
        """The text of a token that is left out of the text, such as a special token; "" for others."""

    def flush(self) -> str:
        """What is left at the end."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One sequence to generate. (The caller makes one for each of `params.n`, see `rng.derive_seed`.)

    prompt:      token ids, at least one.
    eos_ids:     ids that end a text of this model.
    detokenizer: None gives token ids without text, and rules stop strings out.
    seed:        0 .. 2**64 - 1; `params.seed` itself is not read here.
    bad_words:   the token sequences that `params.bad_words` stands for.
    constraint:  what `params.structured` permits; not shared between requests, as it follows the output.
    draft_limit: most draft tokens of a step, where the controller would choose more; 0 is plain decoding.
    drafters:    names of the drafters that may propose for this request; None for all of them.
    namespace:   requests of the same namespace share what is kept of them (recent outputs to look up in,
                 cached prefixes). None shares nothing.
    prediction:  token ids that the output may be like. Drafts are looked up in it; nothing else is.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int] = frozenset()
    detokenizer: Detokenizer | None = None
    seed: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = None
    draft_limit: int | None = None
    drafters: frozenset[str] | None = None
    namespace: str | None = None
    prediction: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise PromptError("the prompt is empty: it needs at least one token")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be in 0..{2**64 - 1}, not {self.seed}")
        if self.params.stop_strings and self.detokenizer is None:
            raise ConfigError("stop strings need a detokenizer; use stop_token_ids without one")
        if self.params.bad_words and not self.bad_words:
            raise ConfigError("bad_words need a tokenizer; use logit_bias without one")
        if self.params.structured is not None and self.constraint is None:
            raise ConfigError("structured output needs a tokenizer")


@dataclass(frozen=True, slots=True, eq=False)
class ProposeJob:
    """What a drafter is asked for one request in one step.

    context: the tokens so far, prompt and output, the anchor last; and, as its path, tokens that are
             drafted already, behind which the draft is to go on.
    budget:  most nodes that the draft may have, at least 1.
    sampler: the request's own, so that a draft model can draw with the target's noise.
    guide:   directs the drafter as it draws, see `Guide`; None for a chain of as many as the budget has.
    lookahead: predicts what a draft model draws, at next to no cost. The model is fed the prediction along
             with the token that it draws from, and takes no pass for what it draws as predicted. The draft is
             the same with and without. None predicts nothing.
    drafters: as the request's.
    state:   what the controller keeps of the request.
    """

    request_id: str
    context: TokenContext
    budget: int
    sampler: Sampler
    guide: Guide | None = None
    lookahead: Lookahead | None = None
    drafters: frozenset[str] | None = None
    state: RequestState = None

    def allows(self, drafter: str) -> bool:
        """Whether the request lets a drafter propose."""
        return self.drafters is None or drafter in self.drafters
