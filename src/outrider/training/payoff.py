"""The speed-up that a draft promises on this machine's CPU: what it has accepted, by what passes cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outrider.models.checks import expected_tensors
from outrider.models.eagle3.head import NO_TOKENIZER, Eagle3Head, head_spec
from outrider.models.families import Dimensions
from outrider.models.quantization import EMBEDDING, for_draft, held_as, quantized, type_bytes
from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import HeadSpec, RopeSpec
from outrider.opening import head_on
from outrider.plan.curves import curve_of
from outrider.plan.speed import Curve, best_chain
from outrider.training.progress import Acceptance
from outrider.training.sizes import HeadSizes
from outrider.training.vocabulary import Ids


@dataclass(frozen=True, slots=True)
class Payoff:
    """What passes cost here. draft: of one token."""

    target: Curve
    draft: float

    def words(self, acceptance: Acceptance) -> str:
        """The speed-up and the length of drafts that gives it, as `outrider plan` predicts them."""
        length, speedup = best_chain(self.target, self.draft, acceptance.reached)
        if not length:
            return "no speed-up here yet"
        return f"about ×{speedup:.2f} here with drafts of {length}"


def of_draft(target: ModelSource, draft: ModelSource, threads: int | None) -> Payoff:
    """With a draft model, as it is loaded by default."""
    loaded = held_as(target, quantized(draft, for_draft("auto", draft, target)))
    return Payoff(curve_of(target, threads), curve_of(loaded, threads, drafts=True).at(1))


def of_head(
    target: ModelSource, sizes: HeadSizes, ids: Ids, layers: tuple[int, ...], threads: int | None
) -> Payoff:
    """With a head for `target` that proposes these ids."""
    head = head_on(_head(target, sizes, ids, layers), target).source
    return Payoff(curve_of(target, threads), curve_of(head, threads, drafts=True).at(1))


def _head(target: ModelSource, sizes: HeadSizes, ids: Ids, layers: tuple[int, ...]) -> Eagle3Head:
    """A head of these sizes, whose weights take no memory."""
    spec, path = target.architecture, Path(f"head of {target.display_name}")
    powers = np.arange(0, sizes.head_dim, 2, dtype=np.float64) / sizes.head_dim
    dimensions = Dimensions(
        *(1, sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.ffn),
        *(len(ids), spec.max_positions),
        rms_eps=sizes.eps,
        rope=RopeSpec(sizes.head_dim, (sizes.theta**-powers).astype(np.float32)),
    )
    states = HeadSpec(sizes.states, sizes.hidden, spec.vocab_size, joint_norm=True, norm_before_residual=True)
    made = head_spec(path, "llama", dimensions, states)
    tensors = {name: _empty(name, shape) for name, shape, _ in expected_tensors(made) if name != EMBEDDING}
    source = ModelSource(
        path=path, format="gguf", display_name=str(path), architecture=made, tensors=tensors,
        tokenizer=NO_TOKENIZER, chat_template=None,
    )  # fmt: skip
    return Eagle3Head(source, layers, ids.astype(np.int32))


def _empty(name: str, shape: tuple[int, ...]) -> Tensor:
    kind = "F16" if len(shape) == 2 else "F32"
    return Tensor(name, kind, shape, np.broadcast_to(np.uint8(0), (type_bytes(kind, shape),)))
