"""A tiny model with a context long enough for conversations, and a server of it that many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http_support import Running, running, toy_pipeline
from tests.support.models import Dims, tiny_gguf


@pytest.fixture(scope="session")
def roomy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with a context of 4096."""
    return tiny_gguf(tmp_path_factory.mktemp("roomy") / "tiny.gguf", seed=1, dims=Dims(context=4096))


@pytest.fixture(scope="module")
def server(roomy_file: Path) -> Iterator[Running]:
    """A server without keys, with an n-gram drafter."""
    lookup = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 4}
    with running(toy_pipeline(roomy_file, lookup, seed=5)) as made:
        yield made
