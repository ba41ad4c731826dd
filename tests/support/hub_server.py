"""A fake model hub on the loopback interface, for the requests that `huggingface_hub` makes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import constants

COMMIT = "c0ffee" * 6 + "1234"
LARGE = (".gguf", ".safetensors", ".bin")  # files with a SHA-256 in a hub's listing

_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<call>revision|tree)/(?P<revision>[^/]+)")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


@dataclass
class Hub:
    """The files of the server, and how it misbehaves; tests change this while it runs.

    repos:  files by repository.                     token: if set, requests must carry it.
    tags:   of a repository in the listing of its owner; ["gguf"] unless it is here.
    refuse: (status, headers) for every request to a repository.
    sends:  per file, what successive GETs do: a number of bytes after which the connection is cut, or
            an HTTP status (negative). Afterwards GETs are answered in full.
    swap:   per file, the bytes that are really sent (of equal length), whatever is listed.
    ranges: answer range requests with an end; else send the whole file.
    sent:   bytes of bodies of GETs.
    plain:  list neither sizes nor hashes, as a simple mirror does.
    asked:  (method, path, Range or "") of each request.
    """

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    token: str = ""
    refuse: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    sends: dict[str, list[int]] = field(default_factory=dict)
    swap: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    sent: int = 0
    plain: bool = False
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def gets(self, name: str) -> list[str]:
        """The Range of each GET of a file, in order."""
        return [span for method, path, span in self.asked if method == "GET" and path.endswith(f"/{name}")]


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make the library ask this hub, without a token, directly."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Run the hub on a free port of 127.0.0.1."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/api/models":
                self.listing(parse_qs(url.query).get("author", [""])[0])
            else:
                self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            match = _API.fullmatch(path) or _FILE.fullmatch(path)
            repo = match["repo"] if match else ""
            if repo in hub.refuse:
                status, headers = hub.refuse[repo]
                return self.reply(status, b"", headers)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self.reply(
                    401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"}
                )
            if match is None or repo not in hub.repos:
                return self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
            if match["revision"] not in ("main", COMMIT):
                return self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
            if match.re is _FILE:
                return self.file(repo, match["name"])
            body = self.info(repo) if match["call"] == "revision" else self.tree(repo)
            return self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def listing(self, author: str) -> None:
            found = [
                {"id": repo, "tags": hub.tags.get(repo, ["gguf"]), "pipeline_tag": "text-generation"}
                for repo in hub.repos
                if repo.startswith(f"{author}/")
            ]
            return self.reply(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

        def info(self, repo: str) -> object:
            files = []
            for name, data in hub.repos[repo].items():
                entry: dict[str, object] = {"rfilename": name}
                if not hub.plain:
                    entry |= {"size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
                    if name.endswith(LARGE):
                        sha256 = hashlib.sha256(data).hexdigest()
                        entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
                files.append(entry)
            return {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": files, "tags": []}

        def tree(self, repo: str) -> object:
            return [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.repos[repo].items()
            ]

        def file(self, repo: str, name: str) -> None:
            data = hub.repos[repo].get(name)
            if data is None:
                return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            hasher = hashlib.sha256 if name.endswith(LARGE) else hashlib.sha1
            headers = {"ETag": f'"{hasher(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            data = hub.swap.get(name, data)
            status = 200
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if span and (hub.ranges or not span[2]):
                start, size = int(span[1]), len(data)
                data = data[start : int(span[2]) + 1 if span[2] else size]
                headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{size}"
                status = 206
            order = hub.sends[name].pop(0) if self.command == "GET" and hub.sends.get(name) else len(data)
            if order < 0:
                return self.reply(-order, b"", {})
            return self.reply(status, data, headers, send=order)

        def reply(
            self, status: int, body: bytes, headers: dict[str, str], *, send: int | None = None
        ) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:send])
                hub.sent += len(body[:send])
                if send is not None and send < len(body):
                    self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False  # the library keeps its connections open
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
