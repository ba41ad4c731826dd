"""API keys, host names, other origins, sizes, and requests that are not of the API."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from outrider.decoding.request import Request
from outrider.errors import ConfigError
from outrider.server.engine.async_engine import Stream
from outrider.server.http.guard import Keys
from outrider.server.settings import Settings
from tests.server.http_support import MODEL, Running, connected, raw_request, running, toy_pipeline

BODY = {"prompt": "a", "max_tokens": 1}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which must be in OpenAI's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in document["error"]["message"]
    found: dict[str, Any] = document["error"]
    return found


def test_keys(target_file: Path) -> None:
    with running(toy_pipeline(target_file), api_keys=("one", "two")) as server:
        for key in ("one", "two"):
            with server.client(api_key=key) as client:
                assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices
        with server.client(api_key="three") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with server.http() as http:
            for headers in (
                {},
                {"Authorization": "Basic one"},
                {"Authorization": "Bearer"},
                {"X-Api-Key": "three"},
                {"X-Api-Key": ""},
                {"Authorization": "Bearer three", "X-Api-Key": "one"},
            ):
                for path in (
                    "/v1/models",
                    "/metrics",
                    "/version",
                    "/load",
                    "/v1/outrider/status",
                    "/nothing",
                ):
                    answer = http.get(path, headers=headers)
                    error = error_of(answer, 401)
                    assert error["code"] == "invalid_api_key"
                    assert answer.headers["www-authenticate"] == "Bearer"
            assert error_of(http.post("/v1/completions", content=b"x"), 401)
            assert http.get("/health").status_code == 200
            assert http.get("/ping").status_code == 200
            assert http.get("/openapi.json").status_code == 401
            answer = http.get("/metrics", headers={"Authorization": "bearer one"})
            assert answer.status_code == 200
            assert error_of(http.get("/metrics", headers={b"Authorization": b"Bearer \xff"}), 401)
            for path in ("/v1/models", f"/v1/models/{MODEL}", "/props", "/api/tags", "/metrics"):
                for headers in ({"x-api-key": "two"}, {"X-Api-Key": "one", "Authorization": "Basic x"}):
                    assert http.get(path, headers=headers).status_code == 200, path


def test_the_holders_of_a_key_share_a_namespace(target_file: Path) -> None:
    keys = Keys(["one", "two"])
    names = {key: keys.namespace(key.encode()) for key in ("one", "two")}
    assert len(set(names.values())) == 2
    assert None not in names.values()
    assert all(key not in str(name) for key, name in names.items())
    assert keys.namespace(b"three") is None
    assert not Keys([])
    seen: list[str | None] = []
    with running(toy_pipeline(target_file), api_keys=("one", "two")) as server:
        submit = server.engine.submit

        def watched(requests: Sequence[Request]) -> Stream:
            seen.extend(request.namespace for request in requests)
            return submit(requests)

        server.engine.submit = watched  # type: ignore[method-assign]
        for key, salt in (("one", None), ("one", "a"), ("one", "b"), ("two", "a"), ("one", "a")):
            head = {"Authorization": f"Bearer {key}"}
            assert server.post("/v1/completions", {**BODY, "cache_salt": salt}, headers=head).is_success
    assert seen[0] == names["one"]
    assert seen[1] == seen[4]
    assert len(set(seen)) == 4


def test_keys_that_cannot_be_sent_are_refused() -> None:
    for key in ("", " a", "\n", "ä"):
        with pytest.raises(ConfigError, match="API key"):
            Settings(api_keys=(key,))


def test_only_this_machines_names_without_keys(server: Running, target_file: Path) -> None:
    port = server.url.rpartition(":")[2]
    with server.http() as http:
        for host in ("127.0.0.1", f"localhost:{port}", "[::1]", f"[::1]:{port}", "LOCALHOST"):
            assert http.get("/v1/models", headers={"Host": host}).status_code == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[evil]"):
            error = error_of(http.get("/v1/models", headers={"Host": host}), 403)
            assert error["code"] == "host_not_allowed"
    with running(toy_pipeline(target_file), allowed_hosts=("proxy.example",)) as other, other.http() as http:
        assert http.get("/v1/models", headers={"Host": "proxy.example:80"}).status_code == 200
        assert http.get("/v1/models").status_code == 403
    assert Settings(host="0.0.0.0").hosts() == ()
    assert Settings(api_keys=("k",)).hosts() == ()


def test_pages_elsewhere_get_nothing_unless_allowed(server: Running, target_file: Path) -> None:
    preflight = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with server.http() as http:
        assert http.options("/v1/completions", headers=preflight).status_code == 405
        assert "access-control-allow-origin" not in http.get("/v1/models", headers=preflight).headers
        # What a page may send without asking first is not JSON.
        answer = http.post(
            "/v1/completions", content=json.dumps(BODY), headers={"content-type": "text/plain"}
        )
        assert "Content-Type: application/json" in error_of(answer, 415)["message"]
        assert error_of(http.post("/v1/completions", content=json.dumps(BODY)), 415)
    settings: dict[str, Any] = {"allowed_origins": ("https://page.example",), "api_keys": ("k",)}
    with running(toy_pipeline(target_file), **settings) as other, other.http() as http:
        allowed = http.options("/v1/completions", headers=preflight)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        answer = http.get("/v1/models", headers=preflight)  # a page must be able to read the error
        assert error_of(answer, 401)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        preflight["Origin"] = "https://other.example"
        assert http.options("/v1/completions", headers=preflight).status_code == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://localhost:8443", 200),
        ("http://127.0.0.1:3000", 200),
        ("http://[::1]:3000", 200),
        ("http://localhost.page.example", 400),
        ("http://notlocalhost", 400),
        ("http://page.example", 400),
        ("http://localhost:3000.page.example", 400),
    ],
)
def test_localhost_stands_for_all_pages_of_this_machine(target_file: Path, origin: str, status: int) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    with (
        running(toy_pipeline(target_file), allowed_origins=("localhost",)) as server,
        server.http() as http,
    ):
        answer = http.options("/v1/completions", headers=asked)
        assert answer.status_code == status
        assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)


def test_compressed_bodies(server: Running) -> None:
    with server.http() as http:
        packed, head = gzip.compress(json.dumps(BODY).encode()), {"content-type": "application/json"}
        for encoding in ("gzip", "deflate", "br, gzip", "GZIP", ""):
            headers = {**head, **({"content-encoding": encoding} if encoding else {})}
            said = error_of(http.post("/v1/completions", content=packed, headers=headers), 415)["message"]
            assert said.startswith(f"the body is compressed ({encoding.lower() or 'gzip'}): send it without")
        plain = http.post("/v1/completions", json=BODY, headers={"content-encoding": "identity"})
        assert plain.status_code == 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a JSON object"),
        (b"{", "not JSON"),
        (b'{"prompt": "a",}', "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"prompt"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deeply"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}", "too many digits"),
        (b'{"prompt": "a", "logit_bias": {"1": ' + b'{"a":' * 500 + b"1" + b"}" * 501 + b"}", "logit_bias"),
        (b'{"prompt": "a", "\\ud800": 1}', "surrogate"),
        (b'{"prompt": "a", "model": "\\ud800"}', "surrogate"),
        (b'{"prompt": "a", "{message}": 1}', "unknown field '{message}'"),
        (b'{"prompt": "a", "stop": ["\\ud800"], "max_tokens": 1}', "surrogate"),
        (b'{"prompt": "a", "cache_salt": "\\ud83d\\ude00", "max_tokens": 1}', None),
        (b'{"prompt": "a", "guided_choice": ["\\ud83d"], "max_tokens": 1}', "surrogate"),
        (b'{"prompt": "a", "guided_regex": "\\uDfff", "max_tokens": 1}', "surrogate"),
        (b'{"prompt": "a", "bad_words": ["\\ud800"], "max_tokens": 1}', "surrogate"),
    ],
)
def test_malformed_bodies(server: Running, content: bytes, message: str | None) -> None:
    with server.http() as http:
        answer = http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        if message is None:
            assert answer.status_code == 200, answer.text
        else:
            found = error_of(answer, 400)
            assert message in found["message"]
            assert len(found["message"]) < 1000
        assert http.get("/health").status_code == 200
    assert server.engine.healthy


def test_other_paths_and_methods(server: Running) -> None:
    with server.http() as http:
        for path in (
            "/v1",
            "/v1/nothing",
            "/docs",
            "/redoc",
            "/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
        ):
            assert error_of(http.get(path), 404)["type"] == "not_found_error"
        for method, path in (("GET", "/v1/completions"), ("DELETE", "/v1/models"), ("PUT", "/tokenize")):
            answer = http.request(method, path)
            assert error_of(answer, 405)["message"] == f"{method} is not possible at {path}"
            assert answer.headers["allow"]
        assert error_of(http.request("QUERY\x21", "/health"), 405)


def test_large_bodies(target_file: Path) -> None:
    with running(toy_pipeline(target_file), max_body_bytes=1000) as server:
        body = {"prompt": "a" * 1000, "max_tokens": 1}
        assert "1000 bytes" in error_of(server.post("/v1/completions", body), 413)["message"]
        assert error_of(server.post("/nothing", body), 413)

        def chunks() -> Any:
            for _ in range(100):
                yield b" " * 100

        with server.http() as http:
            head = {"content-type": "application/json"}
            assert error_of(http.post("/v1/completions", content=chunks(), headers=head), 413)
        assert server.post("/v1/completions", BODY).status_code == 200
        claimed = raw_request("/v1/completions", b"").replace(b"Length: 0", b"Length: 99999999999999999999")
        with connected(server) as bare:
            bare.sendall(claimed)
            assert b"413" in bare.recv(1000)


def test_heads_and_bodies_that_do_not_come(target_file: Path) -> None:
    with running(toy_pipeline(target_file), head_seconds=0.3, body_seconds=0.3) as server:
        for start in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
            with connected(server) as bare:
                bare.sendall(start)
                assert closed(bare)
        with connected(server) as bare:
            whole = raw_request("/v1/completions", json.dumps(BODY).encode())
            bare.sendall(whole[:-3])
            assert b"408" in bare.recv(1000)
        with connected(server) as bare:  # several requests on one connection, with pauses
            for _ in range(2):
                bare.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"200 OK" in bare.recv(1000)
                time.sleep(0.4)
            bare.sendall(b"GET /health HT")
            assert closed(bare)


def closed(bare: socket.socket) -> bool:
    """Whether the other side ends the connection, without an answer."""
    try:
        return not bare.recv(1000)
    except ConnectionResetError:
        return True


def test_what_is_not_http(server: Running) -> None:
    with connected(server) as bare:
        bare.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        whole = b"".join(iter(lambda: bare.recv(2000), b""))
        head, _, body = whole.partition(b"\r\n\r\n")
        assert b"400" in head.splitlines()[0]
        assert json.loads(body)["error"]["code"] == "invalid_http"
    assert server.post("/v1/completions", BODY).status_code == 200


def test_secrets_stay_out_of_errors(target_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An internal error is reported without its details, and logged with them."""
    with running(toy_pipeline(target_file)) as server:
        service = server.server.config.app.state.service  # type: ignore[union-attr]

        def broken(*_: Any, **__: Any) -> None:
            raise KeyError("a secret")

        service.generation_request = broken
        answer = server.post("/v1/completions", BODY)
        assert error_of(answer, 500)["code"] == "internal_error"
        assert "secret" not in answer.text
        assert "a secret" in caplog.text
        del service.generation_request
        assert server.post("/v1/completions", BODY).status_code == 200


def test_answers_have_an_id_if_the_server_was_told(server: Running, target_file: Path) -> None:
    with server.http() as http:
        assert "x-request-id" not in http.get("/health", headers={"X-Request-Id": "a"}).headers
    with running(toy_pipeline(target_file), api_keys=("one",), request_ids=True) as made, made.http() as http:
        own = {"X-Request-Id": "of-a-client", "Authorization": "Bearer one"}
        answers = [
            http.get("/health", headers=own),
            http.post("/v1/completions", json={**BODY, "stream": True}, headers=own),
            http.get("/nothing", headers=own),
            http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "of-a-client"}),
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 404, 401]
        assert {answer.headers["x-request-id"] for answer in answers} == {"of-a-client"}
        new = [
            http.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"]
            for given in ("", "", "two words", "a" * 201)
        ]
        assert len(set(new)) == 4
        assert all(len(given) == 32 and given.isalnum() for given in new)
