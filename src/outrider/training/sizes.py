"""The sizes of a head."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.models.source import ModelSource


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """states: hidden states that a token comes with, of `hidden` columns; theta: base of the rotation."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    states: int
    eps: float
    theta: float


def sizes_of(source: ModelSource, states: int) -> HeadSizes:
    """A head's sizes for a target: its layer is like one of the target's, and its slowest rotation about the
    target's slowest."""
    spec = source.architecture
    rope = spec.ropes[0]
    slowest = float(rope.inv_freq.min())
    theta = slowest ** (-rope.dim / max(1, rope.dim - 2))
    return HeadSizes(
        hidden=spec.hidden_size,
        heads=spec.n_heads,
        kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        ffn=spec.ffn_size,
        states=states,
        eps=spec.rms_eps,
        theta=float(round(min(max(theta, 1e4), 1e8))),
    )
