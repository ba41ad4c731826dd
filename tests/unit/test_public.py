"""What `import outrider` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import outrider


def test_every_public_name_is_there() -> None:
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None
    assert dir(outrider) == sorted(outrider.__all__)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        outrider.Engine  # noqa: B018


def test_importing_it_is_light() -> None:
    code = "import sys, outrider; print(sorted({'numpy', 'jinja2', 'tokenizers', 'tqdm'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
