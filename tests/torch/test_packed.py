"""Weights in 8 and 4 bits: what the libraries make of them, counted as they lie, and exact as targets."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider import LLM, SamplingParams  # noqa: E402
from outrider.config.engine import parse_engine  # noqa: E402
from outrider.config.quantization import TORCH_QUANTIZATIONS  # noqa: E402
from outrider.device_memory import weights_bytes  # noqa: E402
from outrider.engines.step import CachedStepEngine  # noqa: E402
from outrider.engines.torch import backend  # noqa: E402
from outrider.engines.torch.model import TorchModel  # noqa: E402
from outrider.engines.torch.module import LayerWeights  # noqa: E402
from outrider.engines.torch.packed import PACKINGS, Packed, library  # noqa: E402
from outrider.errors import ConfigError, UnsupportedModelError  # noqa: E402
from outrider.models.quantization import quantized  # noqa: E402
from outrider.models.source import ModelSource  # noqa: E402
from outrider.pipeline import load_target  # noqa: E402
from tests.conformance.engines import Models  # noqa: E402
from tests.conformance.harness import PARAMS, answers, make_drafter, requests, run, visible  # noqa: E402
from tests.support.models import tiny_gguf, tiny_hf  # noqa: E402
from tests.support.quantized import OF_TYPE, quantized_hf  # noqa: E402
from tests.torch.support import CPU, item, load, relative_error, source  # noqa: E402

TOKENS = [(7 * i + 3) % 40 for i in range(21)]
DRAFTERS = ["draft_model", "ngram", "random_tree", "right_then_wrong"]


def needs(name: str) -> Any:
    return pytest.param(
        name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")
    )


packings = pytest.mark.parametrize("name", [needs(name) for name in TORCH_QUANTIZATIONS])


def rows(model: TorchModel) -> Any:
    cache = model.new_cache(64)
    (found,) = model.forward([item(cache, TOKENS)])
    cache.close()
    return found


def dequantized(model: TorchModel) -> None:
    """Replace the matrices of a model by floats of the same values."""
    for layer in model.weights.layers:
        for part in LayerWeights.__slots__:
            if isinstance(held := getattr(layer, part), Packed):
                setattr(layer, part, held.dequantized())


def families(folder: Path, name: str, family: str = "llama", **more: Any) -> tuple[ModelSource, TorchModel]:
    packed = quantized(source(folder, family), name)
    return packed, load(packed, **more)


@packings
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2"])
def test_products_are_those_of_the_dequantized_weights(tmp_path: Path, name: str, family: str) -> None:
    opened, model = families(tmp_path, name, family)
    found = rows(model)
    own = rows(load(source(tmp_path, family)))
    off = relative_error(found, own)
    assert (1e-4 if name == "torchao" else 1e-3) < off < 0.5, "the weights have few bits"
    assert name in opened.display_name
    dequantized(model)
    assert not model.weights.packed
    assert relative_error(found, rows(model)) < 1e-5


@packings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_counted_as_they_lie(tmp_path: Path, name: str, dtype: Any) -> None:
    opened, model = families(tmp_path, name, dtype=dtype)
    assert model.weights.packed
    assert model.weights.nbytes == weights_bytes(opened, dtype.itemsize)
    assert model.weights.nbytes < load(source(tmp_path, "llama"), dtype).weights.nbytes


@packings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_hold_in_strict_mode(tmp_path: Path, name: str, dtype: Any) -> None:
    _, model = families(tmp_path, name, dtype=dtype, strict=True)
    assert model.fixed_width is not None
    assert backend.broken_bits(model) is None


def models(folder: Path, name: str) -> Models:
    _, target = families(folder, name, strict=True)
    return Models(target, load(source(folder, "llama")))


@packings
def test_speculation_changes_no_text_of_the_quantized_target(tmp_path: Path, name: str) -> None:
    made = models(tmp_path, name)
    for params in ("greedy", "temperature"):
        expected = run(made.engine(), None, requests(PARAMS[params]))
        for drafter in DRAFTERS:
            found = run(
                made.engine(), make_drafter(drafter, made, answers(expected)), requests(PARAMS[params])
            )
            assert visible(found) == visible(expected)


@packings
@pytest.mark.parametrize("shape", [(48, 128), (8, 192), (33, 64)])
def test_matrices_of_any_number_of_rows_are_packed(name: str, shape: tuple[int, int]) -> None:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    held, bias = PACKINGS[name](values), torch.ones(shape[0])
    near = held.dequantized()
    assert relative_error(near.numpy(), values.numpy()) < (0.01 if name == "torchao" else 0.12)
    for n in (1, 5, 16):
        x = torch.randn(n, shape[1], generator=torch.Generator().manual_seed(n))
        wanted = x.double() @ near.double().T + 1
        assert relative_error(held.product(x, bias).numpy(), wanted.numpy()) < 1e-6


class OtherForNarrowPasses(Packed):
    """Multiplies by rounder weights where there are few rows, as a fast path with bits of its own."""

    def __init__(self, held: Packed) -> None:
        self._held, self._rough = held, (held.dequantized() * 4).round() / 4

    def product(self, x: Any, bias: Any) -> Any:
        return torch.nn.functional.linear(x, self._rough, bias) if len(x) < 3 else self._held.product(x, bias)

    def dequantized(self) -> Any:
        return self._held.dequantized()

    def tensors(self) -> list[Any]:
        return self._held.tensors()


@packings
def test_products_that_differ_by_width_are_caught(tmp_path: Path, name: str) -> None:
    made = models(tmp_path, name)
    assert isinstance(made.target, TorchModel)
    for layer in made.target.weights.layers:
        assert isinstance(layer.gate_up, Packed)
        layer.gate_up = OtherForNarrowPasses(layer.gate_up)
    fast = TorchModel(made.target.spec, made.target.weights)
    assert backend.broken_bits(fast) is not None
    expected = run(CachedStepEngine(fast), None, requests(PARAMS["greedy"]))
    broken = Models(fast, made.draft)
    found = [
        run(broken.engine(), make_drafter(drafter, broken, answers(expected)), requests(PARAMS["greedy"]))
        for drafter in DRAFTERS
    ]
    assert any(visible(each) != visible(expected) for each in found)


@packings
def test_the_flag_makes_another_target(tmp_path: Path, name: str) -> None:
    folder = tiny_hf(tmp_path / "model")
    prompts = ["the cat sat on the mat the cat sat", "a b c a b"]

    def texts(**more: Any) -> list[list[int]]:
        llm = LLM(str(folder), threads=1, max_model_len=128, device="cpu", exact="strict", **more)
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

    plain = texts(quantization=name, dtype="float32", speculative_config={"method": "none"})  # auto: torch
    lookup = {"method": "ngram", "prompt_lookup_min": 1}
    assert texts(quantization=name, dtype="float32", speculative_config=lookup) == plain
    assert [len(text) for text in plain] == [24, 24]
    model = load_target(parse_engine(str(folder), engine="torch", quantization=name, dtype="float32"))
    assert isinstance(model, TorchModel)
    assert model.weights.packed


def refused(match: str, model: Path, **arguments: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        load_target(parse_engine(str(model), **arguments))


@pytest.mark.parametrize("name", TORCH_QUANTIZATIONS)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tiny_hf(tmp_path / "model")
    refused("is of the torch engine", folder, engine="native", quantization=name)
    stored = tiny_gguf(tmp_path / "stored.gguf", types="Q8_0")
    refused("is quantized already", stored, engine="torch", quantization=name)
    refused("is of the native engine; the torch engine has", folder, engine="torch", quantization="q8_0")
    with pytest.raises(ConfigError, match="is refused"):
        parse_engine(str(folder), {"model": str(folder), "quantization": name}, engine="torch")
    with pytest.raises(ConfigError, match="is for CUDA devices and the CPU, not for mps"):
        backend._check_quantization(name, torch.device("mps"))
    found = importlib.util.find_spec

    def without(wanted: str, *more: Any) -> Any:
        return None if wanted == name else found(wanted, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    refused(rf"needs {name}: install outrider\[quantized\]", folder, engine="torch", quantization=name)


def test_a_library_that_cannot_be_imported_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError(f"{name} was built\nfor another PyTorch")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(
        ConfigError, match=r"torchao cannot be imported: torchao.quantization was built for an"
    ):
        library("torchao.quantization")


def test_nothing_is_imported_that_is_not_asked_for(tmp_path: Path) -> None:
    model = load(source(tmp_path, "llama"))
    assert not model.weights.packed
    assert np.isfinite(rows(model)).all()


@pytest.mark.parametrize("stored", OF_TYPE)
def test_folders_of_families_here_are_dequantized(tmp_path: Path, stored: str) -> None:
    kind, dims = OF_TYPE[stored]
    path, _ = quantized_hf(tmp_path / "model", kind, dims=dims)
    found, native = (
        load_target(parse_engine(str(path), engine=engine, exact=exact, threads=1))
        for engine, exact in (("torch", "fast"), ("native", None))
    )
    assert isinstance(found, TorchModel)
    (wanted,) = native.forward([item(native.new_cache(64), TOKENS)])
    assert relative_error(rows(found), wanted) < 0.02  # the native engine rounds activations


needs_bitsandbytes = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate", "bitsandbytes")),
    reason="needs outrider[torch,quantized]",
)


@needs_bitsandbytes
@pytest.mark.parametrize("bits", [4, 8])
def test_folders_stored_so_run_as_transformers_loads_them(tmp_path: Path, bits: int) -> None:
    import transformers

    from outrider.engines.torch.fallback import TransformersModel, describe
    from tests.torch.test_transformers import OTHERS, check_against_generate, saved

    sizes = OTHERS["gpt_neox"][1] | {"intermediate_size": 128}
    whole = saved(tmp_path / "whole", "GPTNeoXConfig", sizes)
    asked = transformers.BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    model = transformers.AutoModelForCausalLM.from_pretrained(whole, quantization_config=asked)
    model.save_pretrained(whole)
    if bits == 8:  # activations are rounded too, by the largest ones of all rows
        with pytest.raises(UnsupportedModelError, match="a token's logits depend on what shares its pass"):
            TransformersModel.load(describe(whole), CPU, torch.float32)
        return
    stored = TransformersModel.load(describe(whole), CPU, torch.float32)
    assert stored._model.is_quantized
    check_against_generate(stored, whole)


@pytest.mark.parametrize("problem", [ImportError("needs\nbitsandbytes"), RuntimeError("needs bitsandbytes")])
def test_a_folder_that_transformers_cannot_load_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    from outrider.engines.torch.fallback import TransformersModel, describe
    from tests.torch.test_transformers import OTHERS, saved

    opened = describe(saved(tmp_path / "model", *OTHERS["gpt_neox"]))
    with pytest.raises(ConfigError, match="quantization='torchao' is for families that Outrider has itself"):
        quantized(opened, "torchao")

    def broken(*arguments: Any, **more: Any) -> Any:
        raise problem

    if isinstance(problem, ImportError):
        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", broken)
    else:
        monkeypatch.setattr(TransformersModel, "_try", broken)
    with pytest.raises(UnsupportedModelError, match=r"transformers cannot load it: needs bitsandbytes$"):
        TransformersModel.load(opened, CPU, torch.float32)
