"""Where an output ends. Tokens are checked one at a time, so nothing after an end is ever emitted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
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
    stops the text. A stop string is searched for in the text that is sent, and in the same text with
    the hidden special tokens written out.

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
        self._held = _Text()

    def push(self, token: int) -> tuple[str, Finish | None]:
        """Emit one token. Returns the text that is certain now, and how the output ended, if it did."""
        self.remaining -= 1
        self._before_stops -= 1
        may_stop = self._before_stops < 0
        if may_stop and token in self._stop_ids:
            text = self._held.shown() + (self._decode(token) if self._include_stop else "")
            self._held = _Text()
            return text + self.drain(), Finish("stop", None if token in self._eos_ids else token)
        held, shown = self._held, self._decode(token)
        if not self._stop_strings and self.remaining:
            return held.shown() + shown, None
        searched = len(held.written)
        held.add(shown, self._hidden(token))
        stop = self._first_stop(held, searched) if may_stop else None
        if stop is not None:
            start, found = stop
            self._held = _Text()
            return held.shown(start) + found * self._include_stop, Finish("stop", found)
        if self.remaining == 0:
            return self.drain(), Finish("length")
        return held.take(self._certain(held)), None

    def drain(self) -> str:
        """The text that is still held back. Call once, when the output has ended."""
        return self._held.shown() + ("" if self._detokenizer is None else self._detokenizer.flush())

    def _decode(self, token: int) -> str:
        return "" if self._detokenizer is None else self._detokenizer.push(token)

    def _hidden(self, token: int) -> str:
        """The text of a token that the detokenizer leaves out."""
        if not self._stop_strings or self._detokenizer is None:
            return ""
        return self._detokenizer.hidden(token)

    def _first_stop(self, text: _Text, searched: int) -> tuple[int, str] | None:
        """(start, stop string) of the earliest one that ends beyond the first `searched` characters."""
        found: list[tuple[int, int, str]] = []
        for written, places in text.readings():
            known = bisect_left(places, searched)
            for order, stop in enumerate(self._stop_strings):
                if (at := written.find(stop, max(0, known - len(stop) + 1))) >= 0:
                    found.append((places[at], order, stop))
        start, _, stop = min(found, default=(-1, 0, ""))
        return None if start < 0 else (start, stop)

    def _certain(self, text: _Text) -> int:
        """How many characters come before the longest end of the text that a stop string could begin with."""
        return min([places[self._certain_of(written)] for written, places in text.readings()])

    def _certain_of(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stop_strings), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop_strings):
                return len(text) - size
        return len(text)


class _Text:
    """Text that is held back, with the hidden tokens in it.

    written: the text with the hidden tokens written out.
    hidden:  where these are in it: (start, end), ascending.
    """

    __slots__ = ("hidden", "written")

    def __init__(self) -> None:
        self.written = ""
        self.hidden: list[tuple[int, int]] = []

    def add(self, shown: str, hidden: str) -> None:
        """Add the text of a token, and after it the text that is not shown."""
        self.written += shown
        if hidden:
            size = len(self.written)
            self.hidden.append((size, size + len(hidden)))
            self.written += hidden

    def shown(self, end: int | None = None) -> str:
        """What is sent of the characters before `end`; None for all of them."""
        text = self.written[:end]
        for start, stop in reversed(self.hidden):
            text = text[:start] + text[stop:]
        return text

    def readings(self) -> list[tuple[str, Sequence[int]]]:
        """The text with the hidden tokens and, if there are any, without. Each with the place in `written` of
        every character and of the end."""
        size = len(self.written)
        found: list[tuple[str, Sequence[int]]] = [(self.written, range(size + 1))]
        if self.hidden:
            inside = {at for start, stop in self.hidden for at in range(start, stop)}
            places = [at for at in range(size + 1) if at not in inside]
            found.append((self.shown(), places))
        return found

    def take(self, count: int) -> str:
        """Remove the first `count` characters of `written`; returns what is sent of them."""
        text = self.shown(count)
        self.written = self.written[count:]
        kept = [(max(0, start - count), stop - count) for start, stop in self.hidden if stop > count]
        self.hidden = kept
        return text
