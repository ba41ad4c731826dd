"""A drafter of fixed drafts, and predictions beside it. (Under `auto` the planner chooses between them.)"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.drafters.base import Drafter
from outrider.drafters.prediction import PredictionDrafter

PREFERRED = 5  # tokens of the text that agree with the prediction, from which on it is the better guess


class WithPrediction:
    """Drafts from a request's prediction where the text follows it, else as `drafter` does.

    The other drafter is asked in any case: a lookup has to see all of the text.
    """

    def __init__(self, drafter: Drafter, prediction: PredictionDrafter) -> None:
        self.name, self.needs = drafter.name, drafter.needs | prediction.needs
        self._drafter, self._prediction = drafter, prediction

    def begin(self, request: Request) -> None:
        self._drafter.begin(request)
        self._prediction.begin(request)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        drafts = self._drafter.propose(jobs)
        return [self._better(job, draft) for job, draft in zip(jobs, drafts, strict=True)]

    def _better(self, job: ProposeJob, draft: Draft) -> Draft:
        found = self._prediction.lookup(job, job.budget) if job.allows(self._prediction.name) else None
        if found is None or not found.tokens or (len(draft) and found.length < PREFERRED):
            return draft
        return self._prediction.draft(found)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        self._drafter.observe(request_id, draft, verdict, scores)
        self._prediction.observe(request_id, draft, verdict, scores)

    def end(self, request_id: str) -> None:
        self._drafter.end(request_id)
        self._prediction.end(request_id)
