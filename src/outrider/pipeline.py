"""From a configuration to something that generates: the one place where the parts are put together.

What can be refused is refused before a weight is loaded: the files, the vocabularies, the memory.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from tqdm import tqdm

from outrider import memory
from outrider.config.checks import LIGHT_QUANTIZATIONS
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, DraftModelConfig, SpeculativeConfig
from outrider.decoding.loop import StepLoop
from outrider.decoding.sampling.sampler import RowSampler
from outrider.decoding.types import IntArray
from outrider.decoding.verifiers.base import Verifier
from outrider.drafters.vocab_subset import frequent
from outrider.drafting import Costs, Drafting, DraftModel, guessed_costs, make_drafting, make_lookup
from outrider.engines.base import LanguageModel, StepEngine
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, quantized
from outrider.models.source import ModelSource
from outrider.models.sources.references import parse_reference, resolve
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.vocabulary import ensure_compatible
from outrider.policy.cost_model import CostModel

MemoryCheck: TypeAlias = Callable[[EngineConfig, int, Sequence[ModelSource]], None]
ModelLoader: TypeAlias = Callable[[ModelSource, int | None], LanguageModel]

PLANNED_POSITIONS = 4096  # counted before loading when the user does not say how long a context will get


def load_native(
    source: ModelSource, threads: int | None, weights_cache: bool | str | os.PathLike[str] | None = None
) -> LanguageModel:
    """Load a model into the native engine, with a bar on a terminal when it takes long. `threads` None leaves
    the number to the engine; for `weights_cache` see EngineConfig."""
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
    """`load_native` with the configuration's cache of packed weights."""
    cache = config.weights_cache
    return load_native if cache is None else functools.partial(load_native, weights_cache=cache)


def native_costs() -> Costs:
    """What passes of the native engine cost, measured once for each model and machine."""
    from outrider.engines.native import NativeModel, calibrate  # the compiled extension

    def costs(model: LanguageModel, blocks: IntArray | None) -> CostModel:
        if isinstance(model, NativeModel):
            return calibrate.cost_model(model, blocks)
        return guessed_costs(model, blocks)

    return costs


def native_rows() -> RowSampler | None:
    """The native engine's way to draw tokens. Raises ConfigError for a bad OUTRIDER_SAMPLER."""
    from outrider.engines.native.sampling import row_sampler  # the compiled extension

    return row_sampler()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A target and a drafter, ready to generate.

    context: most positions of a sequence, in tokens.
    draft:   the draft model's description, or None.
    rows:    what draws tokens from rows of logits; None is NumPy.
    clock:   seconds, for metrics and the controller.
    """

    config: EngineConfig
    speculative: SpeculativeConfig
    source: ModelSource
    draft: ModelSource | None
    tokenizer: Tokenizer
    engine: StepEngine
    drafting: Drafting
    context: int
    rows: RowSampler | None = None
    clock: Callable[[], float] = time.perf_counter

    def loop(self) -> StepLoop:
        """A fresh step loop; loops of one pipeline share its models and must not run at once."""
        return StepLoop(
            self.engine,
            self.drafting.drafter,
            self.drafting.verifier,
            self.drafting.controller,
            clock=self.clock,
            max_num_seqs=self.config.max_num_seqs,
            max_context=self.context,
            vocab_size=min(self.tokenizer.vocab_size, self.engine.vocab_size),
            rows=self.rows,
        )

    @property
    def verifier(self) -> Verifier:
        return self.drafting.verifier

    def fixed(self, count: int) -> list[Pipeline]:
        """For each drafter, the same with fixed drafts of it alone, see `Drafting.fixed`."""
        return [replace(self, drafting=drafting) for drafting in self.drafting.fixed(count)]

    @property
    def quantized(self) -> bool:
        """True when a model was quantized at load by request: of a target, the text is then not that of the
        file's own weights."""
        usual = (None, *LIGHT_QUANTIZATIONS)
        return any(s is not None and s.quantization not in usual for s in (self.source, self.draft))

    @property
    def models(self) -> dict[str, str | None]:
        """The models' names, for reports."""
        return {
            "target": self.source.display_name,
            "draft": None if self.draft is None else self.draft.display_name,
        }


def build(
    config: EngineConfig,
    loader: ModelLoader | None = None,
    *,
    memory_check: MemoryCheck | None = None,
    progress: bool = True,
) -> Pipeline:
    """Put one pipeline together. Raises OutriderError; see `build_all`."""
    choices = [config.speculative]
    return build_all(config, choices, loader, memory_check=memory_check, progress=progress)[0]


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

    loader:   puts the weights into an engine; None means the native one.
    wrap:     put around each loaded model, to watch it.
    costs:    what passes of a loaded model cost; None measures the native engine's and guesses others'.
    clock:    seconds, for metrics and the controller; texts never depend on it.
    memory_check: raises when the models and their caches would not fit; None takes the usual one, which wants
              room for max_num_seqs sequences.
    progress: a bar on stderr while a model is fetched.
    Raises ModelError (not found, damaged, unsupported, vocabularies differ, too little memory) and
    ConfigError.
    """
    source = _open_target(config, progress)
    tokenizer = Tokenizer.from_data(_tokenizer_source(config, source, progress).tokenizer)
    lookups = [make_lookup(choice) for choice in choices]
    opened = ((choice, _open_draft(choice, source, tokenizer, progress)) for choice in choices)
    drafts = {choice: draft for choice, draft in opened if draft is not None}
    context = min(
        source.architecture.max_positions, config.max_model_len or source.architecture.max_positions
    )
    (memory_check or _check_memory)(config, context, [source, *_distinct(drafts)])

    native = loader is None
    rows = native_rows() if native else None
    costs = costs or (native_costs() if native else guessed_costs)
    loader = loader or native_loader(config)
    target = loader(source, config.threads)
    engine = CachedStepEngine(wrap(target), tree_attention=True, exact_bits=True)
    loaded = {_key(s): loader(s, config.threads) for s in _distinct(drafts)}
    wrapped = {key: wrap(model) for key, model in loaded.items()}
    pipelines = []
    for choice, lookup in zip(choices, lookups, strict=True):
        described, draft = None, None
        if choice in drafts:
            described, common = drafts[choice]
            key = _key(described)
            draft = DraftModel(
                wrapped[key],
                common,
                functools.partial(costs, loaded[key], frequent(loaded[key])),
            )
        drafting = make_drafting(choice, functools.partial(costs, target, None), draft, lookup, clock)
        pipelines.append(
            Pipeline(config, choice, source, described, tokenizer, engine, drafting, context, rows, clock)
        )
    return pipelines


def load_target(
    config: EngineConfig, loader: ModelLoader | None = None, *, progress: bool = True
) -> LanguageModel:
    """The target alone, loaded. Raises ModelError, as `build_all` does, and ConfigError."""
    source = _open_target(config, progress)
    context = config.max_model_len or min(source.architecture.max_positions, PLANNED_POSITIONS)
    _check_memory(config, context, [source])
    return (loader or native_loader(config))(source, config.threads)


def _open_target(config: EngineConfig, progress: bool) -> ModelSource:
    return quantized(open_model(_fetch(config.model, config.revision, progress)), config.quantization)


def _fetch(reference: str, revision: str | None, progress: bool) -> Path:
    if revision is not None:
        parsed = parse_reference(reference)
        if parsed.kind != "hub" or parsed.revision not in (None, revision):
            raise ConfigError(
                f"revision={revision!r} is for a hub repository without one; {reference!r} is not"
            )
        reference = f"{reference}@{revision}" if parsed.revision is None else reference
    return resolve(reference, progress=progress)


def _tokenizer_source(config: EngineConfig, target: ModelSource, progress: bool) -> ModelSource:
    if config.tokenizer in (None, config.model):
        return target
    other = open_model(_fetch(str(config.tokenizer), None, progress))
    size = Tokenizer.from_data(other.tokenizer).vocab_size
    if size > target.architecture.vocab_size:
        raise ConfigError(
            f"tokenizer {config.tokenizer!r} has {size} tokens, "
            f"more than the model's {target.architecture.vocab_size}; leave it out to take the model's own"
        )
    return other


def _open_draft(
    choice: SpeculativeConfig, target: ModelSource, tokenizer: Tokenizer, progress: bool
) -> tuple[ModelSource, int] | None:
    """The draft's description and how many leading ids it shares with the target; None without a draft."""
    if not isinstance(choice, DraftModelConfig | AutoConfig) or choice.model is None:
        return None
    source = open_model(_fetch(choice.model, choice.revision, progress))
    source = quantized(source, for_draft(choice.quantization, source, target))
    match = ensure_compatible(tokenizer, source.tokenizer)
    return source, match.common_size


def _distinct(drafts: Mapping[SpeculativeConfig, tuple[ModelSource, int]]) -> list[ModelSource]:
    return list({_key(source): source for source, _ in drafts.values()}.values())


def _key(source: ModelSource) -> tuple[Path, str | None]:
    """What tells loaded weights apart."""
    return source.path, source.quantization


def _check_memory(config: EngineConfig, context: int, sources: Sequence[ModelSource]) -> None:
    positions = context if config.max_model_len is not None else min(context, PLANNED_POSITIONS)
    memory.check([memory.estimate(s, positions, config.max_num_seqs) for s in sources], positions)
