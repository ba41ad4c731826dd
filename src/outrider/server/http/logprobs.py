"""Log-probabilities in the shapes of OpenAI's two endpoints and of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.decoding.sampling.logprobs import TokenLogprobs
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
    """`choices[].logprobs` of /v1/completions. One object for each sample: it keeps the text offset, in
    characters, of the next token."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts, self._offset = texts, 0

    def empty(self) -> dict[str, list[Any]]:
        """The object for no tokens, to be filled by the methods below."""
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def add_unscored(self, into: dict[str, list[Any]], token: int) -> None:
        """Add a token without a log-probability: the first one of a prompt."""
        self._append(into, self._texts.text(token), None, None)

    def add(self, into: dict[str, list[Any]], entry: TokenLogprobs) -> None:
        """Add a token."""
        own = self._texts.text(entry.token)
        top: dict[str, float] = {}
        for token, logprob in zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True):
            top.setdefault(self._texts.text(token), number(logprob))
        top.setdefault(own, number(entry.logprob))
        self._append(into, own, number(entry.logprob), top)

    def _append(
        self, into: dict[str, list[Any]], text: str, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        into["tokens"].append(text)
        into["token_logprobs"].append(logprob)
        into["top_logprobs"].append(top)
        into["text_offset"].append(self._offset)
        self._offset += len(text)
