"""The seam between the sampler and structured output: which tokens a grammar permits next."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext

Mask: TypeAlias = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """What one request's output must look like.

    Every answer is a function of the context's output alone (path included), in whatever order contexts
    are asked about, so that a rejected draft leaves no trace.
    """

    def allowed(self, context: TokenContext) -> Mask | None:
        """bool[vocab], which tokens may follow: EOS too, once the output is complete. None for a context
        that has left the constraint already, which only a draft that nobody keeps can."""

    def forced(self, context: TokenContext, most: int) -> list[int]:
        """The tokens that must follow, as far as there is no choice, up to `most` of them."""

    def ended(self, context: TokenContext) -> bool:
        """Whether the output is complete and nothing may follow."""
