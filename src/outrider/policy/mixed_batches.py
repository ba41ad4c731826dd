"""Prompt tokens that join the passes of texts in work: many enough, and not for long too many."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.types import StepRecord
from outrider.policy.cost_model import CostModel

BESIDE = 1.8  # times as long a pass may take when prompt tokens of new requests join it
ALONE = 0.25  # seconds that a pass of prompt tokens alone may take
LEAST_ALONE, MOST_BESIDE = 32, 256  # prompt tokens of a pass: fewer, and the weights are read for too few
SMOOTH = 0.05  # of a new value in a running mean
AT_ONCE = 4  # passes that are learned from together: for one alone, what it takes is in no cache
NEWS = 1.25  # times as long, or as short, as was thought: a pass that is learned from at once


class MixedBatchPolicy:
    """Shares passes between texts that decode and prompts that are read.

    A pass may take BESIDE times as long as it will when those that join decode too, with usual drafts; or
    ALONE seconds. (Were they let in more slowly, fewer would share each pass, and the weights are read once
    for all who do.) Tokens far into a prompt see more keys than the curve knows of, so passes may take longer
    than that; what they take beyond it is a debt, and while it is high, passes go without prompt tokens.

    target: what a pass costs. Learns from passes without prompt tokens (it would take a long prompt for a
            slower machine), a few together, or at once where one took another time than was thought.
    """

    def __init__(self, target: CostModel) -> None:
        self._target = target
        self.width = 1  # sequences that decode in the pass
        self.context = 0  # tokens of their texts, the mean
        self._records: list[StepRecord] = []  # of the pass so far
        self._passes: list[tuple[int, int, float]] = []  # yet to be learned from: context, tokens, seconds
        self._drafts = 0.0  # nodes verified for a sequence in a pass, a running mean
        self._share = 0.0  # seconds that prompts may add to a pass
        self._debt = 0.0  # seconds by which they have added more

    def begin(self, contexts: Sequence[int]) -> None:
        """A pass in which texts of so many tokens decode."""
        self.width = max(1, len(contexts))
        self.context = sum(contexts) // self.width
        self._records.clear()

    def count(self, sequences: int, joining: int) -> int:
        """Prompt tokens for the next pass, as `Controller.beside` says."""
        seconds = self._target.at(self.context).seconds
        width, later = (n + round(self._drafts * n) for n in (sequences, sequences + joining))
        most, count = (BESIDE * seconds(later), 1) if sequences else (ALONE, LEAST_ALONE)
        if sequences:
            alone = seconds(width)
            self._share = most - alone
            if self._debt > alone:
                return 0
        while count < MOST_BESIDE and seconds(width + count + 1) <= most:
            count += 1
        return count

    def record(self, step: StepRecord) -> tuple[float, float] | None:
        """What one of the sequences did. Once that is known of all of them, learns from it and returns the
        seconds of their pass, and those beside it without sampling."""
        records = self._records
        records.append(step)
        if len(records) < self.width:
            return None
        seconds, beside, drafted = 0.0, 0.0, 0
        for record in records:
            seconds += record.verify_seconds
            beside += record.other_seconds - record.sampling_seconds
            drafted += record.drafted
        self._drafts += SMOOTH * (drafted / self.width - self._drafts)
        own = self.width + drafted
        if step.width > own:
            self._debt += seconds - self._target.at(self.context).seconds(own)
        else:
            self._learn(own, seconds)
        self._debt = max(0.0, self._debt - self._share)
        return seconds, beside

    def _learn(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens of texts took so many seconds."""
        passes = self._passes
        passes.append((self.context, tokens, seconds))
        thought = self._target.at(self.context).seconds(tokens)
        if len(passes) >= AT_ONCE or not thought / NEWS < seconds < thought * NEWS:
            for context, n, took in passes:
                self._target.observe(context, n, took)
            passes.clear()
