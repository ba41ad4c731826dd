"""What a runner returns: one event per token, and one when a request ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.decoding.types import TokenKind

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of the output, with the text that can be emitted now (often "", or that of several tokens).

    source:          name of the drafter that proposed the token, or None for the target's own.
    logprobs:        the token's, if `params.logprobs` asks for them.
    prompt_logprobs: those of all prompt tokens but the first, with the first token of output only, if
                     `params.prompt_logprobs` asks for them.
    """

    request_id: str
    token_id: int
    text: str
    kind: TokenKind
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of a request; nothing follows it.

    finish_reason: "stop" (EOS, stop token or stop string), "length" (max_tokens or context end),
                   "abort" (the caller aborted it) or "error".
    stop_reason:   the stop string or stop token id that ended the text; None otherwise, for EOS too.
    text_tail:     text that had been held back and belongs to the output.
    error:         what ended this request when finish_reason is "error".
    """

    request_id: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    text_tail: str
    metrics: RequestMetrics
    error: Exception | None = None


Event: TypeAlias = TokenEvent | FinishEvent
