"""The memory of a pair on graphics cards by part, for the engine that runs there, and what would make it fit.

Tensor parallelism (Shoeybi et al. 2019, Megatron-LM) divides a model among cards as vLLM does: heads,
feed-forward columns and the rows of the vocabulary are split; norms are copied, and so are heads of keys and
values where there are fewer of them than cards. All sizes are those of the fullest card.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from outrider import device_memory
from outrider.config.quantization import TORCH_QUANTIZATIONS
from outrider.memory import SAMPLER_ROWS, size
from outrider.models.quantization import EMBEDDING, OUTPUT
from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import LayerSpec, ModelSpec
from outrider.models.weight_types import FLOAT_TYPES
from outrider.plan.cards import GIB, Card
from outrider.plan.memory_parts import LEAST_CONTEXT, Change, Need, Part

MOST_SIZE = 64  # cards that a model is divided among
BLOCK = 16  # positions of a block of vLLM's keys and values
CONTEXT_BYTES = 500 * 10**6  # what a process takes of a card before it allocates anything
VLLM_BYTES = 10**9  # the same, with vLLM's graphs and libraries
LINKED_BYTES = 10**9  # more of it, where several cards exchange sums
VLLM_ROWS = 256  # rows of logits that vLLM makes room for at its start, of as many sequences
LARGE = 70 * GIB  # from this memory on vLLM computes BATCHES[1] tokens in a pass, else BATCHES[0]
BATCHES = (2048, 8192)
VOCAB_UNIT = 64  # vLLM pads the vocabulary to a multiple of it
_BY_HEADS = ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_COPIED_BIAS = ("attn_output", "ffn_down")  # added once, after the sum over the cards


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine uses cards.

    size:        cards that the target is divided among; the torch engine uses one.
    draft_size:  the same of the draft: `size` or 1.
    utilization: the part of a card's memory that the engine takes.
    dtype:       of weights that are floats, and of keys and values.
    eight_bit_weights, eight_bit_cache: vLLM's --quantization fp8 and --kv-cache-dtype fp8.
    quantization: of the torch engine's target, one of TORCH_QUANTIZATIONS or None.
    """

    engine: Literal["torch", "vllm"]
    card: Card
    size: int = 1
    draft_size: int = 1
    utilization: float = device_memory.UTILIZATION
    dtype: str = "bfloat16"
    eight_bit_weights: bool = False
    eight_bit_cache: bool = False
    quantization: str | None = None

    @property
    def limit(self) -> int:
        """Bytes of a card that may be used."""
        return int(self.card.memory * self.utilization)

    @property
    def itemsize(self) -> int:
        return device_memory.DTYPE_BYTES[self.dtype]

    @property
    def batch(self) -> int:
        """Most tokens of one of vLLM's passes."""
        return BATCHES[self.card.memory >= LARGE and "A100" not in self.card.name]

    def cards_of(self, role: str) -> int:
        return self.size if role == "target" else self.draft_size


def divides(spec: ModelSpec, cards: int) -> bool:
    """Whether a model can be divided among so many cards."""
    kv = spec.n_kv_heads
    whole_heads = kv % cards == 0 or cards % kv == 0
    return (
        spec.n_heads % cards == 0
        and whole_heads
        and all(layer.feed_forward.size % cards == 0 for layer in spec.layers)
    )


def tensor_bytes(setup: Setup, tensor: Tensor, role: str = "target") -> int:
    """Bytes of a tensor as the engine holds it. The torch engine dequantizes, and may quantize its target
    anew; vLLM keeps quantized weights as they are in the file."""
    if setup.engine == "torch" and role == "target":
        return device_memory.tensor_bytes(tensor, setup.itemsize, setup.quantization)
    count = math.prod(tensor.shape)
    if setup.engine == "vllm" and tensor.type not in FLOAT_TYPES:
        return tensor.stored_bytes
    in_eight = setup.eight_bit_weights and role == "target" and tensor.name.startswith("blk.")
    return count if in_eight and len(tensor.shape) == 2 else count * setup.itemsize


def share(spec: ModelSpec, tensor: Tensor, cards: int) -> float:
    """The part of a tensor that each of `cards` cards holds."""
    part, kind = tensor.name.split(".")[-2:]
    if cards == 1 or (kind == "bias" and part in _COPIED_BIAS):
        return 1.0
    if tensor.name in (EMBEDDING, OUTPUT):
        padded = -(-spec.vocab_size // VOCAB_UNIT) * VOCAB_UNIT
        return -(-padded // cards) / spec.vocab_size
    if part in ("attn_k", "attn_v"):
        return kv_heads(spec, cards) / spec.n_kv_heads
    return 1.0 / cards if part in _BY_HEADS else 1.0


def kv_heads(spec: ModelSpec, cards: int) -> int:
    """Heads of keys and values on each card."""
    return max(1, spec.n_kv_heads // cards)


def weights_bytes(setup: Setup, source: ModelSource, role: str = "target") -> int:
    """Bytes of a model's weights on each card that has a part of it."""
    spec, cards = source.architecture, setup.cards_of(role)
    return sum(int(tensor_bytes(setup, t, role) * share(spec, t, cards)) for t in source.tensors.values())


def cache_itemsize(setup: Setup) -> int:
    return 1 if setup.eight_bit_cache else setup.itemsize


def held_positions(setup: Setup, window: int | None, context: int) -> int:
    """Positions that a layer holds of a sequence of `context` tokens."""
    if setup.engine == "torch":
        return context + device_memory.PATH
    whole = -(-context // BLOCK)
    if window is not None:  # what a pass adds lies beside what it sees
        whole = min(whole, -(-(window - 1 + setup.batch) // BLOCK) + 1)
    return whole * BLOCK


def needed(setup: Setup, target: ModelSource, draft: ModelSource | None, context: int, slots: int) -> Need:
    """What the fullest card needs for `slots` sequences of `context` tokens each."""
    models = [("target", target)] + ([] if draft is None else [("draft", draft)])
    parts: list[Part] = []
    for role, source in models:
        parts.append(_weights(setup, role, source))
        parts += _caches(setup, role, source, context, slots)
    parts += _engine(setup, target)
    return Need(tuple(parts), sum(part.bytes for part in parts if part.name.endswith("weights")))


def _weights(setup: Setup, role: str, source: ModelSource) -> Part:
    spec, cards = source.architecture, setup.cards_of(role)
    whole = sum(tensor_bytes(setup, tensor, role) for tensor in source.tensors.values())
    kinds = " and ".join(sorted({held_as(setup, tensor, role) for tensor in source.tensors.values()}))
    formula = f"{size(whole)} as {kinds}"
    if cards > 1:
        formula += f", divided among {cards}; norms are copied"
        if cards > spec.n_kv_heads:
            formula += (
                f", and each of {spec.n_kv_heads} heads of keys and values {cards // spec.n_kv_heads} times"
            )
    elif setup.size > 1:
        formula += ", all on one card"
    return Part(f"{role} weights", weights_bytes(setup, source, role), formula)


def held_as(setup: Setup, tensor: Tensor, role: str) -> str:
    """The type of a tensor as the engine holds it."""
    if setup.engine == "vllm" and tensor.type not in FLOAT_TYPES:
        return tensor.type
    if setup.quantization and role == "target" and device_memory.is_packed(tensor, setup.quantization):
        return f"{TORCH_QUANTIZATIONS[setup.quantization]} by {setup.quantization}"
    eight = tensor_bytes(setup, tensor, role) == math.prod(tensor.shape)
    return "fp8" if eight else setup.dtype


def _caches(setup: Setup, role: str, source: ModelSource, context: int, slots: int) -> Iterator[Part]:
    """Keys and values, for each kind of layer."""
    spec, itemsize = source.architecture, cache_itemsize(setup)
    heads = kv_heads(spec, setup.cards_of(role))

    def window(layer: LayerSpec) -> int:
        return layer.window or 0 if setup.engine == "vllm" else 0

    for width, layers in groupby(sorted(spec.layers, key=window), key=window):
        count = len(list(layers))
        held = held_positions(setup, width or None, context)
        kind = f"{count} layers with a window of {width}" if width else f"{count} layers"
        yield Part(
            f"{role} keys and values" + (f", window {width}" if width else ""),
            2 * heads * spec.head_dim * itemsize * held * count * slots,
            f"2 x {kind} x {heads} heads x {spec.head_dim} x {itemsize} bytes x {held} tokens x {slots}",
        )


def _engine(setup: Setup, target: ModelSource) -> list[Part]:
    """What the engine itself takes."""
    if setup.engine == "torch":
        return [
            Part("passes and graphs", device_memory.RESERVE, "set aside by the engine", "fixed"),
            Part("context of the driver", CONTEXT_BYTES, "of one process", "predicted"),
        ]
    spec, cards = target.architecture, setup.size
    heads = (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    ffn = max(layer.feed_forward.size for layer in spec.layers)
    activations = setup.batch * setup.itemsize * (4 * spec.hidden_size + (heads + 3 * ffn) // cards)
    logits = VLLM_ROWS * spec.vocab_size * 4 * (SAMPLER_ROWS // 2)
    linked = LINKED_BYTES if cards > 1 else 0
    return [
        Part(
            "activations and logits",
            activations + logits,
            f"a pass of {setup.batch} tokens + {VLLM_ROWS} rows of {spec.vocab_size} x 4 bytes x 2",
            "predicted",
        ),
        Part(
            "context, graphs and libraries",
            VLLM_BYTES + linked,
            "of one process" + (", and for sums over the cards" if linked else ""),
            "predicted",
        ),
    ]


def cache_tokens(setup: Setup, target: ModelSource, draft: ModelSource | None, context: int) -> int:
    """Tokens, in sequences of `context`, whose keys and values find room beside everything else."""
    empty = needed(setup, target, draft, context, 0).total
    one = needed(setup, target, draft, context, 1).total - empty
    return max(0, setup.limit - empty) * context // max(1, one)


# --- What would make it fit ------------------------------------------------------------------------


def fitting_size(
    setup: Setup,
    target: ModelSource,
    draft: ModelSource | None,
    context: int,
    slots: int,
) -> int | None:
    """The fewest cards on which vLLM can run the pair; None where there is no such number."""
    models = [target] if draft is None else [target, draft]
    for cards in range(1, MOST_SIZE + 1):
        if all(divides(source.architecture, cards) for source in models):
            there = replace(setup, engine="vllm", size=cards, draft_size=cards)
            if needed(there, target, draft, context, slots).total <= setup.limit:
                return cards
    return None


def changes(
    setup: Setup, target: ModelSource, draft: ModelSource | None, context: int, slots: int
) -> list[Change]:
    """Single changes that make the pair fit, those that cost least first, as flags of the engine."""
    torch = setup.engine == "torch"
    found: list[Change] = []

    def offer(what: str, flag: str, total: int) -> bool:
        if total <= setup.limit:
            found.append(Change(what, flag, total))
        return total <= setup.limit

    def total(
        setup: Setup, draft: ModelSource | None = draft, context: int = context, slots: int = slots
    ) -> int:
        return needed(setup, target, draft, context, slots).total

    for fewer in range(slots - 1, 0, -1):
        flag = "--parallel" if torch else "--max-num-seqs"
        if offer(f"{fewer} sequences at a time", f"{flag} {fewer}", total(setup, slots=fewer)):
            break
    low, high = 0, (context - 1) // LEAST_CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if total(setup, context=middle * LEAST_CONTEXT) <= setup.limit
            else (low, middle - 1)
        )
    if low:
        shorter = low * LEAST_CONTEXT
        flag = "-c" if torch else "--max-model-len"
        offer(f"a context of {shorter} tokens", f"{flag} {shorter}", total(setup, context=shorter))
    if not torch and not setup.eight_bit_cache:
        eight = replace(setup, eight_bit_cache=True)
        offer("keys and values of 8 bits", "--kv-cache-dtype fp8", total(eight))
    if (
        not torch
        and all(t.type in FLOAT_TYPES for t in target.tensors.values())
        and not setup.eight_bit_weights
    ):
        offer("weights of 8 bits", "--quantization fp8", total(replace(setup, eight_bit_weights=True)))
    if draft is not None:
        offer("no draft model, lookups only", lookups_flag(setup), total(setup, draft=None))
    cards = fitting_size(setup, target, draft, context, slots)
    if cards is not None and cards > setup.size:
        there = replace(setup, engine="vllm", size=cards, draft_size=cards)
        what = f"{'vLLM on ' if torch else ''}{cards} cards"
        offer(what, f"--tensor-parallel-size {cards}", total(there))
    return found


def lookups_flag(setup: Setup) -> str:
    """What asks the engine for drafts without a draft model."""
    return "--spec suffix" if setup.engine == "torch" else "--spec-method ngram --spec-tokens 5"
