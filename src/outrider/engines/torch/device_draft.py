"""Drafts of a draft model on the device: a token that is drawn is the next pass's input, without the host.

    chains = DeviceDraft(model, common_size).draft(starts)       # one wait for the device

The first pass, over the tokens that the caches lack, is one like any other. Each pass after it is the same
CUDA graph: one token of each sequence, its logits, the draw (`kernels.sampling`), and the step to the next
position. The tokens and how far each was ahead of the second go to the host together, at the end. Nothing
that is drafted can change an output, so rows that the sampler leaves undecided need no second look.

Tokens are drawn with the target's noise, as the rule `coupled` wants, or at temperature 0 greedily. What
changes logits token by token (penalties, masks, structured output) is the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.engines.base import Cache, ForwardItem
from outrider.engines.chains import LONGEST, Chain, ChainStart
from outrider.engines.torch.graphs import Graph, Graphs
from outrider.engines.torch.kernels.row_settings import RowSettings, shape_of, stage
from outrider.engines.torch.kernels.sampling import Sampled, sample
from outrider.engines.torch.model import WIDEST, TorchModel
from outrider.engines.torch.ops import KEYS, Layout
from outrider.engines.torch.passes import are_trees, check
from outrider.engines.torch.pool import TorchCache, own
from outrider.engines.torch.runner import SPANS, pinned

_FIELDS = 9  # numbers of a sequence: see `_State`


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a graph is made for."""

    width: int
    span: int
    filtered: bool
    most: int


class _State:
    """What a width's passes read and write, on the device.

    staged: int64[9, w]: seed, position of the next draw, temperature, top_p, limit (float64), top_k, first
            slot, keys in the cache, tokens that are still to be drawn.
    tokens: int32[w], the last drawn.
    out:    int32[LONGEST, 2, w], tokens and the bits of margins; step: int64[1], the next row of it.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.staged = torch.zeros(_FIELDS, width, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(width, dtype=torch.int32, device=device)
        self.out = torch.zeros(LONGEST, 2, width, dtype=torch.int32, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def settings(self, shape: _Shape) -> RowSettings:
        """The sampling parameters in `staged`."""
        return RowSettings.of_staged(self.staged, shape.filtered, shape.most)

    def clear(self) -> None:
        """Draw for no sequence."""
        self.staged.zero_()
        self.tokens.zero_()
        self.step.zero_()

    def advance(self, drawn: Sampled) -> None:
        """Note the drawn tokens, and go to the next position."""
        pair = torch.stack([drawn.tokens, drawn.margin.view(torch.int32)])
        self.out.index_copy_(0, self.step, pair[None])
        self.tokens.copy_(drawn.tokens)
        self.staged[1].add_(1)
        self.staged[7].add_(1)
        self.staged[8].sub_(1)
        self.step.add_(1)


class DeviceDraft:
    """Implements `Chains`: drafts for any number of sequences together, with `model`.

    common_size: tokens are drawn from the ids below it; None for all of the model's.
    """

    def __init__(self, model: TorchModel, common_size: int | None = None) -> None:
        self._model = model
        self._size = min(model.vocab_size, common_size or model.vocab_size)
        self._states: dict[int, _State] = {}
        self._made: dict[_Shape, Graph[None]] = {}
        self._graphs = Graphs(model.device, shared=False)

    def draft(self, starts: Sequence[ChainStart]) -> list[Chain]:
        """See `Chains.draft`."""
        for start in starts:
            room = start.cache.capacity - start.cache.length - len(start.tokens) + 1
            if not 1 <= start.budget <= min(LONGEST, room):
                raise ValueError(f"a draft of {start.budget} tokens: the cache has room for {room}")
        with torch.no_grad():
            return self._draft(starts, [own(start.cache, self._model.pool) for start in starts])

    def _draft(self, starts: Sequence[ChainStart], caches: Sequence[TorchCache]) -> list[Chain]:
        logits = self._first_pass(starts, caches)
        width = 1 << (len(starts) - 1).bit_length()
        if width not in self._states:
            self._states[width] = _State(width, self._model.device)
        state = self._states[width]
        staged, filtered, most = self._stage(starts, caches, width)
        length = max(start.budget for start in starts)
        keys = max(cache.length for cache in caches) + length
        shape = _Shape(width, self._span(keys), filtered, most)
        step = self._step(shape, state) if length > 1 else None
        state.staged.copy_(staged, non_blocking=True)
        state.step.zero_()
        rows = logits.new_zeros(width, self._size)
        rows[: len(starts)] = logits[:, : self._size]
        state.advance(sample(rows, state.settings(shape), state.staged[1]))
        for _ in range(length - 1):
            assert step is not None
            step()
        out = state.out[:length].to("cpu")
        tokens, margins = out[:, 0].tolist(), out[:, 1].view(torch.float32).tolist()
        for start, cache in zip(starts, caches, strict=True):
            cache.length += start.budget - 1
        return [
            Chain([row[i] for row in tokens[: start.budget]], [row[i] for row in margins[: start.budget]])
            for i, start in enumerate(starts)
        ]

    def _first_pass(self, starts: Sequence[ChainStart], caches: Sequence[TorchCache]) -> torch.Tensor:
        """The logits after each start's tokens, float32[n, vocab] on the device."""
        model = self._model
        rest = [np.asarray(start.tokens, np.int32) for start in starts]
        if sum(map(len, rest)) > WIDEST // 2:
            model.forward(
                [_item(s.cache, t[:-1], 0) for s, t in zip(starts, rest, strict=True) if len(t) > 1]
            )
            rest = [tokens[-1:] for tokens in rest]
        items = [_item(start.cache, tokens, 1) for start, tokens in zip(starts, rest, strict=True)]
        check(items, model.vocab_size)
        found = []
        trees = are_trees(items)
        passes = model._split(items, trees)
        for parts in passes:
            logits, _ = model._run(items, caches, parts, (), trees)
            if logits is not None:  # valid until the next pass
                found.append(logits if len(passes) == 1 else logits.clone())
        for cache, tokens in zip(caches, rest, strict=True):
            cache.length += len(tokens)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _stage(
        self, starts: Sequence[ChainStart], caches: Sequence[TorchCache], width: int
    ) -> tuple[torch.Tensor, bool, int]:
        """(what `_State.staged` begins with, and `filtered` and `most` of `RowSettings`). Columns beyond the
        starts draw nothing."""
        host = torch.zeros(_FIELDS, width, dtype=torch.int64)
        staged, each = host.numpy(), []
        for i, (start, cache) in enumerate(zip(starts, caches, strict=True)):
            each.append(stage(staged, i, start.params, start.seed, self._size, start.position))
            staged[6:, i] = cache.start, cache.length - 1, start.budget
        return pinned(host, self._model.device), *shape_of(each, self._size)

    def _span(self, keys: int) -> int:
        """See `Layout.span`."""
        runner, _ = self._model._ready()
        if not self._model.ops.spans:
            return 0
        if runner.graphs:
            return SPANS << max(0, (keys - 1).bit_length() - (SPANS - 1).bit_length())
        return -(-keys // KEYS) * KEYS

    def _step(self, shape: _Shape, state: _State) -> Callable[[], object]:
        """A function that makes one pass and draws."""
        runner, pool = self._model._ready()
        module, size = self._model._module, self._size

        def compute() -> None:
            live = state.staged[8] > 0  # the others write to slot 0, which no sequence has
            staged = torch.where(live, state.staged[6:8], 0).int()
            start, position = staged[0], staged[1]
            layout = Layout(start, position, position, None, shape.span)
            slots = (start + position).long()
            x, _ = module.forward(state.tokens, slots, layout, keys=pool.keys, values=pool.values)
            logits = module.logits(x)[:, :size]
            state.advance(sample(logits, state.settings(shape), state.staged[1]))

        if not runner.graphs:
            return compute
        if shape not in self._made:
            self._made[shape] = self._graphs.capture(compute, first=state.clear)
        return self._made[shape].replay


def _item(cache: Cache, tokens: np.ndarray, wanted: int) -> ForwardItem:
    """A chain of tokens; the logits of the last `wanted`."""
    n = len(tokens)
    parents = np.arange(-1, n - 1, dtype=np.int32)
    return ForwardItem(cache, tokens, parents, np.arange(n - wanted, n, dtype=np.int32))
