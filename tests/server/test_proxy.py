"""The server in front of vLLM, with a double of vLLM behind it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from outrider.engines.vllm.metrics import counts, renamed
from outrider.engines.vllm.self_check import Outcome
from outrider.engines.vllm.upstream import Upstream
from outrider.server.proxy import measure
from tests.server.proxy_support import NGRAM, Proxy, proxied
from tests.support.fake_vllm.vllm.server import FakeVllm

ASKED = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with proxied(api_keys=("outer",), max_body_bytes=4096) as made:
        yield made


def post(proxy: Proxy, path: str, body: Any, key: str = "outer", **headers: str) -> httpx.Response:
    return proxy.post(path, body, headers={"Authorization": f"Bearer {key}", **headers})


def error_of(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert "\n" not in found["message"]
    return found


def test_an_answer_is_handed_back_whole(proxy: Proxy) -> None:
    answer = post(proxy, "/v1/completions", ASKED)
    with httpx.Client() as http:
        direct = http.post(
            f"{proxy.fake.url}/v1/completions", json=ASKED, headers={"Authorization": "Bearer inner"}
        )
    assert answer.status_code == 200
    assert answer.json() == direct.json()
    assert answer.headers["content-type"] == "application/json"


def test_the_official_client_streams(proxy: Proxy) -> None:
    client = openai.OpenAI(base_url=proxy.url + "/v1", api_key="outer", max_retries=0)
    whole = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a"}], temperature=0, max_tokens=5
    )
    parts = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a"}], temperature=0, max_tokens=5, stream=True
    )
    pieces = [part.choices[0].delta.content for part in parts]
    assert len(pieces) == 5
    assert "".join(filter(None, pieces)) == whole.choices[0].message.content
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_parts_of_a_stream_come_as_they_are_written(proxy: Proxy) -> None:
    """The first tokens arrive while the rest is not written yet."""
    fake, seen = proxy.fake, 0
    fake.gate.set()
    with proxy.http() as http, http.stream(
        "POST", "/v1/completions", json=ASKED | {"stream": True, "max_tokens": 30},
        headers={"Authorization": "Bearer outer"},
    ) as answer:  # fmt: skip
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if not line:
                continue
            seen += 1
            if seen == 1:
                fake.gate.clear()  # nothing more comes until it is set again
            if line == "data: [DONE]":
                break
            fake.gate.set()
    assert seen == 31


def test_keys_are_ours_and_not_handed_on(proxy: Proxy) -> None:
    assert error_of(post(proxy, "/v1/completions", ASKED, key="inner"))["code"] == "invalid_api_key"
    assert proxy.get("/health").status_code == 200
    assert proxy.get("/metrics").status_code == 401
    post(proxy, "/v1/completions", ASKED, **{"X-Request-Id": "mine", "X-Other": "no"})
    _, _, headers = proxy.fake.requests[-1]
    assert headers["authorization"] == "Bearer inner"
    assert headers["x-request-id"] == "mine"
    assert "x-other" not in headers


def test_errors_of_vllm_have_our_form(proxy: Proxy) -> None:
    unknown = post(proxy, "/v1/completions", ASKED | {"model": "other"})
    assert unknown.status_code == 404
    assert error_of(unknown) == {
        "message": "The model `other` does not exist.",
        "type": "not_found_error",
        "param": "model",
        "code": None,
    }
    assert error_of(post(proxy, "/v1/nothing", {}))["message"] == "Not Found"


def test_anthropic_s_path_gets_errors_in_its_form(proxy: Proxy) -> None:
    answer = post(proxy, "/v1/messages", {"temperature": 0})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"


def test_bodies_have_limits(proxy: Proxy) -> None:
    assert (
        error_of(post(proxy, "/v1/completions", ASKED | {"prompt": "x" * 5000}))["code"] == "body_too_large"
    )
    with proxy.http(headers={"Authorization": "Bearer outer"}) as http:
        assert http.post("/v1/completions", content=b"{}").status_code == 415
        broken = http.post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert broken.status_code == 400


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/sleep", "/v1/outrider/other", "/collective_rpc"])
def test_other_paths_are_not_handed_on(proxy: Proxy, path: str) -> None:
    before = len(proxy.fake.requests)
    assert post(proxy, path, {}).status_code == 404
    assert len(proxy.fake.requests) == before


def test_other_methods_get_an_error_of_ours(proxy: Proxy) -> None:
    with proxy.http(headers={"Authorization": "Bearer outer"}) as http:
        answer = http.put("/v1/completions", json={})
        assert http.head("/health").status_code == 200
    assert answer.status_code == 405
    assert error_of(answer)["message"] == "PUT is not possible at /v1/completions"


def test_bases_without_v1_are_found(proxy: Proxy) -> None:
    assert post(proxy, "/completions", ASKED).status_code == 200


def test_metrics_have_our_names(proxy: Proxy) -> None:
    post(proxy, "/v1/completions", ASKED)
    page = proxy.get("/metrics", headers={"Authorization": "Bearer outer"}).text
    assert "vllm:" not in page
    assert "python_gc" not in page
    lines = page.splitlines()
    (drafts,) = [line for line in lines if line.startswith("outrider:spec_decode_num_drafts_total{")]
    assert float(drafts.rpartition(" ")[2]) == proxy.fake.drafts > 0
    assert "outrider:spec_decode_acceptance_rate 0.5" in lines
    assert "outrider:spec_decode_mean_acceptance_length 2" in lines
    assert "outrider:healthy 1" in lines
    assert 'outrider:spec_decode_state{self_check="passed",worth="too few pairs"} 1' in lines


def test_counts_are_read_under_both_names() -> None:
    """A plain replica, and a server that is planned for, may have one of ours in front."""
    fake = FakeVllm(speculative=NGRAM)
    fake.drafts, fake.drafted, fake.accepted, fake.running = 4, 12, 7, 2
    page = fake.metrics()
    found = counts(page)
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (4, 12, 7)
    assert (found.running, found.per_position) == (2.0, (7,))
    assert counts(renamed(page)) == found
    assert counts("vllm:num_requests_running{ nonsense\n") == counts("")
    with fake:
        pass


def test_the_status_says_what_runs(proxy: Proxy) -> None:
    status = proxy.get("/v1/outrider/status", headers={"Authorization": "Bearer outer"}).json()
    assert status["engine"]["name"] == "vllm"
    assert status["engine"]["version"] == "0.32.0"
    assert status["engine"]["state"] == "running"
    assert status["speculation"]["config"] == NGRAM
    assert status["self_check"] == {"state": "passed", "detail": ""}
    assert status["worth"]["state"] == "not measured"
    assert status["worth"]["recommendation"] == "it cannot be measured"
    assert "inner" not in json.dumps(status)


def test_a_client_that_leaves_ends_its_request(proxy: Proxy) -> None:
    fake, before = proxy.fake, proxy.fake.cancelled
    fake.pace = 0.005
    try:
        with (
            proxy.http(headers={"Authorization": "Bearer outer"}) as http,
            http.stream(
                "POST", "/v1/completions", json=ASKED | {"stream": True, "max_tokens": 5000}
            ) as answer,
        ):
            next(answer.iter_lines())
        proxy.until(lambda: fake.cancelled > before)
    finally:
        fake.pace = 0.0
    proxy.until(lambda: proxy.backend.in_flight == 0)
    assert fake.cancelled == before + 1


def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    with proxied(faults={"breaks"}) as made:
        answer = made.post("/v1/completions", ASKED | {"stream": True})
        events = [line for line in answer.text.split("\n\n") if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert "[DONE]" not in answer.text


def test_sampling_that_is_broken_is_refused_by_name() -> None:
    with proxied(outcome=Outcome("sampling is broken", "at temperature 1 all is noise")) as made:
        for temperature in ({"temperature": 0.7}, {"temperature": None}, {"temperature": True}):
            answer = made.post("/v1/completions", ASKED | temperature)
            assert answer.status_code == 400
            error = error_of(answer)
            assert error["code"] == "sampling_is_broken"
            assert error["param"] == "temperature"
            assert "vLLM 0.32.0" in error["message"]
            assert "all is noise" in error["message"]
        assert made.post("/v1/completions", ASKED).status_code == 200
        assert len(made.fake.requests) == 1


def test_a_server_lets_requests_end_before_it_does() -> None:
    with proxied() as made:
        made.fake.gate.clear()
        found: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: found.append(made.post("/v1/completions", ASKED)))
        asking.start()
        made.until(lambda: made.backend.in_flight == 1)
        made.server.should_exit = True
        made.until(lambda: made.backend.state == "stopping")
        made.fake.gate.set()
        asking.join(15)
        assert found[0].status_code == 200
        made.thread.join(15)
        assert not made.thread.is_alive()


def test_what_runs_too_long_gets_an_error_at_the_end() -> None:
    with proxied(shutdown_seconds=0.05) as made:
        made.fake.gate.clear()
        found: list[httpx.Response] = []
        body = ASKED | {"stream": True}
        asking = threading.Thread(target=lambda: found.append(made.post("/v1/completions", body)))
        asking.start()
        made.until(lambda: made.backend.in_flight == 1)
        made.server.should_exit = True
        asking.join(20)
        assert not asking.is_alive()
        assert made.launched[0].child.stops


def test_the_child_s_death_ends_the_server_with_a_line() -> None:
    with proxied() as made:
        made.launched[0].child.dead.set()
        made.thread.join(15)
        assert not made.thread.is_alive()
        assert made.backend.failure == "vLLM ended by signal 9 while it served"


class Seconds:
    """What a token takes, in the place of what a clock says: by the plain server, and by the other one. The
    requests of the pairs are asked all the same."""

    def __init__(self) -> None:
        self.plain_port, self.plain, self.speculative = 0, 0.01, 0.01
        self._real = measure.token_seconds

    async def __call__(self, server: Upstream, path: str, fields: dict[str, Any]) -> float | None:
        assert await self._real(server, path, fields) is not None
        return self.plain if str(server).endswith(f":{self.plain_port}") else self.speculative


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Pairs with known times, of which a few are enough."""
    made = Seconds()
    monkeypatch.setattr(measure, "token_seconds", made)
    monkeypatch.setattr("outrider.server.proxy.worth.LEAST_PAIRS", 4)
    return made


def ask_until(made: Proxy, condition: Any) -> None:
    """Ask one request after another, each when the pair of the last is measured: so the loads are alike."""
    began = time.monotonic()
    with made.http() as http:
        while not condition():
            assert http.post("/v1/completions", json=ASKED | {"max_tokens": 16}).status_code == 200
            made.until(lambda: not made.guarded.measurer.busy)
            assert time.monotonic() - began < 60


def test_speculation_that_costs_time_is_turned_off(seconds: Seconds) -> None:
    """By halves, drained, and without an answer lost."""
    with (
        FakeVllm("tiny", key="other") as plain,
        proxied(
            speculative={"method": "ngram", "num_speculative_tokens": 2}, plain=plain, never_slower=True
        ) as made,
    ):
        seconds.plain_port, seconds.speculative = plain.port, 0.02
        ask_until(made, lambda: made.guarded.draft_tokens == 0 and made.backend.state == "running")
        assert [launch.speculative.get("num_speculative_tokens", 0) for launch in made.launched] == [2, 1, 0]
        assert [launch.child.stops for launch in made.launched] == [1, 1, 0]
        status = made.get("/v1/outrider/status").json()
        assert len(status["worth"]["changes"]) == 2
        assert status["worth"]["changes"][0].startswith("speculation ran at 0.50 times plain decoding (")
        assert status["worth"]["recommendation"] == "speculation is off"
        assert status["engine"]["restarts"] == 2
        assert status["self_check"]["state"] == "no speculation"
        assert plain.requests[-1][1]["stream"] is True


def test_speculation_that_pays_is_kept(seconds: Seconds) -> None:
    with (
        FakeVllm("tiny", key="other") as plain,
        proxied(plain=plain, never_slower=True) as made,
    ):
        seconds.plain_port, seconds.plain = plain.port, 0.02
        ask_until(made, lambda: made.guarded.measurer.speedup.pairs >= 6)
        assert len(made.launched) == 1
        worth = made.get("/v1/outrider/status").json()["worth"]
        assert worth["speedup"] == pytest.approx(2)
        assert worth["recommendation"].startswith("keep speculation: its speed is 2.00 times")
        assert "outrider:spec_decode_measured_speedup 2\n" in made.get("/metrics").text


def test_a_new_child_that_does_not_start_is_a_failure(seconds: Seconds) -> None:
    with (
        FakeVllm("tiny", key="other") as plain,
        proxied(plain=plain, never_slower=True, next_is_broken=True) as made,
    ):
        seconds.plain_port, seconds.speculative = plain.port, 0.02
        try:
            ask_until(made, lambda: made.backend.state == "failed")
        except (AssertionError, httpx.HTTPError):
            made.until(lambda: made.backend.state == "failed")
        made.thread.join(15)
        assert made.backend.failure == "vLLM ended with status 1 before it was ready"
