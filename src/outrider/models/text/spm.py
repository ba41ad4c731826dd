"""SentencePiece-style BPE driven by scores, with byte fallback (GGUF's `llama` tokenizer).

Own code, because score order cannot be written as a list of merges: tokens of equal score are merged
from left to right, and a merge may start from characters that are no tokens themselves.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from outrider.errors import ModelFileError
from outrider.models.source import TokenizerData
from outrider.models.text.pieces import SPACE_MARK, Pieces


class SpmEncoder:
    """Turns plain text (no special tokens) into ids: of all neighbours that together are a token, the pair
    with the highest score is merged first (Kudo and Richardson 2018, as llama.cpp runs it). Merging never
    makes a control token out of plain text; SentencePiece holds to that, llama.cpp does not.

    Raises ModelFileError when scores are missing or NaN, or when some byte has no token and there is no
    unknown token either.
    """

    def __init__(self, data: TokenizerData, pieces: Pieces) -> None:
        n = len(data.tokens)
        if len(data.scores) != n:
            raise ModelFileError(f"the vocabulary has {n} tokens, but {len(data.scores)} scores")
        if np.isnan(data.scores).any():
            raise ModelFileError("the vocabulary has a score that is not a number")
        self._ids = {
            text: token for token, text in enumerate(data.tokens) if text and not pieces.is_special(token)
        }
        self._costs: list[float] = (-data.scores).tolist()
        self._bytes = [self._ids.get(f"<0x{b:02X}>", self._ids.get(chr(b), -1)) for b in range(256)]
        for b in range(128, 256):  # a character from U+0080 on is no single byte
            self._bytes[b] = self._ids.get(f"<0x{b:02X}>", -1)
        self._unknown = data.unk_id if data.unk_id is not None and 0 <= data.unk_id < n else None
        if self._unknown is None and -1 in self._bytes:
            byte = self._bytes.index(-1)
            raise ModelFileError(
                f"the SentencePiece vocabulary has neither the token <0x{byte:02X}> nor an unknown token"
            )

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Takes O(n log n) steps for n characters."""
        text = text.replace(" ", SPACE_MARK)
        n = len(text)
        # A symbol is text[start:end[start]]; before[start] is where the symbol to its left starts.
        end = list(range(1, n + 1))
        before = list(range(-1, n - 1))
        ids, costs = self._ids, self._costs

        def candidate(left: int, right: int) -> tuple[float, int, int, int] | None:
            token = ids.get(text[left : end[right]])
            return None if token is None else (costs[token], left, right, end[right])

        queue = [entry for right in range(1, n) if (entry := candidate(right - 1, right))]
        heapify(queue)
        while queue:
            _, left, right, stop = heappop(queue)
            if end[left] != right or end[right] != stop:
                continue  # one of the two has been merged since
            end[left], end[right] = stop, -1
            if stop < n:
                before[stop] = left
                if entry := candidate(left, stop):
                    heappush(queue, entry)
            if left and (entry := candidate(before[left], left)):
                heappush(queue, entry)
        out: list[int] = []
        start = 0
        while start < n:
            piece = text[start : end[start]]
            token = ids.get(piece)
            if token is None:
                out += self._fall_back(piece)
            else:
                out.append(token)
            start = end[start]
        return out

    def _fall_back(self, char: str) -> list[int]:
        """The tokens of a character that is no token: its bytes, or one unknown token."""
        found = [self._bytes[b] for b in char.encode()]
        return [self._unknown] if -1 in found and self._unknown is not None else found
