"""`LanguageModel` on the C++ core: loading a `ModelSource`, and arrays in and out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import Cache, CacheBlocks, EngineCaps, ForwardItem
from outrider.engines.native import _core
from outrider.engines.native.loading import add_weights
from outrider.engines.native.store import packed_weights_cache
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.machine import available_processors
from outrider.models.source import ModelSource

KV_DTYPES = ("f16", "f32", "q8_0")  # of keys and values in a cache
PANEL = 16  # rows of a weight matrix that lie together (csrc/kernels/types.h)


class NativeCache:
    """Keys and values of one sequence, in blocks of 16 positions. Truncation is O(1).

    Layers with a sliding window hold what their window shows from `_core.ROLLBACK` positions before the last
    pass on; what it has passed is given back when a pass begins.
    """

    def __init__(self, model: _core.Model, capacity: int) -> None:
        self._model = model
        self.core = model.new_cache(capacity)

    @property
    def length(self) -> int:
        return self.core.length

    @property
    def capacity(self) -> int:
        return self.core.capacity

    @property
    def nbytes(self) -> int:
        """Bytes held now; grows with the length, by blocks."""
        return self.core.nbytes

    @property
    def rollback_floor(self) -> int:
        """The shortest length, other than 0, that `truncate` and `keep` can go back to."""
        return self.core.rollback_floor

    def truncate(self, length: int) -> None:
        self.core.truncate(length)

    def pad(self, count: int) -> None:
        """Append `count` positions of no meaning, of zeros: to measure what a pass takes in a long context.
        Raises ValueError where they do not fit."""
        with length_errors_as_value_errors():
            self.core.pad(count)

    def keep(self, base: int, slots: Sequence[int]) -> None:
        self._model.keep(self.core, base, list(slots))

    def share(self, start: int, stop: int) -> _core.SharedBlocks:
        return self.core.share(start, stop)

    def adopt(self, blocks: CacheBlocks) -> None:
        if not isinstance(blocks, _core.SharedBlocks):
            raise TypeError("the native engine takes blocks of its own caches only")
        with length_errors_as_value_errors():
            self.core.adopt(blocks)

    def close(self) -> None:
        self.core.close()


class NativeModel:
    """A decoder-only transformer on the CPU. Logits are bit for bit the same however tokens are grouped
    into passes, on every thread count and instruction set (docs/kernels.md)."""

    caps = EngineCaps(tree_attention=True, exact_bits=True, hidden_states=True)
    share_unit = 16  # positions of a block of the caches

    def __init__(self, core: _core.Model, source: ModelSource) -> None:
        self._core = core
        self.source = source

    @classmethod
    def load(
        cls,
        source: ModelSource,
        *,
        threads: int | None = None,
        isa: str | None = None,
        kv_dtype: str | None = None,
        weights_cache: bool | str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> NativeModel:
        """Repack `source`'s weights for this machine, quantized first where `source` asks for it.

        threads:  None means one for each processor this process may use.
        isa:      "auto" (default, or the OUTRIDER_ISA variable), "portable", "avx2", "avxvnni", "avx512",
                  "amx", "neon".
        kv_dtype: "f16", "f32" or "q8_0"; None is the source's own (`ModelSpec.kv_type`).
        weights_cache: keep the packed weights on disk and map them at the next start: True for Outrider's
                  cache folder, or a folder; None leaves it to OUTRIDER_WEIGHTS_CACHE (off by default).
        progress: called with (bytes done, bytes in all) after each tensor.
        Raises ConfigError for a bad option and UnsupportedModelError for weights that the engine cannot run.
        """
        core = new_core(source, threads, isa, kv_dtype)
        add_weights(core, source, packed_weights_cache(weights_cache), progress)
        return cls(core, source)

    @property
    def vocab_size(self) -> int:
        return self.source.architecture.vocab_size

    @property
    def max_positions(self) -> int:
        return self.source.architecture.max_positions

    @property
    def share_window(self) -> int:
        """See `SharingModel`."""
        return max(layer.window or 0 for layer in self.source.architecture.layers)

    @property
    def isa(self) -> str:
        """Name of the kernels in use."""
        return self._core.isa

    @property
    def threads(self) -> int:
        return self._core.threads

    @property
    def token_tile(self) -> int:
        """Tokens that the kernels compute together, of passes of at most twice as many."""
        return self._core.token_tile

    @property
    def usual_token_tile(self) -> int:
        """The same of wider passes."""
        return self._core.usual_token_tile

    @property
    def weights_bytes(self) -> int:
        """Bytes of packed matrices: what one pass over few tokens reads, embedding rows aside."""
        return self._core.weights_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes taken from the system for the blocks of this model's caches, and of whoever shares them: at
        most 32 MiB more than they ever came to, since large blocks come from slabs on huge pages."""
        return self._core.cache_bytes

    def read_gb_per_s(self) -> float:
        """Read bandwidth of all threads over the packed weights, in 1e9 bytes a second: with
        `weights_bytes`, the floor under the time of a pass. The best of a few tries, for about
        five passes' time."""
        return self._core.read_gb_per_s()

    def new_cache(self, capacity: int) -> NativeCache:
        return NativeCache(self._core, capacity)

    @property
    def num_layers(self) -> int:
        return self.source.architecture.n_layers

    @property
    def hidden_size(self) -> int:
        return self.source.architecture.hidden_size

    @property
    def vocab_block_size(self) -> int:
        return PANEL

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        """See `LanguageModel.forward`. The GIL is released during the pass."""
        return self._forward(items, None)

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        """See `VocabSubsetModel.forward_subset`."""
        return self._forward(items, ids(blocks))

    def forward_hidden(
        self, items: Sequence[ForwardItem], taps: Sequence[int]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """See `HiddenStateModel.forward_hidden`."""
        with length_errors_as_value_errors():
            logits, hidden = self._core.forward_hidden(_work(items), list(taps))
        return (
            split(logits, [len(item.rows) for item in items]),
            split(hidden, [len(item.tokens) for item in items]),
        )

    def _forward(self, items: Sequence[ForwardItem], panels: IntArray | None) -> list[FloatArray]:
        with length_errors_as_value_errors():
            logits = self._core.forward(_work(items), panels)
        return split(logits, [len(item.rows) for item in items])


def new_core(source: ModelSource, threads: int | None, isa: str | None, kv_dtype: str | None) -> _core.Model:
    """A core for `source`, without weights yet; arguments and errors as those of `NativeModel.load`."""
    held = kv_dtype or source.architecture.kv_type
    if held not in KV_DTYPES:
        raise ConfigError(f"kv_dtype {held!r} is unknown; use {', '.join(map(repr, KV_DTYPES))}")
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigError(f"threads must be between 1 and 1024, not {threads}")
    if missing := _core.unsupported(source.architecture):
        raise UnsupportedModelError(f"{source.path}: {missing}")
    try:
        return _core.Model(
            spec=source.architecture,
            cache_type=held,
            threads=threads or available_processors(),
            isa=isa or os.environ.get("OUTRIDER_ISA", "auto"),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def core_cache(cache: Cache) -> _core.Cache:
    """A cache's core. Raises TypeError for a cache of another engine."""
    if not isinstance(cache, NativeCache):
        raise TypeError("the native engine needs a cache made by its own new_cache()")
    return cache.core


def _work(items: Sequence[ForwardItem]) -> _core.Work:
    return [(core_cache(item.cache), ids(item.tokens), ids(item.parents), ids(item.rows)) for item in items]


def split(rows: FloatArray, sizes: Sequence[int]) -> list[FloatArray]:
    """Views of so many rows each, one after the other."""
    ends = list(accumulate(sizes, initial=0))
    return [rows[start:end] for start, end in pairwise(ends)]


@contextmanager
def length_errors_as_value_errors() -> Iterator[None]:
    """nanobind's name for std::length_error may differ by version."""
    try:
        yield
    except IndexError as error:
        raise ValueError(str(error)) from None


def ids(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The same, as the core takes them."""
    return np.ascontiguousarray(values, np.int32)
