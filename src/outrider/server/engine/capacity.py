"""How the memory of a server is divided between weights, running requests, prefix caches and lookups."""

from __future__ import annotations

import functools
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeAlias

from outrider import device_memory, memory
from outrider.config.engine import EngineConfig
from outrider.decoding.request import Request
from outrider.drafters.output_pool import MAX_BYTES, OutputPool
from outrider.drafters.suffix import SuffixDrafter
from outrider.engines.base import PooledModel
from outrider.engines.prefix import PrefixCache, SharesPrefixes
from outrider.engines.step import CachedStepEngine
from outrider.errors import InsufficientMemoryError
from outrider.models.source import ModelSource
from outrider.models.spec import ModelSpec
from outrider.pipeline import PLANNED_POSITIONS, Pipeline

MemoryCheck: TypeAlias = Callable[[EngineConfig, int, Sequence[ModelSource]], None]

logger = logging.getLogger(__name__)


def divide(
    config: EngineConfig,
    context: int,
    sources: Sequence[ModelSource],
    limit: int,
    prefix_bytes: int | None = None,
) -> tuple[memory.Shares, int]:
    """The shares of `limit` bytes, and the most positions of a sequence: `context`, or as many as fit, at
    least PLANNED_POSITIONS, when the user did not set max_model_len. Needs no loaded weights. Raises
    InsufficientMemoryError when the memory is too small for that."""
    shared = functools.partial(
        memory.share_out,
        sources,
        limit=limit,
        rows=config.max_num_seqs * (1 + getattr(config.speculative, "num_speculative_tokens", 0)),
        prefixes=prefix_bytes,
    )
    shares_outputs = getattr(config.speculative, "suffix_decoding_max_cached_requests", 0) > 0
    try:
        return shared(positions=context, lookups=MAX_BYTES if shares_outputs else 0), context
    except InsufficientMemoryError:
        if config.max_model_len is not None or context <= PLANNED_POSITIONS:
            raise
    shares = shared(positions=PLANNED_POSITIONS)
    size = functools.partial(memory.sequence_bytes, [source.architecture for source in sources])
    fits = range(PLANNED_POSITIONS, context + 1)
    return shares, fits[bisect_right(fits, shares.sequences, key=size) - 1]


def before_loading(limit: int | None) -> MemoryCheck:
    """A check for `pipeline.build`: that a server with one sequence fits in `limit` bytes (None: in
    `memory.usable_bytes`). How many more sequences run at a time depends on the memory that is left."""

    def check(config: EngineConfig, context: int, sources: Sequence[ModelSource]) -> None:
        divide(config, context, sources, memory.usable_bytes() if limit is None else limit)

    return check


def pooled_bytes(pooled: PooledModel, archs: Sequence[ModelSpec]) -> int:
    """Bytes of a position in the pools of all models, which hold one type of numbers."""
    itemsize = pooled.slot_bytes // device_memory.slot_bytes(archs[0], 1)
    return sum(device_memory.slot_bytes(arch, itemsize) for arch in archs)


def divide_device(
    pipeline: Pipeline,
    pooled: PooledModel,
    archs: Sequence[ModelSpec],
    limit: int | None,
    prefix_bytes: int | None,
) -> tuple[memory.Shares, int]:
    """The same for models whose sequences lie in pools of a device: the shares of prefix caches and recent
    outputs are those of main memory (`limit` bytes, None for most of what is free)."""
    config, positions = pipeline.config, pooled.pool_positions or 0
    context = min(pipeline.context, positions)
    short = config.max_model_len is not None or context < min(pipeline.context, PLANNED_POSITIONS)
    if context < pipeline.context and short:
        names = " and ".join(name for name in pipeline.models.values() if name)
        raise InsufficientMemoryError(
            f"not enough memory on the device: beside {names} there is room for {positions} tokens, not for "
            f"a sequence of {pipeline.context}; try a shorter context (-c / max_model_len), a smaller model, "
            "or a higher --gpu-memory-utilization"
        )
    free = memory.usable_bytes() if limit is None else limit
    if prefix_bytes is None:
        prefix_bytes = min(memory.PREFIX_MOST, free // memory.PREFIX_SHARE)
    shares_outputs = getattr(config.speculative, "suffix_decoding_max_cached_requests", 0) > 0
    lookups = min(MAX_BYTES, (free - prefix_bytes) // memory.LOOKUP_SHARE) if shares_outputs else 0
    if prefix_bytes > free:
        raise InsufficientMemoryError(
            f"not enough memory: a prefix cache of {memory.size(prefix_bytes)} is in main memory, of which "
            f"{memory.size(max(0, free))} can be used; try a smaller --prefix-cache"
        )
    sizes = [memory.prefix_bytes(arch, memory.BLOCK) for arch in archs]
    prefixes = tuple(prefix_bytes * size // sum(sizes) for size in sizes)
    held = positions * pooled_bytes(pooled, archs)
    return memory.Shares(0, 0, held, prefixes, lookups), context


class Capacity:
    """Divides the memory of a loaded pipeline, and turns its prefix caches on.

    limit:        bytes for weights, caches and buffers together; None for most of the available memory. With
                  models on a device, for prefix caches and recent outputs, which stay in main memory.
    prefix_bytes: bytes of these for prefix caches; 0 turns them off, None lets `memory.share_out` decide.

    budget:   cache memory of the running requests, on the device where the models are.
    context:  most positions of a sequence, see `divide`.
    prefixes: the prefix caches in use, the target's first.
    lookups:  pools of recent outputs that drafters look up in.
    Raises InsufficientMemoryError.
    """

    def __init__(self, pipeline: Pipeline, limit: int | None, prefix_bytes: int | None) -> None:
        sources = [source for source in (pipeline.source, pipeline.draft) if source is not None]
        self._archs = [source.architecture for source in sources]
        if not isinstance(pipeline.engine, SharesPrefixes):
            prefix_bytes = 0
        pooled = pipeline.engine.pooled if isinstance(pipeline.engine, CachedStepEngine) else None
        self._position_bytes = None if pooled is None else pooled_bytes(pooled, self._archs)
        if pooled is not None:
            shares, self.context = divide_device(pipeline, pooled, self._archs, limit, prefix_bytes)
        else:
            if limit is None:
                limit = memory.usable_bytes(sum(memory.estimate(source, 0).weights for source in sources))
            shares, self.context = divide(pipeline.config, pipeline.context, sources, limit, prefix_bytes)
        if self.context < pipeline.context:
            logger.warning("memory is short: a context of %d tokens, not %d", self.context, pipeline.context)
        self.budget = memory.Budget(shares.sequences)
        self.prefixes: list[PrefixCache] = []
        parts: Sequence[object] = (pipeline.engine, *pipeline.drafting.parts)
        sharing = [part for part in parts if isinstance(part, SharesPrefixes)]
        for part, size in zip(sharing, shares.prefixes, strict=False):
            if size:
                self.prefixes.append(part.share_prefixes(size))

        self.lookups: list[OutputPool] = []
        for drafter in pipeline.drafting.parts:
            if isinstance(drafter, SuffixDrafter):
                drafter.pool.limit(shares.lookups)
                self.lookups.append(drafter.pool)

    def need(self, request: Request) -> int:
        """Bytes of cache memory that a request can need: prompt and output, in every model, and its
        prediction. At most the budget."""
        room, most = self.context - len(request.prompt), request.params.max_tokens
        positions = len(request.prompt) + (room if most is None else min(room, most))
        if self._position_bytes is not None:
            return positions * self._position_bytes
        return memory.sequence_bytes(self._archs, positions, len(request.prediction))

    def stats(self) -> dict[str, int]:
        """Fields of EngineStats."""
        return {
            "cache_bytes": self.budget.reserved,
            "cache_limit": self.budget.limit,
            "prefix_bytes": sum(prefixes.nbytes for prefixes in self.prefixes),
            "prefix_limit": sum(prefixes.max_bytes for prefixes in self.prefixes),
            "prefix_hit_tokens": sum(prefixes.hit_tokens for prefixes in self.prefixes[:1]),
            "prefix_query_tokens": sum(prefixes.query_tokens for prefixes in self.prefixes[:1]),
            "lookup_bytes": sum(pool.nbytes for pool in self.lookups),
            "lookup_limit": sum(pool.max_bytes for pool in self.lookups),
        }
