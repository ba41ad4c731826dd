"""llama.cpp's and vLLM's flags: mapped, accepted where they change nothing, or refused with a way out."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import foreign, options
from outrider.cli.foreign import TABLE, hub_reference, spec_method
from outrider.cli.foreign_flags import MODEL_COMMANDS, ForeignFlag
from outrider.cli.main import main, parser
from outrider.cli.serve import engine_config
from outrider.errors import ConfigError
from tests.scripts.write_foreign_flags import DOCUMENT, replaced

PARSER = parser()  # of all commands: making one takes as long as several tests
ROWS = [(row, command) for row in TABLE for command in row.commands]


def parsed(line: str) -> argparse.Namespace:
    return PARSER.parse_args(shlex.split(line))


def command_parser(command: str) -> Any:
    return PARSER._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr,index]


PARSERS = {command: command_parser(command) for command in MODEL_COMMANDS}


def _own(command: str, flag: str) -> bool:
    return bool(PARSERS[command].has(flag))


def _values(row: ForeignFlag, value: str) -> list[str]:
    count = 2 if row.takes == 2 else 0 if row.takes == 0 else 1
    return [value] * count


def _judged(row: ForeignFlag, command: str) -> list[str]:
    """The row's flags that the row decides about in this command."""
    actions = PARSERS[command].actions
    return [flag for flag in row.flags if getattr(actions.get(flag), "row", None) is row]


def test_every_row_has_an_effect() -> None:
    """In each of its commands, for a flag that neither the command nor an earlier row has."""
    for row, command in ROWS:
        if not (row.same_as or row.stored or row.engine or all(_own(command, flag) for flag in row.flags)):
            assert _judged(row, command), (row.flags, command)


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_every_flag_is_read_whole(command: str) -> None:
    """Whatever becomes of it, it is never unknown, cut in pieces, or the help."""
    for row in TABLE:
        if command not in row.commands:
            continue
        for flag in row.flags:
            assert flag in PARSERS[command].actions or (row.same_as and not row.instead), (flag, command)


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_accepted_values_change_nothing(command: str) -> None:
    plain = vars(PARSER.parse_args([command, "m"]))
    for row in TABLE:
        values = ["7"] if row.accepts is None else list(row.accepts)
        for flag in _judged(row, command):
            if row.accepts != ():
                for value in values:
                    found = vars(PARSER.parse_args([command, "m", flag, *_values(row, value)]))
                    found.pop(foreign.NOTES, None)
                    assert found == plain, flag


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_others_are_refused_with_the_way_out(command: str) -> None:
    for row in TABLE:
        for flag in _judged(row, command):
            if row.accepts is None:
                continue
            with pytest.raises(ConfigError) as caught:
                PARSER.parse_args([command, "m", flag, *_values(row, "what?")])
            assert str(caught.value).startswith(flag), flag
            assert row.instead in str(caught.value), flag


def test_what_is_refused_says_what_to_do() -> None:
    for row in TABLE:
        if row.accepts is not None and not (row.stored or row.engine or row.same_as):
            assert len(row.instead) > 8, row.flags


@pytest.mark.parametrize("command", ["run", "chat", "bench", "verify", "serve"])
@pytest.mark.parametrize(
    "line",
    [
        *("-ngl 99", "-ngl 0", "-ngl all", "-ngl99", "--n-gpu-layers 99", "-cb", "-tb 4", "-st" , "-ctk f16"),
        *("-ctk q8_0 -ctv q8_0", "--kv-cache-dtype auto", "--kv-quantization q8_0", "-ctv f16"),
        *("-ngld 99", "--no-mmap", "--mlock", "--numa distribute", "-b 512", "-ub 512", "--jinja"),
        *("--no-warmup", "--spec-type none", "--draft-min 2", "--draft-p-min 0.75", "-v", "-fa", "-fa on"),
        *("--flash-attn auto", "--samplers 'top_k;temperature'", "--trust-remote-code", "-dev none"),
        *("--prio 2", "--poll 50", "-t 4 -tb 4 -td 4", "--gpu-memory-utilization 0.9", "-O3", "-sm layer"),
        *("--enforce-eager", "--max-num-batched-tokens 512", "--block-size 16", "-C ff", "--warmup"),
        *("--dtype auto", "-tp 1", "--mirostat 0", "--typical 1.0", "--repeat-last-n -1", "--log-disable"),
    ],
)  # fmt: skip
def test_what_people_type_is_accepted(command: str, line: str) -> None:
    if line == "-st" and command not in ("run", "chat"):
        pytest.skip("of the commands that take a prompt")
    args = parsed(f"{command} m {line}")
    if command != "serve":
        assert options.target(args)[0] == "m"
    else:
        assert engine_config(args).model == "m"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run m -ctk q8_0 x", ["-ctk q8_0", "-ctv f16", "one type"]),
        ("run m -ctk q8_0 -ctv q4_0 x", ["-ctv q4_0", "one type"]),
        ("run m -ctk q4_0 -ctv q4_0 x", ["-ctk q4_0", "f16", "q8_0"]),
        ("run m -ctk q8_0 -ctv q8_0 --kv-quantization f16 x", ["--kv-quantization and -ctk"]),
        ("run m --kv-quantization fp8 x", ["kv_quantization='fp8'", "q8_0"]),
        ("run m --kv-cache-dtype fp8 x", ["'fp8'", "q8_0"]),
        ("run m --kv-cache-dtype q8_0 --kv-quantization f16 x", ["kv_cache_dtype='q8_0'", "differ"]),
        ("run m --lora a.gguf x", ["--lora", "merge"]),
        ("run m --mmproj a.gguf x", ["--mmproj", "text only"]),
        ("run m --mirostat 2 x", ["--mirostat 2", "not built"]),
        ("run m --tensor-parallel-size 2 -p x", ["tensor_parallel_size=2", "one process"]),
        ("bench m --dtype float16", ["dtype='float16'", "model file"]),
        ("bench m -p 512", ["-p", "--workload"]),
        ("bench m --request-rate 5", ["--request-rate", "vLLM's own client"]),
        ("bench m -o json", ["-o json", "--json FILE"]),
        ("run m -hf a -p x", ["-m already"]),
        ("run -hf a -p x", ["-hf", "ORG/REPO"]),
        ("run -hff f.gguf -p x", ["-hff", "-hf"]),
        ("run -m m -hf a/b -p x", ["-m and -hf"]),
        ("run m -md d -hfd a/b -p x", ["-md and -hfd"]),
        ("run m --spec-type eagle -p x", ["--spec-type", "'eagle'"]),
        ("run m --spec-type draft-mtp -p x", ["draft-mtp", "--spec auto"]),
        ("run m -hft secret -p x", ["-hft", "HF_TOKEN"]),
        ("run m -o out.txt x", ["-o", "> FILE"]),
        ("chat m --no-jinja", ["--no-jinja", "jinja2"]),
    ],
)
def test_what_is_refused(line: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if "-hf a -p" in line and line.startswith("run m"):
        words = ["ORG/REPO"]
    assert main(shlex.split(line)) == 2
    err = capsys.readouterr().err
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1
    assert "secret" not in err
    for word in words:
        assert word in err


def test_a_model_of_the_hub_by_llama_cpps_flags() -> None:
    assert parsed("run -hf org/repo x").model == "hf:org/repo"
    assert parsed("bench -hfr org/repo:Q4_K_M").model == "hf:org/repo:Q4_K_M"
    assert parsed("serve --hf-repo org/repo:Q8_0 -hff a.gguf").model == "hf:org/repo:a.gguf"
    args = parsed("run -hf org/repo -hfd org/small x")
    assert (args.model, args.model_draft, args.words) == ("hf:org/repo", "hf:org/small", ["x"])
    assert hub_reference("-hf", "hf:org/repo") == "hf:org/repo"


def test_llama_cpps_kinds_of_speculation() -> None:
    kinds = {
        "none": "none",
        "draft-simple": "draft_model",
        "draft-eagle3": "eagle3",
        "ngram-mod": "ngram",
        "ngram-simple,ngram-mod": "ngram",
        "draft-simple,ngram-mod": "auto",
        "none,ngram-cache": "ngram",
        "": "auto",
    }
    for given, method in kinds.items():
        assert spec_method(given) == method
    assert parsed("run m --spec-type none x").spec == "none"
    assert parsed("run m --spec-type none --spec auto x").spec == "auto"
    assert options.speculation(parsed("run m --spec-type ngram-mod x")).method == "ngram"


@pytest.mark.parametrize(
    ("foreign_line", "own_line"),
    [
        ("run m x --max-tokens 7 -r Stop", "run m x -n 7 --stop Stop"),
        ("run m x --predict 7 --repetition-penalty 1.1", "run m x -n 7 --repeat-penalty 1.1"),
        ("bench m -r 2 --n-gen 5", "bench m --runs 2 -n 5"),
        ("bench m --num-iters 2 --output-len 5 --output-json f", "bench m --runs 2 -n 5 --json f"),
        ("serve m --cors-origins a --cors-credentials", "serve m --allowed-origins a --allow-credentials"),
        ("run m x --spec-draft-model d", "run m x -md d"),
    ],
)  # fmt: skip
def test_the_same_under_another_name(foreign_line: str, own_line: str) -> None:
    assert vars(parsed(foreign_line)) == vars(parsed(own_line))


def test_one_note_for_all_gpu_flags(
    target_file: Path, toy_engine: object, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["run", str(target_file), "the fox", "-n", "2", "-ngl", "99", "-ngld", "99", "-sm", "layer"]
    assert main(line) == 0
    err = capsys.readouterr().err
    assert err.count("outrider: note: ") == 1
    assert "Outrider runs on the CPU" in err
    assert main([*line[:5], "-ngl", "0"]) == 0
    assert "note" not in capsys.readouterr().err


def test_offline_as_llama_cpp_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_OFFLINE", "0")
    assert main(["run", "-hf", "no-such-org/none", "--offline", "x"]) == 2
    assert "offline" in capsys.readouterr().err


def test_the_documents_table_is_this_one() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert replaced(text) == text
