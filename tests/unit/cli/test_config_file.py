"""`--config FILE`: flags from a YAML file, under those of the command line, and no value in an error."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import pytest

from outrider.cli.main import main, parser
from outrider.errors import ConfigError


@pytest.fixture
def parsed(tmp_path: Path) -> object:
    """Parse a line with a config file of this text; {} in the line is the file's name."""

    def call(text: str, line: str) -> argparse.Namespace:
        path = tmp_path / "flags.yaml"
        path.write_text(text, "utf-8")
        return parser().parse_args([word.replace("{}", str(path)) for word in shlex.split(line)])

    return call


def test_every_kind_of_value(parsed: object) -> None:
    text = """
model: smollm2          # a comment
port: 9000
served-model-name: [a, b]
max_model_len: 4096
gpu-memory-utilization: 0.9
enable-prefix-caching: false
disable-log-requests: true
trust-remote-code: true
allow-credentials: false
speculative-config:
  method: ngram
  num_speculative_tokens: 3
allowed-origins: ["https://a"]
flash-attn: on
seed:
"""
    args = parsed(text, "serve --config {}")  # type: ignore[operator]
    assert (args.model, args.port, args.served, args.ctx_size) == ("smollm2", 9000, ["a", "b"], 4096)
    assert (args.enable_prefix_caching, args.quiet, args.allow_credentials) == (False, True, False)
    assert json.loads(args.speculative_config) == {"method": "ngram", "num_speculative_tokens": 3}
    assert args.allowed_origins == ("https://a",)
    assert args.seed is None


def test_the_command_line_wins_in_any_spelling(parsed: object) -> None:
    text = "temp: 0.1\nn-predict: 5\nstop: [x, y]\ncolor: on\nlogit-bias: [1+1]\nmodel: a"
    args = parsed(text, "run --config {} --temperature 0.7 -n7 --stop z hello")  # type: ignore[operator]
    assert (args.temp, args.n_predict, args.stop, args.color) == (0.7, 7, ["z"], "on")
    assert (args.logit_bias, args.model, args.words) == (["1+1"], "a", ["hello"])
    args = parsed(text, "run -m b -p x --config {}")  # type: ignore[operator]
    assert (args.model, args.temp, args.stop) == ("b", 0.1, ["x", "y"])
    args = parsed("model: a\nport: 1", "serve b --config {}")  # type: ignore[operator]
    assert (args.model, args.words, args.port) == (None, ["b"], 1)


def test_every_command_takes_one(parsed: object) -> None:
    for line, text in (
        ("bench --config {}", "model: m\nruns: 2"),
        ("verify --config {}", "model: m\nseeds: 2"),
        ("chat --config {}", "model: m\ntemp: 0"),
        ("pull --config {} m", "quiet: true"),
        ("list --config {}", "json: true"),
        ("rm --config {} m", "yes: true"),
        ("info --config {} m", "json: true"),
        ("demo --config {}", "n-predict: 5"),
    ):
        assert callable(parsed(text, line).run)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1", ["unknown key 'prot'", "did you mean 'port'"]),
        ("mirostat-x: secret", ["unknown key"]),
        ("config: other.yaml", ["unknown key 'config'"]),
        ("help: true", ["unknown key 'help'"]),
        ("- secret", ["mapping"]),
        ("secret", ["mapping"]),
        ("1: secret", ["unknown key '1'"]),
        ("[a, b]: secret", ["not YAML", "a key must be a name"]),
        ("port: [secret", ["not YAML", "line"]),
        ("api-key: 'secret", ["not YAML"]),
        ("api-key: &a secret\nhost: *a", ["references", "line 2"]),
        ("disable-log-requests: secret", ["disable-log-requests must be true or false"]),
        ("api-key: {a: secret}\nport: 1\nprt: 2", ["unknown key 'prt'"]),
        ("api-key: !!python/object:os.system secret", ["not YAML"]),
        ("api-key: 2020-01-01", ["api-key", "quotes"]),
        ('api-key: "secret\\0"', ["api-key", "NUL"]),
        ("lora-modules: [secret]", ["--lora-modules", "merge"]),
        ("", ["mapping"]),
    ],
)
def test_what_is_wrong_is_one_line_without_a_value(
    text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flags.yaml"
    path.write_text(text, "utf-8")
    assert main(["serve", "m", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1
    assert "secret" not in err
    for word in words:
        assert word in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"\nport: 1")
    binary.write_bytes(b"\xff\xfe")
    for name, word in (
        (tmp_path / "no", "No such file"),
        (tmp_path, "directory"),
        (large, "1 MB"),
        (binary, "YAML"),
    ):
        assert main(["serve", "m", "--config", str(name)]) == 2
        assert word in capsys.readouterr().err
    deep = tmp_path / "deep.yaml"
    deep.write_text("port: " + "[" * 20_000, "utf-8")
    assert main(["serve", "m", "--config", str(deep)]) == 2
    with pytest.raises(ConfigError, match="give one file"):
        parser().parse_args(["serve", "m", "--config", str(binary), "--config", str(binary)])
