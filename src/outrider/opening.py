"""From the references in a configuration to opened models: files brought, checked and described."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, DraftModelConfig, SpeculativeConfig
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, quantized
from outrider.models.source import ModelSource
from outrider.models.sources.references import parse_reference, resolve
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.vocabulary import ensure_compatible
from outrider.torch_engine import other_model


def open_target(config: EngineConfig, progress: bool) -> ModelSource:
    """The target's description. Raises ModelError and ConfigError."""
    path = fetch(config.model, config.revision, progress)
    try:
        source = open_model(path)
    except UnsupportedModelError as error:
        source = other_model(config, path, error)
    return quantized(source.for_context(config.max_model_len), config.quantization)


def fetch(reference: str, revision: str | None, progress: bool) -> Path:
    """Where a model's files are, after bringing them. Raises ModelError and ConfigError."""
    if revision is not None:
        parsed = parse_reference(reference)
        if parsed.kind != "hub" or parsed.revision not in (None, revision):
            raise ConfigError(
                f"revision={revision!r} is for a hub repository without one; {reference!r} is not"
            )
        reference = f"{reference}@{revision}" if parsed.revision is None else reference
    return resolve(reference, progress=progress)


def tokenizer_source(config: EngineConfig, target: ModelSource, progress: bool) -> ModelSource:
    """The model whose tokenizer is used. Raises ModelError and ConfigError."""
    if config.tokenizer in (None, config.model):
        return target
    other = open_model(fetch(str(config.tokenizer), None, progress))
    size = Tokenizer.from_data(other.tokenizer).vocab_size
    if size > target.architecture.vocab_size:
        raise ConfigError(
            f"tokenizer {config.tokenizer!r} has {size} tokens, "
            f"more than the model's {target.architecture.vocab_size}; leave it out to take the model's own"
        )
    return other


def open_draft(
    choice: SpeculativeConfig,
    target: ModelSource,
    tokenizer: Tokenizer,
    progress: bool,
    *,
    quantizes: bool,
) -> tuple[ModelSource, int] | None:
    """The draft's description and how many leading ids it shares with the target; None without a draft.
    quantizes: whether the engine can quantize it. Raises ModelError, and ConfigError where it cannot and
    should."""
    if not isinstance(choice, DraftModelConfig | AutoConfig) or choice.model is None:
        return None
    source = open_model(fetch(choice.model, choice.revision, progress))
    source = source.for_context(target.architecture.max_positions)
    if quantizes:
        source = quantized(source, for_draft(choice.quantization, source, target))
    elif choice.quantization not in (None, "auto"):
        raise ConfigError(f"the draft's quantization {choice.quantization!r} is of the native engine only")
    match = ensure_compatible(tokenizer, source.tokenizer)
    return source, match.common_size


def distinct(drafts: Mapping[SpeculativeConfig, tuple[ModelSource, int]]) -> list[ModelSource]:
    """The draft models, each once."""
    return list({weights_key(source): source for source, _ in drafts.values()}.values())


def weights_key(source: ModelSource) -> tuple[Path, str | None]:
    """Models with the same key have the same loaded weights."""
    return source.path, source.quantization
