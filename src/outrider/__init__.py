"""Outrider: lossless speculative decoding for large language models.

    from outrider import LLM, SamplingParams

    llm = LLM(model="target.gguf", speculative_model="draft.gguf", num_speculative_tokens=5)
    print(llm.generate("Hello", SamplingParams(temperature=0.7, max_tokens=64))[0].outputs[0].text)

Public are the names in `__all__`, the command line, the HTTP interface and the JSON documents of the
commands. All modules of the package are private by convention: `outrider.decoding`, `outrider.policy`,
`outrider.drafters`, `outrider.engines`, `outrider.models`, `outrider.server` and all others may change in any
release. The protocols that extensions implement are in `decoding.verifiers.base`, `drafters.base` and
`engines.base`; docs/architecture.md says how to add an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.errors import (
    ConfigError,
    DownloadError,
    InsufficientMemoryError,
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    OutriderError,
    PromptError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from outrider.version import __version__

if TYPE_CHECKING:
    from outrider.async_llm import AsyncLLM, AsyncLLMEngine
    from outrider.config.speculative import SpeculativeConfig
    from outrider.decoding.sampling.params import RequestOutputKind, SamplingParams
    from outrider.decoding.sampling.structured import GuidedDecodingParams, StructuredOutputsParams
    from outrider.engine_args import AsyncEngineArgs, EngineArgs
    from outrider.llm import LLM
    from outrider.outputs import CompletionOutput, Logprob, RequestOutput
    from outrider.prompts import TextPrompt, TokensPrompt

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CompletionOutput",
    "ConfigError",
    "DownloadError",
    "EngineArgs",
    "GuidedDecodingParams",
    "InsufficientMemoryError",
    "Logprob",
    "ModelError",
    "ModelFileError",
    "ModelNotFoundError",
    "OutriderError",
    "PromptError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "UnsupportedModelError",
    "VocabularyMismatchError",
    "__version__",
]

_LAZY = {  # imported when first asked for, so that `outrider --version` is instant
    "LLM": "outrider.llm",
    "AsyncLLM": "outrider.async_llm",
    "AsyncLLMEngine": "outrider.async_llm",
    "EngineArgs": "outrider.engine_args",
    "AsyncEngineArgs": "outrider.engine_args",
    "RequestOutputKind": "outrider.decoding.sampling.params",
    "TextPrompt": "outrider.prompts",
    "TokensPrompt": "outrider.prompts",
    "SamplingParams": "outrider.decoding.sampling.params",
    "SpeculativeConfig": "outrider.config.speculative",
    "CompletionOutput": "outrider.outputs",
    "RequestOutput": "outrider.outputs",
    "Logprob": "outrider.outputs",
    "StructuredOutputsParams": "outrider.decoding.sampling.structured",
    "GuidedDecodingParams": "outrider.decoding.sampling.structured",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
