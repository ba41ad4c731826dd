"""Errors in the form of OpenAI's API: a status, and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from outrider.errors import ConfigError, OutriderError, PromptError, nearest

logger = logging.getLogger(__name__)

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An HTTP answer that is an error.

    status:  of HTTP.
    param:   the field of the request that is at fault.
    code:    for programs, such as "context_length_exceeded".
    headers: of the answer.
    figures: of the error, for dialects whose errors have members for them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        figures: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers, self.figures = dict(headers or {}), dict(figures or {})

    def document(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return json_response(self.document(), self.status, self.headers)


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The error (400) for a request that cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def api_error(error: BaseException) -> ApiError:
    """The error that a client gets for an exception. An unexpected one is logged, and its text is not
    sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError | PromptError):
        return bad(str(error))
    if isinstance(error, OutriderError):
        logger.error("a request failed: %s", error)
        return ApiError(500, str(error), code="engine_error")
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server made a mistake; its log says more", code="internal_error")


def json_bytes(document: object) -> bytes:
    """UTF-8 JSON; an unpaired surrogate, which a client can write as an escape, becomes "?"."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(document), status, dict(headers or {}), "application/json")


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The error for a body that pydantic refuses, in one line. Of several errors, as a union of types gives,
    one with words of ours, or else the one at the deepest location."""
    first: Mapping[str, Any] = max(
        errors,
        key=lambda e: (e.get("type") == "field", len(e["loc"])),
        default={"msg": "it is not valid", "loc": ()},
    )
    place = [str(p) for p in first["loc"] if p not in ("body", "query", "path") and not _is_label(p)]
    message, kind, context = str(first["msg"]), first.get("type"), first.get("ctx") or {}
    if kind == "json_invalid":
        return bad(f"the body is not JSON: {context.get('error', message)}")
    if kind == "field":  # raised by protocol.py
        return bad(message, ".".join([*place, context["field"]]))
    if not place and kind in ("missing", "model_attributes_type", "model_type", "dict_type"):
        return bad("the body must be a JSON object")
    param = ".".join(place) or None
    return bad(f"{param}: {message}", param)


def unreadable(cause: BaseException | None) -> str:
    """What is wrong with a body that the JSON reader gave up on; "" for other causes."""
    if isinstance(cause, UnicodeDecodeError):
        return "the body is not JSON: its text is not UTF-8"
    if isinstance(cause, RecursionError):
        return "the body is nested too deeply"
    return "the body holds a number with too many digits" if isinstance(cause, ValueError) else ""


def elsewhere(path: str, routes: Iterable[object]) -> str:
    """For a path at which there is nothing: where a known one is that differs by a letter or two, or that it
    ends with, or that is near. "" for none."""
    cut = path[:200].rstrip("/")
    routes = [route for route in routes if getattr(route, "include_in_schema", False)]  # not the page's files
    paths: list[str] = [getattr(route, "path", "{") for route in routes]
    known = [other for other in paths if "{" not in other and other != cut]
    if found := difflib.get_close_matches(cut, known, n=1, cutoff=0.95):
        return f" (did you mean {found[0]!r}?)"
    for other in sorted(known, key=len, reverse=True):
        ending = other.removeprefix("/v1")
        if len(ending) > 1 and cut.endswith(ending):
            return f" (did you mean {other!r}?)"
    return nearest(cut, known)


def _is_label(part: object) -> bool:
    """Whether a part of pydantic's location names a member of a union, not a field or an index."""
    if not isinstance(part, str):
        return False
    named = part in ("str", "int", "float", "bool") or part.startswith("constrained-")
    return named or "[" in part or part[:1].isupper()
