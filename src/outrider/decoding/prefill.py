"""Prefill: the target computes a prompt in chunks, with the prompt's log-probabilities if they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.decoding.request import Request
from outrider.decoding.sampling.logprobs import TokenLogprobs, token_logprobs

if TYPE_CHECKING:
    from outrider.engines.base import SeqHandle, StepEngine

# Tokens of a pass are a multiple of one of them, of the second in passes of less than three of the first:
# PyTorch's attention takes so many rows at a time. 250 or 276 tokens take 1.05 times as long for each as 256
# (SmolLM2 135M, float32, one thread of a Zen 5).
WHOLE_UNIT, NARROW_UNIT = 64, 32
WHOLE_SECONDS = 1.0  # that such a pass may take, where what arrives or is aborted waits for it
PACE_TOKENS = 32  # of a pass from which the pace is learned; narrower ones cost more for each token
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


class PromptPace:
    """How many prompt tokens a pass in which no sequence decodes may hold, by how long the last one took.

    awaited: whether requests may arrive or be aborted meanwhile.
    """

    def __init__(self, awaited: bool = True) -> None:
        self._awaited = awaited
        self._seconds: float | None = None  # of a token

    def budget(self, least: int, most: int) -> int:
        """As many as take WHOLE_SECONDS, at most `most`, or that if nobody waits; never less than `least`."""
        if not self._awaited:
            return max(least, most)
        if self._seconds is None:
            return least
        count = min(most, int(WHOLE_SECONDS / max(self._seconds, 1e-9)))
        return max(least, count - count % (WHOLE_UNIT if count >= 3 * WHOLE_UNIT else NARROW_UNIT))

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass computed so many prompt tokens. The pace is that of the last one: it follows the machine's
        speed, and the keys that a token far into a prompt attends to."""
        if tokens >= PACE_TOKENS:
            self._seconds = seconds / tokens


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
