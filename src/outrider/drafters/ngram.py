"""Prompt lookup: propose the tokens that followed the latest earlier occurrence of the last n-gram.

The method of Saxena, "Prompt lookup decoding" (2023), with an index instead of a scan.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.errors import ConfigError

DEFAULT_LENGTH = 5  # tokens of an n-gram


class _Index:
    """The latest place of each n-gram of one sequence. Adding a token costs O(1)."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that followed it
        self._indexed = 0

    def find(self, tokens: Sequence[int], path: Sequence[int] = ()) -> int | None:
        """Index in `tokens` of the token after the latest earlier occurrence of the longest n-gram that
        `tokens`, continued by `path`, ends with; None without one. `path` itself is not indexed."""
        for following in range(self._indexed, len(tokens)):
            for size in self._sizes:
                if size <= following:
                    self._after[tuple(tokens[following - size : following])] = following
        self._indexed = len(tokens)
        end = [*tokens[-self._sizes.start :], *path]
        for size in self._sizes:
            if size < len(tokens) and (found := self._after.get(tuple(end[-size:]))) is not None:
                return found
        return None


class NgramDrafter:
    """Looks up the last tokens in the request's own prompt and output.

    The longest match wins, from prompt_lookup_max tokens down to prompt_lookup_min, and the latest of equally
    long ones. A continuation that reaches the end of the sequence continues with the proposed tokens, so a
    loop is continued as a loop. Both lengths default to 5; if one is given, the other is the same (as in
    vLLM). Raises ConfigError unless 1 <= prompt_lookup_min <= prompt_lookup_max.
    """

    name = "ngram"
    needs: frozenset[str] = frozenset()

    def __init__(self, prompt_lookup_max: int | None = None, prompt_lookup_min: int | None = None) -> None:
        longest = prompt_lookup_max if prompt_lookup_max is not None else prompt_lookup_min
        shortest = prompt_lookup_min if prompt_lookup_min is not None else longest
        self.prompt_lookup_max = DEFAULT_LENGTH if longest is None else longest
        self.prompt_lookup_min = DEFAULT_LENGTH if shortest is None else shortest
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must be at least 1 and at most "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )
        self._indexes: dict[str, _Index] = {}

    def begin(self, request: Request) -> None:
        self._indexes[request.request_id] = _Index(self.prompt_lookup_min, self.prompt_lookup_max)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        return [self._lookup(job) for job in jobs]

    def _lookup(self, job: ProposeJob) -> Draft:
        tokens, path = job.context.tokens, job.context.path
        start = self._indexes[job.request_id].find(tokens, path)
        if start is None:
            return Draft.empty(self.name)
        stop_ids = job.sampler.stop_ids
        proposed = list(path)  # the tokens after `tokens`: the job's path, then this draft
        for at in range(start, start + job.budget):
            proposed.append(tokens[at] if at < len(tokens) else proposed[at - len(tokens)])
            if proposed[-1] in stop_ids:  # in a prompt tokens may follow one, in an output none do
                break
        return Draft.chain(proposed[len(path) :], self.name)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        pass

    def end(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)
