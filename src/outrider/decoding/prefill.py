"""Prefill: the target computes a prompt in chunks, with the prompt's log-probabilities if they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.decoding.request import Request
from outrider.decoding.sampling.logprobs import TokenLogprobs, token_logprobs

if TYPE_CHECKING:
    from outrider.engines.base import SeqHandle, StepEngine

PROMPT_ROWS = 32  # rows of logits held at a time for prompt_logprobs: 150k tokens are 0.6 MB a row


class PromptLogprobs:
    """The log-probabilities of one request's prompt tokens, as far as they are computed.

    count: how many of the likeliest tokens to report at each position; None when nothing is to be reported.
    """

    def __init__(self, request: Request) -> None:
        self.count = request.params.prompt_logprobs
        self._prompt = request.prompt
        self._entries: list[TokenLogprobs] = []

    def compute(self, engine: StepEngine, handle: SeqHandle, max_tokens: int, vocab_size: int) -> None:
        """Prefill at most `max_tokens` tokens and report what the logits say of the token after each.

        vocab_size: ids from here on are padding and have no probability.
        """
        assert self.count is not None, "only where they were asked for"
        end = max(0, len(handle.pending) - max_tokens)
        while (left := len(handle.pending) - end) > 0:
            for row in engine.prefill_scores(handle, min(left, PROMPT_ROWS)):
                token = self._prompt[len(self._entries) + 1]
                self._entries.append(token_logprobs(row[:vocab_size], token, self.count))

    def take(self) -> tuple[TokenLogprobs, ...] | None:
        """All of them, once; None when none were asked for or they have been taken."""
        if self.count is None:
            return None
        self.count = None
        return tuple(self._entries)


def prefill(
    engine: StepEngine, handle: SeqHandle, logprobs: PromptLogprobs, max_tokens: int, vocab_size: int
) -> int:
    """Compute at most `max_tokens` pending tokens of a prompt. Returns how many were computed or found in
    the prefix cache."""
    pending = len(handle.pending)
    if logprobs.count is None:
        return pending - engine.prefill(handle, max_tokens)
    logprobs.compute(engine, handle, max_tokens, vocab_size)
    return pending - len(handle.pending)
