"""Runs the application: connections, signals, an orderly end."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.errors import ConfigError
from outrider.server.engine.async_engine import ServerEngine
from outrider.server.http.errors import bad, json_bytes
from outrider.server.settings import Settings

logger = logging.getLogger(__name__)

FORCE_SECONDS = 2.0  # that an end at once may take; then the process is ended whatever it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where and how to listen.

    shutdown_seconds: for requests under way to end, after the first signal.
    set_up_logs: send the logs of the whole process to stderr.
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


class Server(uvicorn.Server):
    """uvicorn's server, with an engine: the first signal lets requests end, the second ends them.

    Raises ConfigError when a certificate or a key cannot be used.
    """

    def __init__(self, app: FastAPI, engine: ServerEngine, settings: Settings, at: Listening) -> None:
        self._engine, self._at = engine, at
        self._drain: asyncio.Task[None] | None = None
        self._at_once = False
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
        """Serve until told to stop. sockets: see `bind`."""
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, let what runs end within the time, then end it."""
        seconds = 0.0 if self._at_once else self._at.shutdown_seconds
        self._drain = asyncio.ensure_future(self._engine.drain(seconds))
        await super().shutdown(sockets)
        with contextlib.suppress(asyncio.CancelledError):
            await self._drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops in order; a second one tells those who still wait that it ends now. (uvicorn
        would leave them without an answer, and the log with a traceback for each.)"""
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
        """As uvicorn's, but a signal that was handled does not end the process again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket to listen on; port 0 takes a free one. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # there it would let two servers share a port
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
    """uvicorn's connection, closed when a request's head does not come or what was sent is not read."""

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None  # for a head
        _stall: asyncio.TimerHandle | None = None  # for the client to read

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._cancel()
            elif self._timer is None:  # the start of a head
                self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self._cancel_stall()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cancel_stall()
            self._stall = self.loop.call_later(settings.stall_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            self._cancel_stall()
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            """As uvicorn's, in the form of the other errors."""
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
            self._timer = self.loop.call_later(settings.head_seconds, self._late)

        def _late(self) -> None:
            self._timer = None
            if self.conn.their_state is h11.IDLE:
                self.transport.abort()

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _cancel_stall(self) -> None:
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None

    return Connection


def _logs() -> dict[str, Any]:
    """uvicorn's logging, all of it and ours on stderr."""
    made: dict[str, Any] = {
        **uvicorn.config.LOGGING_CONFIG,
        "handlers": {
            name: {**handler, "stream": "ext://sys.stderr"}
            for name, handler in uvicorn.config.LOGGING_CONFIG["handlers"].items()
        },
    }
    made["loggers"] = {
        **made["loggers"],
        "outrider": {"handlers": ["default"], "level": "INFO", "propagate": False},
    }
    return made
