"""Log-probabilities in the shapes of OpenAI's two endpoints and of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.models.text.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no -inf


def number(value: float) -> float:
    return max(value, LEAST)


@dataclass(frozen=True, slots=True)
class Texts:
    """How tokens are written in logprobs."""

    tokenizer: Tokenizer
    as_ids: bool = False  # `token_id:N`, from which the ids can be had back

    def text(self, token: int) -> str:
        if self.as_ids:
            return f"token_id:{token}"
        return self.tokenizer.decode([token], skip_special=False, continues=True)

    def chat(self, entry: TokenLogprobs) -> dict[str, Any]:
        """One of `choices[].logprobs.content`."""
        top = zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True)
        return {
            **self._chat(entry.token, entry.logprob),
            "top_logprobs": [self._chat(token, logprob) for token, logprob in top],
        }

    def _chat(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.piece_bytes(token, skip_special=False)
        return {"token": self.text(token), "logprob": number(logprob), "bytes": list(raw)}

    def prompt(self, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: null for the first token, then by token id."""
        return [None, *(self._prompt(entry) for entry in entries)]

    def _prompt(self, entry: TokenLogprobs) -> dict[str, Any]:
        found = {entry.token: (entry.logprob, entry.rank)}
        likeliest = zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True)
        for rank, (token, logprob) in enumerate(likeliest, start=1):
            found.setdefault(token, (logprob, rank))
        return {
            str(token): {"logprob": number(logprob), "rank": rank, "decoded_token": self.text(token)}
            for token, (logprob, rank) in found.items()
        }


class Offsets:
    """`choices[].logprobs` of the completions endpoint, token by token; it knows how long the text is."""

    def __init__(self, texts: Texts) -> None:
        self._texts, self._at = texts, 0

    def empty(self) -> dict[str, list[Any]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def unknown(self, into: dict[str, list[Any]], token: int) -> None:
        """Add a token without a log-probability: the first of a prompt."""
        self._add(into, self._texts.text(token), None, None)

    def add(self, into: dict[str, list[Any]], entry: TokenLogprobs) -> None:
        own = self._texts.text(entry.token)
        top: dict[str, float] = {}
        for token, logprob in zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True):
            top.setdefault(self._texts.text(token), number(logprob))
        top.setdefault(own, number(entry.logprob))
        self._add(into, own, number(entry.logprob), top)

    def _add(
        self, into: dict[str, list[Any]], text: str, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        into["tokens"].append(text)
        into["token_logprobs"].append(logprob)
        into["top_logprobs"].append(top)
        into["text_offset"].append(self._at)
        self._at += len(text)
