"""Models and servers of them that many tests share, and the browser of the page's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.config.engine import parse_engine
from outrider.pipeline import build
from tests.server.dialect_support import TEMPLATE, THINKING
from tests.server.http_support import Running, running, toy_pipeline
from tests.support.models import Dims, tiny_gguf

if TYPE_CHECKING:
    from tests.server.page_support import Page


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


@pytest.fixture(scope="module")
def templated(roomy_file: Path) -> Iterator[Running]:
    """A server with a chat template that knows tools."""
    with running(toy_pipeline(roomy_file), chat_template=TEMPLATE) as made:
        yield made


@pytest.fixture(scope="module")
def thinking(roomy_file: Path) -> Iterator[Running]:
    """A server with a chat template that knows tools and reasoning."""
    with running(toy_pipeline(roomy_file), chat_template=THINKING) as made:
        yield made


@pytest.fixture(scope="module")
def model(default_model: Path) -> Iterator[Running]:
    """A server of the default model."""
    pipeline = build(parse_engine(str(default_model), "auto", max_num_seqs=4, max_model_len=1024))
    with running(pipeline) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    from tests.server.page_support import browser  # only the page's tests need selenium

    with browser() as made:
        yield made
