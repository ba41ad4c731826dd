"""Log-probabilities in the shapes of OpenAI's two endpoints and of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.models.text.detokenizer import IncrementalDetokenizer
from outrider.models.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0  # JSON has no -inf; OpenAI's value for very unlikely tokens


def number(value: float) -> float:
    """A log-probability as a JSON number."""
    return max(value, MIN_LOGPROB)


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The text of single tokens in logprobs, and entries of the shapes that need nothing else.

    as_ids: write `token_id:N` (vLLM's `return_tokens_as_token_ids`).
    """

    tokenizer: Tokenizer
    as_ids: bool = False

    def text(self, token: int) -> str:
        if self.as_ids:
            return f"token_id:{token}"
        return self.tokenizer.decode([token], skip_special=False, continues=True)

    def chat(self, entry: TokenLogprobs) -> dict[str, Any]:
        """One element of `choices[].logprobs.content`."""
        top = zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True)
        return {
            **self._chat(entry.token, entry.logprob),
            "top_logprobs": [self._chat(token, logprob) for token, logprob in top],
        }

    def _chat(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.piece_bytes(token, skip_special=False)
        return {"token": self.text(token), "logprob": number(logprob), "bytes": list(raw)}

    def prompt(self, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: null for the first token, then an object by token id for each."""
        return [None, *(self._prompt(entry) for entry in entries)]

    def _prompt(self, entry: TokenLogprobs) -> dict[str, Any]:
        ranked = {entry.token: (entry.logprob, entry.rank)}
        top = zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True)
        for rank, (token, logprob) in enumerate(top, start=1):
            ranked.setdefault(token, (logprob, rank))
        return {
            str(token): {"logprob": number(logprob), "rank": rank, "decoded_token": self.text(token)}
            for token, (logprob, rank) in ranked.items()
        }


class LogprobsWithOffsets:
    """`choices[].logprobs` of /v1/completions. One object for each sample: it follows the text that is sent,
    of which each token's `text_offset` counts the characters before it.

    skip_special: special tokens are left out of the text.
    """

    def __init__(self, texts: TokenTexts, *, skip_special: bool = True) -> None:
        self._texts, self._offset = texts, 0
        self._shown = IncrementalDetokenizer(texts.tokenizer, skip_special=skip_special, continues=True)

    def empty(self) -> dict[str, list[Any]]:
        """The object for no tokens, to be filled by the methods below."""
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def add_prompt(
        self, into: dict[str, list[Any]], ids: Sequence[int], entries: Sequence[TokenLogprobs], text: str
    ) -> None:
        """Add the tokens of a prompt that is sent as `text`, without a special token that the tokenizer added
        (BOS). The first token has no log-probability."""
        tokenizer = self._texts.tokenizer
        shown = IncrementalDetokenizer(tokenizer, skip_special=False)
        offset = 0
        for token, entry in zip(ids, [None, *entries], strict=False):
            self._append(into, token, entry, min(offset, len(text)))
            written = tokenizer.decode([token], skip_special=False, continues=True)
            if not tokenizer.is_special(token) or text.startswith(written, offset):
                offset += len(shown.push(token))
        self._offset = len(text)

    def add(self, into: dict[str, list[Any]], entry: TokenLogprobs) -> None:
        """Add a token of the output."""
        self._append(into, entry.token, entry, self._offset)
        self._offset += len(self._shown.push(entry.token))

    def _append(
        self, into: dict[str, list[Any]], token: int, entry: TokenLogprobs | None, offset: int
    ) -> None:
        own = self._texts.text(token)
        into["tokens"].append(own)
        into["token_logprobs"].append(None if entry is None else number(entry.logprob))
        into["top_logprobs"].append(None if entry is None else self._top(own, entry))
        into["text_offset"].append(offset)

    def _top(self, own: str, entry: TokenLogprobs) -> dict[str, float]:
        top = {own: number(entry.logprob)}  # first, as in vLLM
        for token, logprob in zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True):
            top.setdefault(self._texts.text(token), number(logprob))
        return top
