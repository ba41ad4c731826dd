"""How a device's memory is divided."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import device_memory
from outrider.device_memory import RESERVE, slot_bytes, usable, weights_bytes
from outrider.plan.shapes import shape_source

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "utilization", "wanted"),
    [(80, None, 80 - 8 - 1), (80, 0.5, 80 - 40 - 1), (80, 1.0, 79), (60, 0.9, 60 - 8 - 1), (8, 0.9, -1)],
)
def test_what_may_be_used(free: int, utilization: float | None, wanted: int) -> None:
    """Of 80 GiB, of which others may have taken some."""
    assert usable(free * GIB, 80 * GIB, utilization) == pytest.approx(wanted * GIB, abs=2)


@given(st.integers(0, 200), st.floats(0.1, 1.0))
def test_a_higher_utilization_never_leaves_less(free: int, utilization: float) -> None:
    total = 200 * GIB
    assert usable(free * GIB, total, utilization) <= usable(free * GIB, total, 1.0) == free * GIB - RESERVE


def test_models_on_a_device() -> None:
    """Llama-3.1-8B: 8.03e9 parameters, and 128 KiB of keys and values for each position."""
    source = shape_source("llama-3.1-8b:q4_k_m")
    count = sum(math.prod(tensor.shape) for tensor in source.tensors.values())
    for name, itemsize in device_memory.DTYPE_BYTES.items():
        assert weights_bytes(source, itemsize) == itemsize * count, name
    assert slot_bytes(source.architecture, 2) == 131072
