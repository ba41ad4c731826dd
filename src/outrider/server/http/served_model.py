"""The model as the API names it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from outrider.pipeline import Pipeline
from outrider.server.http.errors import ApiError
from outrider.version import __version__


class ServedModel:
    """Names and fingerprint of the model that is served.

    names:       the names of /v1/models, at least one; answers use the first unless a request gives another.
    created:     when the server started, in Unix seconds.
    fingerprint: `system_fingerprint`; differs when the text for a seed may differ.
    """

    def __init__(self, pipeline: Pipeline, names: tuple[str, ...]) -> None:
        self.names = names or (_short_name(pipeline),)
        self.created = int(time.time())
        self.fingerprint = _fingerprint(pipeline)
        self._accepted = {*self.names, pipeline.config.model}  # vLLM's clients send the server's -m argument

    def check_name(self, name: str | None) -> str:
        """The name that the answer gives: `name`, or the first name for None. Raises ApiError (404) for a
        model that is not served."""
        if name is None or name in self._accepted:
            return name or self.names[0]
        raise ApiError(
            404,
            f"the model {name[:200]!r} is not served here; there is {', '.join(map(repr, self.names))}",
            param="model",
            code="model_not_found",
        )


def _short_name(pipeline: Pipeline) -> str:
    """The model as the user named it; of a path, the file's name without `.gguf`."""
    given = pipeline.config.model
    return Path(given).name.removesuffix(".gguf") or given if Path(given).exists() else given


def _fingerprint(pipeline: Pipeline) -> str:
    """A digest of what the text for a seed depends on."""
    rule = getattr(pipeline.speculative, "verification", "coupled")
    parts = [__version__, pipeline.source.display_name, str(pipeline.source.weights_bytes), rule]
    if rule != "coupled":  # the other rules keep the distribution, but the text depends on the drafts
        parts.append(repr(pipeline.speculative))
    if pipeline.sampling.values:  # of requests that do not say how to sample
        parts.append(repr(sorted(pipeline.sampling.values.items())))
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
