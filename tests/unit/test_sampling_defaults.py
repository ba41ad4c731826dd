"""The sampling defaults: of a model's files, of a file that is named, of flags; and who wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, ConfigError, ModelFileError, SamplingParams
from outrider.config.engine import EngineConfig
from outrider.models.open import open_model
from outrider.sampling_defaults import SamplingDefaults, sampling_defaults
from tests.support.models import tiny_gguf, tiny_hf

RECOMMENDED = {
    "bos_token_id": 1,
    "do_sample": True,
    "eos_token_id": [2, 0],
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.45",
}
VALUES = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}


def folder(path: Path, values: Any = None) -> Path:
    made = tiny_hf(path)
    (made / "generation_config.json").write_text(json.dumps(RECOMMENDED if values is None else values))
    return made


def defaults(path: Path, **config: Any) -> SamplingDefaults:
    return sampling_defaults(EngineConfig(str(path), **config), open_model(path))


def test_of_a_folder(tmp_path: Path) -> None:
    found = defaults(folder(tmp_path / "m"))
    assert found.values == VALUES
    assert found.params() == SamplingParams(**VALUES)  # type: ignore[arg-type]
    assert found.line() == (
        "sampling defaults: temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.1 (of the model); "
        "requests may say others"
    )


def test_of_a_gguf_file(tmp_path: Path) -> None:
    keys = {
        "general.sampling.temp": 0.7,
        "general.sampling.top_p": 0.8,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.1,
    }
    assert defaults(tiny_gguf(tmp_path / "m.gguf", keys=keys)).values == VALUES


def test_what_is_not_built_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"general.sampling.mirostat": 2, "general.sampling.xtc_probability": 0.0}
    assert defaults(tiny_gguf(tmp_path / "m.gguf", keys=keys)).values == {}
    (record,) = caplog.records
    assert "recommends mirostat, which is not built" in record.getMessage()


def test_of_a_model_that_recommends_nothing(target_file: Path, tmp_path: Path) -> None:
    for found in (defaults(target_file), defaults(tiny_hf(tmp_path / "m"))):
        assert found == SamplingDefaults()
        assert found.params() == SamplingParams()
        assert "temperature 1 without filters" in found.line()


def test_a_choice_of_where_they_come_from(tmp_path: Path) -> None:
    model = folder(tmp_path / "m")
    file = tmp_path / "own.json"
    file.write_text('{"temperature": 0, "max_new_tokens": 7}')
    other = folder(tmp_path / "other", {"min_p": 0.1})
    assert defaults(model, generation_config="auto") == defaults(model, generation_config="model")
    assert defaults(model, generation_config="vllm") == SamplingDefaults()
    assert defaults(model, generation_config=str(file)).values == {"temperature": 0.0, "max_tokens": 7}
    assert defaults(model, generation_config=other).values == {"min_p": 0.1}


def test_an_override_changes_single_values(tmp_path: Path) -> None:
    model = folder(tmp_path / "m")
    found = defaults(model, override_generation_config={"temperature": 0.2, "top_k": None, "min_p": 0.05})
    assert found.values == {"temperature": 0.2, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.1}
    assert "of the model; temperature, top_k, min_p set at start" in found.line()
    text = defaults(model, generation_config="vllm", override_generation_config='{"max_new_tokens": 9.0}')
    assert text.values == {"max_tokens": 9}
    assert "max_tokens 9 (set at start)" in text.line()


def test_a_completions_limit_is_the_models_only_if_somebody_set_it(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", {"max_new_tokens": 2048})
    assert defaults(model).completion_tokens(16) == 16
    assert defaults(model).values["max_tokens"] == 2048
    assert defaults(model, override_generation_config={"max_tokens": 9}).completion_tokens(16) == 9
    assert defaults(model, override_generation_config={"max_tokens": None}).completion_tokens(16) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 0),
        ("top_k", 1.5),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
        ("min_p", [1]),
        ("temperature", True),
    ],
)
def test_a_bad_value_of_a_file_is_left_out_with_a_warning(
    tmp_path: Path, name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = defaults(folder(tmp_path / "m", {**RECOMMENDED, "frequency_penalty": 0.5, name: value}))
    assert found.values["frequency_penalty"] == 0.5
    assert found.values.get(name) is None
    (record,) = caplog.records
    assert "a sampling default of the model is left out" in record.getMessage()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"generation_config": "/no/such"}, ["'/no/such'", "cannot be read"]),
        ({"generation_config": "a\0b"}, ["cannot be read"]),
        ({"override_generation_config": {"temprature": 1}}, ["'temprature'", "did you mean 'temperature'"]),
        ({"override_generation_config": {"top_p": 2}}, ["top_p", "2"]),
        ({"override_generation_config": {"do_sample": True}}, ["'do_sample'", "there are temperature"]),
    ],
)
def test_what_is_refused_before_anything_is_loaded(
    target_file: Path, arguments: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.pipeline.load_native", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError) as caught:
        LLM(target_file, **arguments)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_file(target_file: Path, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text("{")
    with pytest.raises(ModelFileError, match="not valid JSON"):
        defaults(target_file, generation_config=str(tmp_path / "g.json"))


@pytest.mark.usefixtures("toy_engine")
def test_in_python_they_hold_for_calls_without_parameters(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", {"temperature": 0.0, "max_new_tokens": 5})
    llm = LLM(model)
    own = llm.get_default_sampling_params()
    assert (own.temperature, own.max_tokens) == (0.0, 5)
    (without,) = llm.generate("the fox")
    (same,) = llm.generate("the fox", SamplingParams(temperature=0.0, max_tokens=5))
    assert without.outputs[0].token_ids == same.outputs[0].token_ids
    (other,) = llm.generate("the fox", SamplingParams(temperature=0, ignore_eos=True))
    assert len(other.outputs[0].token_ids) == 16
    *_, last = llm.stream("the fox")
    assert last[-1].output is not None
    assert last[-1].output.outputs[0].token_ids == same.outputs[0].token_ids
    assert LLM(model, generation_config="vllm").get_default_sampling_params() == SamplingParams()
