"""The vLLM that the tests run with."""

from __future__ import annotations

import os

import pytest

from outrider.engines.vllm.installed import PYTHON, Installed, installed
from outrider.errors import ConfigError


@pytest.fixture(scope="session")
def version() -> Installed:
    if PYTHON not in os.environ:
        pytest.skip(f"needs {PYTHON}, the Python of tests/scripts/make_vllm_environment.py")
    try:
        return installed()
    except ConfigError as error:
        pytest.skip(str(error))
