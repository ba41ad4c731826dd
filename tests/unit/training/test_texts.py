"""Prompts and texts that a head learns from: files, the target's own, and a run that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.config.engine import parse_engine
from outrider.errors import ConfigError, ModelFileError
from outrider.llm import LLM
from outrider.pipeline import build
from outrider.training.prompts import Asked, Opening, opening, read_prompts
from outrider.training.settings import Settings
from outrider.training.texts import WAVE, Text, TextStore, Writer, held_out
from tests.support.models import Dims, tiny_gguf, tiny_weights


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """All tokens are about equally likely, so that texts end."""
    output = 0.05 * tiny_weights(tied=False)["output.weight"]
    path = tmp_path_factory.mktemp("model") / "t.gguf"
    tiny_gguf(path, dims=Dims(layers=3), tied=False, tensors={"output.weight": output})
    config = parse_engine(str(path), {"method": "none"}, max_num_seqs=8, threads=1)
    with LLM.from_pipeline(build(config), shared=False) as made:
        yield made


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "data"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


# --- Prompts --------------------------------------------------------------------------------------


def test_plain_lines_are_prompts_each_once(tmp_path: Path) -> None:
    assert read_prompts([write(tmp_path, "one\n\n two \none\n")]) == ["one", "two"]


def test_json_lines_are_read_as_bench_reads_them(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "workload": "w", "prompt": "first"},
        {"question_id": 7, "category": "writing", "turns": ["second", "third"]},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)))
    assert read_prompts([path]) == ["first", "second"]
    (tmp_path / "other").write_text("third\nfirst\n")
    assert read_prompts([path, str(tmp_path / "other")]) == ["first", "second", "third"]
    assert read_prompts([]) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["0 prompts"]),
        ("one\none\n", ["1 prompts"]),
        ('{"id": "a"}\n', ["line 1", "'workload'"]),
        ('{"id": "a", "workload": "w", "prompt": "p"}\n{', ["line 2", "not JSON"]),
        (b"\xff\xfe\n", ["not UTF-8"]),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str | bytes, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prompts([write(tmp_path, text)])
    assert all(word in str(caught.value) for word in ["--data", *words])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_prompts([str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="is a folder"):
        read_prompts([str(tmp_path)])


def test_the_opening_is_what_the_template_puts_before_a_users_text(llm: LLM) -> None:
    assert opening(llm.render_chat) == Opening("<|im_start|>user\n")


def test_without_an_opening_the_target_cannot_write_prompts() -> None:
    def bare(messages: Any, **_: Any) -> dict[str, str]:
        return {"prompt": messages[0]["content"] + "!"}

    def none(*_: Any, **__: Any) -> dict[str, str]:
        raise ConfigError("the model has no chat template")

    with pytest.raises(ConfigError, match="puts nothing before"):
        opening(bare)
    with pytest.raises(ConfigError, match=r"no chat template.*--data FILE"):
        opening(none)


# --- Texts ----------------------------------------------------------------------------------------


def settings(**more: Any) -> Settings:
    return Settings(**{"data": "self", "tokens": 400, "max_prompt": 120, "max_answer": 20, **more})


def written(path: Path, llm: LLM, asked: Asked, waves: int, **more: Any) -> list[Text]:
    """The texts after so many waves, or fewer if there are enough tokens."""
    store = TextStore(path)
    Writer(llm, asked, settings(**more)).write(store, lambda: store.waves >= waves, lambda _: None)
    assert TextStore(path).texts == store.texts
    return store.texts


PROMPTS = [f"the quick {word}" for word in ("fox", "dog", "name", "function", "other", "lazy")]


OWN = Opening("<|im_start|>user\n")
FILE = Asked(None, tuple(PROMPTS))
ALL = pytest.mark.parametrize(
    "asked", [FILE, Asked(OWN), Asked(OWN, tuple(PROMPTS))], ids=["file", "self", "both"]
)


@ALL
def test_a_run_that_ended_between_waves_goes_on_with_the_same_texts(
    tmp_path: Path, llm: LLM, asked: Asked
) -> None:
    whole = written(tmp_path / "whole", llm, asked, 2, tokens=10**6)
    written(tmp_path / "parts", llm, asked, 1, tokens=10**6)
    kept = (tmp_path / "parts").stat().st_size
    with open(tmp_path / "parts", "ab") as file:  # the beginning of a line
        file.write(b'{"job": 48, "prom')
    assert len(TextStore(tmp_path / "parts").texts) < len(whole)
    assert (tmp_path / "parts").stat().st_size == kept
    assert written(tmp_path / "parts", llm, asked, 2, tokens=10**6) == whole
    assert len({text.temperature for text in whole}) == 2
    assert len({text.answer for text in whole}) > 3


@ALL
def test_a_wave_that_is_stopped_keeps_what_has_ended(tmp_path: Path, llm: LLM, asked: Asked) -> None:
    """At once, whatever the step, and the texts are those of a run that nobody stopped."""
    whole = written(tmp_path / "whole", llm, asked, 1, tokens=10**6)
    path, counts = tmp_path / "parts", []
    for attempt in range(1, 30):
        store, asks = TextStore(path), iter(range(30 * attempt))

        def stop(asks: Iterator[int] = asks) -> bool:
            return next(asks, None) is None

        Writer(llm, asked, settings(tokens=10**6)).write(store, stop, lambda _: None)
        if store.waves:
            break
        counts.append(len(store.pending))
        assert TextStore(path).pending == store.pending
    assert TextStore(path).texts[: len(whole)] == whole
    assert counts == sorted(counts), "nothing is lost"
    assert len(set(counts)) > 1


def test_own_prompts_and_those_of_files_take_turns_and_are_what_each_gives_alone(
    tmp_path: Path, llm: LLM
) -> None:
    warm = {"tokens": 10**6, "temperatures": (0.7, 0.0)}
    own = written(tmp_path / "own", llm, Asked(OWN), 1, **warm)
    of_file = written(tmp_path / "file", llm, FILE, 1, **warm)
    both = written(tmp_path / "both", llm, Asked(OWN, tuple(PROMPTS)), 2, **warm)
    alone = {(2 * text.job): text for text in own} | {(2 * text.job + 1): text for text in of_file}
    assert {text.job for text in both} == set(alone)
    assert all(text == replace(alone[text.job], job=text.job) for text in both)
    assert {text.held_out for text in both} == {False, True}


def test_a_file_that_is_used_up_leaves_the_own_prompts(tmp_path: Path, llm: LLM) -> None:
    texts = written(tmp_path / "t", llm, Asked(OWN, tuple(PROMPTS)), 2, temperatures=(0.0,), tokens=10**6)
    jobs = [text.job for text in texts]
    assert [job for job in jobs if job % 2] == [2 * i + 1 for i in range(len(PROMPTS))]
    assert max(jobs) > WAVE


def test_a_greedy_answer_is_the_targets_own(tmp_path: Path, llm: LLM) -> None:
    texts = written(tmp_path / "t", llm, FILE, 1, temperatures=(0.0,))
    assert len(texts) == len(PROMPTS), "once each: further ones would be the same"
    for prompt, text in zip(PROMPTS, texts, strict=True):
        rendered = llm.render_chat([{"role": "user", "content": prompt}])
        assert list(text.prompt) == rendered["prompt_token_ids"]
        (output,) = llm.chat([{"role": "user", "content": prompt}], settings_of_greedy())
        assert list(text.answer) == output.outputs[0].token_ids


def settings_of_greedy() -> Any:
    from outrider.decoding.sampling.params import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=20)


def test_warm_rounds_of_a_prompt_differ(tmp_path: Path, llm: LLM) -> None:
    texts = written(tmp_path / "t", llm, FILE, 1, tokens=10**6)
    assert len(texts) == WAVE
    first = [text for text in texts if text.prompt == texts[0].prompt]
    assert sum(text.temperature == 0 for text in first) == 1
    assert len({text.answer for text in first}) > 4


def test_some_prompts_are_held_out_whatever_the_round(tmp_path: Path, llm: LLM) -> None:
    texts = written(tmp_path / "t", llm, FILE, 1, tokens=10**6)
    assert {text.prompt for text in texts if text.held_out}.isdisjoint(
        text.prompt for text in texts if not text.held_out
    )
    assert sum(held_out(i, len(PROMPTS)) for i in range(len(PROMPTS))) == 1
    assert sum(held_out(i, None) for i in range(160)) == 10


def test_prompts_that_give_nothing_are_told(tmp_path: Path, llm: LLM) -> None:
    with pytest.raises(ConfigError, match="gave no text"):
        written(tmp_path / "t", llm, FILE, 10, tokens=10**6, max_prompt=1)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense\n",
        "[]\n",
        '{"wave": 1}\n',
        '{"job": 48}\n',
        '{"job": 1}\n{"job": 1}\n',
        '{"job": true}\n',
        '{"job": 0, "prompt": [-1], "answer": [2], "temperature": 0, "held": false}\n{"wave": 0}\n',
        '{"job": 0, "prompt": [1], "answer": [], "temperature": 0, "held": false}\n{"wave": 0}\n',
        '{"job": 0, "prompt": "ab", "answer": [1], "temperature": 0, "held": false}\n{"wave": 0}\n',
    ],
)
def test_a_damaged_file_of_texts_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelFileError, match="damaged"):
        TextStore(Path(write(tmp_path, text)))
