"""The shapes of models that are not here."""

from __future__ import annotations

import math

import pytest

from outrider.errors import ConfigError
from outrider.models.checks import expected_tensors
from outrider.plan.shapes import SHAPES, TYPES, shape_source


# Parameters as the models' cards have them, and bytes of the published GGUF files' tensors.
@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("llama-3.1-8b:q4_k_m", 8.030e9, 4.92e9),
        ("llama-3.1-8b:q8_0", 8.030e9, 8.54e9),
        ("llama-3.1-8b:bf16", 8.030e9, 16.07e9),
        ("llama-3.2-1b:q4_k_m", 1.236e9, 0.808e9),
        ("llama-3.2-3b:q4_k_m", 3.213e9, 2.019e9),
        ("llama-3.1-70b:q4_k_m", 70.55e9, 42.52e9),
        ("qwen-coder-0.5b:q4_k_m", 0.630e9, 0.4855e9),
        ("qwen-coder-1.5b:q4_k_m", 1.777e9, 1.1114e9),
    ],
)
def test_they_are_as_large_as_the_models(name: str, parameters: float, size: float) -> None:
    source = shape_source(name)
    assert sum(math.prod(t.shape) for t in source.tensors.values()) == pytest.approx(parameters, rel=1e-3)
    assert source.weights_bytes == pytest.approx(size, rel=0.012)


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("kind", TYPES)
def test_they_have_the_tensors_of_their_family(model: str, kind: str) -> None:
    source = shape_source(f"{model}:{kind}")
    wanted = {name: shape for name, shape, required in expected_tensors(source.architecture) if required}
    assert wanted.items() <= {name: tensor.shape for name, tensor in source.tensors.items()}.items()
    assert source.tensors.keys() - wanted.keys() <= {"output.weight"}


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"'llama-3.1-8' is unknown.*did you mean 'llama-3.1-8b'"):
        shape_source("llama-3.1-8")
    with pytest.raises(ConfigError, match="weight type 'q9'"):
        shape_source("llama-3.1-8b:q9")
