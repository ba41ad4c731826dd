"""From the references in a configuration to opened models: files brought, checked and described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.config.engine import EngineConfig
from outrider.config.speculative import Eagle3Config, SpeculativeConfig, WithDraft
from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.eagle3.head import Eagle3Head
from outrider.models.eagle3.open import open_head
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, held_as, quantized, with_kv_type
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
    source = quantized(source.for_context(config.max_model_len), config.quantization)
    return with_kv_type(source, config.kv_quantization)


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


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """What drafts, before it is loaded.

    source:      its description.
    common_size: how many leading ids a draft model shares with the target.
    head:        what it is beyond its weights, if it is a head on the target.
    """

    source: ModelSource
    common_size: int
    head: Eagle3Head | None = None


def open_draft(
    choice: SpeculativeConfig,
    target: ModelSource,
    tokenizer: Tokenizer,
    progress: bool,
    *,
    quantizes: bool,
    heads: bool = True,
) -> OpenedDraft | None:
    """The draft of a choice, a model or a head; None without one.
    quantizes: whether the engine can quantize it. heads: whether it runs heads. Raises ModelError, and
    ConfigError for what the engine cannot and should do, and for a draft that is not of the method's kind."""
    if not isinstance(choice, WithDraft) or choice.model is None:
        return None
    path = fetch(choice.model, choice.revision, progress)
    if (head := open_head(path)) is not None:
        if not heads:
            raise UnsupportedModelError(f"{path}: is an EAGLE-3 head, which this engine does not run")
        return _open_head(choice, head, target, tokenizer, quantizes)
    if isinstance(choice, Eagle3Config):
        raise ConfigError(f"{path}: is no EAGLE-3 head; the method 'draft_model' is for draft models")
    source = held_as(target, open_model(path).for_context(target.architecture.max_positions))
    if quantizes:
        source = quantized(source, for_draft(choice.quantization, source, target))
    else:
        _not_quantized(choice)
    match = ensure_compatible(tokenizer, source.tokenizer)
    return OpenedDraft(source, match.common_size)


def _open_head(
    choice: WithDraft, head: Eagle3Head, target: ModelSource, tokenizer: Tokenizer, quantizes: bool
) -> OpenedDraft:
    if target.transformers_class is not None:
        raise UnsupportedModelError(
            f"{head.source.path}: is an EAGLE-3 head, which needs its target's hidden states; of models that "
            f"only transformers has ({target.transformers_class}) there are none"
        )
    if head.tokenizer is not None:
        ensure_compatible(tokenizer, head.tokenizer)
    if not quantizes:
        _not_quantized(choice)
    head = head_on(head, target, choice.quantization if quantizes else None)
    return OpenedDraft(head.source, target.architecture.vocab_size, head)


def _not_quantized(choice: WithDraft) -> None:
    if choice.quantization not in (None, "auto"):
        raise ConfigError(f"the draft's quantization {choice.quantization!r} is of the native engine only")


def head_on(head: Eagle3Head, target: ModelSource, quantization: str | None = "auto") -> Eagle3Head:
    """A head with what it takes of its target, as it is loaded. Its weights are so few that `auto` is always
    4 bits. Raises UnsupportedModelError for a head of another target."""
    head = head.for_target(target)
    source = held_as(target, head.source.for_context(target.architecture.max_positions))
    return replace(head, source=quantized(source, "q4" if quantization == "auto" else quantization))


def distinct(drafts: Mapping[SpeculativeConfig, OpenedDraft]) -> list[OpenedDraft]:
    """The drafts, each once."""
    return list({weights_key(draft.source): draft for draft in drafts.values()}.values())


def weights_key(source: ModelSource) -> tuple[Path, str | None]:
    """Models with the same key have the same loaded weights."""
    return source.path, source.quantization
