"""What a pass takes on graphics cards, by their data sheets: no card is needed, and nothing is measured.

A pass over n tokens reads the weights and the keys and values of what came before once, and multiplies each
weight by each token; between that its kernels start one after the other. With bytes B and FLOPs n F on each
card,

    T(n) = max(B / (REACHED bandwidth), n F / (PRODUCTS rate)) + layers (LAYER + (n - 1) TOKEN) + exchanges,

where the constants were fitted to T(1..64) of an 8B and a 1B on an H200 (benchmarks/results/gpu.json); the
tests hold it against published speeds of other cards.
"""

from __future__ import annotations

import math

from outrider.models.quantization import EMBEDDING, OUTPUT
from outrider.models.source import ModelSource, Tensor
from outrider.plan.gpu_memory import Setup, cache_itemsize, kv_heads, share, tensor_bytes
from outrider.plan.speed import Curve

REACHED = 0.95  # of the data sheet's bandwidth
PRODUCTS = 0.6  # of the data sheet's rate, in passes of few tokens
LAYER = 47e-6  # seconds between the reads of a layer
TOKEN = 0.7e-6  # seconds that a further token adds to a layer: attention, norms, its row of logits
EXCHANGE = 10e-6  # seconds of a sum over cards, of which a layer has two
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 17)
BASIS = "the card's data sheet"


def curve(setup: Setup, source: ModelSource, context: int, role: str = "target") -> Curve:
    """T(n) of a model with `context` tokens in the cache."""
    seconds = {n: seconds_of(setup, source, n, context, role) for n in WIDTHS}
    return Curve(seconds, "predicted", None, BASIS)


def seconds_of(setup: Setup, source: ModelSource, tokens: int, context: int, role: str = "target") -> float:
    """Seconds of a pass over so many tokens."""
    spec, cards, card = source.architecture, setup.cards_of(role), setup.card
    read = read_bytes(setup, source, role) + cache_bytes(setup, source, context, role)
    busy = read / (REACHED * card.bandwidth)
    if card.half is not None:
        macs = sum(math.prod(t.shape) * share(spec, t, cards) for t in multiplied(source))
        busy = max(busy, tokens * 2 * macs / (PRODUCTS * card.half))
    between = LAYER + (tokens - 1) * TOKEN + (2 * EXCHANGE if cards > 1 else 0.0)
    return busy + spec.n_layers * between


def read_bytes(setup: Setup, source: ModelSource, role: str = "target") -> int:
    """Bytes of weights that a pass reads on each card."""
    spec, cards = source.architecture, setup.cards_of(role)
    return sum(int(tensor_bytes(setup, t, role) * share(spec, t, cards)) for t in multiplied(source))


def cache_bytes(setup: Setup, source: ModelSource, context: int, role: str = "target") -> int:
    """Bytes of the keys and values of `context` tokens, as far as layers see them, on each card."""
    spec = source.architecture
    seen = sum(min(context, layer.window or context) for layer in spec.layers)
    return 2 * kv_heads(spec, setup.cards_of(role)) * spec.head_dim * cache_itemsize(setup) * seen


def multiplied(source: ModelSource) -> list[Tensor]:
    """The tensors of which a pass reads all; of an embedding that is not the output, too, it reads rows."""
    apart = OUTPUT in source.tensors
    return [t for t in source.tensors.values() if not (apart and t.name == EMBEDDING)]
