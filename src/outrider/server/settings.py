"""The settings of a server, apart from its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

STATIC = Path(__file__).with_name("static")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names, keys and limits.

    served_names:      names of the model; answers give the first one. () derives one from the model.
    api_keys:          clients must send one of them; () for an open API.
    host:              the address that the server listens on, see `hosts`.
    max_body_bytes:    of a request.
    head_seconds, body_seconds: in which the head and the body of a request must arrive.
    prepare_seconds:   in which a request must be rendered, tokenized and its grammar compiled.
    stall_seconds:     for which a client may leave sent data unread.
    max_samples:       of one request, all prompts together.
    max_logprobs:      most `top_logprobs` of a token; -1 for no limit.
    max_stored_responses, max_stored_bytes, stored_seconds: of responses that /v1/responses keeps in memory:
                       how many, of how many bytes together, and for how long. 0 responses keep none.
    chat_template:     source of a template to use in place of the model's.
    tool_call_parser:  a name of models/text/tool_families.py's TOOL_PARSERS; None and "auto" choose by the
                       chat template.
    reasoning_parser:  a name of models/text/reasoning.py's PARSERS, or "none"; None and "auto" choose by the
                       chat template and the vocabulary.
    trust_request_chat_template: allow chat templates in requests (they are rendered in the sandbox).
    allowed_hosts:     accepted values of the Host header; () for all. None accepts only loopback names when
                       there are no keys and `host` is one of them: a defence against DNS rebinding.
    allowed_origins, allowed_methods, allowed_headers, allow_credentials: of CORS; without origins it is off.
                       The origin "localhost" stands for all pages on this machine.
    template_variables: of the chat template, where a request does not set them.
    usage_in_streams:  every chunk of a stream has the usage, whatever its request says.
    tokens_as_ids:     write `token_id:N` for texts in log-probabilities, unless a request says otherwise.
    request_ids:       answers have a header X-Request-Id.
    root_path:         prefix under which a proxy publishes the server.
    static:            folder of the web page, served at / if it has an index.html.

    Raises ConfigError for values out of range.
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
    max_stored_responses: int = 1000
    max_stored_bytes: int = 32 << 20
    stored_seconds: float = 3600.0
    chat_template: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    trust_request_chat_template: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    usage_in_streams: bool = False
    tokens_as_ids: bool = False
    request_ids: bool = False
    root_path: str = ""
    static: Path = STATIC

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError("an API key must be printable ASCII without blanks around it")
        if not all(name.strip() for name in self.served_names):
            raise ConfigError("a served model name must not be empty")
        for name in ("max_body_bytes", "max_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("head_seconds", "body_seconds", "prepare_seconds", "stall_seconds", "stored_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0, not {getattr(self, name)}")

    def hosts(self) -> Sequence[str]:
        """The accepted values of the Host header, without port; () for all."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return () if self.api_keys or self.host not in LOOPBACK else LOOPBACK
