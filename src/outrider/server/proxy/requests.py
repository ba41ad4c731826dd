"""What the server in front reads of a request: where it may go, and how it samples."""

from __future__ import annotations

import json
from typing import Any

from outrider.server.http.errors import ApiError

# Clients whose base address lacks /v1 find the same endpoints.
_ALIASES = {
    path.removeprefix("/v1"): path
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses", "/v1/messages")
}
_GENERATES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_MEASURED = ("/v1/chat/completions", "/v1/completions")
_OPEN_PATHS = ("/tokenize", "/detokenize", "/tokenizer_info")
_CLOSED_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/outrider")
GREEDY_BELOW = 1e-5  # of a temperature, as vLLM has it
MOST_MEASURED = 256  # tokens of each text of a pair


def target_path(path: str) -> str:
    """The path at the server behind. Raises ApiError (404) for what is not handed on."""
    path = _ALIASES.get(path, path)
    closed = any(path == each or path.startswith(f"{each}/") for each in _CLOSED_PATHS)
    if closed or not (path.startswith("/v1/") or path in _OPEN_PATHS):
        raise ApiError(404, f"there is nothing at {path[:200]}")
    return path


def generates(path: str) -> bool:
    return path in _GENERATES


def read_body(body: bytes) -> dict[str, Any] | None:
    """The JSON object of a body; None for anything else, which the server behind refuses."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def samples(fields: dict[str, Any]) -> bool:
    """Whether a request draws at a temperature above 0. One that does not say is taken to: the default of the
    API is 1."""
    temperature = fields.get("temperature")
    if not isinstance(temperature, int | float) or isinstance(temperature, bool):
        return True
    return not temperature < GREEDY_BELOW


def measured_copy(path: str, fields: dict[str, Any]) -> dict[str, Any] | None:
    """A request as it is asked for a pair: streamed, with the usage, and not too long. None for requests
    whose speed for each token cannot be seen so."""
    if path not in _MEASURED or fields.get("n") not in (None, 1) or fields.get("best_of") not in (None, 1):
        return None
    if isinstance(fields.get("prompt"), list) and any(isinstance(p, str | list) for p in fields["prompt"]):
        return None
    copy = {key: value for key, value in fields.items() if key not in ("max_completion_tokens", "user")}
    asked = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if not isinstance(asked, int | None) or isinstance(asked, bool):
        return None
    copy["max_tokens"] = min(asked or MOST_MEASURED, MOST_MEASURED)
    return copy | {"stream": True, "stream_options": {"include_usage": True}}
