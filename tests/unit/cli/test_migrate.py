"""`outrider migrate`: commands of vLLM and llama.cpp become ones that Outrider's own parser reads."""

from __future__ import annotations

import argparse
import io
import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli import completion
from outrider.cli.foreign import NOTES, TABLE, row_of
from outrider.cli.foreign_flags import LLAMA, ForeignFlag
from outrider.cli.main import main, parser
from outrider.cli.migrate import document
from outrider.cli.migrate_flags import error_of
from outrider.cli.migrate_words import Word, shell_words
from outrider.errors import ConfigError

PARSER = parser()
SUBPARSERS = completion._subparsers_of(PARSER)
FOREIGN_DESTS = (NOTES, "hf_repo", "hf_file", "hf_repo_draft", "spec_type")
# A command of theirs for each Outrider command, to which flags are added.
COMMANDS = {
    "serve": {LLAMA: "llama-server -m m.gguf -md d.gguf", "vLLM": "vllm serve m"},
    "run": {LLAMA: "llama-speculative -m m.gguf -md d.gguf -p hello"},
    "chat": {LLAMA: "llama-cli -m m.gguf -md d.gguf"},
    "bench": {LLAMA: "llama-bench -m m.gguf -md d.gguf", "vLLM": "vllm bench latency --model m"},
}
LINES = [(command, of, line) for command, lines in COMMANDS.items() for of, line in lines.items()]


def migrated(line: str) -> dict[str, Any]:
    return document(shell_words(line), SUBPARSERS)


def outcomes(line: str) -> dict[str, str]:
    return {flag["theirs"] or flag["here"]: flag["outcome"] for flag in migrated(line)["flags"]}


def read(found: dict[str, Any]) -> dict[str, Any]:
    """What our parser makes of the migrated command, as it is printed."""
    words = shlex.split(found["command"])
    assert words[0] == "outrider"
    assert words[1:] == found["arguments"]
    command, *arguments = words[1:]
    assert error_of(SUBPARSERS.choices[command], command, arguments) is None
    args = vars(PARSER.parse_args(words[1:]))
    return {name: v for name, v in args.items() if name not in FOREIGN_DESTS and not name.startswith("vllm_")}


def values_of(row: ForeignFlag, action: argparse.Action) -> list[list[str]]:
    """Values of a flag: those that are accepted, and others."""
    if action.nargs == 0:
        return [[]]
    count = row.takes if isinstance(row.takes, int) else 1
    texts = [*(row.accepts or ()), "1", "what?"]
    if row.stored in ("hf_repo", "hf_repo_draft"):
        texts = ["org/name", "org/name:Q8_0"]
    return [[text] * count for text in texts]


@pytest.mark.parametrize(("command", "of", "line"), LINES)
def test_every_known_flag_gives_a_command_that_parses(command: str, of: str, line: str) -> None:
    own = SUBPARSERS.choices[command]
    for row in TABLE:
        if row.of != of or command not in row.commands or row.same_as == "--help":
            continue
        if row.stored == "hf_repo" or "--model" in row.flags or row.stored == "hf_file":
            continue  # there is one model already
        flag = next((f for f in row.flags if f in own.actions and row_of(own, command, f) is row), None)
        if flag is None or row.stored == "hf_repo_draft":
            continue
        for values in values_of(row, own.actions[flag]):
            found = migrated(f"{line} {shlex.join([flag, *values])}")
            assert found["arguments"][0] == command
            read(found)
            judged = [f for f in found["flags"] if f["theirs"].split(" ")[0] == flag]
            assert judged, flag
            if row.always_refused and not own.has(flag):
                assert [f["outcome"] for f in judged] == ["no counterpart"], flag
                assert judged[0]["reason"]
                assert not found["complete"]


@pytest.mark.parametrize(("command", "of", "line"), LINES)
def test_every_flag_of_our_own_is_kept(command: str, of: str, line: str) -> None:
    own = SUBPARSERS.choices[command]
    for action in own.flags():
        flag = action.option_strings[-1]
        if action.dest in ("help", "model", "config") or (of == LLAMA and flag in ("--device", "--api-key")):
            continue
        values = [] if action.nargs in (0, "?") else [str((action.choices or ["2"])[0])]  # type: ignore[index]
        found = migrated(f"{line} {shlex.join([flag, *values])}")
        read(found)
        judged = [f for f in found["flags"] if f["theirs"].split(" ")[0] == flag]
        assert [f["outcome"] for f in judged] in (["kept"], ["no counterpart"]), flag


_ACCEPTED = [
    [flag, *values[:1]]
    for row in TABLE
    if row.of == LLAMA and "serve" in row.commands and row.accepts is None
    for flag in row.flags
    for values in [["7"] if row.takes is None else []]
]
_OWN = [["-c", "64"], ["--port", "81"], ["-np", "2"], ["--temp", "0.5"], ["--draft", "3"], ["-fa"], ["-t4"]]
_REFUSED = [["--lora", "a"], ["-ctk", "q4_0"], ["--mirostat", "2"], ["--embedding"], ["--nonsense", "1"]]


@given(st.lists(st.sampled_from([*_ACCEPTED, *_OWN, *_OWN, *_REFUSED]), max_size=8))
def test_any_flags_together(flags: list[list[str]]) -> None:
    """The migrated command means what the accepted flags mean to our parser, which reads them too."""
    found = migrated(shlex.join(["llama-server", "-m", "m.gguf", *(word for flag in flags for word in flag)]))
    accepted = [flag for flag in flags if flag not in _REFUSED]
    refused = {flag[0] for flag in flags if flag in _REFUSED}
    words = [word for flag in accepted for word in flag]
    port = [] if ["--port", "81"] in flags else ["--port", "8080"]
    expected = vars(PARSER.parse_args(["serve", "-m", "m.gguf", *words, *port]))
    ours = read(found)
    assert ours == {name: value for name, value in expected.items() if name in ours}
    missing = {f["theirs"].split(" ")[0] for f in found["flags"] if f["outcome"] == "no counterpart"}
    assert missing == refused
    assert found["complete"] is not bool(refused)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_words_are_read_as_a_shell_reads_them(words: list[str]) -> None:
    assert [word.text for word in shell_words(" ".join(["x", *map(shlex.quote, words)]))] == ["x", *words]


@given(st.text(alphabet="ab '\"\\$#=-\n|vlms", max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        assert all(isinstance(word, Word) for word in shell_words(text))
    except ConfigError as error:
        said = str(error)
        assert "\n" not in said


def test_continued_lines_comments_and_quotes() -> None:
    line = "$ vllm serve m \\\n  --port 81 \\\n  --served-model-name 'a b' # all of it\n"
    assert migrated(line)["arguments"] == [
        *("serve", "m", "--port", "81", "--served-model-name", "a b", "--host", "0.0.0.0")
    ]
    assert [word.text for word in shell_words(r'a"b\"c"d e\ f "x\y" ""')] == ['ab"cd', "e f", r"x\y", ""]


def test_vllms_server_in_its_older_form() -> None:
    found = migrated(
        "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0 HF_TOKEN=$HF_TOKEN VLLM_API_KEY=k "
        "python3 -u -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8000 "
        "--model facebook/opt-6.7b --seed 42 -tp 1 --speculative_model facebook/opt-125m "
        "--use-v2-block-manager --num_speculative_tokens 5 --gpu_memory_utilization 0.8"
    )
    assert found["command"] == (
        "CUDA_VISIBLE_DEVICES=0 HF_TOKEN=$HF_TOKEN OUTRIDER_API_KEY=k outrider serve --host 0.0.0.0 "
        "--port 8000 --model facebook/opt-6.7b --seed 42 --speculative-model facebook/opt-125m "
        "--num-speculative-tokens 5 --gpu-memory-utilization 0.8"
    )
    assert found["complete"]
    dropped = {flag["theirs"]: flag["reason"] for flag in found["flags"] if flag["outcome"] == "dropped"}
    assert dropped == {
        "-tp 1": "Outrider runs in one process",
        "--use-v2-block-manager": "changes nothing here",
        "VLLM_USE_V1": "the variable is not read here",
    }


def test_the_keys_of_a_speculative_config_are_judged_one_by_one() -> None:
    config = '{"model": "x/y z", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 2}'
    found = migrated(f"vllm serve m --speculative-config '{config}'")
    assert json.loads(found["arguments"][3]) == {"model": "x/y z", "num_speculative_tokens": 5}
    (missing,) = [flag for flag in found["flags"] if flag["outcome"] == "no counterpart"]
    assert "draft_tensor_parallel_size" in missing["theirs"]
    assert "one process" in missing["reason"]
    whole = migrated('vllm serve m -sc \'{"method": "mtp", "num_speculative_tokens": 1}\'')
    assert whole["arguments"] == ["serve", "m", "--host", "0.0.0.0"]
    dotted = migrated("vllm serve m --speculative-config.method ngram -sc.num_speculative_tokens=3")
    assert json.loads(dotted["arguments"][3]) == {"method": "ngram", "num_speculative_tokens": 3}


def test_llama_cpps_programs() -> None:
    line = "./build/bin/llama-speculative -m t.gguf -md d.gguf -p 'Hi\\n' -n 256 --draft 5"
    assert migrated(line)["arguments"] == [
        *("run", "-m", "t.gguf", "-md", "d.gguf", "-p", "Hi\\n", "-n", "256", "--draft", "5", "-e")
    ]
    line = "llama-server -hf org/repo:Q4_K_M -hff f.gguf --spec-type ngram-mod -dev CUDA0 --api-key a,b"
    assert migrated(line)["arguments"] == [
        *("serve", "-m", "hf:org/repo:f.gguf", "--spec", "ngram", "--api-key", "a", "b", "--port", "8080")
    ]
    assert migrated("llama-cli -m m.gguf --device CUDA0")["arguments"] == ["chat", "-m", "m.gguf"]
    assert migrated("llama-cli -m m.gguf -p hi -cnv")["arguments"][0] == "chat"
    once = migrated("llama-cli -m m.gguf -p hi -st")
    assert (once["arguments"][0], once["notes"]) == ("run", [])
    raw = migrated("./main -m m.gguf -p hi -n 4 --temp -1.5")
    assert ["--chat" in note for note in raw["notes"]] == [True]
    assert outcomes("llama-server -m m --chat-template chatml")["--chat-template chatml"] == "no counterpart"
    assert outcomes("llama-server -m m --chat-template ./a.jinja")["--chat-template ./a.jinja"] == "kept"
    assert outcomes("LLAMA_ARG_CTX_SIZE=5 llama-server -m m")["LLAMA_ARG_CTX_SIZE"] == "no counterpart"


def test_flags_that_need_each_other_are_judged_together() -> None:
    assert migrated("vllm serve m --dtype float16 --device cuda")["complete"]
    assert outcomes("vllm serve m --dtype float16")["--dtype float16"] == "no counterpart"
    both = outcomes("vllm serve m -sc ngram --num-speculative-tokens 3")
    assert both["-sc ngram"] == "kept"
    assert both["--num-speculative-tokens 3"] == "no counterpart"
    repeated = migrated("llama-server -m m --lora a --lora b")
    assert repeated["arguments"] == ["serve", "-m", "m", "--port", "8080"]


def test_a_file_of_flags_is_not_read() -> None:
    found = migrated("vllm serve --config /no/such/file.yaml --port 9")
    assert found["arguments"] == [
        *("serve", "--config", "/no/such/file.yaml", "--port", "9", "--host", "0.0.0.0")
    ]
    assert found["notes"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["give a command", "vllm serve"]),
        ("HF_TOKEN=x", ["give a command"]),
        ("vllm serve", ["give a model"]),
        ("vllm serve m 'x", ["quote '", "not closed"]),
        ('vllm serve "m', ['quote "', "not closed"]),
        ("vllm serve m \\", ["backslash"]),
        ("vllm serve $MODEL", ["$MODEL"]),
        ('vllm serve "${MODEL}/x"', ["${MODEL}"]),
        ("vllm serve m && ls", ["'&&'"]),
        ("vllm serve m > log", ["'>'"]),
        ("vllm chat", ["'vllm chat'", "vllm serve"]),
        ("python -m sglang.launch_server --model-path m", ["SGLang's", "not read"]),
        ("docker run vllm/vllm-openai --model m", ["docker's", "not read"]),
        ("outrider serve m", ["already"]),
        ("ls -l", ["'ls'"]),
        ("vllm serve m --help", ["--help"]),
        ("vllm serve m --port", ["--port", "no value"]),
        ("vllm serve m --enforce-eager=2", ["--enforce-eager", "takes no value", "'2'"]),
        ("vllm serve m --speculative-config '{x'", ["--speculative-config", "not JSON"]),
        ("llama-server -hf name", ["ORG/REPO"]),
        ("llama-server -m m extra", ["'extra'"]),
    ],
)
def test_what_cannot_be_read(line: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", line]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_the_output_and_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--json", "vllm serve m --api-key secret -ctk q8_0"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == "outrider serve m --api-key secret --host 0.0.0.0"
    assert "secret" not in json.dumps(found["flags"])
    assert main(["migrate", "--", "llama-server", "-m", "m.gguf", "-ngl", "99"]) == 0
    out, err = capsys.readouterr()
    assert out == "outrider serve -m m.gguf --port 8080\n"
    assert "dropped" in err
    assert "-ngl 99: Outrider runs on the CPU" in err


def test_a_command_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"vllm serve m \\\n --port 8\n")))
    assert main(["migrate"]) == 0
    assert capsys.readouterr().out == "outrider serve m --port 8 --host 0.0.0.0\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert main(["migrate", "-"]) == 2
    assert "UTF-8" in capsys.readouterr().err
