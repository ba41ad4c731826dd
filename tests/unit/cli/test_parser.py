"""The reading of command lines: flags whole or not at all, in any order, and hints at near names only."""

from __future__ import annotations

import argparse
import shlex

import pytest

from outrider.cli.main import main, parser
from outrider.cli.parser import Parser, context_size, is_flag
from outrider.errors import ConfigError


def parsed(line: str) -> dict[str, object]:
    return vars(parser().parse_args(shlex.split(line)))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("run m -n32 x", "n_predict", 32),
        ("run m -n 32 x", "n_predict", 32),
        ("run m -n=32 x", "n_predict", 32),
        ("run m -n -1 x", "n_predict", -1),
        ("run m -n-1 x", "n_predict", -1),
        ("run m -c4096 x", "ctx_size", 4096),
        ("serve m -np4", "max_num_seqs", 4),
        ("run m -p -hello", "prompt", "-hello"),
        ("run m -p '- a list'", "prompt", "- a list"),
        ("run m -p ''", "prompt", ""),
        ("run m -p a=b", "prompt", "a=b"),
        ("run m -p -1", "prompt", "-1"),
        ("run m --stop=--- x", "stop", ["---"]),
        ("run m -l 15043-1 x", "logit_bias", ["15043-1"]),
        ("run m --temp -0.5 x", "temp", -0.5),
        ("run m --top_p 0.5 x", "top_p", 0.5),
        ("serve m --max_model_len=100", "ctx_size", 100),
        ("serve m --served-model-name a b --port 1", "served", ["a", "b"]),
        ("run m --ignore-eos=true x", "ignore_eos", True),
        ("run m --ignore-eos=False x", "ignore_eos", False),
        ("run m --color x", "color", "on"),
        ("run m --color auto x", "color", "auto"),
        ("bench m --json out.json", "model", None),
    ],
)
def test_values(line: str, name: str, value: object) -> None:
    assert parsed(line)[name] == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run m -n 5 'a prompt'", ["m", "a prompt"]),
        ("run -n 5 m --temp 0 'a prompt' --json", ["m", "a prompt"]),
        ("run -m m 'a prompt'", ["a prompt"]),
        ("run --color m x", ["m", "x"]),
        ("run m -- --weird", ["m", "--weird"]),
        ("run m -", ["m", "-"]),
        ("serve --port 1 m", ["m"]),
    ],
)
def test_positional_arguments_stand_anywhere(line: str, words: list[str]) -> None:
    assert parsed(line)["words"] == words


@pytest.mark.parametrize("command", ["run", "chat", "serve", "bench", "verify"])
@pytest.mark.parametrize("flag", ["-nx", "-hx", "-mfoo", "-cx9", "-sx", "-sy", "-px", "--tem", "--max-mod"])
def test_no_flag_is_cut_or_completed(command: str, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown flag {flag}"):
        parser().parse_args([command, flag, "5"])


def test_a_flag_that_is_unknown_is_told_before_anything_else() -> None:
    for line in ("bench --wrokload x", "run --wrokload x y z a b"):
        with pytest.raises(ConfigError, match="unknown flag --wrokload"):
            parsed(line)


def test_a_flag_of_another_command_is_told() -> None:
    with pytest.raises(ConfigError, match="unknown flag --max-waiting: it is a flag of `outrider serve`"):
        parsed("run m --max-waiting 3")
    with pytest.raises(ConfigError, match=r"give a command first, such as `outrider run -m …`"):
        parsed("-m x -p y")


def test_no_hint_at_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--mmprok", "--mirostatx"):
        assert main(["run", "m", flag, "x"]) == 2
        assert "did you mean" not in capsys.readouterr().err
    assert "--mmproj" not in parser_of("run").suggestions()
    assert "--no-mmproj" in parser_of("run").suggestions()


def parser_of(command: str) -> Parser:
    run: Parser = parser()._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr,index]
    return run


@pytest.mark.parametrize(
    ("word", "answer"),
    [("-n", True), ("--x", True), ("-", False), ("-1", False), ("-.5", False), ("- a", False), ("a", False),
     ("", False), ("--", True), ("--x=a b", True), ("-x y=1", False)],
)  # fmt: skip
def test_what_looks_like_a_flag(word: str, answer: bool) -> None:
    assert is_flag(word) == answer


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["run", "m", "--prompt=two words"], "two words"),
        (["run", "m", "-p=two words"], "two words"),
        (["run", "m", "-p", "--flag=1 of a prompt"], "--flag=1 of a prompt"),
        (["run", "m", "-p", "-x = 1"], "-x = 1"),
        (["run", "m", "--prompt=--"], "--"),
    ],
)
def test_values_with_blanks(words: list[str], prompt: str) -> None:
    assert parser().parse_args(words).prompt == prompt


def test_a_prompt_that_begins_like_a_flag() -> None:
    assert parsed("run m '--flag=1 of a prompt'")["words"] == ["m", "--flag=1 of a prompt"]
    config = '{"method": "ngram", "num_speculative_tokens": 5}'
    line = ["serve", "m", f"--speculative-config={config}"]
    assert parser().parse_args(line).speculative_config == config


def test_two_dashes_are_no_number() -> None:
    with pytest.raises(ConfigError, match="not a whole number: '--'"):
        parsed("run m x --draft-max=--")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(("4096", 4096), ("-1", -1), ("auto", -1), ("0", 0)),
        *(("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("8K", 8192), ("2m", 2_000_000), ("1G", 1 << 30)),
    ],
)
def test_numbers_of_tokens_are_read_as_vllm_reads_them(text: str, tokens: int) -> None:
    assert context_size(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "1.5K", "1kk", "8 k", "1e3", "x8k", "8q", "1.k", "-8k"])
def test_other_numbers_of_tokens_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number"):
        context_size(text)
