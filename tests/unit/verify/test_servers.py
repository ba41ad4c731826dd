"""The comparison of two servers, and the errors of servers that cannot be compared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main
from outrider.errors import ConfigError
from outrider.verify import endpoint
from outrider.verify.endpoint import Answer, Endpoint, EndpointError
from outrider.verify.servers import compare
from tests.support.chat_server import FakeServer, Handler, serving

LONG = "The quick brown fox jumps over the lazy dog, and then over another one. "


def plain(prompt: str) -> str:
    return f"{LONG}{prompt[::-1]} {LONG}"


def speculative(prompt: str) -> str:
    """One word goes wrong in one text."""
    return plain(prompt).replace("lazy", "hazy", 1) if "fox" in prompt else plain(prompt)


@pytest.fixture
def one() -> Iterator[FakeServer]:
    with serving(plain) as server:
        yield server


@pytest.fixture
def other() -> Iterator[FakeServer]:
    with serving(plain) as server:
        yield server


@pytest.fixture
def verify(one: FakeServer, other: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `outrider verify --endpoint ONE --against OTHER --temps 0 …`; gives (status, stdout, stderr)."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": name, "workload": "w", "prompt": f"tell of the {name}"} for name in ("fox", "dog")]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")

    def call(*args: str) -> tuple[int, str, str]:
        line = ["--endpoint", one.url, "--against", other.url, "--prompts", str(path), "--temps", "0", *args]
        status = main(["verify", *line])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_servers_that_agree(verify: Any, one: FakeServer, chat: list[str]) -> None:
    status, out, err = verify("-n", "31", "--json", *chat)
    assert (status, err) == (0, "")
    (claim,) = json.loads(out)["claims"]
    assert (claim["claim"], claim["held"], claim["cases"]) == ("identity", True, 2)
    assert "2 compared by token" in claim["detail"]
    path, _, body = one.requests[-1]
    assert path == ("/v1/chat/completions" if chat else "/v1/completions")
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("stand-in", 31, 0)


def test_the_first_differing_character_is_reported(verify: Any, other: FakeServer) -> None:
    other.generate = speculative
    status, out, _ = verify()
    assert status == 1
    assert out.startswith("broken  identity      1 of 2 texts differ: fox at character 35: ")
    assert "ox jumps over the ⟦l⟧azy dog" in out
    assert "ox jumps over the ⟦h⟧azy dog" in out
    assert "asked again" not in out


def test_a_server_that_does_not_reproduce_its_answers_is_reported(verify: Any, other: FakeServer) -> None:
    calls = iter(range(100))
    other.generate = lambda prompt: f"{plain(prompt)}{next(calls)}"
    status, out, _ = verify()
    assert status == 1
    assert f"({other.url}/v1 answered differently when asked again)" in out


def test_a_shorter_text_differs_at_its_end() -> None:
    assert compare(Answer("abc", None), Answer("abcd", None)) == "at character 3: 'abc⟦⟧' and 'abc⟦d⟧'"
    assert compare(Answer("abc", None), Answer("abc", ("abc",))) is None
    told = compare(Answer("abc", ("ab", "c")), Answer("abc", ("a", "bc")))
    assert told == "in the tokens of one text: token 0 is 'ab' and 'a'"


def test_tokens_that_do_not_spell_the_text_are_not_compared(one: FakeServer) -> None:
    def act(handler: Handler) -> bool:
        handler.reply({"choices": [{"text": "a b", "logprobs": {"tokens": ["a", "\u0120b"]}}]})
        return True

    one.override = act
    assert Endpoint(one.url).complete("x", 3) == Answer("a b", None)


def test_the_token_that_ended_a_text_is_not_part_of_it(one: FakeServer) -> None:
    def act(handler: Handler) -> bool:
        handler.reply({"choices": [{"text": "a b", "logprobs": {"tokens": ["a", " b", "</s>"]}}]})
        return True

    one.override = act
    assert Endpoint(one.url).complete("x", 3) == Answer("a b", ("a", " b"))


def test_empty_texts_are_no_agreement(verify: Any, one: FakeServer, other: FakeServer) -> None:
    one.generate = other.generate = lambda prompt: "" if "fox" in prompt else plain(prompt)
    status, out, _ = verify("--json")
    (claim,) = json.loads(out)["claims"]
    assert (status, claim["cases"]) == (0, 1)
    assert claim["detail"].endswith(
        "1 more got empty texts and are not counted; a model for chat wants --chat"
    )
    one.generate = other.generate = lambda prompt: ""
    status, out, err = verify()
    assert (status, out) == (2, "")
    assert "wrote nothing at all" in err
    assert "--chat" in err
    assert "wants --chat" not in verify("--chat")[2]


def test_an_empty_text_differs_from_another(verify: Any, other: FakeServer) -> None:
    other.generate = lambda prompt: ""
    assert verify()[0] == 1


def test_log_probabilities_are_left_out_where_refused(
    verify: Any, one: FakeServer, other: FakeServer
) -> None:
    one.refused = {"logprobs"}
    other.logprobs = False
    status, out, _ = verify()
    assert status == 0
    assert "(0 compared by token" in out
    assert sum("logprobs" in (body or {}) for _, _, body in one.requests) == 1  # asked for once only


def test_the_key_goes_where_it_should(
    verify: Any, one: FakeServer, other: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify()[0] == 0
    assert all("Authorization" not in headers for _, headers, _ in one.requests + other.requests)
    one.requests.clear()
    monkeypatch.setenv("MY_KEY", "s3cret")
    status, out, err = verify("--api-key-env", "MY_KEY", "-m", "some-name")
    assert status == 0
    assert "s3cret" not in out + err
    assert all(headers["Authorization"] == "Bearer s3cret" for _, headers, _ in one.requests)
    assert [(path, body["model"]) for path, _, body in one.requests] == [("/v1/completions", "some-name")] * 2


def act_slow(handler: Handler) -> bool:
    time.sleep(1.0)
    return False


def act_drip(handler: Handler) -> bool:
    """A byte now and then, never silent for long."""
    handler.raw(b"", length=1000)
    for _ in range(30):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
    return True


def act_drip_in_the_headers(handler: Handler) -> bool:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
    for _ in range(30):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)
    return True


def act_cut(handler: Handler) -> bool:
    handler.reset()
    return True


def act_cut_in_the_middle(handler: Handler) -> bool:
    handler.raw(b'{"choices": [', length=5000)
    handler.close_connection = True
    return True


def act_huge(handler: Handler) -> bool:
    handler.raw(b'{"choices": [{"text": "' + b"x" * 40_000 + b'"}]}')
    return True


def answering(body: bytes, status: int = 200, location: str = "") -> Callable[[Handler], bool]:
    def act(handler: Handler) -> bool:
        handler.raw(body, status, location=location)
        return True

    return act


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (act_slow, ["no answer within 0.4 s"]),
        (act_drip, ["no answer within 0.4 s"]),
        (act_drip_in_the_headers, ["no answer within 0.4 s"]),
        (act_cut, ["broke off"]),
        (act_cut_in_the_middle, ["broke off"]),
        (act_huge, ["larger than"]),
        (answering(b"<html>Hello</html>"), ["not JSON", "<html>"]),
        (answering(b"\xff\xfe\x00\x01"), ["not JSON"]),
        (answering(b"[" * 100_000), ["not JSON"]),
        (answering(b"{}"), ["not a completion"]),
        (answering(b"[1, 2]"), ["not a completion"]),
        (answering(b'{"choices": []}'), ["not a completion"]),
        (answering(b'{"choices": [7]}'), ["not a completion"]),
        (answering(b'{"choices": [{"text": 7}]}'), ["text is not text"]),
        (answering(b'{"error": "no \x1b[31mkey"}', 401), ["401", "no", "key"]),
        (answering(b'{"error": "bad"}', 400), ["400", "bad"]),
        (answering(b'{"error": "oops"}', 500), ["500", "oops"]),
        (answering(b"", 302, location="http://127.0.0.1:1/elsewhere"), ["redirects"]),
    ],
)
def test_a_bad_server_is_status_2_and_one_line(
    verify: Any,
    other: FakeServer,
    act: Callable[[Handler], bool],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if act is act_huge:
        monkeypatch.setattr(endpoint, "MAX_BYTES", 20_000)
    other.override = act
    status, out, err = verify("--timeout", "0.4", "-m", "x")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    for word in [other.url, *words]:
        assert word in err


def test_a_refusal_for_another_reason_than_logprobs_is_reported_unchanged(one: FakeServer) -> None:
    one.override = answering(b'{"error": "model not found"}', 400)
    with pytest.raises(EndpointError, match="model not found"):
        Endpoint(one.url, model="x").complete("p", 1)


def test_a_server_without_models_wants_a_name(one: FakeServer) -> None:
    one.model = ""
    with pytest.raises(EndpointError, match="name one with -m"):
        Endpoint(one.url).complete("p", 1)


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(plain) as gone:
        url = gone.url
    assert main(["verify", "--endpoint", url, "--against", url]) == 2
    assert "not reachable: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "base", "chat"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", False),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", False),
        ("https://host.example/api/v1/", "https://host.example/api/v1", False),
        ("http://host/v1/completions", "http://host/v1", False),
        ("http://host/v1/chat/completions", "http://host/v1", True),
    ],
)
def test_urls(url: str, base: str, chat: bool) -> None:
    found = Endpoint(url)
    assert (str(found), found.chat) == (base, chat)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "localhost:8000",
            "file:///etc/passwd",
            "ftp://host/x",
            "http://",
            "http://[::1",
            "http://h:99999",
        ),
        *(
            "http://user:pw@host/v1",
            "http://host/v1?x=1",
            "http://host/v1#x",
            "http://ho\nst",
            "http://höst/",
        ),
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["-md", "x"], "-md"),
        (["--spec", "ngram"], "--spec"),
        (["--temps", "warm"], "--temps"),
        (["--samples", "-1"], "--samples"),
        (["--samples", "0", "--temps", "0.7"], "nothing to check"),
        (["--seeds", "3"], "--seeds"),
        (["--raw"], "--raw"),
        (["-t", "2"], "-t"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--prompts", "absent"], "'absent'"),
        (["-n", "0"], "-n"),
        (["--endpoint", "http://127.0.0.1:1/v1/chat/completions"], "two of a kind"),
    ],
)
def test_bad_input(verify: Any, args: list[str], word: str) -> None:
    status, out, err = verify(*args)
    assert (status, out) == (2, "")
    assert word in err
