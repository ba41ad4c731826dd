"""benchmarks/training_prompts.py: kinds, seeds, and none of the prompts that speeds are measured with."""

from __future__ import annotations

import importlib.resources
import warnings
from collections import Counter
from typing import Any

import pytest

from outrider.bench import workloads
from tests.support.benchmarks import script

COUNT = 600


@pytest.fixture(scope="module")
def prompts() -> list[tuple[str, str]]:
    made: Any = script("training_prompts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old modules of the standard library
        maker = made.Maker(0)
        found = list(maker.prompts(COUNT))
        maker.random.seed(0)
        assert list(maker.prompts(COUNT)) == found
    return found


def test_all_kinds_are_asked_alike_and_nothing_twice(prompts: list[tuple[str, str]]) -> None:
    counts = Counter(kind for kind, _ in prompts)
    assert counts == dict.fromkeys(("chat", "code", "edit", "extract", "reasoning", "summary"), COUNT // 6)
    assert len({prompt for _, prompt in prompts}) == COUNT
    assert all(10 < len(prompt) < 3000 for _, prompt in prompts)


def test_they_are_none_of_the_workloads(prompts: list[tuple[str, str]]) -> None:
    """Nor have a sentence of them."""
    folder = importlib.resources.files("outrider.bench") / "workloads"
    names = [path.name.removesuffix(".jsonl") for path in folder.iterdir()]
    tested = [item.prompt for name in names for item in workloads.load(name)]
    assert len(tested) > 90
    lines = {line.strip() for prompt in tested for line in prompt.split("\n") if len(line.strip()) > 40}
    assert not lines & {line.strip() for _, prompt in prompts for line in prompt.split("\n")}
