"""The memory of a running server: what requests may reserve, and what prefixes may keep."""

from __future__ import annotations

import functools
import logging
from bisect import bisect_right
from collections.abc import Sequence

from outrider import memory
from outrider.decoding.request import Request
from outrider.engines.prefix import PrefixCache, SharesPrefixes
from outrider.errors import InsufficientMemoryError
from outrider.pipeline import PLANNED_POSITIONS, Pipeline

logger = logging.getLogger(__name__)


class Capacity:
    """Divides the memory of a pipeline that is loaded.

    limit:        bytes for weights, caches and buffers together; None for most of what is available.
    prefix_bytes: of them for prefix caches; 0 turns these off, None leaves it to `memory.share_out`.

    budget:   for what the requests that run may come to hold.
    context:  most positions of a sequence: the pipeline's, or as many as fit where the user did not say how
              many there must be (max_model_len).
    prefixes: the prefix caches in use, the target's first.
    Raises InsufficientMemoryError when max_model_len positions do not fit, or not even PLANNED_POSITIONS.
    """

    def __init__(self, pipeline: Pipeline, limit: int | None, prefix_bytes: int | None) -> None:
        self.context = pipeline.context
        sources = [source for source in (pipeline.source, pipeline.draft) if source is not None]
        self._archs = [source.architecture for source in sources]
        if limit is None:
            limit = memory.usable_bytes(sum(memory.estimate(source, 0).weights for source in sources))
        drafted = getattr(pipeline.speculative, "num_speculative_tokens", 0)
        shared = functools.partial(
            memory.share_out,
            sources,
            limit=limit,
            rows=pipeline.config.max_num_seqs * (1 + drafted),
            prefixes=prefix_bytes if isinstance(pipeline.engine, SharesPrefixes) else 0,
        )
        try:
            shares = shared(positions=self.context)
        except InsufficientMemoryError:
            if pipeline.config.max_model_len is not None or self.context <= PLANNED_POSITIONS:
                raise
            shares = shared(positions=PLANNED_POSITIONS)
            fits = range(PLANNED_POSITIONS, self.context + 1)
            self.context = fits[bisect_right(fits, shares.sequences, key=self._bytes) - 1]
            logger.warning("memory is short: a context of %d tokens, not %d", self.context, pipeline.context)
        self.budget = memory.Budget(shares.sequences)
        self.prefixes: list[PrefixCache] = []
        parts: Sequence[object] = (pipeline.engine, *pipeline.drafting.parts)
        sharing = [part for part in parts if isinstance(part, SharesPrefixes)]
        for part, size in zip(sharing, shares.prefixes, strict=False):
            if size:
                self.prefixes.append(part.share_prefixes(size))

    def _bytes(self, positions: int) -> int:
        return memory.sequence_bytes(self._archs, positions)

    def need(self, request: Request) -> int:
        """Bytes that a request may come to hold, prompt and output in every model; never over the budget."""
        room, most = self.context - len(request.prompt), request.params.max_tokens
        return self._bytes(len(request.prompt) + (room if most is None else min(room, most)))

    def stats(self) -> dict[str, int]:
        """Fields of EngineStats."""
        return {
            "cache_bytes": self.budget.reserved,
            "cache_limit": self.budget.limit,
            "prefix_bytes": sum(prefixes.nbytes for prefixes in self.prefixes),
            "prefix_limit": sum(prefixes.max_bytes for prefixes in self.prefixes),
            "prefix_hit_tokens": sum(prefixes.hit_tokens for prefixes in self.prefixes[:1]),
            "prefix_query_tokens": sum(prefixes.query_tokens for prefixes in self.prefixes[:1]),
        }
