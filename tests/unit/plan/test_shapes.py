"""The shapes of models that are not here."""

from __future__ import annotations

import math

import pytest

from outrider.errors import ConfigError, UnsupportedModelError
from outrider.models.checks import expected_tensors
from outrider.plan.shapes import SHAPES, TYPES, shape_head, shape_source


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


def test_a_head_is_as_large_as_the_published_one() -> None:
    """That of Llama 3.1 8B, whose queries, keys and values are made of embedding and state."""
    head = shape_head("eagle3-llama-3.1-8b")
    assert head is not None
    shapes = {name: tensor.shape for name, tensor in head.source.tensors.items()}
    assert shapes["blk.0.attn_q.weight"] == (4096, 8192)
    assert shapes["blk.0.attn_k.weight"] == (1024, 8192)
    assert shapes["fc.weight"] == (4096, 12288)
    assert shapes["output.weight"] == (32000, 4096)
    assert head.source.weights_bytes == pytest.approx(850e6, rel=0.01)


@pytest.mark.parametrize("model", SHAPES)
def test_heads_fit_their_targets(model: str) -> None:
    head = shape_head(f"eagle3-{model}")
    assert head is not None
    target = shape_source(model)
    fitted = head.for_target(target).source
    wanted = {name: shape for name, shape, _ in expected_tensors(fitted.architecture)}
    assert {name: tensor.shape for name, tensor in fitted.tensors.items()} == wanted
    other = "llama-3.2-1b" if model != "llama-3.2-1b" else "llama-3.1-8b"
    with pytest.raises(UnsupportedModelError, match="for another target"):
        head.for_target(shape_source(other))


def test_unknown_names() -> None:
    assert shape_head("llama-3.1-8b") is None
    with pytest.raises(ConfigError, match=r"'eagle3-llama-3.1-8'.*did you mean 'llama-3.1-8b'"):
        shape_head("eagle3-llama-3.1-8")
    with pytest.raises(ConfigError, match=r"'llama-3.1-8' is unknown.*did you mean 'llama-3.1-8b'"):
        shape_source("llama-3.1-8")
    with pytest.raises(ConfigError, match="weight type 'q9'"):
        shape_source("llama-3.1-8b:q9")
