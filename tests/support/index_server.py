"""A package index on the loopback interface with tiny wheels, so that downloads run the real pip."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def make_wheel(name: str, version: str, members: Mapping[str, bytes]) -> tuple[str, bytes]:
    """(file name, bytes) of a pure wheel with these members; compressed."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    parts = dict(members)
    parts[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    parts[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},,\n" for path in parts) + f"{info}/RECORD,,\n"
    parts[f"{info}/RECORD"] = record.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in parts.items():
            archive.writestr(path, data)
    return f"{stem}-py3-none-any.whl", buffer.getvalue()


@dataclass
class Index:
    """The wheels of the server, and how it misbehaves; tests change this while it runs.

    cut:   file names of wheels whose transfer is cut off half way.
    lie:   file names of wheels whose listed hash is wrong.
    asked: file names of wheels in the order of their requests.
    """

    url: str = ""
    wheels: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    lie: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def add(self, name: str, version: str, members: Mapping[str, bytes]) -> str:
        """Offer a wheel; returns its file name."""
        file_name, data = make_wheel(name, version, members)
        self.wheels[file_name] = data
        return file_name

    def page(self, project: str) -> str:
        """The simple API's page of one project (PEP 503), or an empty text when there is none."""
        links = []
        for name, data in self.wheels.items():
            if name.split("-")[0].replace("_", "-") == project:
                digest = "0" * 64 if name in self.lie else hashlib.sha256(data).hexdigest()
                links.append(f'<a href="/files/{name}#sha256={digest}">{name}</a>')
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>" if links else ""


@contextmanager
def serve_index() -> Iterator[Index]:
    """Run the index on a free port of 127.0.0.1."""
    index = Index()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            kind, _, rest = self.path.lstrip("/").partition("/")
            if kind == "files" and rest in index.wheels:
                index.asked.append(rest)
                self.send(index.wheels[rest], "application/zip", cut=rest in index.cut)
            elif kind == "simple" and (page := index.page(rest.strip("/"))):
                self.send(page.encode(), "text/html")
            else:
                self.send_error(404)

        def send(self, data: bytes, kind: str, *, cut: bool = False) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make pip, in child processes, use this index and no other."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    settings = {"INDEX_URL": url, "CONFIG_FILE": os.devnull, "RETRIES": "1", "TIMEOUT": "5"}
    for name, value in (settings | {"RESUME_RETRIES": "0"}).items():
        monkeypatch.setenv(f"PIP_{name}", value)
