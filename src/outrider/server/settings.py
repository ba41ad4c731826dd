"""What a server is told at its start, apart from its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError

STATIC = Path(__file__).with_name("static")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names, keys and limits.

    served_names:      names of the model, the first is told; () for the model's own.
    api_keys:          any of them opens the API; () asks for none.
    max_body_bytes:    of a request.
    body_seconds:      for a request's body to arrive; head_seconds for its head.
    prepare_seconds:   for rendering, tokenizing and compiling a grammar, before a request is given up.
    stall_seconds:     that a client may leave what was sent to it unread.
    max_samples:       of one request, all prompts together.
    max_logprobs:      likeliest tokens that may be asked for at each position; -1 for all.
    chat_template:     source that takes the place of the model's own.
    tool_call_parser:  "hermes" or "llama3_json"; None goes by the chat template.
    trust_request_chat_template: let a request bring its own template (it runs in the sandbox).
    allowed_hosts:     values of the Host header; () for all, None for those of this machine alone when there
                       are no keys and `host` is a loopback address (a page elsewhere cannot then reach the
                       server through a name of its own).
    allowed_origins, allowed_methods, allowed_headers, allow_credentials: of CORS; no origins, no CORS.
    static:            folder of the web page, shown at / if it has an index.html.
    """

    served_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    host: str = LOOPBACK[0]
    max_body_bytes: int = 4 << 20
    head_seconds: float = 15.0
    body_seconds: float = 30.0
    prepare_seconds: float = 30.0
    stall_seconds: float = 30.0
    max_samples: int = 128
    max_logprobs: int = 20
    chat_template: str | None = None
    tool_call_parser: str | None = None
    trust_request_chat_template: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    root_path: str = ""
    static: Path = STATIC

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError("an API key must be printable ASCII without blanks around it")
        for name in ("max_body_bytes", "max_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("head_seconds", "body_seconds", "prepare_seconds", "stall_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0, not {getattr(self, name)}")

    def hosts(self) -> Sequence[str]:
        """The values of the Host header that are answered, without port; () for all."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return () if self.api_keys or self.host not in LOOPBACK else LOOPBACK
