"""Filling in between two texts: /v1/completions and /api/generate with `suffix`, llama.cpp's /infill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.config.engine import parse_engine
from outrider.models.text import fim
from outrider.pipeline import build
from tests.server.http_support import Running, SlowToy, running, toy_pipeline
from tests.support.models import FIM_NAMES, Dims, fim_gguf, tiny_hf

PREFIX, SUFFIX, MIDDLE = FIM_NAMES[:3]
LOOKUP = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 4}
GAP: dict[str, Any] = {
    "prompt": "the fox",
    "suffix": " the dog",
    "max_tokens": 12,
    "seed": 4,
    "ignore_eos": True,
}
INFILL: dict[str, Any] = {
    "input_prefix": "the fox\n",
    "input_suffix": " dog\n",
    "prompt": "jumps",
    "n_predict": 12,
    "seed": 4,
    "ignore_eos": True,
}
WRITTEN = f"{PREFIX}the fox{SUFFIX} the dog{MIDDLE}"


@pytest.fixture(scope="module")
def fim_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fim_gguf(tmp_path_factory.mktemp("fim") / "fim.gguf", seed=1, dims=Dims(context=4096))


@pytest.fixture(scope="module")
def filling(fim_file: Path) -> Iterator[Running]:
    """A server of a model that fills in, with an n-gram drafter."""
    with running(toy_pipeline(fim_file, LOOKUP, seed=5)) as made:
        yield made


def ask(server: Running, path: str, body: dict[str, Any]) -> Any:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(answer: httpx.Response) -> list[Any]:
    parts = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    return [json.loads(part) for part in parts if part != "[DONE]"]


def complete(server: Running, **more: Any) -> list[str]:
    return [choice["text"] for choice in ask(server, "/v1/completions", {**GAP, **more})["choices"]]


def continued(server: Running, prompt: str, **more: Any) -> str:
    """What the model writes after a prompt whose marks are written out."""
    body = {"prompt": prompt, "n_predict": 12, "seed": 4, "ignore_eos": True, **more}
    return str(ask(server, "/completion", body)["content"])


# --- /v1/completions


def test_a_suffix_is_behind_the_gap(filling: Running) -> None:
    found = ask(filling, "/v1/completions", {**GAP, "return_token_ids": True})
    (choice,) = found["choices"]
    assert choice["text"] == continued(filling, WRITTEN) != continued(filling, "the fox")
    assert choice["prompt_token_ids"] == filling.pipeline.tokenizer.encode(WRITTEN)
    assert found["usage"]["prompt_tokens"] == len(choice["prompt_token_ids"])
    ids = filling.pipeline.tokenizer.encode("the fox")
    assert complete(filling, prompt=ids) == [choice["text"]]
    assert complete(filling, speculative=False) == [choice["text"]]
    (first,) = complete(filling, prompt="")
    assert first == continued(filling, f"{PREFIX}{SUFFIX} the dog{MIDDLE}")


@pytest.mark.parametrize("suffix", ["", None])
def test_no_suffix_is_neutral(filling: Running, suffix: str | None) -> None:
    assert complete(filling, suffix=suffix) == [continued(filling, "the fox")]


def test_samples_and_prompts(filling: Running) -> None:
    one, two = complete(filling, n=2)
    assert one != two
    assert complete(filling, prompt=["the fox", "a"], n=2)[:2] == [one, two]
    assert complete(filling, prompt=["the fox", "a"]) == [*complete(filling), *complete(filling, prompt="a")]


def test_a_stream_with_logprobs(filling: Running) -> None:
    whole = ask(filling, "/v1/completions", {**GAP, "logprobs": 2})["choices"][0]
    parts = [
        event["choices"][0]
        for event in events_of(filling.post("/v1/completions", {**GAP, "logprobs": 2, "stream": True}))
        if event["choices"]
    ]
    assert "".join(part["text"] for part in parts) == whole["text"]
    tokens = [token for part in parts if part["logprobs"] for token in part["logprobs"]["tokens"]]
    assert tokens == whole["logprobs"]["tokens"]
    assert whole["logprobs"]["text_offset"][0] == 0


def test_echo_puts_the_prompt_in_front(filling: Running) -> None:
    (text,) = complete(filling)
    assert complete(filling, echo=True) == ["the fox" + text]
    ids = filling.pipeline.tokenizer.encode("the fox")
    assert complete(filling, echo=True, prompt=ids) == ["the fox" + text]
    assert complete(filling, echo=True, max_tokens=0) == ["the fox"]
    opening, *_ = events_of(filling.post("/v1/completions", {**GAP, "echo": True, "stream": True}))
    assert opening["choices"][0]["text"] == "the fox"


def test_marks_in_the_texts_are_plain_text(filling: Running) -> None:
    found = ask(
        filling,
        "/v1/completions",
        {**GAP, "prompt": f"a{SUFFIX}b", "suffix": f"c{MIDDLE}", "return_token_ids": True},
    )
    ids = found["choices"][0]["prompt_token_ids"]
    tokens = fim.needed(fim.fim_tokens(filling.pipeline.tokenizer))
    marks = [i for i in ids if i in (tokens.prefix, tokens.suffix, tokens.middle)]
    assert marks == [tokens.prefix, tokens.suffix, tokens.middle]
    assert filling.pipeline.tokenizer.decode(ids) == f"a{SUFFIX}bc{MIDDLE}"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"echo": True, "logprobs": 1}, "echo", "echo with logprobs is refused with suffix"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens", "is refused with suffix"),
        ({"suffix": 5}, "suffix", "string"),
        ({"suffix": "a" * 200_000}, "suffix", "the suffix has 200000 characters"),
        ({"suffix": "a b " * 2100}, "prompt", "maximum context length is 4096"),
        ({"prompt": []}, "prompt", "the prompt is empty"),
    ],
)
def test_what_cannot_be_meant(filling: Running, body: dict[str, Any], param: str, message: str) -> None:
    answer = filling.post("/v1/completions", {**GAP, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_a_suffix_that_is_not_unicode(filling: Running) -> None:
    with filling.http(headers={"Content-Type": "application/json"}) as http:
        answer = http.post("/v1/completions", content=json.dumps({**GAP, "suffix": "\ud800"}))
    assert answer.status_code == 400
    assert "not Unicode" in answer.json()["error"]["message"]


# --- models without tokens for it


def test_a_model_that_cannot_says_so_in_each_form(server: Running) -> None:
    because = "this model cannot fill in between two texts: its vocabulary has no tokens for it"
    error = server.post("/v1/completions", GAP)
    assert (error.status_code, error.json()["error"]["param"]) == (400, "suffix")
    assert error.json()["error"]["message"].startswith(f"suffix is refused: {because}")
    error = server.post("/infill", INFILL)
    assert (error.status_code, error.json()["error"]["code"]) == (400, 400)
    assert error.json()["error"]["type"] == "invalid_request_error"
    assert error.json()["error"]["message"].startswith(f"/infill is refused: {because}")
    error = server.post("/api/generate", {"prompt": "a", "suffix": "b"})
    assert error.status_code == 400
    assert error.json()["error"].startswith(f"suffix is refused: {because}")


# --- /infill


def test_infill(filling: Running) -> None:
    found = ask(filling, "/infill", INFILL)
    prompt = f"<|repo_name|>myproject\n<|file_sep|>filename\n{PREFIX}the fox\njumps{SUFFIX} dog\n{MIDDLE}"
    assert found["prompt"] == prompt
    assert found["content"] == continued(filling, prompt)
    extra = [{"filename": "x.py", "text": "a", "time": 12}, {"text": "b"}]
    with_files = ask(filling, "/infill", {**INFILL, "input_extra": extra})["prompt"]
    assert with_files == prompt.replace("myproject\n", "myproject\n<|file_sep|>x.py\na<|file_sep|>tmp\nb")
    ids = filling.pipeline.tokenizer.encode("the fox\n")
    assert ask(filling, "/infill", {**INFILL, "input_prefix": ids, "input_suffix": [" dog", "\n"]}) | {
        "timings": 0
    } == found | {"timings": 0}
    parts = events_of(filling.post("/infill", {**INFILL, "stream": True}))
    assert "".join(part["content"] for part in parts) == found["content"]
    bare = {"input_prefix": "", "input_suffix": "", "n_predict": 0}
    assert ask(filling, "/infill", bare)["content"] == ""


def test_infill_takes_the_texts_next_to_the_gap(filling: Running) -> None:
    before, after = "b" * 3000 + "\n", "\n" + "a" * 3000
    found = ask(filling, "/infill", {**INFILL, "input_prefix": before, "input_suffix": after})
    kept, _, rest = found["prompt"].partition(PREFIX)[2].partition(SUFFIX)
    tokenizer = filling.pipeline.tokenizer
    assert kept.endswith("b\njumps")
    assert rest.startswith("\na")
    line = len(tokenizer.encode("jumps"))
    assert len(tokenizer.encode(kept)) == 1536 + line
    assert len(tokenizer.encode(rest.removesuffix(MIDDLE))) == 510 - line


def test_several_samples(filling: Running) -> None:
    one, two = ask(filling, "/infill", {**INFILL, "n_cmpl": 2})
    assert one["content"] == ask(filling, "/infill", INFILL)["content"] != two["content"]
    assert [one["index"], two["index"]] == [0, 1]
    assert len(ask(filling, "/completion", {"prompt": "a", "n_predict": 2, "n_cmpl": 2})) == 2


def test_what_editors_send(filling: Running) -> None:
    """llama.vim and llama.vscode."""
    sent: dict[str, Any] = {
        **{
            "id_slot": 0,
            "input_prefix": "the fox\n",
            "input_suffix": "\n",
            "prompt": "    a",
            "stream": False,
        },
        "input_extra": [{"text": "a", "time": 1.5, "filename": "b.py"}],
        **{"n_predict": 8, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90, "cache_prompt": True},
        **{"samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500, "t_max_predict_ms": 1000},
        "response_fields": ["content", "timings/prompt_n", "truncated", "tokens_cached"],
    }
    found = ask(filling, "/infill", sent)
    assert set(found) == set(sent["response_fields"])
    assert found["timings/prompt_n"] > 0
    assert found["truncated"] is False
    fill = {**sent, "n_predict": 0, "samplers": [], "t_max_predict_ms": 1, "response_fields": [""]}
    assert ask(filling, "/infill", fill) == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra.0.text"),
        ({"input_extra": [{"text": "a", "name": "b"}]}, "unknown field 'name'"),
        ({"input_prefix": [999]}, "999"),
        ({"input_sufix": "a"}, "did you mean 'input_suffix'"),
        ({"mirostat": 2}, "mirostat is refused"),
        ({"n_indent": -1}, "n_indent"),
        ({"prompt": "a b " * 2100}, "maximum context length is 4096"),
        ({"prompt": "a" * 200_000}, "the prompt has 200000 characters"),
    ],
)
def test_what_infill_refuses(filling: Running, body: dict[str, Any], message: str) -> None:
    answer = filling.post("/infill", {**INFILL, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) - {"n_prompt_tokens", "n_ctx"} == {"code", "message", "type"}
    assert message in error["message"]


def test_a_small_context(tmp_path: Path) -> None:
    with running(toy_pipeline(fim_gguf(tmp_path / "a.gguf", dims=Dims(context=64)))) as small:
        long = {"input_prefix": "a b " * 500, "input_suffix": " c d" * 500}
        found = ask(small, "/infill", {**INFILL, **long, "n_predict": -1})
        assert found["tokens_evaluated"] < 64
        assert found["tokens_cached"] == 64


def test_a_folder_whose_tokens_are_not_special(tmp_path: Path) -> None:
    """transformers' names end a text that is filled in, but no other one."""
    folder = tiny_hf(tmp_path / "folder", dims=Dims(context=256))
    text = json.loads((folder / "tokenizer.json").read_text())
    vocab, merges = text["model"]["vocab"], text["model"]["merges"]
    for piece in [piece for piece, token in vocab.items() if token >= 314]:
        del vocab[piece]
    text["model"]["merges"] = merges[:-6]
    for number, name in enumerate(FIM_NAMES):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        text["added_tokens"].append({"id": 314 + number, "content": name, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(text))
    with running(toy_pipeline(folder)) as served:
        pad = 314 + FIM_NAMES.index("<|fim_pad|>")
        always = {"logit_bias": {str(pad): 100}, "temperature": 0, "ignore_eos": False}
        (choice,) = ask(served, "/v1/completions", {**GAP, **always})["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", None)
        (choice,) = ask(served, "/v1/completions", {**GAP, **always, "suffix": None})["choices"]
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_ends_at_a_smaller_indentation(filling: Running, stream: bool) -> None:
    newline = filling.pipeline.tokenizer.encode("\n", add_special=False)[0]
    letter = filling.pipeline.tokenizer.encode("z", add_special=False)[0]
    form = {"grammar": 'root ::= "ab\\n    c\\nd" [a-z]*', "n_predict": 1000, "ignore_eos": False}
    sent = {**INFILL, **form, "stream": stream, "temperature": 0, "logit_bias": [[newline, 5], [letter, 100]]}

    def of(**more: Any) -> dict[str, Any]:
        answer = filling.post("/infill", {**sent, **more})
        if not stream:
            return dict(answer.json())
        *parts, last = events_of(answer)
        return {**last, "content": "".join(part["content"] for part in [*parts, last])}

    cut = of(n_indent=4)
    assert (cut["content"], cut["stop_type"], cut["has_new_line"]) == ("ab\n    c\n", "limit", True)
    assert cut["tokens_predicted"] < 20
    filling.until(filling.idle)
    assert of(n_indent=0, n_predict=30)["content"].startswith("ab\n    c\nd")


def test_the_text_ends_at_a_line_break_after_the_time(fim_file: Path) -> None:
    with running(toy_pipeline(fim_file, slow=True)) as slow:
        newline = slow.pipeline.tokenizer.encode("\n", add_special=False)[0]
        always = {**INFILL, "n_predict": 1000, "temperature": 0, "logit_bias": [[newline, 100]]}
        began = 5 * SlowToy.pace
        found = ask(slow, "/infill", {**always, "t_max_predict_ms": 1000 * began})
        assert found["stop_type"] == "limit"
        assert 2 <= found["tokens_predicted"] < 200
        assert set(found["content"]) == {"\n"}
        slow.until(slow.idle)


# --- Ollama


def test_ollama(filling: Running) -> None:
    options = {"num_predict": 12, "seed": 4}
    body = {"prompt": "the fox", "suffix": " the dog", "options": options, "stream": False}
    found = ask(filling, "/api/generate", body)
    whole = complete(filling, ignore_eos=False)[0]
    assert found["response"] == whole
    assert found["prompt_eval_count"] == len(filling.pipeline.tokenizer.encode(WRITTEN))
    assert ask(filling, "/api/generate", {**body, "raw": True})["response"] == whole
    lines = filling.post("/api/generate", {**body, "stream": True}).text.splitlines()
    assert "".join(json.loads(line)["response"] for line in lines) == whole
    assert ask(filling, "/api/generate", {**body, "prompt": ""})["prompt_eval_count"] > 3
    assert "insert" in ask(filling, "/api/show", {})["capabilities"]


def test_ollama_without_tokens_for_it(server: Running) -> None:
    assert "insert" not in ask(server, "/api/show", {})["capabilities"]


@pytest.mark.parametrize("body", [{"system": "a"}, {"think": True}])
def test_what_ollama_cannot_mean(filling: Running, body: dict[str, Any]) -> None:
    answer = filling.post("/api/generate", {"prompt": "a", "suffix": "b", **body})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{next(iter(body))} is refused with suffix")


# --- a model that was trained for it


@pytest.mark.pair
def test_a_model_for_code_fills_in_what_the_suffix_asks_for(qwen_pair: tuple[Path, Path]) -> None:
    """And writes the same with speculation on and off."""
    _, small = qwen_pair
    gaps = [
        ("def add(a, b):\n    return ", "\n\n\nassert add(2, 3) == 5\n", "a + b"),
        ("def double(x):\n    return ", "\n\n\nassert double(3) == 6\n", "x * 2"),
        ("def ", "(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n", "add"),
    ]
    config = parse_engine(str(small), "suffix", max_num_seqs=2, max_model_len=1024)
    with running(build(config)) as served:
        for prompt, suffix, middle in gaps:
            gap = {"prompt": prompt, "suffix": suffix, "max_tokens": 24}
            (choice,) = ask(served, "/v1/completions", {**gap, "temperature": 0})["choices"]
            assert (choice["text"].strip(), choice["finish_reason"]) == (middle, "stop")
            options = {"num_predict": 24, "temperature": 0}
            body = {"prompt": prompt, "suffix": suffix, "options": options, "stream": False}
            assert ask(served, "/api/generate", body)["response"].strip() == middle
        sent = {"input_prefix": "def area(width, height):\n", "prompt": "    "}
        sent["input_suffix"] = "\n    return result\n"
        found = ask(served, "/infill", {**sent, "n_predict": 24, "temperature": 0, "stop": ["\n"]})
        assert found["content"] == "result = width * height"


@pytest.mark.pair
def test_drafts_change_nothing_between_two_texts(qwen_pair: tuple[Path, Path]) -> None:
    names = ("width", "height", "depth", "weight", "length")
    lines = [f"    def get_{name}(self):\n        return self.{name}\n\n" for name in names]
    gap = {"prompt": "class Box:\n" + "".join(lines[:4]), "suffix": "\n\nbox = Box()\n", "max_tokens": 40}
    config = parse_engine(str(qwen_pair[1]), {"method": "suffix"}, max_num_seqs=2, max_model_len=1024)
    with running(build(config)) as served:

        def of(**more: Any) -> tuple[str, int]:
            (choice,) = ask(served, "/v1/completions", {**gap, "outrider": True, **more})["choices"]
            return choice["text"], choice["outrider"]["metrics"]["num_draft_tokens"]

        drafted = 0
        for more in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 4}):
            text, drafts = of(**more)
            assert of(**more, speculative=False) == (text, 0)
            drafted += drafts
        assert drafted, "nothing was compared"
        other = of(temperature=1.0, seed=5)[0]
        assert other != text, "another seed gives another text, and the comparison sees it"
