"""How much memory models and caches need: an estimate from the models' dimensions, before loading.

Bytes throughout. The weights are counted as the engine packs them, once, into layouts of its own, which hold
the file's values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from outrider.config.speculative import MAX_DRAFT_TOKENS
from outrider.errors import InsufficientMemoryError
from outrider.models.quantization import resident_bytes
from outrider.models.source import ModelSource
from outrider.models.spec import ModelSpec

# Of what is read of a vocabulary, and of the tokenizer that is made of it, for each token and merge: resident
# memory of the catalog's models before and after (benchmarks/predictions.py --only memory)
PIECES_BYTES, TOKENIZER_BYTES = (126, 130), (112, 234)
KV_ITEM_BYTES = {"f16": 2, "f32": 4}  # of a key's or value's number, where those have no scales
KV_KEY_GROUP, KV_LINE = (
    32,
    64,
)  # q8_0: columns of a key with one scale; bytes that a block's keys are rounded to
BLOCK = 16  # positions: the cache grows by blocks
PASS_WIDTH = 256  # most tokens of one pass of the target: a chunk of prefill
WIDEST_PASS = 512  # the same of any model: a chunk of draft prefill
ORDERED_COPIES = 4  # at once, of the inputs of q, k and v; v's with as many rows of residuals
ORDERED_BYTES = 6  # a value of a copy: float32, int8 and a share of what a group of 32 has
PASS_ROWS = 32  # most rows of logits of one pass, unless given
HELD_STATES = 768  # of a head: positions whose hidden states wait for it, see drafters/eagle3.py
TEXT_BYTES = 512  # of lists, text and lookups, for each token of a text or a prediction
SAMPLER_ROWS = 4  # float32 rows as long as the vocabulary that sampling may hold for a request
PREFIX_SHARE, PREFIX_MOST = 4, 2 * 10**9  # prefix caches get 1/4 of the free bytes, at most so many
LOOKUP_SHARE = 16  # recent outputs get at most 1/16
MARGIN = 0.9  # the part of the available memory that is used when no limit is given
_CGROUP = Path("/sys/fs/cgroup")


def kv_bytes(arch: ModelSpec, positions: int) -> int:
    """Most bytes of the keys and values of one sequence of `positions` positions. A layer with a sliding
    window holds what it shows, what one pass adds and what a rollback may take back."""
    held = sum(held_positions(positions, layer.window) for layer in arch.layers)
    return arch.n_kv_heads * kv_head_bytes(arch) * held


def kv_head_bytes(arch: ModelSpec) -> int:
    """Bytes of the key and the value of one head and position, with their share of a block's scales
    (csrc/kernels/kernels.h)."""
    if arch.kv_type != "q8_0":
        return 2 * arch.head_dim * KV_ITEM_BYTES[arch.kv_type]
    groups = -(-arch.head_dim // KV_KEY_GROUP)
    keys = -(-BLOCK * (arch.head_dim + 2 * groups) // KV_LINE) * KV_LINE
    return (keys + BLOCK * (arch.head_dim + 4)) // BLOCK


def held_positions(positions: int, window: int | None) -> int:
    """Most positions that a layer holds of a sequence of so many; with a window, whole blocks."""
    if window is None:
        return positions
    return min(positions, (-(-(window + MAX_DRAFT_TOKENS + WIDEST_PASS) // BLOCK) + 1) * BLOCK)


def state_bytes(arch: ModelSpec) -> int:
    """Most bytes of the hidden states of one sequence that wait for a head, and of a copy of them."""
    return 0 if arch.head is None else 2 * HELD_STATES * 4 * arch.head.width


def prefix_bytes(arch: ModelSpec, positions: int) -> int:
    """Bytes of the keys and values of a text of `positions` positions in a prefix cache, where all layers
    hold all of it: a later request may go on after any part of it."""
    return kv_bytes(arch, BLOCK) * -(-positions // BLOCK)


def buffer_bytes(arch: ModelSpec, width: int = PASS_WIDTH, rows: int = PASS_ROWS) -> int:
    """Bytes of the buffers of one pass over `width` tokens: float32 activations and `rows` rows of logits."""
    heads = (arch.n_heads + 2 * arch.n_kv_heads) * arch.head_dim
    per_token = 4 * (5 * arch.hidden_size + 5 * arch.ffn_size // 4 + heads)
    if arch.head is not None:
        per_token += 4 * (2 * arch.head.width + 6 * arch.hidden_size)
    return width * per_token + 4 * rows * arch.vocab_size


def ordered_bytes(source: ModelSource, width: int = PASS_WIDTH) -> int:
    """Bytes of the copies of inputs in the orders of columns that matrices have (`Tensor.column_order`), of
    one pass over `width` tokens."""
    columns = (t.shape[1] for t in source.tensors.values() if t.column_order is not None)
    return width * ORDERED_COPIES * ORDERED_BYTES * max(columns, default=0)


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """One model's share, in bytes."""

    name: str
    weights: int
    cache: int
    buffers: int
    vocabulary: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.buffers + self.vocabulary


def vocabulary_bytes(source: ModelSource, target: bool = True) -> int:
    """Bytes of a model's tokenizer; of a draft model, which needs none, of the pieces that are compared."""
    kinds = (PIECES_BYTES, TOKENIZER_BYTES) if target else (PIECES_BYTES,)
    merges = len(source.tokenizer.merges)
    return sum(source.architecture.vocab_size * token + merges * merge for token, merge in kinds)


def estimate(source: ModelSource, positions: int, sequences: int = 1, *, target: bool = True) -> ModelMemory:
    """What `source` will need for `sequences` sequences of at most `positions` positions each. target: False
    for a draft model."""
    arch = source.architecture
    return ModelMemory(
        name=source.display_name,
        weights=resident_bytes(source),
        cache=(kv_bytes(arch, positions) + state_bytes(arch)) * sequences,
        buffers=buffer_bytes(arch) + ordered_bytes(source),
        vocabulary=vocabulary_bytes(source, target),
    )


def available_bytes() -> int:
    """Memory that this process can still take: the system's, or less where a control group limits it."""
    return min([int(psutil.virtual_memory().available), *_cgroup_free()])


def _cgroup_free(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """What each control group around this process leaves, page cache counted as free (Linux, v2 and v1)."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (g for g in groups if len(g) == 3):
        if controllers == "":
            folder, names = root, ("memory.max", "memory.current", "memory.stat")
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        else:
            continue
        inner = folder / path.strip("/")
        for group in (inner, *inner.parents):
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((group / name).read_text()) for name in names[:2])
                stat = dict(line.split() for line in (group / names[2]).read_text().splitlines())
                cached = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
                yield max(0, limit - used + cached)
            if group == folder:
                break


def check(parts: Sequence[ModelMemory], positions: int, available: int | None = None) -> None:
    """Raise InsufficientMemoryError when the parts (target first, then the draft) do not fit.

    The message names each model's size, what is available, and what to do.
    """
    free = available_bytes() if available is None else available
    total = sum(p.total for p in parts)
    if total <= free:
        return
    roles = ("target", "draft")
    sizes = " + ".join(
        f"{role} {p.name} {size(p.total)} (weights {size(p.weights)}, cache {size(p.cache)})"
        for role, p in zip(roles, parts, strict=False)
    )
    advice = [f"a shorter context (-c / max_model_len, now {positions})", "a smaller quantization"]
    if len(parts) > 1:
        advice.append("no draft model (--spec ngram)")
    raise InsufficientMemoryError(
        f"not enough memory: {sizes} = {size(total)}, available {size(free)}; try {', or '.join(advice)}"
    )


def size(n: int) -> str:
    """`n` bytes for a reader: "98 MB", "1.12 GB" (powers of ten)."""
    if n >= 10**9:
        return f"{n / 1e9:.2f} GB"
    if n >= 10**6:
        return f"{n / 1e6:.0f} MB"
    return f"{n / 1e3:.0f} kB"


# --- A server's share of it ------------------------------------------------------------------------


def sequence_bytes(archs: Sequence[ModelSpec], positions: int, predicted: int | None = None) -> int:
    """Bytes that a sequence of at most `positions` positions may come to hold: its caches in all of the
    models (the target first), its text, what it is sampled with, and a prediction of `predicted` tokens with
    its index (None: of as many as the positions, the most that it may have)."""
    whole = -(-positions // BLOCK) * BLOCK
    caches = sum(kv_bytes(arch, whole) + state_bytes(arch) for arch in archs)
    texts = positions + (positions if predicted is None else predicted)
    return caches + texts * TEXT_BYTES + 4 * SAMPLER_ROWS * archs[0].vocab_size


@dataclass(frozen=True, slots=True)
class Shares:
    """What a server's memory is for, in bytes.

    sequences: for what requests may come to hold, together.
    prefixes:  for the prefix caches of each model, the target's first.
    lookups:   for recent outputs, to look up in.
    """

    weights: int
    buffers: int
    sequences: int
    prefixes: tuple[int, ...]
    lookups: int = 0


def share_out(
    sources: Sequence[ModelSource],
    positions: int,
    limit: int,
    *,
    rows: int = PASS_ROWS,
    prefixes: int | None = None,
    lookups: int = 0,
) -> Shares:
    """Divide `limit` bytes among the models (the target first), one sequence of `positions` positions at
    least, and prefix caches of `prefixes` bytes together (None: what is wise).

    rows:    most rows of logits of one pass of the target.
    lookups: most bytes of recent outputs to look up in; less where memory is short.
    Raises InsufficientMemoryError when one sequence does not fit.
    """
    archs = [source.architecture for source in sources]
    weights = sum(estimate(source, 0).weights for source in sources)
    buffers = buffer_bytes(archs[0], rows=rows) + sum(buffer_bytes(arch) for arch in archs[1:])
    buffers += sum(ordered_bytes(source) for source in sources)
    free = limit - weights - buffers
    one = sequence_bytes(archs, positions)
    if free < one + (prefixes or 0):
        kept = f" + prefix cache {size(prefixes)}" if prefixes else ""
        names = " and ".join(source.display_name for source in sources)
        raise InsufficientMemoryError(
            f"not enough memory: {names} take {size(weights)} + buffers {size(buffers)} + {size(one)} for "
            f"one sequence of {positions} tokens{kept}; the limit is {size(max(0, limit))}; try a shorter "
            "context (-c / max_model_len), a smaller quantization, or a higher --memory-limit"
        )
    if prefixes is None:
        prefixes = min(PREFIX_MOST, (free - one) // PREFIX_SHARE)
    lookups = min(lookups, (free - one - prefixes) // LOOKUP_SHARE)
    parts = [prefix_bytes(arch, BLOCK) for arch in archs]
    each = tuple(prefixes * part // max(1, sum(parts)) for part in parts)
    return Shares(weights, buffers, free - prefixes - lookups, each, lookups)


def usable_bytes(weights: int = 0) -> int:
    """Bytes to use when no limit is given: MARGIN of what is available, and the up to `weights` bytes of
    weights that are loaded already and not shared with other processes."""
    info = psutil.Process().memory_info()
    own = max(0, int(info.rss) - int(getattr(info, "shared", 0)))
    return int(available_bytes() * MARGIN) + min(weights, own)


class Budget:
    """Bytes that may be reserved, by name, up to a limit. Not for several threads at once."""

    def __init__(self, limit: int) -> None:
        self.limit = max(0, limit)
        self.reserved = 0
        self._parts: dict[str, int] = {}

    def fits(self, count: int) -> bool:
        """Whether `count` bytes could be reserved if nothing else were."""
        return 0 <= count <= self.limit

    def reserve(self, name: str, count: int) -> bool:
        """Set `count` bytes aside, or return False and change nothing when they do not fit now.
        Raises ValueError when the name has a reservation or the count is negative."""
        if name in self._parts or count < 0:
            raise ValueError(f"{name!r} cannot reserve {count} bytes")
        if self.reserved + count > self.limit:
            return False
        self._parts[name] = count
        self.reserved += count
        return True

    def release(self, name: str) -> None:
        """Give back what a name reserved; one without a reservation is ignored."""
        self.reserved -= self._parts.pop(name, 0)
