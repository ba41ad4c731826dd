"""`outrider serve`: its flags with vLLM's and llama-server's names, and the settings that they give."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main, parser
from outrider.cli.serve import engine_config, ready
from outrider.errors import ConfigError
from outrider.server.http.app import create_app
from outrider.server.run import Server, bind, reachable
from outrider.server.settings import Settings

Started = list[dict[str, Any]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, toy_engine: object) -> Started:
    """What servers were started with; none of them serves."""
    found: Started = []
    real = create_app

    def noted(pipeline: Any, engine: Any, settings: Settings) -> Any:
        found.append({"pipeline": pipeline, "engine": engine, "settings": settings})
        return real(pipeline, engine, settings)

    def run(self: Server, sockets: Any = None) -> None:
        found[-1]["config"] = self.config
        found[-1]["address"] = sockets[0].getsockname()
        sockets[0].close()

    monkeypatch.setattr("outrider.server.http.app.create_app", noted)
    monkeypatch.setattr(Server, "run", run)
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    return found


def serve(line: str) -> int:
    return main(["serve", "--port", "0", *shlex.split(line)])


def config(line: str) -> Any:
    return engine_config(parser().parse_args(["serve", *shlex.split(line)]))


def test_without_flags(started: Started, target_file: Path) -> None:
    assert serve(f"-m {target_file}") == 0
    (one,) = started
    assert one["address"][0] == "127.0.0.1"
    assert one["settings"] == Settings()
    assert one["pipeline"].config.max_num_seqs == 8
    assert one["pipeline"].speculative.method == "auto"
    assert one["config"].ssl_certfile is None


def test_the_spelling_that_vllms_users_type(started: Started, target_file: Path, draft_file: Path) -> None:
    line = (
        f"--model {target_file} --speculative-model {draft_file} --num-speculative-tokens 5 "
        "--speculative-draft-tensor-parallel-size 1 --served-model-name a b --max-model-len 128 "
        "--max-num-seqs 3 "
        "--api-key k1 k2 --api-key k3 --seed 4 --dtype auto --tensor-parallel-size 1 -tp 1 --enforce-eager "
        "--gpu-memory-utilization 0.9 --allowed-origins '[\"https://a\"]' --no-trust-remote-code"
    )
    assert serve(line) == 0
    (one,) = started
    pipeline, settings = one["pipeline"], one["settings"]
    assert pipeline.speculative.method == "auto"
    assert pipeline.drafting.names == ("suffix", "draft_model")
    assert pipeline.speculative.num_speculative_tokens == 5
    assert (pipeline.context, pipeline.config.max_num_seqs, pipeline.config.seed) == (128, 3, 4)
    assert settings.served_names == ("a", "b")
    assert settings.api_keys == ("k1", "k2", "k3")
    assert settings.allowed_origins == ("https://a",)


def test_speculation_in_every_spelling() -> None:
    as_json = config(
        '-m x --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
    ).speculative
    assert config("-m x --spec-method ngram --spec-tokens 3").speculative == as_json
    assert config("-m x --spec ngram --draft-max 3").speculative == as_json
    assert config("x --spec ngram --draft 3").speculative == as_json
    assert config("-m x --spec none").speculative.method == "none"
    assert config("-m x -md y").speculative.model == "y"


def test_the_spelling_of_llama_server(started: Started, target_file: Path) -> None:
    line = f"-m {target_file} -c 100 -np 2 -t 1 --host 127.0.0.1 -a a,b -ngl 0 -cb --jinja -fa on --metrics"
    assert serve(line) == 0
    (one,) = started
    assert (one["pipeline"].context, one["pipeline"].config.max_num_seqs) == (100, 2)
    assert one["settings"].served_names == ("a", "b")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["give a model"]),
        ("a -m b", ["'a'", "-m already"]),
        ("-m x --tensor-parallel-size 2", ["tensor_parallel_size=2", "one process"]),
        ("-m x -tp 2", ["tensor_parallel_size=2"]),
        (
            "-m x --speculative-draft-tensor-parallel-size 2",
            ["--speculative-draft-tensor-parallel-size", "one process"],
        ),
        ("-m x --dtype float16", ["dtype='float16'", "model file"]),
        ("-m x --enable-lora", ["enable_lora", "merge"]),
        ("-m x --lora-modules a=b", ["--lora-modules", "merge"]),
        ("-m x --uds /tmp/s", ["--uds", "--host and --port"]),
        ("-m x --reasoning-parser r1", ["--reasoning-parser", "deepseek_r1"]),
        ("-m x --reasoning-format deepseek-legacy", ["--reasoning-format", "auto"]),
        ("-m x --reasoning-format raw", ["--reasoning-format must be one of none, auto, deepseek"]),
        ("-m x --reasoning maybe", ["--reasoning must be one of auto, on, off"]),
        ("-m x --reasoning-budget 100", ["--reasoning-budget 100", "give 0"]),
        ("-m x --reasoning on --reasoning-budget 0", ["contradict"]),
        ("-m x -hf a/b", ["-m and -hf", "not both"]),
        ("-m x --mirostat 2", ["--mirostat 2", "not built"]),
        ("-m x --enable-log-outputs", ["--enable-log-outputs", "not logged"]),
        ("-m x --temp hot", ["--temp", "not a number"]),
        ("-m x --override-generation-config []", ["--override-generation-config", "JSON object"]),
        ("-m x --override-generation-config '{'", ["--override-generation-config", "JSON object"]),
        ("-m x --speculative-max-model-len 5", ["--speculative-config"]),
        ("-m x --embeddings", ["--embeddings", "generates text only"]),
        ("-m x -nocb", ["-nocb", "-np 1"]),
        ("-m x --tools all", ["--tools", "clients"]),
        ("-m x --max-model-length 5", ["unknown flag", "did you mean '--max-model-len'"]),
        ("-m x --api-kee a", ["did you mean '--api-key"]),
        ("-m x -c -2", ["-c"]),
        ("-m x --max-num-seqs 0", ["max_num_seqs"]),
        ("-m x --port 70000", ["--port", "65535"]),
        ("-m x --api-key ä", ["API key", "ASCII"]),
        ("-m x --api-key-file /no/such/file", ["--api-key-file", "No such file"]),
        ("-m x --chat-template /no/such/file", ["--chat-template", "No such file"]),
        ("-m x --max-body-bytes 5X", ["--max-body-bytes", "'5X'"]),
        ("-m x --max-body-bytes 0", ["max_body_bytes"]),
        ("-m x --stall-timeout 0", ["stall_seconds"]),
        ("-m x --allowed-origins '[1]'", ["--allowed-origins"]),
        ("-m x --allowed-origins '['", ["--allowed-origins"]),
        ("-m x --uvicorn-log-level loud", ["loud"]),
        ("-m x --tool-call-parser python", ["pythonic"]),
        ("-m x --memory-limit much", ["--memory-limit"]),
        ("-m x --host no.such.host.invalid", ["cannot listen", "no.such.host.invalid"]),
    ],
)
def test_what_is_refused(
    started: Started, line: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = shlex.split(line)
    assert main(["serve", *(given if "--port" in given else ["--port", "0", *given])]) == 2
    assert not started
    err = capsys.readouterr().err
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_sampling_defaults(
    started: Started, target_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "g.json"
    file.write_text('{"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}')
    line = (
        f"-m {target_file} --generation-config {file} --override-generation-config '{{\"top_k\": 30}}' "
        "--temp 0.3 --top-p 0.8 --min-p 0.1 --repeat-penalty 1.2 --presence-penalty 0.5 "
        "--frequency-penalty -0.5 -n 64"
    )
    assert serve(line) == 0
    values = started[0]["pipeline"].sampling.values
    assert values == {
        "temperature": 0.3,
        "top_p": 0.8,
        "top_k": 30,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "max_tokens": 64,
    }
    told = capsys.readouterr().err
    assert "sampling defaults: temperature 0.3, top_p 0.8, top_k 30" in told
    assert serve(f"-m {target_file} --generation-config vllm -n -1") == 0
    assert started[1]["pipeline"].sampling.values == {}
    assert serve(f"-m {target_file} --generation-config {tmp_path} --port 0") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_fields_that_requests_leave_out(
    started: Started, target_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--chat-template-kwargs", "--default-chat-template-kwargs"):
        assert serve(f"""-m {target_file} {flag} '{{"enable_thinking": false}}'""") == 0
        assert started[-1]["settings"].template_variables == {"enable_thinking": False}
    for flags, variables, marks in (
        ("", {}, None),
        ("--reasoning off --reasoning-format none", {"enable_thinking": False}, "none"),
        (
            "-rea on --reasoning-effort low --enable-reasoning",
            {"enable_thinking": True, "reasoning_effort": "low"},
            None,
        ),
        ("--reasoning-budget 0 --reasoning-format deepseek", {"enable_thinking": False}, "auto"),
        ("--reasoning-budget -1 --reasoning auto --reasoning-effort default", {}, None),
        ("--reasoning-parser deepseek_r1 --reasoning-format none", {}, "deepseek_r1"),
    ):
        assert serve(f"-m {target_file} {flags}") == 0
        assert started[-1]["settings"].template_variables == variables
        assert started[-1]["settings"].reasoning_parser == marks
    flags = "--enable-force-include-usage --return-tokens-as-token-ids --enable-request-id-headers"
    assert serve(f"-m {target_file} {flags}") == 0
    settings = started[-1]["settings"]
    assert settings.usage_in_streams
    assert settings.tokens_as_ids
    assert settings.request_ids
    assert serve(f"-m {target_file} --chat-template-kwargs [1]") == 2
    assert "--chat-template-kwargs must be a JSON object" in capsys.readouterr().err


def test_flags_that_change_nothing(started: Started, target_file: Path) -> None:
    line = (
        f"{target_file} -ngl 99 --draft-min 2 --mlock --no-mmap --trust-remote-code --enable-log-requests "
        "-b 512 -ub 128 --max-num-batched-tokens 512 --samplers top_k -n -1 -O3"
    )
    assert serve(line) == 0
    (one,) = started
    assert one["settings"] == Settings()
    assert one["pipeline"].config.model == str(target_file)


def test_no_page(started: Started, target_file: Path) -> None:
    assert serve(f"{target_file} --no-webui") == 0
    assert not (started[0]["settings"].static / "index.html").is_file()


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_what_is_said_when_it_is_ready(keys: bool, chat: bool) -> None:
    text = ready("http://127.0.0.1:8000", "it's", chat=chat, page=True, keys=keys)
    assert "page  http://127.0.0.1:8000/\n" in text
    assert "API   http://127.0.0.1:8000/v1\n" in text
    words = shlex.split(text.splitlines()[-1])
    assert words[:2] == ["try", "curl"]
    body = json.loads(words[-1])
    assert body["model"] == "it's"
    assert ("messages" in body) == chat == words[2].endswith("/chat/completions")
    assert ("Authorization: Bearer $OUTRIDER_API_KEY" in words) == keys
    assert "page" not in ready("http://[::1]:1", "m", chat=chat, page=False, keys=keys)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1:"), ("0.0.0.0", "127.0.0.1:"), ("::1", "[::1]:"), ("::", "[::1]:")],
)
def test_the_address_that_this_machine_reaches(host: str, shown: str) -> None:
    with bind(host, 0) as place:
        assert reachable(place) == f"{shown}{place.getsockname()[1]}"


def test_neutral_sizes(target_file: Path) -> None:
    plain = config(f"-m {target_file}")
    assert config(f"-m {target_file} -t -1 -c -1") == config(f"-m {target_file} -c 0") == plain
    assert (plain.threads, plain.max_model_len) == (None, None)


def test_a_bad_certificate_is_one_line(
    started: Started, target_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(f"-m {target_file} --ssl-certfile {target_file} --ssl-keyfile {target_file}") == 2
    assert "the server cannot start" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--ssl-keyfile {file}", "--ssl-keyfile needs --ssl-certfile"),
        ("--ssl-ca-certs {file}", "--ssl-ca-certs needs --ssl-certfile"),
        ("--ssl-certfile nowhere.pem", "--ssl-certfile: 'nowhere.pem' cannot be read: No such file"),
        ("--ssl-certfile {file} --ssl-keyfile .", "--ssl-keyfile: '.' cannot be read: Is a directory"),
        ("--ssl-cert-reqs 2", "--ssl-cert-reqs needs --ssl-ca-certs"),
        ("--served-model-name ' '", "name must not be empty"),
        ("-t 0", "-t must be at least 1, or -1"),
        ("-c -2", "-c must be at least 1, or 0"),
    ],
)
def test_settings_that_cannot_be_are_one_line(
    started: Started, target_file: Path, capsys: pytest.CaptureFixture[str], flags: str, words: str
) -> None:
    assert serve(f"-m {target_file} {flags.format(file=target_file)}") == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_keys_from_a_file_and_the_environment(
    started: Started, target_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\none\n\n two \n")
    monkeypatch.setenv("OUTRIDER_API_KEY", "three,four")
    assert serve(f"-m {target_file} --api-key-file {keys} --api-key zero") == 0
    assert serve(f"-m {target_file}") == 0
    assert [s["settings"].api_keys for s in started] == [("zero", "one", "two"), ("three", "four")]
    keys.write_text("\n")
    assert serve(f"-m {target_file} --api-key-file {keys}") == 2


def test_sizes_and_templates(started: Started, target_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    assert serve(f"-m {target_file} --chat-template {template} --max-body-bytes 1.5K --memory-limit 2G") == 0
    assert serve(f"-m {target_file} --chat-template '{{{{ messages[0] }}}}' --allowed-hosts a,b") == 0
    first, second = (s["settings"] for s in started)
    assert (first.chat_template, first.max_body_bytes) == ("{{ messages }}", 1536)
    assert (second.chat_template, second.allowed_hosts) == ("{{ messages[0] }}", ("a", "b"))


def test_the_prefix_caches_share(started: Started, target_file: Path) -> None:
    for flags in (
        "",
        "--prefix-cache 1M",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--prefix-cache 0",
    ):
        assert serve(f"-m {target_file} {flags}") == 0
    limits = [s["engine"].stats.prefix_limit for s in started]
    assert limits[0] == limits[2] > limits[1] > limits[3] == limits[4] == 0


def test_as_a_module_of_vllms_name(
    started: Started, target_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["api_server", "--model", str(target_file), "--port", "0"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("outrider.entrypoints.openai.api_server", run_name="__main__")
    assert caught.value.code == 0
    assert len(started) == 1


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_samples"):
        Settings(max_samples=0)
