"""`HeadModel` on the C++ core, which computes a head's layers as those of any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.heads import HeadDraftJob, HeadItem
from outrider.engines.native import _core
from outrider.engines.native.loading import add_weights
from outrider.engines.native.model import (
    NativeCache,
    core_cache,
    ids,
    length_errors_as_value_errors,
    new_core,
    split,
)
from outrider.engines.native.sampling import NativeRows
from outrider.models.source import ModelSource


class NativeHead:
    """A head on the CPU. As a model's, its logits are bit for bit the same however tokens are grouped into
    passes."""

    def __init__(self, core: _core.Model, source: ModelSource) -> None:
        self._core = core
        self.source = source
        self._drafts: tuple[IntArray | None, _core.HeadDrafts] | None = None  # with the ids that it is for

    @classmethod
    def load(
        cls,
        source: ModelSource,
        *,
        threads: int | None = None,
        isa: str | None = None,
        kv_dtype: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> NativeHead:
        """Repack a head's weights, quantized first where `source` asks for it. Its packed weights are not
        kept on disk: some may be its target's. Arguments and errors as those of `NativeModel.load`."""
        core = new_core(source, threads, isa, kv_dtype)
        add_weights(core, source, None, progress)
        return cls(core, source)

    @property
    def vocab_size(self) -> int:
        return self.source.architecture.vocab_size

    @property
    def token_count(self) -> int:
        return self.source.architecture.token_count

    @property
    def hidden_size(self) -> int:
        return self.source.architecture.hidden_size

    @property
    def state_width(self) -> int:
        head = self.source.architecture.head
        assert head is not None
        return head.width

    @property
    def isa(self) -> str:
        """Name of the kernels in use."""
        return self._core.isa

    @property
    def threads(self) -> int:
        return self._core.threads

    @property
    def weights_bytes(self) -> int:
        """Bytes of packed matrices: what one pass over few tokens reads, embedding rows aside."""
        return self._core.weights_bytes

    def read_gb_per_s(self) -> float:
        """See `NativeModel.read_gb_per_s`."""
        return self._core.read_gb_per_s()

    def new_cache(self, capacity: int) -> NativeCache:
        return NativeCache(self._core, capacity)

    def forward_head(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """See `HeadModel.forward_head`. The GIL is released during the pass."""
        work = [
            (
                core_cache(item.cache),
                ids(item.tokens),
                np.arange(-1, len(item.tokens) - 1, dtype=np.int32),
                ids(item.rows),
            )
            for item in items
        ]
        states = items[0].states if len(items) == 1 else np.concatenate([item.states for item in items])
        with length_errors_as_value_errors():
            logits, given = self._core.forward_head(work, np.ascontiguousarray(states, np.float32), fed_back)
        sizes = [len(item.rows) for item in items]
        return split(logits, sizes), split(given, sizes)

    def can_draw(self, sampler: Sampler) -> bool:
        """See `DraftingHead.can_draw`."""
        return sampler.params.temperature == 0.0 or isinstance(sampler.rows, NativeRows)

    def draft(
        self, jobs: Sequence[HeadDraftJob], ids: IntArray | None
    ) -> tuple[list[tuple[list[int], list[int], list[float]]], list[int]]:
        """See `DraftingHead.draft`. The GIL is released meanwhile."""
        if self._drafts is None or self._drafts[0] is not ids:
            self._drafts = ids, _core.HeadDrafts(self._core, ids)
        work = []
        for job in jobs:
            params, sampler = job.sampler.params, job.sampler
            work.append(
                (
                    core_cache(job.cache),
                    job.tokens,
                    np.ascontiguousarray(job.states, np.float32),
                    job.path,
                    job.position,
                    job.budget,
                    (
                        params.temperature,
                        params.min_p,
                        params.top_k,
                        params.top_p,
                        sampler.seed,
                        sampler.vocab_size,
                        list(sampler.stop_ids),
                    ),
                    None if job.growth is None else job.growth.capsule,
                    job.confident,
                )
            )
        with length_errors_as_value_errors():
            return self._drafts[1].draft(work)
