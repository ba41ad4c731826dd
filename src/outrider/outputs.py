"""What `LLM` returns, under vLLM's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from outrider.decoding.events import FinishReason
from outrider.decoding.metrics import DraftCounts, RequestMetrics
from outrider.decoding.sampling.logprobs import TokenLogprobs
from outrider.decoding.types import TokenKind
from outrider.models.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """The model's log-probability of one token at one position, before sampling parameters change it.

    rank:          1 for the likeliest token.
    decoded_token: its text, special tokens too; None with detokenize=False.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Logprobs: TypeAlias = dict[int, Logprob]  # the position's own token first, then the likeliest by rank


@dataclass(slots=True)
class CompletionOutput:
    """One sample for a prompt.

    index:         which of the prompt's `n` samples.
    token_ids:     the tokens generated; the one that ended the text (EOS, a stop token) is the last.
    token_kinds:   the origin of each: accepted from a draft, recovered, or bonus (plain decoding's too).
    finish_reason: "stop" (EOS, stop token or string), "length", "abort", or None while running.
    stop_reason:   the stop string or stop token id that ended it; None otherwise.
    seed:          with this seed, the same prompt and parameters give the same tokens again.
    logprobs:      for each token, its log-probability and the likeliest ones', if asked for.
    cumulative_logprob: the sum of the tokens' own.
    """

    index: int
    text: str
    token_ids: list[int]
    token_kinds: list[TokenKind]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int
    metrics: RequestMetrics
    cumulative_logprob: float | None = None
    logprobs: list[Logprobs] | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def lora_request(self) -> None:
        """There are no adapters; vLLM's name."""
        return None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its samples.

    prompt:  the text, or None when ids were given.
    metrics: of all samples together; each sample has its own as well.
    seed:    of the request; the seed of a sample i > 0 is derived from it.
    prompt_logprobs: for each token of the prompt, as in the outputs, if asked for; None for the first.
    others_running: samples that are not in `outputs` still run (in an output of RequestOutputKind.DELTA).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    seed: int
    prompt_logprobs: list[Logprobs | None] | None = None
    others_running: bool = False

    @property
    def finished(self) -> bool:
        """Whether all samples of the prompt have ended."""
        return not self.others_running and all(o.finished() for o in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that came from the prefix cache (of the sample that had the fewest)."""
        return min((o.metrics.cached_tokens for o in self.outputs), default=0)

    @property
    def lora_request(self) -> None:
        """There are no adapters; vLLM's name."""
        return None

    @property
    def metrics(self) -> RequestMetrics:
        return merge([o.metrics for o in self.outputs])


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a running generation, from `LLM.stream`.

    index:    the sample it belongs to.
    text:     the text that can be emitted now; may be empty.
    token_id: the token, or None for text that had been held back until the end.
    logprobs: the token's, if asked for.
    kind:     the token's origin, or None.
    output:   the whole result, in the last chunk only.
    """

    index: int
    text: str
    token_id: int | None = None
    kind: TokenKind | None = None
    output: RequestOutput | None = None
    logprobs: Logprobs | None = None


def logprobs_of(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> Logprobs:
    """vLLM's shape of one position's log-probabilities. Without a tokenizer there is no text."""

    def text(token: int) -> str | None:
        return None if tokenizer is None else tokenizer.decode([token], skip_special=False, continues=True)

    found = {entry.token: Logprob(entry.logprob, entry.rank, text(entry.token))}
    columns = (entry.top_ids.tolist(), entry.top_logprobs.tolist(), entry.top_ranks.tolist())
    for token, logprob, rank in zip(*columns, strict=True):
        if token != entry.token:
            found[token] = Logprob(logprob, rank, text(token))
    return found


def merge(parts: Sequence[RequestMetrics]) -> RequestMetrics:
    """The metrics of several sequences as if of one: counts and seconds added, from the first arrival to
    the last token. One part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    firsts = [p.first_token for p in parts if p.first_token is not None]
    lasts = [p.last_token for p in parts if p.last_token is not None]
    by_drafter: dict[str, DraftCounts] = {}
    for name in {name: None for p in parts for name in p.by_drafter}:
        by_drafter[name] = _sum([p.by_drafter[name] for p in parts if name in p.by_drafter])
    return RequestMetrics(
        arrived=min((p.arrived for p in parts), default=0.0),
        first_token=min(firsts, default=None),
        last_token=max(lasts, default=None),
        num_passes=sum(p.num_passes for p in parts),
        num_tokens=sum(p.num_tokens for p in parts),
        verify_seconds=sum(p.verify_seconds for p in parts),
        other_seconds=sum(p.other_seconds for p in parts),
        sampling_seconds=sum(p.sampling_seconds for p in parts),
        drafts=_sum([p.drafts for p in parts]),
        by_drafter=by_drafter,
        accepted_at=sum((p.accepted_at for p in parts), Counter[int]()),
        rejected_at=sum((p.rejected_at for p in parts), Counter[int]()),
        prediction=_sum([p.prediction for p in parts]),
        earlier_outputs=_sum([p.earlier_outputs for p in parts]),
        speculation="; ".join({p.speculation: None for p in parts}),
    )


def _sum(parts: Sequence[DraftCounts]) -> DraftCounts:
    return DraftCounts(
        num_drafts=sum(p.num_drafts for p in parts),
        num_draft_tokens=sum(p.num_draft_tokens for p in parts),
        num_accepted_tokens=sum(p.num_accepted_tokens for p in parts),
        draft_seconds=sum(p.draft_seconds for p in parts),
    )
