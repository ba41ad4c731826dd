"""The protocol between the sampler and structured output: which tokens a grammar permits next."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext

Mask: TypeAlias = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """The form that one request's output must have.

    Each result is a function of the context's output alone (path included), whatever contexts were asked for
    before, so that a rejected draft has no effect on later tokens.
    """

    def allowed(self, context: TokenContext) -> Mask | None:
        """bool[vocab], the tokens that may follow; EOS is among them once the output may end. None for a
        context whose output breaks the constraint already, which only a rejected draft path can do."""

    def forced(self, context: TokenContext, max_tokens: int) -> list[int]:
        """The next tokens as long as exactly one is possible, up to `max_tokens` of them."""

    def ended(self, context: TokenContext) -> bool:
        """Whether the output is complete and no token may follow."""
