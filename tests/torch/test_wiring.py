"""The torch engine as users choose it: what runs, and what is refused before weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider import LLM, SamplingParams  # noqa: E402
from outrider.config.engine import parse_engine  # noqa: E402
from outrider.device_memory import PATH  # noqa: E402
from outrider.engines import pass_times  # noqa: E402
from outrider.engines.pass_times import CONTEXT, measure_longer  # noqa: E402
from outrider.engines.torch import backend, calibrate  # noqa: E402
from outrider.engines.torch.device import find_device, find_dtype  # noqa: E402
from outrider.engines.torch.model import TorchModel  # noqa: E402
from outrider.errors import ConfigError, InsufficientMemoryError  # noqa: E402
from outrider.models.open import open_model  # noqa: E402
from outrider.pipeline import Pipeline, build, load_target  # noqa: E402
from tests.support.models import Dims, tiny_gguf, tiny_hf  # noqa: E402
from tests.support.passes import PositionTimer  # noqa: E402
from tests.torch.support import CPU, item, load, same_bits, source  # noqa: E402

PROMPTS = ["the cat sat on the mat the cat sat", "a b c a b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hf(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "draft.gguf", types="Q8_0")


def texts(folder: Path, temperature: float, **arguments: Any) -> list[list[int]]:
    llm = LLM(str(folder), threads=1, max_model_len=128, seed=3, **arguments)
    params = SamplingParams(temperature=temperature, max_tokens=24, seed=7, ignore_eos=True)
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_strict_texts_are_those_without_speculation(folder: Path, draft: Path, temperature: float) -> None:
    strict = {"engine": "torch", "device": "cpu", "exact": "strict"}
    plain = texts(folder, temperature, speculative_config={"method": "none"}, **strict)
    assert [len(text) for text in plain] == [24, 24]
    lookup = {"method": "ngram", "prompt_lookup_min": 1}
    for method in (lookup, {"model": str(draft), "method": "draft_model"}):
        assert texts(folder, temperature, speculative_config=method, **strict) == plain
    assert texts(folder, temperature, speculative_model=str(draft), **strict) == plain


def test_greedy_texts_are_those_of_the_native_engine(folder: Path) -> None:
    """On float weights, whose logits differ by rounding only."""
    assert texts(folder, 0.0, engine="torch", device="cpu") == texts(folder, 0.0, engine="native")


@pytest.mark.parametrize(("exact", "bits"), [("strict", True), ("fast", False)])
def test_what_is_asked_for_is_what_runs(folder: Path, exact: str, bits: bool) -> None:
    config = parse_engine(str(folder), engine="torch", device="cpu", dtype="bf16", exact=exact, threads=1)
    model = load_target(config)
    assert isinstance(model, TorchModel)
    assert (model.dtype, model.device) == (torch.bfloat16, CPU)
    assert model.caps.exact_bits == bits


def test_auto_says_which_and_why(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load_target(parse_engine(str(folder), engine="torch", device="cpu", threads=1))
    (line,) = [record.getMessage() for record in caplog.records if "exact:" in record.getMessage()]
    assert f"exact: {'strict' if model.caps.exact_bits else 'fast'}, as strict passes take" in line


def test_bits_that_do_not_hold_are_found(tmp_path: Path) -> None:
    assert backend.broken_bits(load(source(tmp_path, "llama"), strict=True)) is None
    problem = backend.broken_bits(load(source(tmp_path, "llama")))
    assert problem is not None
    assert "depend on the width of its pass" in problem


def test_strict_is_refused_where_bits_do_not_hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchModel, "fixed_width", None)
    config = parse_engine(str(folder), engine="torch", device="cpu", exact="strict", threads=1)
    with pytest.raises(ConfigError, match=r"exact='strict' is refused on cpu: .*; use exact='fast'"):
        load_target(config)
    automatic = parse_engine(str(folder), engine="torch", device="cpu", threads=1)
    assert not load_target(automatic).caps.exact_bits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "tpu"}, "device 'tpu' is unknown"),
        ({"device": "cuda:99"}, "device 'cuda:99': this PyTorch finds"),
        ({"device": "cuda:x"}, "device 'cuda:x' is unknown"),
        ({"device": "cpu", "dtype": "int4"}, "dtype 'int4' is unknown; use 'auto', 'bfloat16'"),
        ({"device": "cpu", "quantization": "q8_0"}, "of the native engine"),
        ({"device": "cpu", "kv_quantization": "q8_0"}, "of the native engine"),
    ],
)
def test_refusals_come_before_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(backend, "load_weights", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=words):
        build(parse_engine(str(folder), engine="torch", **arguments))


def test_a_device_chooses_the_engine(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda:99': this PyTorch finds"):
        build(parse_engine(str(folder), device="cuda:99"))


def test_a_draft_is_not_quantized(folder: Path, draft: Path) -> None:
    config = {"method": "draft_model", "model": str(draft), "quantization": "q4"}
    with pytest.raises(ConfigError, match="quantization 'q4' is of the native engine only"):
        build(parse_engine(str(folder), config, engine="torch", device="cpu"))


def test_memory_is_counted_in_the_type_that_is_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.memory.available_bytes", lambda: 10_000)
    monkeypatch.setattr(backend, "load_weights", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InsufficientMemoryError, match=r"not enough memory: target target .*max_model_len"):
        build(parse_engine(str(folder), engine="torch", device="cpu"))


def test_costs_are_measured(folder: Path) -> None:
    pipeline = build(parse_engine(str(folder), engine="torch", device="cpu", exact="fast", threads=1))
    assert isinstance(pipeline, Pipeline)
    model = load_target(parse_engine(str(folder), engine="torch", device="cpu", exact="fast", threads=1))
    curve = calibrate.cost_model(model, None).at(32)
    assert 0 < curve.seconds(1) < curve.seconds(512)


def long_model(tmp_path: Path, **more: Any) -> TorchModel:
    folder = tiny_hf(tmp_path / "long", dims=Dims(context=512))
    return load(open_model(folder), **more)


def test_a_longer_context_adds_the_difference_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = {1: 100.0, 4: 110.0, 16: 150.0}
    found = measure_longer(long_model(tmp_path), curve, 332, clock=PositionTimer(TorchModel, monkeypatch))
    assert found == {n: curve[n] + (332 - CONTEXT) * n for n in curve}


def test_costs_depend_on_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measured(_: object, curve: Mapping[int, float], context: int) -> dict[int, float]:
        asked.append(context)
        return {n: 3 * curve[n] for n in (1, 4, 16)}

    def steady(_: object, seconds: float, *, widths: Sequence[int]) -> dict[int, float]:
        return {n: 1.0 + 0.01 * n for n in widths}

    monkeypatch.setattr(calibrate, "measure", steady)
    monkeypatch.setattr(pass_times, "measure_longer", measured)
    costs = calibrate.cost_model(long_model(tmp_path), None)
    assert asked == [512 - 16]
    short = costs.at(CONTEXT).seconds(4)
    assert costs.at(512 - 16).seconds(4) == pytest.approx(3 * short)


def test_a_pool_without_room_is_measured_in_no_longer_context(tmp_path: Path) -> None:
    small = long_model(tmp_path, slots=lambda model: 200)
    costs = calibrate.cost_model(small, None)
    assert costs.at(190).seconds(4) == costs.at(CONTEXT).seconds(4)
    assert small.pool.take(199) == 1, "what was measured leaves nothing behind"
    enough = long_model(tmp_path, slots=lambda model: 500)
    assert calibrate.cost_model(enough, None).at(400).seconds(16) > 0


def test_padding_makes_a_cache_long(tmp_path: Path) -> None:
    model = long_model(tmp_path)
    (cache, other), tokens = (model.new_cache(n) for n in (40, 10)), [5, 6, 7]
    (wanted,) = model.forward([item(other, tokens)])
    other.truncate(0)
    cache.pad(30)
    assert cache.length == 30
    model.forward([item(cache, tokens)])
    assert cache.length == 33
    for count in (-1, 8):
        with pytest.raises(ValueError, match="do not fit after 33 of 40"):
            cache.pad(count)
    assert same_bits(model.forward([item(other, tokens)])[0], wanted)
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.pad(1)


def test_devices_and_types() -> None:
    assert find_device("cpu") == CPU
    assert find_dtype("auto", CPU) == torch.float32
    assert find_dtype("half", CPU) == torch.float16
    assert np.dtype("float32").itemsize == find_dtype("float32", CPU).itemsize


class _Sized:
    """As much of a model as its share of a device's memory depends on."""

    max_positions = 4096

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes


def test_all_models_share_what_a_device_has_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that transformers runs, too: a pool must not take the memory of their caches."""
    monkeypatch.setattr(backend, "name_of", lambda device: "a GPU")
    for most, left, wanted in ((8, 400 * 1000 + 399, 1000), (1, 10**9, 4096 + PATH + 1)):
        config = parse_engine(str(folder), device="cpu", engine="torch", max_num_seqs=most)
        loader = backend.TorchLoader(config)
        assert loader._room() is None
        loader.device = torch.device("cuda", 0)
        loader._models += [_Sized(300), _Sized(100)]  # type: ignore[list-item]
        monkeypatch.setattr(loader, "_left", lambda left=left: left)
        assert loader._pool_slots() == wanted
        assert loader._room() == wanted - 1
