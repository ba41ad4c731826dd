"""Prediction: drafts from a text that the caller expects the output to be like (OpenAI's predicted outputs).

An edit of a file repeats most of it. Where the file is predicted, the output is drafted from its first token
on, before anything repeats, and the file need not stand in the prompt. The prediction is a request's own: no
other request, and nothing that is kept of this one, ever sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.decoding.metrics import PREDICTION
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.drafters._lookup import MAX_MATCH, GramIndex, Matches, SuffixTree
from outrider.policy.tree import Lookup
from outrider.policy.tuning import DEFAULT

MAX_MATCHES, PATH_FACTOR = DEFAULT.lookup_matches, DEFAULT.prediction_path_factor
MAX_DEPTH, MIN_PROBABILITY = 24, 0.1  # of a path


@dataclass(slots=True)
class Cursor:
    """Where in a prediction a text goes on.

    at:      index of the prediction's next token, as long as the text follows; after that, of where it left.
    agreed:  tokens that agree up to there, at most MAX_MATCH. At first nothing needs to: the caller says
             that the output begins like this.
    follows: the last token was the expected one, or there is none yet.
    """

    at: int = 0
    agreed: int = MAX_MATCH
    follows: bool = True

    def take(self, token: int, prediction: Sequence[int]) -> None:
        """The text goes on with this token."""
        self.follows = self.follows and self.at < len(prediction) and prediction[self.at] == token
        if self.follows:
            self.at += 1
            self.agreed = min(MAX_MATCH, self.agreed + 1)

    def resume(self, matches: Matches) -> None:
        """Follow the prediction again, at the longest of these places; of equally long ones where the
        agreement begins nearest to where the text left it."""
        found = [(length, -abs(start - length - self.at), start) for start, length in matches.list()]
        if found:
            (self.agreed, _, self.at), self.follows = max(found), True


@dataclass(slots=True, eq=False)
class _Sequence:
    """What the drafter keeps of one request with a prediction.

    index: of the prediction's tokens, made at the first lookup.
    taken: tokens of the sequence that the cursor has seen.
    """

    prediction: list[int]
    taken: int
    index: GramIndex | None = None
    cursor: Cursor = field(default_factory=Cursor)

    def ready(self) -> GramIndex:
        """The index."""
        if self.index is None:
            self.index = GramIndex(self.prediction)
            self.index.update()
        return self.index


class PredictionDrafter:
    """Drafts from the prediction of each request that has one (`Request.prediction`).

    tree: propose trees where the text has left the prediction and goes on like several places of it; else the
          likeliest chain, for engines and verifiers without trees.
    """

    name = PREDICTION

    def __init__(self, *, tree: bool = True) -> None:
        self.needs = frozenset({"tree_attention"}) if tree else frozenset[str]()
        self._tree = SuffixTree(MAX_DEPTH, PATH_FACTOR, MIN_PROBABILITY, tree)
        self._sequences: dict[str, _Sequence] = {}

    @property
    def nbytes(self) -> int:
        """Approximate bytes of all indexes."""
        return sum(seq.index.nbytes for seq in self._sequences.values() if seq.index is not None)

    def begin(self, request: Request) -> None:
        if request.prediction:
            seq = _Sequence(list(request.prediction), len(request.prompt))
            self._sequences[request.request_id] = seq

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        return [self.draft(self.lookup(job, job.budget) or Lookup()) for job in jobs]

    def draft(self, found: Lookup) -> Draft:
        """What a lookup has found, as a draft."""
        tokens, parents = np.array(found.tokens, np.int32), np.array(found.parents, np.int32)
        return Draft(tokens, parents, None, self.name)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        pass  # the next job's context has the kept tokens

    def end(self, request_id: str) -> None:
        self._sequences.pop(request_id, None)

    def lookup(self, job: ProposeJob, budget: int) -> Lookup | None:
        """What may follow, up to `budget` nodes; None for a request without a prediction."""
        if (seq := self._sequences.get(job.request_id)) is None:
            return None
        index, cursor, tokens = seq.ready(), seq.cursor, job.context.tokens
        for token in tokens[seq.taken :]:
            cursor.take(token, seq.prediction)
        seq.taken = len(tokens)
        if path := job.context.path:  # drafted, not verified: the cursor itself stays
            cursor = Cursor(cursor.at, cursor.agreed, cursor.follows)
            for token in path:
                cursor.take(token, seq.prediction)
        written = min(MAX_MATCH, job.context.output_length)
        end = [] if cursor.follows else [*tokens[-MAX_MATCH:], *path][-written:]
        matches = index.find(end, MAX_MATCHES)
        if not cursor.follows:
            cursor.resume(matches)
        if not cursor.follows or cursor.at == len(seq.prediction):
            return Lookup()
        copy = (cursor.at, seq.prediction[cursor.at : cursor.at + MAX_DEPTH], cursor.agreed)
        stop_ids = job.sampler.stop_ids
        return Lookup(*self._tree.grow(index, matches, None, None, copy, budget, MAX_MATCHES, stop_ids))
