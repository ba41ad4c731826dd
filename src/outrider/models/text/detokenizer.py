"""Text out of tokens, as they come."""

from __future__ import annotations

import codecs

from outrider.models.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns the tokens of one output into text that can be printed at once.

    A character whose bytes are spread over several tokens comes with the last of them; bytes that turn
    out to be no UTF-8 come as U+FFFD. What `push` and `flush` return, put together, is
    `tokenizer.decode(all ids)` with the same options. A push takes time in proportion to the token's
    bytes, however long the text is.

    skip_special: leave out control and unknown tokens.
    continues:    the tokens follow a text that is already there (see `Tokenizer.decode`).
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
        """Take one token; return the text that is certain now and was not before (often "")."""
        data = self._tokenizer.piece_bytes(token_id, skip_special=self._skip_special)
        if data and self._strip_space:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._keep(self._decoder.decode(data))

    def flush(self) -> str:
        """End the text: return U+FFFD for a character that was begun and never finished, else ""."""
        return self._keep(self._decoder.decode(b"", final=True))

    def _keep(self, text: str) -> str:
        if text:
            self._done.append(text)
        return text
