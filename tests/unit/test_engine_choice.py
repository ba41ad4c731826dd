"""What `--engine auto` takes: with engines that only say whether they would do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import engine_choice, pipeline
from outrider.config.engine import EngineConfig, parse_engine
from outrider.drafting import guessed_costs
from outrider.errors import InsufficientMemoryError, UnsupportedModelError
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.pipeline import StepBackend, build, load_target
from tests.conftest import load_toy
from tests.support.toy_model import ToyModel


@pytest.fixture
def source(target_file: Path) -> ModelSource:
    return open_model(target_file)


def here(monkeypatch: pytest.MonkeyPatch, gpu: str | None) -> None:
    monkeypatch.setattr(engine_choice, "gpu_name", lambda: gpu)


def tried(config: EngineConfig, source: ModelSource, error: Exception | None = None) -> tuple[str, list[str]]:
    """The engine that is taken, and all that were tried; torch fails with `error`."""
    asked: list[str] = []

    def attempt(config: EngineConfig) -> str:
        asked.append(config.engine)
        if config.engine == "torch" and error is not None:
            raise error
        return config.engine

    return engine_choice.first_that_fits(config, source, attempt), asked


def test_a_gpu_is_taken_and_told(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here(monkeypatch, "NVIDIA H200 (cuda:0)")
    assert tried(parse_engine("m"), source) == ("torch", ["torch"])
    assert caplog.messages == ["engine: torch, as there is a GPU: NVIDIA H200 (cuda:0)"]


@pytest.mark.parametrize("kind", [InsufficientMemoryError, UnsupportedModelError])
def test_what_the_gpu_does_not_do_is_for_the_cpu(
    source: ModelSource,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    here(monkeypatch, "a GPU")
    assert tried(parse_engine("m"), source, kind("too large")) == ("native", ["torch", "native"])
    assert caplog.messages == ["engine: native, as the GPU does not do: too large"]
    with pytest.raises(kind):
        tried(parse_engine("m", engine="torch"), source, kind("too large"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"engine": "native"},
        {"engine": "torch"},
        {"device": "cpu"},
        {"device": "cuda:1"},
        {"quantization": "q8_0"},
        {"weights_cache": True},
    ],
)
def test_what_is_asked_for_is_not_looked_for(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    monkeypatch.setattr(engine_choice, "gpu_name", lambda: pytest.fail("looked"))
    config = parse_engine("m", **arguments)
    assert tried(config, source)[1] == [config.engine]


def test_without_a_gpu_nothing_is_said(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here(monkeypatch, None)
    assert tried(parse_engine("m"), source) == ("auto", ["auto"])
    assert caplog.messages == []


@pytest.mark.parametrize("whole", [True, False])
def test_pipelines_are_built_on_the_choice(
    target_file: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Memory of all models is counted by the engine that would hold them, before any is loaded."""
    counted: list[list[str]] = []

    def check(config: EngineConfig, positions: int, sources: Any) -> None:
        counted.append([source.display_name for source in sources])
        if len(counted) > 1:
            raise InsufficientMemoryError("no room")

    def loader(name: str) -> Callable[[EngineConfig], pipeline.ModelLoader]:
        def load(source: ModelSource, threads: int | None) -> Any:
            loaded.append(name)
            return load_toy(source, threads)

        return lambda config: load

    loaded: list[str] = []
    here(monkeypatch, "a GPU")
    for name, own in (("native", None), ("torch", check)):
        backend = StepBackend(loader(name), lambda: guessed_costs, lambda: None, memory=own)
        monkeypatch.setitem(pipeline.ENGINES, name, backend)
    config = parse_engine(str(target_file), "ngram")
    for wanted in ("torch", "native"):
        made = build(config) if whole else load_target(config)
        assert loaded.pop() == wanted
        assert isinstance(made, pipeline.Pipeline if whole else ToyModel)
    assert len(counted) == 2


# --- Looking for a GPU -----------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is there, and importing torch is a failure."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(engine_choice, "DRIVER_FILES", (tmp_path / "nvidia0",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "outrider.engines.torch.device", None)


@pytest.mark.usefixtures("driver")
def test_torch_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert engine_choice.gpu_name() is None
    assert "outrider[torch]" in caplog.text


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_devices_are_not_looked_for(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert engine_choice.gpu_name() is None


@pytest.mark.usefixtures("driver")
def test_torch_is_imported_where_a_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ImportError):
        engine_choice.gpu_name()
    (tmp_path / "nvidia0").unlink()
    assert engine_choice.gpu_name() is None
