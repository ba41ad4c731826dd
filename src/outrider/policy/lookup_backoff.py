"""Leaving lookups out of steps where they save less time than they take."""

from __future__ import annotations

from outrider.policy.tuning import DEFAULT, Tuning


class BackoffState:
    """One request.

    sleep: steps left without looking up.
    idle:  steps in a row after which looking up was not worth its time.
    """

    __slots__ = ("gained", "idle", "sleep", "steps")

    def __init__(self) -> None:
        self.sleep = self.idle = 0
        self.gained = self.steps = 0.0  # decayed: seconds that lookups saved, and in how many steps


class LookupBackoff:
    """Compares what looking up takes, in the mean, with what it saves; all drafters of ready trees together.

    plain_seconds: of a plain step, to begin with.
    """

    def __init__(self, plain_seconds: float, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._seconds = 0.0  # of looking up and planning, in one step for one request
        self._gain = tuning.lookup_gain * plain_seconds  # seconds saved in a step of any request

    def observe_seconds(self, seconds: float, requests: int) -> None:
        """What looking up and planning took in a step, for so many requests."""
        taken = seconds / max(1, requests)
        self._seconds += self._tuning.overhead_smoothing * (taken - self._seconds)

    def update(self, state: BackoffState, gain: float, *, drawing: bool, plain: float, width: int) -> None:
        """Lookups saved `gain` seconds of this step for a request; where that is less than they take in the
        mean, leave them out for some steps. A request counts as one like those before it until it shows: one
        long copy makes up for dozens of lookups in vain, and most texts begin without one. (What looking up
        takes is a request's own; what it saves of a pass is less, the more requests share the pass.)

        drawing: whether a draft model drafts for the request.
        plain:   seconds of a plain step; `width` requests share it.
        """
        tuning = self._tuning
        self._gain += (1.0 - tuning.lookup_gain_shared_decay) * (gain - self._gain)
        state.gained = tuning.lookup_gain_decay * state.gained + gain
        state.steps = tuning.lookup_gain_decay * state.steps + 1.0
        weight = tuning.lookup_gain_weight
        expected = (state.gained + weight * self._gain) / (state.steps + weight)
        if drawing or expected > self._seconds:
            state.idle = 0
            return
        state.idle += 1
        share = self._seconds * width / plain  # of the step, if all requests look up
        if share > tuning.backoff_min_cost:
            longest = max(tuning.backoff_steps, round(share / tuning.lookup_time_share))
            longest = min(tuning.backoff_steps_costly, longest)
            state.sleep = min(longest, 1 << min(10, state.idle - 1))
