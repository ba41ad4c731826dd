"""`HeadModel` on PyTorch: an EAGLE-3 head (Li et al. 2025) beside its target, on the same device.

Its passes are computed as they come, without CUDA graphs, and each drafted token is drawn on the host. What a
head drafts changes no text, so its rows need no bits that are independent of a pass's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.decoding.types import FloatArray
from outrider.device_memory import PATH, slot_bytes
from outrider.engines.base import ForwardItem
from outrider.engines.heads import HeadItem
from outrider.engines.torch.model import WIDEST
from outrider.engines.torch.module import Module, Weights
from outrider.engines.torch.ops import Layout, Ops, TorchOps
from outrider.engines.torch.passes import Pass, check, lay_out, split
from outrider.engines.torch.pool import SlotPool, TorchCache, guarded, own
from outrider.engines.torch.runner import groups_of, unpacked, whole_blocks
from outrider.engines.torch.weights import Reader
from outrider.models.quantization import EMBEDDING, OUTPUT
from outrider.models.source import ModelSource
from outrider.models.spec import HeadSpec, ModelSpec


@dataclass(slots=True, eq=False)
class HeadWeights(Weights):
    """Weights of a model, and those with which a head reads its target's hidden states (`HeadSpec`).

    reduce:      [hidden, width], Wfc.
    joint_norm:  [width], or None.
    state_norms: of each state, [state_size]; empty where there are none.
    hidden_norm: [hidden], of x in the first layer.
    """

    reduce: torch.Tensor
    joint_norm: torch.Tensor | None
    state_norms: list[torch.Tensor]
    hidden_norm: torch.Tensor


def load_head_weights(
    source: ModelSource, device: torch.device, dtype: torch.dtype, target: Weights | None
) -> HeadWeights:
    """A head's weights. target: those of its target on the same device, of which it takes what its file lacks
    (`ModelSource.borrowed`); None: these are read from the target's file. Errors as `load_weights`."""
    spec, read = source.architecture, Reader(source, device, dtype)
    head = _head(spec)

    def own_or_targets(name: str, theirs: torch.Tensor | None) -> torch.Tensor:
        return read.must(name) if theirs is None or name not in source.borrowed else theirs

    layers = [read.layer(i) for i in range(spec.n_layers)]
    return HeadWeights(
        embedding=own_or_targets(EMBEDDING, None if target is None else target.embedding),
        norm=read.must("output_norm.weight"),
        output=own_or_targets(OUTPUT, None if target is None else target.output),
        layers=layers,
        reduce=read.must("fc.weight"),
        joint_norm=read.must("enc.output_norm.weight") if head.joint_norm else None,
        state_norms=[read.must(f"fc_norm.{i}.weight") for i in range(head.states if head.state_norms else 0)],
        hidden_norm=read.must("blk.0.attn_norm_2.weight"),
    )


class HeadModule(Module):
    """The forward pass of a head."""

    weights: HeadWeights

    def head_forward(
        self,
        tokens: torch.Tensor,
        states: torch.Tensor,
        slots: torch.Tensor,
        layout: Layout,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
        fed_back: bool,
    ) -> torch.Tensor:
        """The residual stream after the last layer, [n, hidden]. states: float32[n, columns], see
        `HeadModel.forward_head`; other arguments as those of `forward`."""
        weights, head = self.weights, _head(self.spec)
        x = states.to(self.dtype) if fed_back else self.ops.linear(self._normed(states), weights.reduce, None)
        normed = self._norm(x, weights.hidden_norm)
        embedded = self._norm(self._embedded(tokens), weights.layers[0].attn_norm)
        begun = normed if head.norm_before_residual else x
        read = torch.cat([embedded, normed], 1)
        return self._layers(begun, read, slots, layout, keys=keys, values=values)[0]

    def fed_back(self, x: torch.Tensor) -> torch.Tensor:
        """float32[n, hidden]: of these rows of the residual stream, what comes with the next token."""
        given = self._norm(x, self.weights.norm) if _head(self.spec).norm_output else x
        return given.float()

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        """The target's states under their norms. Some columns are large: in float32 until they are normed."""
        weights, eps = self.weights, self.spec.rms_eps
        norm = TorchOps().rms_norm
        if weights.joint_norm is not None:
            states = norm(states, weights.joint_norm, eps)
        elif weights.state_norms:
            parts = states.split(_head(self.spec).state_size, 1)
            each = [norm(part, weight, eps) for part, weight in zip(parts, weights.state_norms, strict=True)]
            states = torch.cat(each, 1)
        return states.to(self.dtype)


class TorchHead:
    """A head on a device of PyTorch. slots: of the pool of its keys and values; None for one that grows.
    positions: most of a sequence; None for all of its target's."""

    def __init__(
        self,
        source: ModelSource,
        weights: HeadWeights,
        *,
        ops: Ops | None = None,
        positions: int | None = None,
        slots: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.source, self.spec, self.weights = source, source.architecture, weights
        self.device: torch.device = weights.embedding.device
        self.dtype: torch.dtype = weights.embedding.dtype
        self._reach = min(self.spec.max_positions, positions or self.spec.max_positions) + PATH
        self._module = HeadModule(self.spec, weights, TorchOps() if ops is None else ops, self._reach)
        self._slots = slots
        self._pool: SlotPool | None = None

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def token_count(self) -> int:
        return self.spec.token_count

    @property
    def hidden_size(self) -> int:
        return self.spec.hidden_size

    @property
    def state_width(self) -> int:
        return _head(self.spec).width

    @property
    def max_positions(self) -> int:
        return self.spec.max_positions

    @property
    def slot_bytes(self) -> int:
        """Bytes of the keys and values of one position."""
        return slot_bytes(self.spec, int(self.dtype.itemsize))

    def new_cache(self, capacity: int) -> TorchCache:
        """Raises InsufficientMemoryError when the pool has no room for `capacity` positions."""
        if self._pool is None:
            shape = (self.spec.n_layers, self.spec.n_kv_heads, self.spec.head_dim)
            self._pool = SlotPool(shape, self.dtype, self.device, self._slots())
        return TorchCache(self._pool, capacity)

    def forward_head(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        """See `HeadModel.forward_head`. Raises InsufficientMemoryError, too, when the device's memory is used
        up."""
        caches = [own(item.cache, self._pool) for item in items]
        chains = [
            ForwardItem(i.cache, i.tokens, np.arange(-1, len(i.tokens) - 1, dtype=np.int32), i.rows)
            for i in items
        ]
        check(chains, self.token_count)
        width = self.hidden_size if fed_back else self.state_width
        for item in items:
            if item.states.shape != (len(item.tokens), width):
                raise ValueError(f"states are {item.states.shape}, not {(len(item.tokens), width)}")
        counts = [len(item.tokens) for item in items]
        return guarded(
            caches, counts, self._reach, lambda caches: self._passes(items, chains, caches, fed_back)
        )

    def _passes(
        self,
        items: Sequence[HeadItem],
        chains: Sequence[ForwardItem],
        caches: Sequence[TorchCache],
        fed_back: bool,
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        logits = [np.empty((len(item.rows), self.vocab_size), np.float32) for item in items]
        given = [np.empty((len(item.rows), self.hidden_size), np.float32) for item in items]
        for parts in split(chains, WIDEST, whole_trees=False):
            total = sum(part.count for part in parts)
            made = lay_out(chains, caches, parts, width=total, always_path=False)
            states = np.concatenate([items[p.item].states[p.first : p.first + p.count] for p in parts])
            rows, more = self._pass(made, states, fed_back)
            at = 0
            for part in parts:
                asked = items[part.item].rows
                inside = np.flatnonzero((asked >= part.first) & (asked < part.first + part.count))
                logits[part.item][inside] = rows[at : at + len(inside)]
                given[part.item][inside] = more[at : at + len(inside)]
                at += len(inside)
        return logits, given

    def _pass(self, made: Pass, states: FloatArray, fed_back: bool) -> tuple[FloatArray, FloatArray]:
        """(logits, what is fed back) of the wanted rows of one pass over chains."""
        assert self._pool is not None
        device = self.device
        staged = torch.from_numpy(made.staged).to(device)
        tokens, slots, layout = unpacked(
            staged, made.width, made.columns, whole_blocks(made.keys), groups_of(made, device)
        )
        comes_with = torch.from_numpy(np.ascontiguousarray(states, np.float32)).to(device)
        x = self._module.head_forward(
            *(tokens, comes_with, slots, layout),
            keys=self._pool.keys,
            values=self._pool.values,
            fed_back=fed_back,
        )
        if not len(made.wanted):
            return np.empty((0, self.vocab_size), np.float32), np.empty((0, self.hidden_size), np.float32)
        x = x.index_select(0, torch.from_numpy(made.wanted).to(device))
        found: tuple[FloatArray, FloatArray] = (
            self._module.logits(x).cpu().numpy(),
            self._module.fed_back(x).cpu().numpy(),
        )
        return found


def _head(spec: ModelSpec) -> HeadSpec:
    assert spec.head is not None
    return spec.head
