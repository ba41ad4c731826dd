"""Runs the same requests by plain decoding and with a drafter, and compares everything that a user can
see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import Request
from outrider.decoding.sampling.constraint import Mask
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.verifiers.base import Verifier
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.decoding.verifiers.distributions import siblings
from outrider.drafters.auto import AutoDrafter, ModelDrafter
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engines.base import StepEngine
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.fixed import FixedController
from outrider.policy.planner import Planner
from outrider.policy.tuning import Tuning
from tests.conformance.drafters import SCRIPTS, Answers, ScriptedDrafter, TreeDrafter
from tests.conformance.engines import Models, head_drafter

EOS = frozenset({3})
MAX_CONTEXT = 64
PROMPTS: list[tuple[int, ...]] = [(1, 2, 1, 2, 1), (4,), tuple(range(5, 45)), (9, 9, 8)]

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8, "ignore_eos": True},
    "hot": {"temperature": 2.0},
    "filters": {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    "penalties": {
        "temperature": 0.5,
        "repetition_penalty": 1.3,
        "frequency_penalty": 1.5,
        "presence_penalty": 1.0,
        "ignore_eos": True,
    },
    "greedy with penalties": {"temperature": 0.0, "frequency_penalty": 2.0, "ignore_eos": True},
    "bias": {"temperature": 0.7, "logit_bias": {6: 3.0, 3: -5.0, 5: 1.0}, "stop_token_ids": [5]},
    "allowed": {"temperature": 1.0, "allowed_token_ids": [1, 2, 3, 5, 8, 13]},
    "stop strings": {"temperature": 1.0, "stop": ["ab", "cad"], "min_tokens": 5, "ignore_eos": True},
    "min tokens": {"temperature": 0.7, "min_tokens": 12, "logit_bias": {3: 8.0}},
    "constrained": {"temperature": 1.2, "ignore_eos": True, "constraint": True},
    "greedy and constrained": {"temperature": 0.0, "ignore_eos": True, "constraint": True},
    "to the context's end": {"temperature": 0.6, "max_tokens": None, "ignore_eos": True},
}


class Pattern:
    """A constraint in place of a grammar: a token above 30 is followed by 9 and 12, and an even token by a
    multiple of 3. For the vocabulary of the suite's engines."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def allowed(self, context: TokenContext) -> Mask | None:
        ids, output = np.arange(self._vocab_size), context.output
        if must := self.forced(context, 1):
            return np.asarray(ids == must[0])
        even = bool(output) and output[-1] % 2 == 0
        return np.asarray((ids % 3 == 0) | (not even))

    def forced(self, context: TokenContext, most: int) -> list[int]:
        for back, rest in ((1, [9, 12]), (2, [12])):
            if context.output_length >= back and context.output[-back] > 30:
                return rest[:most]
        return []

    def ended(self, context: TokenContext) -> bool:
        return False


class Letters:
    """Text of four letters, so that stop strings span tokens and come often. Holds one back, as a
    detokenizer does within a character."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token_id: int) -> str:
        text = self._held + "abcd"[token_id % 4] * (1 + token_id % 2)
        self._held = text[-1:] if token_id % 5 == 0 else ""
        return text[: len(text) - len(self._held)]

    def hidden(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return self._held


@dataclass
class Output:
    """All that came of one request."""

    tokens: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    text: str = ""
    end: FinishEvent | None = None

    @property
    def visible(self) -> tuple[object, ...]:
        """What may not depend on speculation."""
        assert self.end is not None
        return self.tokens, self.text, self.end.finish_reason, self.end.stop_reason, str(self.end.error)


def requests(arguments: dict[str, Any], vocab_size: int = 48) -> list[Request]:
    """One request for each prompt. "constraint" among the arguments puts all under the Pattern."""
    params = SamplingParams(**{"max_tokens": 24, **{k: v for k, v in arguments.items() if k != "constraint"}})
    patterns = [Pattern(vocab_size) if "constraint" in arguments else None for _ in PROMPTS]
    return [
        Request(str(i), prompt, params, EOS, Letters(), seed=1000 + i, constraint=patterns[i])
        for i, prompt in enumerate(PROMPTS)
    ]


def tick() -> Callable[[], float]:
    """A clock that moves by a millisecond whenever it is read."""
    times = iter(range(10**9))
    return lambda: next(times) / 1000


def run(
    engine: StepEngine,
    drafter: Drafter | None,
    batch: Sequence[Request],
    *,
    length: int = 4,
    verifier: Verifier | None = None,
    max_num_seqs: int = 3,
    prefill_chunk: int = 16,
    max_context: int = MAX_CONTEXT,
) -> dict[str, Output]:
    loop = StepLoop(
        engine,
        drafter,
        verifier or CoupledVerifier(),
        AutoController(drafter.planner) if isinstance(drafter, AutoDrafter) else FixedController(length),
        clock=tick(),
        max_num_seqs=max_num_seqs,
        prefill_chunk=prefill_chunk,
        max_context=max_context,
    )
    outputs = {request.request_id: Output() for request in batch}
    for event in loop.generate(batch):
        output = outputs[event.request_id]
        assert output.end is None, "nothing may follow the end"
        if isinstance(event, TokenEvent):
            output.tokens.append(event.token_id)
            output.kinds.append(event.kind)
            output.text += event.text
        else:
            output.text += event.text_tail
            output.end = event
    return outputs


def visible(outputs: dict[str, Output]) -> dict[str, tuple[object, ...]]:
    return {name: output.visible for name, output in outputs.items()}


def answers(outputs: dict[str, Output]) -> Answers:
    return {str(i): [*prompt, *outputs[str(i)].tokens] for i, prompt in enumerate(PROMPTS)}


DRAFTERS = [
    *(
        "draft_model",
        "independent draft_model",
        "small draft_model",
        "ngram",
        "suffix",
        "mixed",
        "independent mixed",
        "eagle3",
        "tree",
    ),
    *SCRIPTS,
]


def make_drafter(name: str, models: Models, truth: Answers) -> Drafter:
    if name in SCRIPTS:
        return ScriptedDrafter(name, SCRIPTS[name], truth, models.target.vocab_size)
    made: dict[str, Callable[[], Drafter]] = {
        "draft_model": lambda: DraftModelDrafter(models.draft, chunk=8),
        "independent draft_model": lambda: DraftModelDrafter(models.draft, chunk=8, draws="independent"),
        # a smaller vocabulary and a context that ends before the target's
        "small draft_model": lambda: DraftModelDrafter(models.draft, common_size=40, max_context=50),
        "tree": lambda: TreeDrafter(models.draft, (2, 2), siblings),
        "ngram": lambda: NgramDrafter(3, 1),
        "suffix": SuffixDrafter,
        "mixed": lambda: mixed(DraftModelDrafter(models.draft, chunk=8)),
        "independent mixed": lambda: mixed(DraftModelDrafter(models.draft, chunk=8, draws="independent")),
        "eagle3": lambda: head_drafter(models),
        "independent eagle3": lambda: head_drafter(models, "independent"),
        "mixed eagle3": lambda: mixed(head_drafter(models)),
    }
    return made[name]()


def mixed(model: ModelDrafter) -> AutoDrafter:
    """With costs that make drafting worth its while, and second choices that are expected to be right, so
    that they are drawn on from."""
    tuning = Tuning(model_start=0.4, sibling_start=0.9, sibling_start_weight=1e3)
    planner, lookup = Planner(CostModel({1: 1e-2, 16: 1.1e-2}), tuning=tuning), SuffixDrafter()
    planner.add_lookup(lookup.name)
    planner.add_model(model.name, CostModel({1: 1e-4, 16: 2e-4}))
    return AutoDrafter(planner, [lookup], [model], clock=tick())
