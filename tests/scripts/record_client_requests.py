"""Records what a client sends to a server, for tests/server/test_client_docs.py.

Run in any environment with Python alone, beside a server, then let the client talk to port 8001 in its place:

    python tests/scripts/record_client_requests.py http://127.0.0.1:8000 8001 tests/data/clients/NAME.json

It passes requests on and notes method, path and JSON body of each; Ctrl-C ends it. Read the file before it is
kept: bodies contain what the client knows of its user and machine.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PASSED_ON = ("content-type", "authorization", "accept")


class Recorder(BaseHTTPRequestHandler):
    """Passes requests on to `server`, and adds them to `requests`."""

    server_url: str
    place: Path
    requests: list[dict[str, Any]]

    def handle_request(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(size) if size else None
        body = None if raw is None else json.loads(raw)
        self.requests.append({"method": self.command, "path": self.path, "body": body})
        note = {"client": self.headers.get("User-Agent", ""), "requests": self.requests}
        self.place.write_text(json.dumps(note, indent=1, ensure_ascii=False) + "\n", "utf-8")
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        asked = urllib.request.Request(
            self.server_url + self.path, data=raw, headers=headers, method=self.command
        )
        try:
            answer = urllib.request.urlopen(asked)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
        self.close_connection = True

    do_GET = do_POST = do_HEAD = handle_request  # noqa: N815


def main(server_url: str, port: str, place: str) -> None:
    Recorder.server_url, Recorder.place, Recorder.requests = server_url.rstrip("/"), Path(place), []
    with ThreadingHTTPServer(("127.0.0.1", int(port)), Recorder) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
