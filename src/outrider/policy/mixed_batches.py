"""How many prompt tokens may share a pass with tokens that decode (chunked prefill), and what passes cost."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.types import StepRecord
from outrider.policy.cost_model import CostModel
from outrider.policy.tuning import DEFAULT, Tuning


class MixedBatchPolicy:
    """Shares passes between sequences that decode and prompts that are prefilled.

    A mixed pass may take `mixed_pass_ratio` times as long as a pass will when the joining requests decode
    too, with usual drafts; a pass of prompt tokens alone, `prefill_pass_seconds`. (With fewer prompt tokens,
    fewer requests would share each pass, and the weights are read once for all of them.) Tokens far into a
    prompt attend to more keys than the cost curve knows of, so a pass may take longer than planned; the
    excess is a debt, and while it is high, passes go without prompt tokens.

    target: cost of the target's passes. Learns from passes without prompt tokens (a long prompt would look
            like a slower machine): a few together, or at once where one took another time than predicted.
    """

    def __init__(self, target: CostModel, tuning: Tuning = DEFAULT) -> None:
        self._target, self._tuning = target, tuning
        self.width = 1  # sequences that decode in the pass
        self.context = 0  # their mean length in tokens
        self._records: list[StepRecord] = []  # of the pass so far
        self._unlearned: list[tuple[int, int, float]] = []  # passes: context, tokens, seconds
        self._drafts = 0.0  # draft tokens of a sequence in a pass, a running mean
        self._allowed = 0.0  # seconds that prompt tokens may add to a pass
        self._debt = 0.0  # seconds by which they have added more

    def begin_pass(self, contexts: Sequence[int]) -> None:
        """Sequences of so many tokens decode in the next pass."""
        self.width = max(1, len(contexts))
        self.context = sum(contexts) // self.width
        self._records.clear()

    def prefill_budget(self, decoding: int, joining: int) -> int:
        """Prompt tokens for the next pass, as `Controller.prefill_budget` says."""
        tuning, seconds = self._tuning, self._target.at(self.context).seconds
        width, later = (n + round(self._drafts * n) for n in (decoding, decoding + joining))
        if decoding:
            limit, count = tuning.mixed_pass_ratio * seconds(later), 1
            without = seconds(width)
            self._allowed = limit - without
            if self._debt > without:
                return 0
        else:
            limit, count = tuning.prefill_pass_seconds, tuning.min_prefill_tokens
        while count < tuning.max_prefill_tokens and seconds(width + count + 1) <= limit:
            count += 1
        return count

    def record(self, step: StepRecord) -> tuple[float, float] | None:
        """One sequence's share of the pass. With the last one, learns from the pass and returns its seconds
        and the step's seconds besides it, without sampling."""
        records = self._records
        records.append(step)
        if len(records) < self.width:
            return None
        seconds, overhead, drafted = 0.0, 0.0, 0
        for record in records:
            seconds += record.verify_seconds
            overhead += record.other_seconds - record.sampling_seconds
            drafted += record.drafted
        self._drafts += self._tuning.drafts_smoothing * (drafted / self.width - self._drafts)
        own = self.width + drafted
        if step.width > own:
            self._debt += seconds - self._target.at(self.context).seconds(own)
        else:
            self._learn(own, seconds)
        self._debt = max(0.0, self._debt - self._allowed)
        return seconds, overhead

    def _learn(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens of sequences that decode took so many seconds."""
        passes, surprise = self._unlearned, self._tuning.cost_surprise_ratio
        passes.append((self.context, tokens, seconds))
        predicted = self._target.at(self.context).seconds(tokens)
        as_predicted = predicted / surprise < seconds < predicted * surprise
        if len(passes) >= self._tuning.cost_batch_passes or not as_predicted:
            for context, n, took in passes:
                self._target.observe(context, n, took)
            passes.clear()
