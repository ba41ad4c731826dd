"""What is told of a model that the native engine does not know: one line, which says what runs it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from outrider.config.engine import EngineConfig
from outrider.errors import UnsupportedModelError
from outrider.opening import open_target
from tests.support.models import tiny_gguf, tiny_hf

KINDS = ("torch", "transformers")


@pytest.mark.parametrize(("engine", "here"), [("native", True), ("native", False), ("auto", False)])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "has the class 'FalconForCausalLM'; supported: Llama"),
        ({"quantization_config": {"quant_method": "hqq"}}, "is quantized"),
    ],
)
def test_a_folder_of_another_kind_runs_with_the_torch_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    words: str,
    *,
    engine: Any,
    here: bool,
) -> None:
    find = importlib.util.find_spec

    def found(name: str) -> Any:
        return find("json" if here else "no_such_module") if name in KINDS else find(name)

    monkeypatch.setattr("outrider.torch_engine.importlib.util.find_spec", found)
    folder = tiny_hf(tmp_path / "folder", config=config)
    with pytest.raises(UnsupportedModelError) as caught:
        open_target(EngineConfig(model=str(folder), engine=engine), progress=False)
    message = str(caught.value)
    assert words in message
    assert "runs with --engine torch" in message
    assert message.endswith("outrider[torch]") is not here
    assert "\n" not in message


def test_a_file_of_another_family_does_not(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", keys={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModelError, match="architecture 'mamba'; supported: ") as caught:
        open_target(EngineConfig(model=str(path)), progress=False)
    assert "torch" not in str(caught.value)
