"""Fixtures shared by the tests: tiny model files, and an engine of toy models to run them.

A tiny model file is real (sizes, vocabulary, chat template); `toy_engine` puts a ToyModel of its sizes
where the native engine would load its weights.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from outrider import pipeline
from outrider.engines.base import LanguageModel
from outrider.models.source import ModelSource
from tests.support.grids import left_out
from tests.support.models import tiny_gguf
from tests.support.real import real_model
from tests.support.toy_model import ToyModel

# No test may fail for the time that it took. The rest is the profile that hypothesis chose, here or in CI,
# where the examples are the same in every run: more of them find nothing new there.
_chosen = settings.get_profile(settings.get_current_profile_name())
_examples = 40 if os.environ.get("CI") else _chosen.max_examples
settings.register_profile("patient", _chosen, deadline=None, max_examples=_examples)
settings.load_profile("patient")

# Tests that want a record of acceptance turn it on, in a cache of their own.
os.environ["OUTRIDER_ACCEPTANCE_RECORD"] = "0"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In CI, leave out what is another commit's part of the grids."""
    if not os.environ.get("CI") or config.getoption("keyword") or any("::" in arg for arg in config.args):
        return
    dropped = left_out(items)
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in dropped])
        items[:] = [item for item in items if item.nodeid not in dropped]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Else the compiled modules say that what is left was leaked."""
    gc.unfreeze()


ToyLoader = Callable[[ModelSource, int | None], LanguageModel]


@pytest.fixture(scope="session")
def target_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target: vocabulary 320, context 256."""
    return tiny_gguf(tmp_path_factory.mktemp("models") / "target.gguf", seed=1)


@pytest.fixture(scope="session")
def draft_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny draft with the target's vocabulary."""
    return tiny_gguf(tmp_path_factory.mktemp("models") / "draft.gguf", seed=2)


def toy_target(source: ModelSource, kind: Callable[..., ToyModel] = ToyModel) -> ToyModel:
    """A ToyModel, or one of another kind, with the file's sizes."""
    arch = source.architecture
    return kind(arch.vocab_size, arch.max_positions, seed=1, sharpness=3.0, memory=0.2)


def load_toy(source: ModelSource, threads: int | None) -> LanguageModel:
    """A ToyModel with the file's sizes; a file called draft… gets a model that resembles the target."""
    arch, target = source.architecture, toy_target(source)
    if not source.path.name.startswith("draft"):
        return target
    return ToyModel(
        arch.vocab_size, arch.max_positions, seed=2, sharpness=3.0, memory=0.2, like=target, similarity=0.98
    )


@pytest.fixture
def toy_engine(monkeypatch: pytest.MonkeyPatch) -> ToyLoader:
    """Toy models in the place of the native engine, for everything that builds a pipeline."""
    monkeypatch.setattr(pipeline, "load_native", load_toy)
    return load_toy


@pytest.fixture(scope="session")
def default_model() -> Path:
    """SmolLM2-135M-Instruct. In CI its absence is a failure, elsewhere the test is skipped."""
    path = real_model("smollm2")
    if path is None and os.environ.get("CI"):
        pytest.fail("the default model is not there: outrider pull smollm2")
    return path or pytest.skip("needs the default model: outrider pull smollm2")


@pytest.fixture(scope="session")
def qwen_pair() -> tuple[Path, Path]:
    """Qwen2.5-Coder 1.5B and 0.5B, where somebody has put them."""
    target, draft = real_model("qwen-coder-1.5b"), real_model("qwen-coder-0.5b")
    if target is None or draft is None:
        pytest.skip("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b")
    return target, draft
