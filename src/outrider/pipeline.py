"""From a configuration to something that generates: the one place where the parts are put together.

What can be refused is refused before a weight is loaded: the files, the vocabularies, the memory.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tqdm import tqdm

from outrider import draft_loading, engine_choice, memory
from outrider.acceptance_record import Recorder, recorder_of
from outrider.config.engine import EngineConfig
from outrider.config.quantization import LIGHT_QUANTIZATIONS
from outrider.config.speculative import SpeculativeConfig
from outrider.decoding.loop import StepLoop
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.prefill import PromptPace
from outrider.decoding.sampling.sampler import RowSampler
from outrider.decoding.verifiers.base import Verifier
from outrider.draft_choice import settled
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafting import (
    Costs,
    DraftHead,
    Drafting,
    DraftModel,
    HeadEngine,
    guessed_costs,
    make_drafting,
    make_lookup,
)
from outrider.engines.base import LanguageModel, StepEngine
from outrider.engines.runner import Runner, WholeEngine
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError, nearest
from outrider.machine import available_processors
from outrider.metrics import Metric, metrics_of, whole_metrics
from outrider.models.formats.shared_strings import shared_strings
from outrider.models.source import ModelSource
from outrider.models.text.tokenizer import Tokenizer
from outrider.native_engine import native_costs, native_rows
from outrider.opening import OpenedDraft, distinct, open_draft, open_target, tokenizer_source
from outrider.policy.cost_model import CostModel
from outrider.sampling_defaults import SamplingDefaults, sampling_defaults
from outrider.torch_engine import torch_costs, torch_heads, torch_loader, torch_memory

MemoryCheck: TypeAlias = Callable[[EngineConfig, int, Sequence[ModelSource]], None]
ModelLoader: TypeAlias = Callable[[ModelSource, int | None], LanguageModel]
Drafts: TypeAlias = dict[SpeculativeConfig, OpenedDraft]

logger = logging.getLogger(__name__)

PLANNED_POSITIONS = 4096  # context counted before loading when max_model_len is not given


def load_native(
    source: ModelSource, threads: int | None, weights_cache: bool | str | os.PathLike[str] | None = None
) -> LanguageModel:
    """Load a model into the native engine, with a bar on a terminal when it takes long. `threads` None is
    the engine's own choice; for `weights_cache` see EngineConfig."""
    from outrider.engines.native import NativeModel  # the compiled extension

    bar = tqdm(
        desc=f"loading {source.display_name}", total=source.weights_bytes, unit="B", unit_scale=True,
        delay=1.0, leave=False, file=sys.stderr, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with bar:
        return NativeModel.load(
            source,
            threads=threads,
            weights_cache=weights_cache,
            progress=lambda done, _: bar.update(done - bar.n),
        )


def native_loader(config: EngineConfig) -> ModelLoader:
    """`load_native` with the configured cache of packed weights."""
    cache = config.weights_cache
    return load_native if cache is None else functools.partial(load_native, weights_cache=cache)


@dataclass(frozen=True, slots=True)
class StepBackend:
    """An engine that Outrider drives step by step: how it loads models, what passes cost, what samples.

    memory:    its own check instead of the one of main memory: raises for what it cannot run.
    quantizes: whether it quantizes draft models at load.
    heads:     how it runs heads on the target, beside models of a loader; None where it runs none.
    """

    loader: Callable[[EngineConfig], ModelLoader]
    costs: Callable[[], Costs]
    rows: Callable[[], RowSampler | None]
    memory: MemoryCheck | None = None
    quantizes: bool = True
    heads: Callable[[ModelLoader], HeadEngine] | None = None


@dataclass(frozen=True, slots=True)
class WholeBackend:
    """An engine with a loop of its own.

    build: makes it from the configuration, the target's description and the most positions of a sequence;
           raises ConfigError, before any weight is loaded, for what the engine cannot honour.
    """

    build: Callable[[EngineConfig, ModelSource, int], WholeEngine]


# To add an engine: a line here. "auto" is the first, or torch by `engine_choice`.
ENGINES: dict[str, StepBackend | WholeBackend] = {
    "native": StepBackend(native_loader, native_costs, native_rows, heads=draft_loading.native_heads),
    "torch": StepBackend(torch_loader, torch_costs, native_rows, torch_memory, False, torch_heads),
}


@dataclass(frozen=True, slots=True)
class BasePipeline(ABC):
    """A configured model that is ready to generate, whatever engine runs it.

    draft:   the draft model's description, or None.
    context: most positions of a sequence, in tokens.
    sampling: of requests that do not say how to sample.
    """

    config: EngineConfig
    speculative: SpeculativeConfig
    source: ModelSource
    draft: ModelSource | None
    tokenizer: Tokenizer
    context: int
    engine: StepEngine | WholeEngine
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults, kw_only=True)

    @property
    def vocab_size(self) -> int:
        """How many ids have both a token and logits; the rest are padding."""
        return min(self.tokenizer.vocab_size, self.engine.vocab_size)

    @abstractmethod
    def runner(self, *, awaited: bool = False) -> Runner:
        """A fresh runner. Runners of one pipeline share its models and must not run at once.

        awaited: requests may arrive or be aborted while a step is computed, so none should take long."""

    def metrics(self, total: RequestMetrics) -> list[Metric]:
        """The counts of requests that have ended, whose metrics are `total` together."""
        return metrics_of(total, self.config.model)

    @property
    def quantized(self) -> bool:
        """True when a model was quantized at load by request, or the target's keys and values are: the text
        is then not what the file's own weights give with keys and values in binary16."""
        usual = (None, *LIGHT_QUANTIZATIONS)
        return self.config.kv_quantization is not None or any(
            s is not None and s.quantization not in usual for s in (self.source, self.draft)
        )

    @property
    def models(self) -> dict[str, str | None]:
        """The models' names, for reports."""
        return {
            "target": self.source.display_name,
            "draft": None if self.draft is None else self.draft.display_name,
        }


@dataclass(frozen=True, slots=True)
class WholePipeline(BasePipeline):
    """A model on an engine with a loop of its own."""

    engine: WholeEngine

    def runner(self, *, awaited: bool = False) -> Runner:
        del awaited  # its own loop does as it does
        return self.engine.runner()

    def metrics(self, total: RequestMetrics) -> list[Metric]:
        return whole_metrics(total, self.config.model, self.engine.draft_totals())


@dataclass(frozen=True, slots=True)
class Pipeline(BasePipeline):
    """A target on a step engine, and a drafter.

    rows:    what samples from rows of logits; None is NumPy.
    clock:   seconds, for metrics and the controller.
    pace:    of prompts on this engine, which its loops learn where requests wait.
    remake:  makes `drafting` anew, on the same models; None where it was not made for this target.
    recorder: keeps the acceptance of the pair's drafts; None without a draft model.
    """

    engine: StepEngine
    drafting: Drafting
    rows: RowSampler | None = None
    clock: Callable[[], float] = time.perf_counter
    pace: PromptPace = field(default_factory=PromptPace)
    remake: Callable[[], Drafting] | None = None
    recorder: Recorder | None = None

    def fresh(self) -> Pipeline:
        """The same with nothing learned from earlier requests, as in a new process. Raises ConfigError where
        the drafting cannot be made anew."""
        if self.remake is None:
            raise ConfigError("this pipeline's drafting cannot be made anew")
        return replace(self, drafting=self.remake())

    def runner(self, *, awaited: bool = False) -> StepLoop:
        return StepLoop(
            self.engine,
            self.drafting.drafter,
            self.drafting.verifier,
            self.drafting.controller,
            clock=self.clock,
            max_num_seqs=self.config.max_num_seqs,
            max_context=self.context,
            vocab_size=self.vocab_size,
            rows=self.rows,
            pace=self.pace if awaited else PromptPace(awaited=False),
            on_end=(lambda *_: None) if self.recorder is None else self.recorder.ended,
        )

    @property
    def verifier(self) -> Verifier:
        return self.drafting.verifier

    def fixed(self, count: int) -> list[Pipeline]:
        """For each drafter, the same with fixed drafts of it alone, see `Drafting.fixed`."""
        return [replace(self, drafting=drafting, recorder=None) for drafting in self.drafting.fixed(count)]


def open_pipeline(config: EngineConfig, *, progress: bool = True) -> BasePipeline:
    """One pipeline on the engine that `config` names. Raises OutriderError; see `build_all`."""
    backend = _backend(config)
    if isinstance(backend, StepBackend):
        return build(config, progress=progress)
    source = open_target(config, progress)
    sampling = sampling_defaults(config, source)
    tokenizer = Tokenizer.from_data(tokenizer_source(config, source, progress).tokenizer)
    context = _context(config, source)
    engine = backend.build(config, source, context)
    context = min(context, engine.max_positions)
    return WholePipeline(
        config, config.speculative, source, None, tokenizer, context, engine, sampling=sampling
    )


def build(
    config: EngineConfig,
    loader: ModelLoader | None = None,
    *,
    memory_check: MemoryCheck | None = None,
    progress: bool = True,
) -> Pipeline:
    """One pipeline on a step engine. Raises OutriderError; see `build_all`."""
    choices = [config.speculative]
    return build_all(config, choices, loader, memory_check=memory_check, progress=progress)[0]


@shared_strings()
def build_all(
    config: EngineConfig,
    choices: Sequence[SpeculativeConfig],
    loader: ModelLoader | None = None,
    *,
    wrap: Callable[[LanguageModel], LanguageModel] = lambda model: model,
    costs: Costs | None = None,
    clock: Callable[[], float] = time.perf_counter,
    memory_check: MemoryCheck | None = None,
    progress: bool = True,
) -> list[Pipeline]:
    """One pipeline for each choice of drafter, all on the same loaded weights (`config.speculative` is
    not read). Every model is opened, checked and counted before the first is loaded.

    loader:   loads a model; None means that of the configured engine.
    wrap:     wraps each loaded model, to observe it.
    costs:    what passes of a loaded model cost; None measures the engine's, and guesses those of `loader`.
    clock:    seconds, for metrics and the controller; texts never depend on it.
    memory_check: raises when the models and their caches would not fit; None is the check that counts
              max_num_seqs sequences.
    progress: a bar on stderr while a model is fetched.
    Raises ModelError (not found, damaged, unsupported, vocabularies differ, too little memory) and
    ConfigError, also for an engine that is unknown or runs its own loop.
    """
    _step_backend(config)  # an unknown engine is told before anything is fetched
    source = open_target(config, progress)
    sampling = sampling_defaults(config, source)
    tokenizer = Tokenizer.from_data(tokenizer_source(config, source, progress).tokenizer)
    context = _context(config, source)
    lookups = [make_lookup(choice) for choice in choices]

    def on_engine(config: EngineConfig) -> tuple[StepBackend, Sequence[SpeculativeConfig], Drafts]:
        backend = _step_backend(config, source)
        check = functools.partial(_memory_check(backend, memory_check), config, context)
        chosen = settled(choices, source, tokenizer, lambda *d: check([source, *d]), backend.quantizes)
        opening = functools.partial(open_draft, quantizes=backend.quantizes, heads=backend.heads is not None)
        opened = ((choice, opening(choice, source, tokenizer, progress)) for choice in chosen)
        drafts = {choice: draft for choice, draft in opened if draft is not None}
        check([source, *(draft.source for draft in distinct(drafts))])
        return backend, chosen, drafts

    backend, choices, drafts = engine_choice.first_that_fits(config, source, on_engine)
    loaded_here = loader is None
    rows = backend.rows() if loaded_here else None
    loader = loader or backend.loader(config)
    heads = None if backend.heads is None else backend.heads(loader)
    if heads is not None and (costs is not None or not loaded_here):
        heads = replace(heads, cost=draft_loading.guessed_head_cost)
    costs = costs or (backend.costs() if loaded_here else guessed_costs)
    threads = _threads(config)
    target = loader(source, threads)
    engine = CachedStepEngine(observed := wrap(target))
    # Times on record are those of the native engine's own passes.
    recording = loaded_here and observed is target and backend is ENGINES["native"]
    loaded = draft_loading.load_drafts(
        drafts, threads, context, loader=loader, wrap=wrap, costs=costs, heads=heads
    )
    pipelines = []
    for choice, lookup in zip(choices, lookups, strict=True):
        found = loaded.get(choice)
        described, draft = (None, None) if found is None else (found.source, found.drafts)
        remake = functools.partial(_drafting, choice, functools.partial(costs, target, None), draft, clock)
        drafting = remake(lookup)
        pipelines.append(
            Pipeline(
                *(config, choice, source, described, tokenizer, context, engine, drafting, rows, clock),
                remake=remake,
                recorder=recorder_of(choice, source, described) if recording else None,
                sampling=sampling,
            )
        )
    return pipelines


def _drafting(
    choice: SpeculativeConfig,
    cost: Callable[[], CostModel],
    draft: DraftModel | DraftHead | None,
    clock: Callable[[], float],
    lookup: SuffixDrafter | None = None,
) -> Drafting:
    """See `make_drafting`; `lookup` is made if the choice asks for one and it is None."""
    return make_drafting(choice, cost, draft, lookup or make_lookup(choice), clock)


def load_target(
    config: EngineConfig, loader: ModelLoader | None = None, *, progress: bool = True
) -> LanguageModel:
    """The target alone, loaded. Raises ModelError, as `build_all` does, and ConfigError."""
    _step_backend(config)  # an unknown engine is told before anything is fetched
    source = open_target(config, progress)
    context = config.max_model_len or min(source.architecture.max_positions, PLANNED_POSITIONS)

    def on_engine(config: EngineConfig) -> StepBackend:
        backend = _step_backend(config, source)
        _memory_check(backend, None)(config, context, [source])
        return backend

    backend = engine_choice.first_that_fits(config, source, on_engine)
    return (loader or backend.loader(config))(source, _threads(config))


def _backend(config: EngineConfig, source: ModelSource | None = None) -> StepBackend | WholeBackend:
    """The engine that `config` names; of `source`, if that is known."""
    name = config.engine
    if name == "auto":
        other = source is not None and source.transformers_class is not None
        name = "torch" if config.wants_torch or other else next(iter(ENGINES))
    if name not in ENGINES:
        known = ("auto", *ENGINES)
        there = " or ".join(map(repr, known))
        raise ConfigError(f"engine {name!r} is unknown; use {there}{nearest(name, known)}")
    return ENGINES[name]


def _step_backend(config: EngineConfig, source: ModelSource | None = None) -> StepBackend:
    backend = _backend(config, source)
    if not isinstance(backend, StepBackend):
        raise ConfigError(
            f"engine {config.engine!r} runs its own loop, and this needs one that Outrider drives"
        )
    return backend


def _context(config: EngineConfig, source: ModelSource) -> int:
    """Most positions of a sequence: the model's limit, or the configured one if it is lower."""
    most = source.architecture.max_positions
    if config.max_model_len is not None and config.max_model_len > most:
        logger.warning(
            "a context of %d tokens is more than the model's: it is lowered to %d", config.max_model_len, most
        )
    return min(most, config.max_model_len or most)


def _threads(config: EngineConfig) -> int | None:
    """Threads of the engine: as many as configured, but no more than there are processors."""
    most = available_processors()
    if config.threads is None or config.threads <= most:
        return config.threads
    logger.warning("%d threads are more than the %d processors: lowered to %d", config.threads, most, most)
    return most


def _memory_check(backend: StepBackend, given: MemoryCheck | None) -> MemoryCheck:
    """The engine's own check of memory, or else the given one, or else that of main memory."""
    own = backend.memory
    if own is None:
        return given or _check_memory
    return lambda config, context, sources: own(config, _planned(config, context), sources)


def _planned(config: EngineConfig, context: int) -> int:
    """Positions of a sequence that are counted before loading."""
    return context if config.max_model_len is not None else min(context, PLANNED_POSITIONS)


def _check_memory(config: EngineConfig, context: int, sources: Sequence[ModelSource]) -> None:
    positions = _planned(config, context)
    parts = [memory.estimate(s, positions, config.max_num_seqs, target=i == 0) for i, s in enumerate(sources)]
    memory.check(parts, positions)
