"""What a draft model reads of a text: not what is too long, nor what was copied while it did not read.

Reading is the price of the first draft. Where it is dear, the draft model reads the text's beginning, which
attention rests on (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"), and its
end, which says the most of the next token.

Lookups write copies, and a draft model that is asked behind one would have to be fed all of it first, though
it has read the same further up. Of a 0.5B's next tokens behind copies as many are right without (as measured,
99 of 110, and 100 with), and the copy's last tokens are left to tell it where the text is.
"""

from __future__ import annotations

from collections.abc import Sequence

HEAD = 16  # of the text's first tokens, which are read whatever is left out
TAIL = 48  # of its last ones
KEPT = 32  # of the text's last tokens, which are read even where they are copied


class DraftContext:
    """One text, which only grows.

    tokens: what is to be read of it, in order; it only grows too, but for the part that was not read yet.
    """

    def __init__(self, prompt_length: int) -> None:
        self.tokens: list[int] = []
        self._copied = bytearray()  # of each token whether it is known to be
        self._prompt_end = prompt_length  # of `tokens`, how many are the prompt's
        self._followed = 0  # tokens of the text that are known
        self._looked = 0  # of `tokens`, of which it is settled whether they are left out

    def follow(self, text: Sequence[int], copied: int = 0) -> None:
        """Take in the text's new tokens; the last `copied` of all its tokens stand further up as well."""
        new = text[self._followed :]
        self._followed = len(text)
        self.tokens += new
        self._copied += bytes(len(new))
        if (count := min(copied, len(self.tokens) - max(self._looked, self._prompt_end))) > 0:
            self._copied[-count:] = b"\1" * count

    def leave_out(self, read: int) -> None:
        """Of the tokens behind the `read` first, leave out those that are copied, but for the last ones."""
        first, end = max(self._looked, read), len(self.tokens) - KEPT
        if end <= first:
            return
        kept = [i for i in range(first, end) if not self._copied[i]]
        self.tokens[first:end] = [self.tokens[i] for i in kept]
        self._copied[first:end] = bytes(len(kept))
        self._looked = first + len(kept)

    def prompt_left(self, read: int) -> int:
        """How many of the prompt's tokens are behind the `read` first."""
        return max(0, self._prompt_end - read)

    def skim(self, read: int) -> None:
        """Leave out all behind the `read` first tokens, but for the text's beginning and its end."""
        first, end = max(HEAD, read), len(self.tokens) - TAIL
        if end > first:
            del self.tokens[first:end], self._copied[first:end]
            self._prompt_end -= max(0, min(end, self._prompt_end) - first)
            self._looked -= max(0, min(end, self._looked) - first)
