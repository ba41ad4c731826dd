"""A pair on graphics cards, as the document of `outrider plan` asks for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.errors import ConfigError
from outrider.models.source import ModelSource
from outrider.plan import gpu_memory, gpu_speed
from outrider.plan.document import Pair
from outrider.plan.gpu_memory import Setup
from outrider.plan.speed import Curve


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Implements `document.Place`: an engine on `count` cards, of which `setup` uses one or more.

    context: tokens in the cache when a pass is timed.
    """

    setup: Setup
    count: int
    context: int

    @property
    def lookups(self) -> str:
        return gpu_memory.lookups_flag(self.setup)

    def describe(self) -> dict[str, Any]:
        """Which cards and how they are used, for the document."""
        card = self.setup.card
        return {
            "engine": self.setup.engine,
            "card": card.name,
            "count": self.count,
            "memory": card.memory,
            "gb_per_s": card.bandwidth / 1e9,
            "tflops": None if card.half is None else card.half / 1e12,
            "tensor_parallel_size": self.setup.size,
            "draft_tensor_parallel_size": self.setup.draft_size,
            "gpu_memory_utilization": self.setup.utilization,
            "dtype": self.setup.dtype,
        }

    def advice(self, pair: Pair) -> list[dict[str, str]]:
        """What vLLM refuses of the pair."""
        setup = self.setup
        if pair.draft is None or setup.engine != "vllm" or setup.draft_size == setup.size:
            return []
        text = (
            f"vLLM runs a draft model with the target's tensor-parallel size only, not with "
            f"{setup.draft_size} beside {setup.size}"
        )
        flag = '"draft_tensor_parallel_size": ' + str(setup.size)
        return [{"failure": "draft too unlike", "text": text, "flag": flag}]

    def model(self, source: ModelSource, role: str) -> dict[str, Any]:
        """Bytes of a model's weights on all cards together, and by type."""
        setup = self.setup
        kinds: Counter[str] = Counter()
        for tensor in source.tensors.values():
            kinds[gpu_memory.held_as(setup, tensor, role)] += gpu_memory.tensor_bytes(setup, tensor, role)
        return {"loaded_bytes": sum(kinds.values()), "types": dict(kinds.most_common())}

    def memory(self, pair: Pair) -> dict[str, Any]:
        """The document's section on memory, of the fullest card."""
        setup, asked = self.setup, (pair.target, pair.draft, pair.context)
        need = gpu_memory.needed(setup, *asked, pair.slots)
        fits = need.total <= setup.limit
        return {
            "parts": [asdict(part) for part in need.parts],
            "total": need.total,
            "loading_peak": need.loading_peak,
            "limit": setup.limit,
            "limit_from": f"{setup.utilization:.0%} of a card (--gpu-memory-utilization)",
            "limit_how": "predicted",
            "cache_tokens": gpu_memory.cache_tokens(setup, *asked),
            "fits": fits,
            "changes": [] if fits else [asdict(c) for c in gpu_memory.changes(setup, *asked, pair.slots)],
        }

    def curve(self, source: ModelSource, threads: int | None = None, *, drafts: bool = False) -> Curve:
        return gpu_speed.curve(self.setup, source, self.context, "draft" if drafts else "target")

    def read_bytes(self, source: ModelSource, role: str) -> int:
        return gpu_speed.read_bytes(self.setup, source, role)


def place_on(
    setup: Setup,
    count: int,
    pair: Pair,
    *,
    size: int | None = None,
    draft_size: int | None = None,
) -> GpuPlace:
    """The pair on `count` cards: on the fewest that hold it, or else on as many as can be used.

    size, draft_size: what was asked for; None chooses. Raises ConfigError for what cannot be divided so.
    """
    models = [source.architecture for source in (pair.target, pair.draft) if source is not None]
    if setup.engine == "torch":
        _check(size, draft_size, 1, "the torch engine runs a model on one card")
        return GpuPlace(setup, count, pair.context // 2)
    usable = [
        n
        for n in range(1, min(count, gpu_memory.MOST_SIZE) + 1)
        if all(gpu_memory.divides(spec, n) for spec in (models[:1] if draft_size == 1 else models))
    ]
    if size is not None and size not in usable:
        sizes = ", ".join(map(str, usable))
        raise ConfigError(
            f"--tensor-parallel-size {size} is not possible: on {count} cards this pair's heads and columns "
            f"can be divided by {sizes}"
        )
    asked = (pair.target, pair.draft, pair.context, pair.slots)
    for n in [size] if size is not None else usable:
        there = replace(setup, size=n, draft_size=n if draft_size is None else draft_size)
        if gpu_memory.needed(there, *asked).total <= setup.limit:
            break
    _check(None, draft_size, there.size, "a draft is divided among the target's cards, or on one")
    return GpuPlace(there, count, pair.context // 2)


def _check(size: int | None, draft_size: int | None, most: int, why: str) -> None:
    if size not in (None, 1, most):
        raise ConfigError(f"--tensor-parallel-size {size} is not possible: {why}")
    if draft_size not in (None, 1, most):
        raise ConfigError(f"--draft-tensor-parallel-size {draft_size} is not possible: {why}")
