"""Metrics, the status document, the web page's place, https."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.server.http.metrics import speculation_state
from tests.server.http_support import MODEL, Running, running, toy_pipeline

ROOT = Path(__file__).resolve().parents[2]
LOOKUP = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 4}
REPEATS = {"prompt": "abc abc abc", "seed": 1, "temperature": 0.4, "max_tokens": 60, "ignore_eos": True}


def samples(server: Running) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of /metrics by name and labels, `model_name` left out."""
    with server.http() as http:
        text = http.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name", MODEL) == MODEL
            found[(sample.name, frozenset(labels.items()))] = sample.value
    return found


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found["outrider:" + name, frozenset(labels.items())]


def test_metrics_count_what_happened(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file, LOOKUP)) as server:
        before = samples(server)
        assert value(before, "request_success_total", finished_reason="length") == 0
        answers = [
            server.post("/v1/completions", {**REPEATS, "n": n, "outrider": True}).json() for n in (1, 2)
        ]
        assert server.post("/v1/completions", {"prompt": ""}).status_code == 400
        server.post("/v1/completions", {**REPEATS, "stream": True})
        after = samples(server)
    told = [c["outrider"]["metrics"] for answer in answers for c in answer["choices"]]
    told.append(told[0])  # the stream has the same seed
    prompt = answers[0]["usage"]["prompt_tokens"]
    assert value(after, "request_success_total", finished_reason="length") == 4
    assert value(after, "generation_tokens_total") == 4 * 60
    assert value(after, "prompt_tokens_total") == 4 * prompt
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert value(after, f"spec_decode_{name}_total") == sum(m[name] for m in told) > 0
    by_position = [v for (name, _), v in after.items() if name.endswith("accepted_tokens_per_pos_total")]
    assert sum(by_position) == value(after, "spec_decode_num_accepted_tokens_total")
    assert value(after, "spec_decode_num_accepted_tokens_per_pos_total", position="0") > 0
    for name, count in (
        ("time_to_first_token_seconds", 4),
        ("e2e_request_latency_seconds", 4),
        ("request_time_per_output_token_seconds", 4),
        ("request_generation_tokens", 4),
        ("request_prompt_tokens", 3),
    ):
        assert value(after, name + "_count") == count
    assert value(after, "inter_token_latency_seconds_count") >= 4 * 60 / 5 - 4
    assert value(after, "request_generation_tokens_sum") == 240
    first, whole = (
        value(after, f"{n}_sum") for n in ("time_to_first_token_seconds", "e2e_request_latency_seconds")
    )
    assert 0 < first < whole
    phases = {p: value(after, "phase_seconds_total", phase=p) for p in ("step", "draft", "verify", "other")}
    assert all(seconds > 0 for seconds in phases.values())
    assert value(after, "num_requests_running") == value(after, "num_requests_waiting") == 0
    assert 0 <= value(after, "kv_cache_usage_perc") <= 1
    assert value(after, "healthy") == 1
    assert all(after[key] >= old for key, old in before.items() if key[0].endswith("_total"))


def test_metrics_while_requests_run(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file, slow=True, max_num_seqs=1)) as server, server.http() as http:
        body = {**REPEATS, "max_tokens": 2000, "n": 2, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            found = samples(server)
            assert value(found, "num_requests_running") == 1
            assert value(found, "num_requests_waiting") == 1
            assert value(found, "kv_cache_usage_perc") > 0
            with server.http() as other:
                assert other.get("/load").json() == {"server_load": 2}


def test_why_speculation_is_on_or_off() -> None:
    off = "off in 17 of 20 steps: suffix found nothing in 17"
    assert speculation_state(off) == ("off", "suffix found nothing")
    assert speculation_state("on in 3 of 4 steps: suffix in 3 (2 of 5 tokens accepted)") == ("on", "")
    assert speculation_state("off: there is no drafter") == ("off", "there is no drafter")


def test_the_dashboard_asks_for_metrics_that_there_are(roomy_file: Path) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text("utf-8"))
    asked = set(re.findall(r"outrider:\w+", json.dumps(dashboard)))
    with running(toy_pipeline(roomy_file, LOOKUP)) as server:
        server.post("/v1/completions", REPEATS)
        with server.http() as http:
            text = http.get("/metrics").text
    there = set(re.findall(r"^(outrider:\w+)", text, re.M)) | {
        # Told when the controller reckons them, which a fixed drafter has not.
        "outrider:spec_decode_predicted_speedup",
        "outrider:spec_decode_measured_speedup",
    }
    assert len(asked) > 15
    assert asked <= there


def test_status(server: Running) -> None:
    server.post("/v1/completions", REPEATS)
    with server.http() as http:
        found = http.get("/v1/outrider/status").json()
    assert found["model"]["names"] == [MODEL, "other"]
    assert found["model"]["max_model_len"] == 4096
    assert found["speculation"]["method"] == "ngram"
    assert found["speculation"]["drafters"] == ["ngram"]
    engine = found["engine"]
    assert engine["healthy"] is True
    assert engine["output_tokens"] >= 60
    assert engine["drafts"]["num_draft_tokens"] > 0
    assert engine["speculation"]


def test_the_pages_place(target_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "static"
    (folder / "parts").mkdir(parents=True)
    (folder / "index.html").write_text("<title>page</title>")
    (folder / "parts" / "page.js").write_text("go()")
    (tmp_path / "secret").write_text("hidden words")
    (folder / "link").symlink_to(tmp_path / "secret")
    with running(toy_pipeline(target_file), static=folder, api_keys=("k",)) as server, server.http() as http:
        assert http.get("/").text == "<title>page</title>"
        assert http.get("/index.html").headers["content-type"].startswith("text/html")
        assert http.get("/parts/page.js").text == "go()"
        assert http.get("/v1/models").status_code == 401  # the page is open, the API is not
        for path in ("/%2e%2e/secret", "/..%2fsecret", "/parts/../../secret", "/link"):
            assert "hidden" not in http.get(path, headers={"Authorization": "Bearer k"}).text
        missing = http.get("/parts/none.js", headers={"Authorization": "Bearer k"})
        assert missing.status_code == 404
        assert missing.json()["error"]["type"] == "not_found_error"


def test_under_a_prefix(target_file: Path) -> None:
    with (
        running(toy_pipeline(target_file), root_path="/llm", api_keys=("k",)) as server,
        server.http() as http,
    ):
        assert http.get("/health").status_code == 200
        assert http.get("/v1/models", headers={"Authorization": "Bearer k"}).status_code == 200
        assert http.get("/v1/models").status_code == 401
        for path in ("/llm/health", "/llm/v1/models"):  # as some proxies leave it
            assert http.get(path, headers={"Authorization": "Bearer k"}).status_code == 200
        assert http.get("/llm/v1/models").status_code == 401
        assert http.get("/llm/llm/v1/models", headers={"Authorization": "Bearer k"}).status_code == 404


def test_https(target_file: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("needs openssl")
    with running(toy_pipeline(target_file), ssl_files=(key, certificate)) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(server.url + "/health", verify=context).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/health")
