"""Runs the application in uvicorn: sockets, connection timeouts, signals and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.errors import ConfigError
from outrider.server.http.errors import bad, json_bytes
from outrider.server.settings import Settings

logger = logging.getLogger(__name__)

FORCE_SECONDS = 2.0  # from the second signal until the process exits in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Address, logs, certificates and timeouts of a listening server.

    port:               0 for a free one.
    keep_alive_seconds: until an idle connection is closed.
    shutdown_seconds:   for running requests to end after the first signal.
    set_up_logs:        send the logs of the whole process to stderr.
    ssl_cert_reqs:      a constant of the module `ssl`, for clients' certificates.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    log_level: str = "info"
    access_log: bool = True
    keep_alive_seconds: int = 5
    shutdown_seconds: float = 30.0
    set_up_logs: bool = True
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = ssl.CERT_NONE


class Served(Protocol):
    """What is behind a server: it starts before it and ends with it."""

    def start(self) -> None: ...

    async def drain(self, seconds: float) -> None:
        """Take no more requests, and let the others run for so long; cancelling it aborts them at once."""

    def stop(self) -> None:
        """Abort all requests and end."""


class Server(uvicorn.Server):
    """uvicorn's server with an engine. The first signal lets running requests end, the second aborts them.

    Raises ConfigError when a certificate or a key cannot be used.
    """

    def __init__(self, app: Starlette, engine: Served, settings: Settings, at: Listening) -> None:
        _check_certificates(at)
        self._engine, self._at = engine, at
        self._drain: asyncio.Task[None] | None = None
        self._at_once = False
        self.on_ready: Callable[[str], object] = lambda _: None  # called with http://HOST:PORT
        config = uvicorn.Config(
            app,
            host=at.host,
            port=at.port,
            http=connection(settings),
            ws="none",
            root_path=settings.root_path,
            loop="asyncio",
            lifespan="on",
            log_level=at.log_level,
            log_config=_logs() if at.set_up_logs else None,
            access_log=at.access_log,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=at.keep_alive_seconds,
            timeout_graceful_shutdown=int(at.shutdown_seconds) + 5,
            ssl_keyfile=at.ssl_keyfile,
            ssl_certfile=at.ssl_certfile,
            ssl_ca_certs=at.ssl_ca_certs,
            ssl_cert_reqs=at.ssl_cert_reqs,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the server cannot start: {error}") from None
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal. sockets: see `bind`; None binds one."""
        sockets = sockets or [bind(self._at.host, self._at.port)]
        self._engine.start()
        try:
            super().run(sockets)
        finally:
            self._engine.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        kind = "https" if self.config.ssl else "http"
        for place in sockets or ():
            host, port, *_ = place.getsockname()
            shown = f"[{host}]" if ":" in host else host
            logger.info("listening on %s://%s:%d", kind, shown, port)
        if sockets and not self.should_exit:
            self.on_ready(f"{kind}://{reachable(sockets[0])}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, let the running ones end within the time, then abort them."""
        seconds = 0.0 if self._at_once else self._at.shutdown_seconds
        self._drain = asyncio.ensure_future(self._engine.drain(seconds))
        await super().shutdown(sockets)
        with contextlib.suppress(asyncio.CancelledError):
            await self._drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the shutdown; the second aborts all requests, which get an error as answer.
        (uvicorn alone would close the connections without one, and log a traceback for each.)"""
        if not self.should_exit:
            self.should_exit = True
            return
        self._at_once = True
        if self._drain is not None:
            self._drain.get_loop().call_soon_threadsafe(self._drain.cancel)
        timer = threading.Timer(FORCE_SECONDS, os._exit, (128 + sig,))
        timer.daemon = True
        timer.start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but without raising the handled signal again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _check_certificates(at: Listening) -> None:
    """Raise ConfigError for files that cannot be read, and for settings of https that lack others."""
    files = {
        "--ssl-certfile": at.ssl_certfile,
        "--ssl-keyfile": at.ssl_keyfile,
        "--ssl-ca-certs": at.ssl_ca_certs,
    }
    for flag, name in files.items():
        if name is None:
            continue
        if at.ssl_certfile is None:
            raise ConfigError(f"{flag} needs --ssl-certfile")
        try:
            Path(name).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{flag}: {name!r} cannot be read: {reason}") from None
    if at.ssl_cert_reqs != ssl.CERT_NONE and at.ssl_ca_certs is None:
        raise ConfigError("--ssl-cert-reqs needs --ssl-ca-certs, whose clients are let in")


def reachable(place: socket.socket) -> str:
    """HOST:PORT under which this machine reaches a socket that listens."""
    host, port, *_ = place.getsockname()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # on Windows it would let two servers share a port
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another --host or --port"
        ) from None
    return made


def connection(settings: Settings) -> type[H11Protocol]:
    """uvicorn's HTTP connection, closed when a request's head is late or sent data stays unread."""

    class Connection(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _stall_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._cancel_head_timer()
            elif self._head_timer is None:  # the first bytes of a head
                self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_head_timer()
            self._cancel_stall_timer()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cancel_stall_timer()
            self._stall_timer = self.loop.call_later(settings.stall_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            self._cancel_stall_timer()
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            """As uvicorn's, with a body in the form of the API's errors."""
            body = json_bytes(bad(msg, code="invalid_http").document())
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            answer: list[Any] = [h11.Response(status_code=400, headers=headers), h11.Data(data=body)]
            for part in (*answer, h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
            self.transport.close()

        def _expect_head(self) -> None:
            self._head_timer = self.loop.call_later(settings.head_seconds, self._head_late)

        def _head_late(self) -> None:
            self._head_timer = None
            if self.conn.their_state is h11.IDLE:
                self.transport.abort()

        def _cancel_head_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _cancel_stall_timer(self) -> None:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
                self._stall_timer = None

    return Connection


def _logs() -> dict[str, Any]:
    """The logging configuration: uvicorn's and Outrider's logs on stderr."""
    config: dict[str, Any] = {
        **uvicorn.config.LOGGING_CONFIG,
        "handlers": {
            name: {**handler, "stream": "ext://sys.stderr"}
            for name, handler in uvicorn.config.LOGGING_CONFIG["handlers"].items()
        },
    }
    config["loggers"] = {
        **config["loggers"],
        "outrider": {"handlers": ["default"], "level": "INFO", "propagate": False},
    }
    return config
