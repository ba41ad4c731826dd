"""What a step costs, and what time is worth in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outrider.policy.cost_model import CostCurve
from outrider.policy.tuning import DEFAULT, Tuning


@dataclass(slots=True, eq=False)
class StepContext:
    """What is known of a step when its draft budgets are chosen; handed along until it is recorded.

    width:   requests that decode.
    context: their mean length in tokens.
    base:    tokens of the pass without drafts: the requests' own and prompt tokens of others.
    curve:   seconds of a pass by its tokens, at this length.
    plain:   seconds of a plain step, without prompt tokens.
    prompts: seconds that prompt tokens add, whether or not anything is drafted.
    rate:    token rate, the value of time: tokens per second that decoding reaches now.
    draw:    seconds of a draft model's pass over n tokens, by its name.
    """

    width: int
    context: int
    base: int
    curve: CostCurve
    plain: float
    prompts: float
    rate: float
    draw: Mapping[str, Callable[[int], float]] = field(default_factory=dict)


class TokenRate:
    """Tokens per second that decoding reaches at the moment, at least plain decoding's.

    A node is verified, and a further token drafted, while its probability exceeds the token rate times its
    price: the rule that maximises tokens per second over many steps of different kinds (Dinkelbach 1967).
    """

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._overhead = 0.0  # seconds of a step besides passes and sampling
        # Decayed: seconds of plain decoding for the tokens of the last steps, and the steps' own seconds.
        self._plain_seconds = self._step_seconds = 1.0

    def begin_step(
        self, curve: CostCurve, width: int, context: int, *, prompt_tokens: int = 0, new: int = 0
    ) -> StepContext:
        """`new` of the `width` requests have their first step."""
        base = width + prompt_tokens
        # Prompt tokens are computed in this pass or another one, so they make time no cheaper.
        plain = curve.seconds(width) + self._overhead
        prompts = curve.seconds(base) - curve.seconds(width)
        if new:  # what was gained in the requests before says little of these
            gained = self._plain_seconds - self._step_seconds
            self._plain_seconds = self._step_seconds + (1.0 - new / width) * gained
        rate = max(1.0, self._plain_seconds / self._step_seconds) * width / plain
        return StepContext(width, context, base, curve, plain, prompts, rate)

    def observe(self, step: StepContext, expected: float, seconds: float) -> None:
        """The step is expected to emit so many tokens in so many seconds of passes."""
        decay = self._tuning.token_rate_decay
        self._plain_seconds = decay * self._plain_seconds + expected * step.plain / step.width
        self._step_seconds = decay * self._step_seconds + seconds - step.prompts + self._overhead

    def observe_overhead(self, seconds: float) -> None:
        """A step took so many seconds besides its passes and sampling."""
        self._overhead += self._tuning.overhead_smoothing * (seconds - self._overhead)
