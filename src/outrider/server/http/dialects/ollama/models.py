"""The model as Ollama's API describes it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from outrider.server.http.service import Service

API_VERSION = "0.12.6"  # the release of Ollama whose API this follows; clients compare it
_NEVER = "2200-01-01T00:00:00Z"  # when the model is unloaded


def described(service: Service, name: str) -> dict[str, Any]:
    """An entry of /api/tags."""
    source = service.pipeline.source
    return {
        "name": name,
        "model": name,
        "modified_at": _since(service),
        "size": source.weights_bytes,
        "digest": hashlib.sha256(service.model.fingerprint.encode()).hexdigest(),
        "details": details(service),
    }


def loaded(service: Service, name: str) -> dict[str, Any]:
    """An entry of /api/ps."""
    entry = described(service, name)
    entry.pop("modified_at")
    return {**entry, "expires_at": _NEVER, "size_vram": 0, "context_length": service.engine.context}


def details(service: Service) -> dict[str, Any]:
    """`details` of a model."""
    source = service.pipeline.source
    family = source.architecture.name
    return {
        "parent_model": "",
        "format": source.format,
        "family": family,
        "families": [family],
        "parameter_size": _readable(_parameters(service)),
        "quantization_level": _quantization(service),
    }


def shown(service: Service) -> dict[str, Any]:
    """The document of /api/show."""
    source, spec = service.pipeline.source, service.pipeline.source.architecture
    family = spec.name
    return {
        "modelfile": f"FROM {source.display_name}\n",
        "parameters": "",
        "template": service.templates.source or "",
        "modified_at": _since(service),
        "details": details(service),
        "model_info": {
            "general.architecture": family,
            "general.name": source.display_name,
            "general.parameter_count": _parameters(service),
            f"{family}.context_length": service.engine.context,
            f"{family}.block_count": spec.n_layers,
            f"{family}.embedding_length": spec.hidden_size,
            f"{family}.feed_forward_length": spec.ffn_size,
            f"{family}.attention.head_count": spec.n_heads,
            f"{family}.attention.head_count_kv": spec.n_kv_heads,
            f"{family}.vocab_size": spec.vocab_size,
        },
        "capabilities": capabilities(service),
    }


def capabilities(service: Service) -> list[str]:
    """What the model can do. (A template that knows no tools has them described in words.)"""
    source = service.templates.source
    return [
        "completion",
        *(["tools"] if source else []),
        *(["insert"] if service.fills_in else []),
        *(["thinking"] if service.templates.reasoning_format() else []),
    ]


def _since(service: Service) -> str:
    return datetime.fromtimestamp(service.model.created, UTC).isoformat().replace("+00:00", "Z")


def _parameters(service: Service) -> int:
    return sum(math.prod(tensor.shape) for tensor in service.pipeline.source.tensors.values())


def _readable(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def _quantization(service: Service) -> str:
    """The type that most of the weights' bytes have."""
    source = service.pipeline.source
    if source.quantization is not None:
        return source.quantization.upper()
    sizes: Counter[str] = Counter()
    for tensor in source.tensors.values():
        sizes[tensor.type] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else "unknown"
