"""The tokens of a sequence that a draft model processes: not all of a long one, nor copied parts.

The draft model must process the sequence (draft prefill) before its first draft. Where that is too expensive,
it processes the beginning, which attention needs as a sink (Xiao et al. 2023, "Efficient Streaming Language
Models with Attention Sinks"), and the end, which says the most about the next token.

While lookups draft a copy, the draft model does not run, and would have to process the copy before its next
draft, though it has processed the same tokens further up. So most of a copy is left out. Of a 0.5B model's
next tokens after copies as many are right without it: 99 of 110, against 100 of 110 with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.policy.tuning import DEFAULT

HEAD_TOKENS = DEFAULT.context_head_tokens  # first tokens of the sequence, which are always kept
TAIL_TOKENS = DEFAULT.context_tail_tokens  # last tokens that `truncate_middle` keeps
COPY_TAIL_TOKENS = DEFAULT.copied_tail_tokens  # last tokens that `drop_copied` keeps


class DraftContext:
    """The draft model's version of one sequence, which only grows.

    tokens: what the draft model processes, in order. What it has processed already is never changed.
    """

    def __init__(self, prompt_length: int) -> None:
        self.tokens: list[int] = []
        self._copied = bytearray()  # for each of `tokens`, 1 if it is copied
        self._prompt_end = prompt_length  # how many of `tokens` are the prompt's
        self._sequence_length = 0  # tokens of the sequence that were taken in
        self._settled = 0  # how many of `tokens` will not be left out as copied any more

    def extend(self, sequence: Sequence[int], copied: int = 0) -> None:
        """Take in the sequence's new tokens. Its last `copied` tokens occur further up as well."""
        new = sequence[self._sequence_length :]
        self._sequence_length = len(sequence)
        self.tokens += new
        self._copied += bytes(len(new))
        if (count := min(copied, len(self.tokens) - max(self._settled, self._prompt_end))) > 0:
            self._copied[-count:] = b"\1" * count

    def drop_copied(self, processed: int) -> None:
        """Leave out copied tokens after the first `processed`, except the last COPY_TAIL_TOKENS."""
        first, end = max(self._settled, processed), len(self.tokens) - COPY_TAIL_TOKENS
        if end <= first:
            return
        kept = [i for i in range(first, end) if not self._copied[i]]
        self.tokens[first:end] = [self.tokens[i] for i in kept]
        self._copied[first:end] = bytes(len(kept))
        self._settled = first + len(kept)

    def unprocessed_prompt(self, processed: int) -> int:
        """How many prompt tokens come after the first `processed` tokens."""
        return max(0, self._prompt_end - processed)

    def truncate_middle(self, processed: int) -> None:
        """Leave out the tokens after the first `processed`, except the sequence's beginning and end."""
        first, end = max(HEAD_TOKENS, processed), len(self.tokens) - TAIL_TOKENS
        if end > first:
            del self.tokens[first:end], self._copied[first:end]
            self._prompt_end -= max(0, min(end, self._prompt_end) - first)
            self._settled -= max(0, min(end, self._settled) - first)
