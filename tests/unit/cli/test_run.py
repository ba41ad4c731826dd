"""`outrider run` in-process, on toy models: streaming, the summary, JSON, colour, and bad input."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main
from tests.support.models import tiny_gguf
from tests.support.toy_model import ToyModel

pytestmark = pytest.mark.usefixtures("toy_engine")

METRICS = {
    *("decode_tokens_per_s", "ttft_ms", "tpot_ms", "num_drafts", "num_draft_tokens", "num_accepted_tokens"),
    *("acceptance_rate", "mean_acceptance_length", "block_efficiency", "draft_ms", "verify_ms", "other_ms"),
    "sampling_ms",
    *("accepted_per_pos", "drafters", "earlier_outputs", "speculation"),
}


@pytest.fixture
def run(target_file: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `outrider run -m TARGET …`; gives (status, stdout, stderr)."""

    def call(*args: str) -> tuple[int, str, str]:
        status = main(["run", "-m", str(target_file), *args])
        out, err = capsys.readouterr()
        return status, out, err

    return call


SEEDED = ("-p", "the quick brown fox", "-n", "30", "--ignore-eos", "--seed", "7", "--temp", "0.7")


def test_text_on_stdout_and_summary_on_stderr(run: Any, draft_file: Path) -> None:
    status, out, err = run(*SEEDED, "--spec", "draft_model", "-md", str(draft_file), "--draft", "4")
    assert status == 0
    _, document, _ = run(*SEEDED, "--spec", "none", "--json")
    assert out == json.loads(document)["text"] + "\n"
    for words in ("30 tokens", "acceptance rate", "mean acceptance length", "block efficiency", "verify"):
        assert words in err
    assert re.search(r"^seed +7$", err, re.M)
    drafted, drafts = map(int, re.search(r"drafted +(\d+) tokens in (\d+) drafts", err).groups())  # type: ignore[union-attr]
    assert drafts <= drafted <= 4 * drafts


def test_json_is_one_document_with_every_key_and_the_same_tokens(run: Any, draft_file: Path) -> None:
    documents = []
    for spec in (
        ("--spec", "none"),
        ("--spec", "ngram", "--prompt-lookup-max", "1"),
        ("-md", str(draft_file)),  # as expensive as the target, so auto does not use it
        ("--spec", "draft_model", "--model-draft", str(draft_file), "--draft", "2"),
        ("--speculative-config", json.dumps({"method": "draft_model", "model": str(draft_file)})),
    ):
        status, out, err = run(*SEEDED, *spec, "--json")
        assert (status, err) == (0, "")
        documents.append(json.loads(out))
    for document in documents:
        assert document.keys() == {
            *("text", "token_ids", "prompt_token_ids", "finish_reason", "seed", "metrics")
        }
        assert document["metrics"].keys() == METRICS
        assert document["token_ids"] == documents[0]["token_ids"]
        assert (document["seed"], document["finish_reason"]) == (7, "length")
    assert [d["metrics"]["num_draft_tokens"] > 0 for d in documents] == [False, True, False, True, True]


def test_the_spellings_of_llama_cpp(run: Any, tmp_path: Path, draft_file: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("the quick brown fox\n", "utf-8")
    _, expected, _ = run(*SEEDED, "--spec", "none", "--json")
    for line in (
        f"--file {prompt} --n-predict 30 --ignore-eos -s 7 --temp 0.7 -c 256 -t 1",
        f"-f {prompt} --n-predict 30 --ignore-eos -s 7 --temp 0.7 --ctx-size 256 --threads 1 --top-k 40",
        f"-f {prompt} -n 30 --ignore-eos -s 7 --temp 0.7 --top-p 0.95 --min-p 0.05 -no-cnv --ctx-size 0",
        f"-f {prompt} -n 30 --ignore-eos -s 7 --temp 0.7 --model-draft {draft_file} --draft-max 3",
        f"-f {prompt} -n 30 --ignore-eos -s 7 --temp 0.7 -md {draft_file} --spec-draft-n-max 3",
    ):
        status, out, _ = run(*line.split(), "--json")
        assert status == 0
        assert json.loads(out)["token_ids"] == json.loads(expected)["token_ids"]


def test_a_random_seed_is_reported_and_repeats(run: Any) -> None:
    _, out, _ = run("-p", "the fox", "-n", "10", "--json")
    first = json.loads(out)
    _, out, _ = run("-p", "the fox", "-n", "10", "--json", "--seed", str(first["seed"]))
    assert json.loads(out)["token_ids"] == first["token_ids"]


def test_the_prompt_from_stdin(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the quick brown fox\n")))
    _, out, _ = run("-p", "-", *SEEDED[2:], "--json")
    _, expected, _ = run(*SEEDED, "--spec", "none", "--json")
    assert json.loads(out)["prompt_token_ids"] == json.loads(expected)["prompt_token_ids"]


def test_chat_uses_the_template(run: Any) -> None:
    status, out, _ = run("-p", "hello", "--chat", "-sys", "Be brief.", "-n", "3", "--json")
    assert status == 0
    ids = json.loads(out)["prompt_token_ids"]
    assert ids.count(1) == 3  # <|im_start|> for system, user and assistant
    _, raw, _ = run("-p", "hello", "-n", "3", "--json")
    assert 1 not in json.loads(raw)["prompt_token_ids"]


def test_stop_strings(run: Any) -> None:
    _, out, _ = run(*SEEDED, "--json")
    text = json.loads(out)["text"]
    _, out, _ = run(*SEEDED, "--json", "--stop", text[5:8])
    cut = json.loads(out)
    assert (cut["text"], cut["finish_reason"]) == (text[: text.index(text[5:8])], "stop")


def test_the_form_of_the_output(run: Any, draft_file: Path, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text('{"enum": ["the fox", "the dog"]}', "utf-8")
    grammar.write_text('root ::= "the " ("fox" | "dog")', "utf-8")
    common = ("-p", "jumps over", "--seed", "3", "--json", "-md", str(draft_file))
    for flags, wanted in (
        (("--json-schema", schema.read_text()), '"the (fox|dog)"'),
        (("-j", str(schema)), '"the (fox|dog)"'),
        (("-jf", str(schema)), '"the (fox|dog)"'),
        (("--grammar", grammar.read_text()), "the (fox|dog)"),
        (("--grammar-file", str(grammar)), "the (fox|dog)"),
        (("--regex", "(fox|dog)[.!]"), "(fox|dog)[.!]"),
    ):
        status, out, err = run(*common, *flags)
        document = json.loads(out)
        assert (status, err, document["finish_reason"]) == (0, "", "stop")
        assert re.fullmatch(wanted, document["text"])
    _, out, _ = run(*common, "--json-schema", "{}", "-n", "5")
    assert json.loads(out)["text"].startswith("{")


def test_logprobs_and_biases(run: Any) -> None:
    flags = ("-n", "4", "--logprobs", "2", "-l", "70+30", "--logit-bias", "71-100.5")
    document = json.loads(run(*SEEDED, "--json", *flags)[1])
    assert document["token_ids"] == [70] * 4
    assert len(document["logprobs"]) == 4
    for entry in document["logprobs"]:
        assert entry["token_id"] == 70
        assert [other["rank"] for other in entry["top"]][:2] == [1, 2]
        assert entry["logprob"] < 0
    total = sum(entry["logprob"] for entry in document["logprobs"])
    assert document["cumulative_logprob"] == pytest.approx(total)


@pytest.mark.parametrize(
    ("choice", "coloured"), [(["--color"], True), (["--color=auto"], False), ([], False)]
)
def test_colours(run: Any, draft_file: Path, choice: list[str], coloured: bool) -> None:
    _, plain, _ = run(*SEEDED)
    _, out, _ = run(*SEEDED, "--spec", "draft_model", "-md", str(draft_file), *choice)
    assert ("\x1b[32m" in out) == coloured
    assert re.sub(r"\x1b\[\d*m", "", out) == plain


def test_an_interrupt_keeps_what_there_is(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[None] = []
    forward = ToyModel.forward

    def interrupted(self: ToyModel, items: Any) -> Any:
        passes.append(None)
        if len(passes) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(self, items)

    monkeypatch.setattr(ToyModel, "forward", interrupted)
    before = signal.getsignal(signal.SIGINT)
    status, out, _ = run(*SEEDED, "--json")
    document = json.loads(out)
    assert (status, document["finish_reason"]) == (130, "abort")
    assert 1 <= len(document["token_ids"]) < 30
    assert document["text"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_prompt_as_an_argument(run: Any, target_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, expected, _ = run(*SEEDED, "--json")
    _, out, _ = run(*SEEDED[2:], "the quick brown fox", "--json")
    assert json.loads(out)["token_ids"] == json.loads(expected)["token_ids"]
    assert main(["run", str(target_file), "the quick brown fox", *SEEDED[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == json.loads(expected)["token_ids"]


def test_stdin_is_read_where_no_prompt_is_given(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the quick brown fox\n")))
    _, out, _ = run(*SEEDED[2:], "--json")
    _, expected, _ = run(*SEEDED, "--json")
    assert json.loads(out)["token_ids"] == json.loads(expected)["token_ids"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    status, _, err = run("-n", "3")
    assert status == 2
    assert "not UTF-8" in err


def test_as_many_tokens_as_the_context_holds(run: Any) -> None:
    for endless in ("-1", "-2"):
        document = json.loads(run("-p", "the fox", "-n", endless, "--ignore-eos", "--json", "-c", "64")[1])
        assert len(document["prompt_token_ids"]) + len(document["token_ids"]) in (64, 65)
        assert document["finish_reason"] == "length"


def test_the_prompt_is_shown_if_asked_for(run: Any) -> None:
    _, plain, _ = run(*SEEDED)
    assert run(*SEEDED, "--no-display-prompt")[1] == plain
    assert run(*SEEDED, "--display-prompt")[1] == "the quick brown fox" + plain
    assert json.loads(run(*SEEDED, "--display-prompt", "--json")[1])["text"] + "\n" == plain


def test_escape_sequences(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(r"the\x20fox", "utf-8")
    wanted = json.loads(run("-p", "the fox", "-n", "2", "--json")[1])["prompt_token_ids"]
    for line in (("-p", r"the\x20fox"), ("-f", str(file)), (r"the\x20fox",)):
        assert json.loads(run(*line, "-e", "-n", "2", "--json")[1])["prompt_token_ids"] == wanted
        assert json.loads(run(*line, "-n", "2", "--json")[1])["prompt_token_ids"] != wanted
        assert json.loads(run(*line, "--no-escape", "-n", "2", "--json")[1])["prompt_token_ids"] != wanted


def test_another_chat_template_and_a_systems_message_from_a_file(run: Any, tmp_path: Path) -> None:
    system = tmp_path / "system.txt"
    system.write_text("Be brief.\n", "utf-8")
    one = run("-p", "hello", "--chat", "-sys", "Be brief.", "-n", "2", "--json")[1]
    other = run("-p", "hello", "-st", "-sysf", str(system), "-n", "2", "--json")[1]
    assert json.loads(one)["prompt_token_ids"] == json.loads(other)["prompt_token_ids"]
    template = "{{ messages[-1].content }}"
    raw = json.loads(run("-p", "hello", "-n", "2", "--json")[1])["prompt_token_ids"]
    text = run("-p", "hello", "--chat", "--chat-template", template, "-n", "2", "--json")[1]
    assert json.loads(text)["prompt_token_ids"] == raw


def test_special_tokens_are_shown_if_asked_for(run: Any) -> None:
    flags = ("-p", "the", "-n", "3", "-l", "2+100", "--ignore-eos")
    assert run(*flags)[1] == "\n"
    assert run(*flags, "--special")[1] == "<|im_end|>" * 3 + "\n"


def test_a_folder_called_as_a_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hf", "pypi"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.gguf").symlink_to(target_file)
        for given in (f"./{name}", name):
            assert main(["run", "-m", given, "the fox", "-n", "2"]) == 0
    capsys.readouterr()


BAD = [
    (["-p", "x", "-n", "0"], ["-n", "0"]),
    (["x", "y"], ["'y'"]),
    (["-p", "x", "y"], ["'y'", "by a flag already"]),
    (["-p", "x", "-sys", "a", "-sysf", "b", "--chat"], ["-sys and -sysf"]),
    (["-p", "x", "--chat-template", "{{ a }}"], ["--chat-template", "--chat"]),
    (["-p", "x", "-n", "-5"], ["-n", "-5"]),
    (["-p", "x", "--draft", "0", "--spec", "ngram"], ["--draft", "0"]),
    (["-p", "x", "--draft", "-1", "--spec", "ngram"], ["--draft", "-1"]),
    (["-p", "x", "--draft", "1000", "--spec", "ngram"], ["128"]),
    (["-p", "x", "--temp", "nan"], ["temperature", "nan"]),
    (["-p", "x", "--temp", "-0.5"], ["temperature", "-0.5"]),
    (["-p", "x", "--temp", "inf"], ["temperature", "inf"]),
    (["-p", "x", "--top-p", "0"], ["top_p"]),
    (["-p", "x", "--seed", "-9223372036854775809"], ["seed", "-9223372036854775809"]),
    (["-p", "x", "-c", "-2"], ["-c", "-2"]),
    (["-p", "x", "-t", "0"], ["-t", "0"]),
    (["-p", "x", "-t", "-2"], ["-t", "-2"]),
    (["-p", ""], ["prompt", "empty"]),
    ([], ["prompt", "-p", "-f"]),
    (["-p", "x", "-f", "y"], ["one of them"]),
    (["-f", "/nowhere/prompt"], ["/nowhere/prompt", "No such file"]),
    (["-p", "the fox " * 200], ["prompt has", "256"]),
    (["-p", "the fox", "-c", "2"], ["prompt has", "context of 2"]),
    (["-p", "x", "-sys", "y"], ["-sys", "--chat"]),
    (["-p", "x", "--spec", "nrgam"], ["'nrgam'", "did you mean 'ngram'"]),
    (["-p", "x", "--spec", "eagle3"], ["eagle3", "needs `model`"]),
    (["-p", "x", "--spec", "draft_model"], ["draft_model", "model"]),
    (["-p", "x", "-md", "nowhere.gguf"], ["nowhere.gguf"]),
    (["-p", "x", "--speculative-config", "{"], ["JSON"]),
    (["-p", "x", "--speculative-config", "[]"], ["speculative_config must be a JSON object", "'[]'"]),
    (["-p", "x", "--speculative-config", '{"method": "ngram", "k": 1}'], ["'k'"]),
    (["-p", "x", "--speculative-config", '{"method": "ngram"}', "--draft", "3"], ["not both"]),
    (["-p", "x", "--stop", ""], ["stop"]),
    (["-p", "\udcff"], ["not UTF-8", "0xFF"]),
    (["-p", "x", "--logprobs", "2"], ["--logprobs", "--json"]),
    (["-p", "x", "--logprobs", "-2", "--json"], ["logprobs", "-2"]),
    (["-p", "x", "--regex", "a", "--grammar", "b"], ["--grammar and --regex", "two forms"]),
    (["-p", "x", "--regex", "(a"], ["regex", "unclosed"]),
    (["-p", "x", "--json-schema", '{"type": "objct"}'], ["JSON schema", "objct"]),
    (["-p", "x", "-j", "{"], ["JSON schema"]),
    (["-p", "x", "-j", "/nowhere/schema.json"], ["--json-schema", "/nowhere/schema.json", "No such file"]),
    (["-p", "x", "--grammar-file", "/nowhere"], ["--grammar-file", "No such file"]),
    (["-p", "x", "--grammar", "root ::= foo"], ["grammar", "foo"]),
    (["-p", "x", "-l", "15"], ["-l", "'15'"]),
    (["-p", "x", "-l", "15+x"], ["-l", "'15+x'"]),
    (["-p", "x", "-l", "15+inf"], ["logit_bias[15]", "inf"]),
    (["-p", "x", "-l", "99999+1"], ["logit_bias", "99999"]),
]


@pytest.mark.parametrize(("args", "words"), BAD, ids=[" ".join(a)[:40] for a, _ in BAD])
def test_bad_input_is_one_line_and_status_2(run: Any, args: list[str], words: list[str]) -> None:
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    _check(err, words)


def _check(err: str, words: list[str]) -> None:
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err


def _truncated(folder: Path) -> Path:
    whole = tiny_gguf(folder / "whole.gguf")
    path = folder / "short.gguf"
    path.write_bytes(whole.read_bytes()[:-1000])
    return path


def _garbage(folder: Path) -> Path:
    path = folder / "garbage.gguf"
    path.write_bytes(b"this is not a model at all" * 10)
    return path


def _architecture(folder: Path) -> Path:
    path = tiny_gguf(folder / "other.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    return path


def _other_vocabulary(folder: Path) -> Path:
    from outrider.models.open import open_model

    tokens = list(open_model(tiny_gguf(folder / "same.gguf")).tokenizer.tokens)
    tokens[2] = "<|other|>"
    return tiny_gguf(folder / "draft.gguf", keys={"tokenizer.ggml.tokens": tokens})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "absent.gguf", ["absent.gguf"]),
        (_garbage, ["garbage.gguf", "GGUF"]),
        (_truncated, ["short.gguf"]),
        (_architecture, ["mamba"]),
        (lambda folder: folder, ["GGUF"]),
    ],
)
@pytest.mark.parametrize("role", ["-m", "-md"])
def test_bad_models(make: Any, words: list[str], role: str, tmp_path: Path, run: Any) -> None:
    path = make(tmp_path)
    status, out, err = run(role, str(path), "-p", "x")  # a second -m takes the place of the first
    assert (status, out) == (2, "")
    _check(err, words)


def test_a_draft_of_another_vocabulary(run: Any, tmp_path: Path) -> None:
    status, _, err = run("-md", str(_other_vocabulary(tmp_path)), "-p", "x")
    assert status == 2
    _check(err, ["id 2", "'<|im_end|>'", "'<|other|>'"])


def test_not_enough_memory(run: Any, draft_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.memory.available_bytes", lambda: 10**5)
    status, _, err = run("-md", str(draft_file), "-p", "x")
    assert status == 2
    _check(err, ["target", "draft", "available 100 kB", "-c"])
