"""Incremental detokenization of a stream of tokens."""

from __future__ import annotations

import codecs

from outrider.models.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns the tokens of one output into text as they are generated.

    A character whose bytes are spread over several tokens is returned with the last of them; invalid UTF-8
    gives U+FFFD. The concatenation of all that `push` and `flush` return is `tokenizer.decode(all ids)` with
    the same options. A push takes time proportional to the token's bytes, not to the length of the text.

    skip_special: leave out control and unknown tokens.
    continues:    the tokens continue an earlier text (see `Tokenizer.decode`).
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = tokenizer.strips_space and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._done: list[str] = []

    @property
    def text(self) -> str:
        """All text returned so far."""
        if len(self._done) > 1:
            self._done = ["".join(self._done)]
        return self._done[0] if self._done else ""

    def push(self, token_id: int) -> str:
        """Add one token and return the text that is now complete (often "")."""
        data = self._tokenizer.piece_bytes(token_id, skip_special=self._skip_special)
        if data and self._strip_space:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._keep(self._decoder.decode(data))

    def hidden(self, token_id: int) -> str:
        """The text of a token that `push` leaves out; "" for others."""
        if not self._skip_special or not self._tokenizer.is_special(token_id):
            return ""
        return self._tokenizer.decode([token_id], skip_special=False, continues=True)

    def flush(self) -> str:
        """End the text: return U+FFFD if its last character is incomplete, else ""."""
        return self._keep(self._decoder.decode(b"", final=True))

    def _keep(self, text: str) -> str:
        if text:
            self._done.append(text)
        return text
