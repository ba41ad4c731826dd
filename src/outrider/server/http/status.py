"""/v1/outrider/status: the engine's configuration and counts, for operators and for the web page."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from outrider.server.http.service import Service
from outrider.version import __version__


def status(service: Service) -> dict[str, Any]:
    """The document. Every field of EngineStats is in `engine` under its own name."""
    pipeline, stats = service.pipeline, service.engine.stats
    return {
        "version": __version__,
        "model": {
            "names": list(service.model.names),
            "target": pipeline.models["target"],
            "draft": pipeline.models["draft"],
            "max_model_len": service.engine.context,
            "has_chat_template": bool(service.templates.source),
            "system_fingerprint": service.model.fingerprint,
        },
        "sampling_defaults": {
            "values": _plain(dict(pipeline.sampling.values)),
            "origin": pipeline.sampling.origin,
        },
        "speculation": {
            "method": pipeline.speculative.method,
            "drafters": list(pipeline.drafting.names),
            "config": _plain(dataclasses.asdict(pipeline.speculative)),
        },
        "engine": {"healthy": service.engine.healthy, **_plain(dataclasses.asdict(stats))},
    }


def _plain(value: Any) -> Any:
    """A value in JSON's types; NaN and infinities become null."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
