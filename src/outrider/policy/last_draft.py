"""A request's last draft: where the target replaced one of its tokens, the rest may still come."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.decoding.context import TokenContext


@dataclass(frozen=True, slots=True, eq=False)
class LastDraft:
    """A draft's likeliest row: its tokens, and the index that the first would have in the text."""

    start: int
    tokens: list[int]

    def after(self, context: TokenContext, max_tokens: int) -> list[int]:
        """Up to `max_tokens` that may follow the context: the row's tokens after the context's last one, if
        that is the row's at its place. At the end of the text itself the position alone decides, whatever
        tokens replaced the row's."""
        at = context.position - self.start
        if at <= 0 or (context.path and self.tokens[at - 1 : at] != [context.path[-1]]):
            return []
        return self.tokens[at : at + max_tokens]
