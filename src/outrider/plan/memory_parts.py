"""The memory of a pair by part, each with its formula, and what would make it fit.

The sums are those of `memory.estimate`, which refuses a pair that does not fit; here they are told apart, and
logits are counted for the rows that the sequences will have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from outrider import memory
from outrider.config.quantization import KV_QUANTIZATIONS
from outrider.config.speculative import DEFAULT_TREE_NODES
from outrider.errors import InsufficientMemoryError
from outrider.models.quantization import (
    held_as,
    loaded_bytes,
    loaded_type,
    packed_bytes,
    resident_bytes,
    type_bytes,
    with_kv_type,
)
from outrider.models.source import ModelSource
from outrider.models.spec import LayerSpec, ModelSpec
from outrider.models.weight_types import FLOAT_TYPES

LEAST_CONTEXT = 256  # tokens: a shorter one is not advised
# Bits a weight of whole files of the usual quantizations, embedding included: for advice, in this order.
FILE_BITS = {
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.7,
    "Q4_K_M": 4.9,
    "IQ4_XS": 4.4,
    "Q3_K_M": 3.9,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the memory: bytes, the formula that gave them, and how its numbers are known."""

    name: str
    bytes: int
    formula: str
    how: str = "read from the file"


@dataclass(frozen=True, slots=True)
class Need:
    """All parts, their sum, and the most that is taken while the weights are loaded."""

    parts: tuple[Part, ...]
    loading_peak: int

    @property
    def total(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def most(self) -> int:
        """What must be there: the sum, or what loading takes at its peak if that is more."""
        return max(self.total, self.loading_peak)


def needed(target: ModelSource, draft: ModelSource | None, context: int, slots: int) -> Need:
    """What the native engine needs for `slots` sequences of `context` tokens each."""
    models = [("target", target)] + ([] if draft is None else [("draft", draft)])
    parts: list[Part] = []
    for role, source in models:
        parts += [_weights(role, source), _vocabulary(role, source)]
        parts += _caches(role, source, context, slots)
        parts.append(_buffers(role, source, slots))
    spec = target.architecture
    rows = 4 * memory.SAMPLER_ROWS * spec.vocab_size
    parts.append(
        Part(
            "texts and sampling",
            slots * (rows + context * memory.TEXT_BYTES),
            f"{slots} x ({memory.SAMPLER_ROWS} rows of {spec.vocab_size} x 4 bytes + {context} tokens x "
            f"{memory.TEXT_BYTES} bytes)",
            "predicted",
        )
    )
    weights = [part.bytes for part in parts if part.name.endswith("weights")]
    return Need(tuple(parts), sum(weights) + max(_largest(source) for _, source in models))


def fitting(target: ModelSource, context: int, slots: int, limit: int) -> Callable[..., None]:
    """What raises InsufficientMemoryError when the target and a draft model need more than `limit` bytes."""

    def check(draft: ModelSource | None = None) -> None:
        most = needed(target, draft, context, slots).most
        if most > limit:
            raise InsufficientMemoryError(f"{memory.size(most)} are needed, {memory.size(limit)} are there")

    return check


def types(source: ModelSource) -> dict[str, int]:
    """Bytes of the weights by type as the engine holds them, the most first."""
    found: Counter[str] = Counter()
    for tensor in source.tensors.values():
        kind = loaded_type(source, tensor)
        found[kind] += packed_bytes(kind, tensor.shape)
    return dict(found.most_common())


def _weights(role: str, source: ModelSource) -> Part:
    total = resident_bytes(source)
    kinds = " + ".join(f"{kind} {memory.size(count)}" for kind, count in types(source).items())
    mapped = sum(types(source).values()) - total
    if mapped:
        kinds += f" {'-' if mapped > 0 else '+'} rows of the embedding {memory.size(abs(mapped))}"
        kinds += ", which stay in the file" if mapped > 0 else ", which are kept beside the output matrix"
    return Part(f"{role} weights", total, kinds)


def _vocabulary(role: str, source: ModelSource) -> Part:
    count, merges = source.architecture.vocab_size, len(source.tokenizer.merges)
    what = "tokenizer" if role == "target" else "vocabulary"
    total = memory.vocabulary_bytes(source, role == "target")
    return Part(f"{role} {what}", total, f"{count} tokens and {merges} merges", "predicted")


def _caches(role: str, source: ModelSource, context: int, slots: int) -> list[Part]:
    """Keys and values, for each kind of layer."""
    spec = source.architecture
    found = []

    def window(layer: LayerSpec) -> int:
        return layer.window or 0

    for size, layers in groupby(sorted(spec.layers, key=window), key=window):
        count = len(list(layers))
        held = memory.held_positions(context, size or None)
        kind = f"{count} layers with a window of {size}" if size else f"{count} layers"
        found.append(
            Part(
                f"{role} keys and values" + (f", window {size}" if size else ""),
                spec.n_kv_heads * memory.kv_head_bytes(spec) * held * count * slots,
                f"{kind} x {spec.n_kv_heads} heads x {_kv_head(spec)} x {held} tokens x {slots}",
            )
        )
    return found


def _kv_head(spec: ModelSpec) -> str:
    """Bytes of a head's key and value, in words."""
    if spec.kv_type != "q8_0":
        return f"2 x {spec.head_dim} x {memory.KV_ITEM_BYTES[spec.kv_type]} bytes ({spec.kv_type})"
    total = memory.kv_head_bytes(spec)
    return f"{total} bytes (2 x {spec.head_dim} in 8 bits, {total - 2 * spec.head_dim} of scales)"


def _buffers(role: str, source: ModelSource, slots: int) -> Part:
    spec = source.architecture
    rows = min(memory.PASS_ROWS, slots * (DEFAULT_TREE_NODES + 1))
    return Part(
        f"{role} buffers and logits",
        memory.buffer_bytes(spec, rows=rows) + memory.ordered_bytes(source),
        f"activations of {memory.PASS_WIDTH} tokens + {rows} rows of {spec.vocab_size} x 4 bytes",
    )


def _largest(source: ModelSource) -> int:
    """Bytes of the largest matrix, which is in memory twice while it is packed."""
    return max(type_bytes(loaded_type(source, t), t.shape) for t in source.tensors.values())


# --- What would make it fit ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """Something that makes a pair fit: what it is, the flag to type (empty where it is another file), and
    what the pair needs then."""

    what: str
    flag: str
    bytes: int


def largest_context(
    target: ModelSource, draft: ModelSource | None, context: int, slots: int, limit: int
) -> int | None:
    """The longest context, up to `context` and a multiple of 256, whose need is within `limit`; None if not
    even the shortest is."""
    fits = None
    low, high = 1, context // LEAST_CONTEXT
    while low <= high:
        middle = (low + high) // 2
        if needed(target, draft, middle * LEAST_CONTEXT, slots).most <= limit:
            fits, low = middle * LEAST_CONTEXT, middle + 1
        else:
            high = middle - 1
    return fits


def changes(
    target: ModelSource, draft: ModelSource | None, context: int, slots: int, limit: int
) -> list[Change]:
    """Single changes that make the pair fit into `limit` bytes, those that cost least first."""
    found: list[Change] = []
    now = needed(target, draft, context, slots).most
    fewer = next((n for n in range(slots - 1, 0, -1) if needed(target, draft, context, n).most <= limit), 0)
    if fewer:
        total = needed(target, draft, context, fewer).most
        found.append(Change(f"{fewer} sequences at a time", f"--parallel {fewer}", total))
    if (shorter := largest_context(target, draft, context, slots, limit)) is not None and shorter < context:
        total = needed(target, draft, shorter, slots).most
        found.append(Change(f"a context of {shorter} tokens", f"-c {shorter}", total))
    if target.architecture.kv_type == "f16":
        held = with_kv_type(target, KV_QUANTIZATIONS[0])
        total = needed(held, None if draft is None else held_as(held, draft), context, slots).most
        if total <= limit:
            found.append(
                Change("keys and values in 8 bits", f"--kv-quantization {KV_QUANTIZATIONS[0]}", total)
            )
    if draft is not None:
        alone = needed(target, None, context, slots).most
        if alone <= limit:
            found.append(Change("no draft model, lookups only", "--spec suffix", alone))
    found += _smaller_weights(target, now, limit)
    if not found and draft is not None:
        for change in changes(target, None, context, slots, limit):
            flags = f"--spec suffix {change.flag}".strip()
            found.append(Change(f"no draft model and {change.what}", flags, change.bytes))
    return found


def _smaller_weights(target: ModelSource, now: int, limit: int) -> list[Change]:
    """The least change of the target's quantization that is enough."""
    parameters = sum(_count(tensor.shape) for tensor in target.tensors.values())
    weights = loaded_bytes(target)
    stored_as_floats = all(tensor.type in FLOAT_TYPES for tensor in target.tensors.values())
    for kind, bits in FILE_BITS.items():
        total = now - int(weights - parameters * bits / 8)
        if bits < 8 * weights / parameters and total <= limit:
            at_load = {"Q8_0": "q8_0", "Q4_K_M": "q4_k"}.get(kind) if stored_as_floats else None
            if at_load:
                return [Change(f"weights as {kind}", f"--quantization {at_load}", total)]
            return [Change(f"a {kind} file of the target", "", total)]
    return []


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
