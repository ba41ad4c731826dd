"""Where an output ends. Tokens are checked one at a time, so nothing after an end is ever emitted."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.decoding.events import FinishReason
from outrider.decoding.request import Request


@dataclass(frozen=True, slots=True)
class Finish:
    """Why the output ended, as in FinishEvent."""

    reason: FinishReason
    stop_reason: int | str | None = None


class Emitter:
    """Turns one request's tokens into text and finds its end.

    Checked after each token, in this order: EOS and stop token ids (the token counts as output; its
    text is left out unless include_stop_str_in_output), stop strings (the earliest in the text, then
    the first in the list), max_tokens or the context's end. Text that may be the start of a stop
    string is held back until that is decided. Nothing that lies within the first min_tokens tokens
    stops the text.

    max_context: most tokens of prompt and output together, more than the prompt has.
    """

    def __init__(self, request: Request, max_context: int) -> None:
        params = request.params
        left = max_context - len(request.prompt)
        self.remaining = left if params.max_tokens is None else min(left, params.max_tokens)
        """Most tokens that can still be emitted."""
        self._before_stops = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._stop_strings = params.stop_strings
        self._stop_ids = params.stop_ids(request.eos_ids)
        self._eos_ids = frozenset() if params.ignore_eos else request.eos_ids
        self._detokenizer = request.detokenizer
        self._held = ""

    def push(self, token: int) -> tuple[str, Finish | None]:
        """Emit one token. Returns the text that is certain now, and how the output ended, if it did."""
        self.remaining -= 1
        self._before_stops -= 1
        may_stop = self._before_stops < 0
        if may_stop and token in self._stop_ids:
            text = self._held + (self._decode(token) if self._include_stop else "")
            self._held = ""
            return text + self.drain(), Finish("stop", None if token in self._eos_ids else token)
        searched = len(self._held)
        text = self._held + self._decode(token)
        if not self._stop_strings and self.remaining:
            return text, None
        stop = self._first_stop(text, searched) if may_stop else None
        if stop is not None:
            start, found = stop
            self._held = ""
            return text[: start + len(found) * self._include_stop], Finish("stop", found)
        if self.remaining == 0:
            self._held = text
            return self.drain(), Finish("length")
        certain = len(text) - self._possible_start(text)
        self._held = text[certain:]
        return text[:certain], None

    def drain(self) -> str:
        """The text that is still held back. Call once, when the output has ended."""
        return self._held + ("" if self._detokenizer is None else self._detokenizer.flush())

    def _decode(self, token: int) -> str:
        return "" if self._detokenizer is None else self._detokenizer.push(token)

    def _first_stop(self, text: str, searched: int) -> tuple[int, str] | None:
        """(start, stop string) of the earliest one that ends beyond the first `searched` characters."""
        found = [(text.find(stop, max(0, searched - len(stop) + 1)), stop) for stop in self._stop_strings]
        return min((f for f in found if f[0] >= 0), key=lambda f: f[0], default=None)

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string could begin with."""
        longest = max((len(stop) for stop in self._stop_strings), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop_strings):
                return size
        return 0
