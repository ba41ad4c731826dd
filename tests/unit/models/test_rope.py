"""Rotary frequencies against values that transformers 5 (LlamaRotaryEmbedding) computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.models.formats.rope import (
    base_frequencies,
    longrope_magnitude,
    scale_linear,
    scale_llama3,
    scale_yarn,
    yarn_magnitude,
)
from outrider.models.open import open_model
from tests.support.ropes import SCALINGS

# dim 64, theta 500000, llama3: factor 32, low 1, high 4, original 8192 (Llama 3.2 1B).
LLAMA3 = np.fromstring(
    """
1.0 0.663601279258728 0.44036662578582764 0.2922278344631195 0.193922758102417
0.12868738174438477 0.08539710193872452 0.05666961893439293 0.03760603070259094
0.02495540864765644 0.016560440883040428 0.010989529080688953 0.00729266507551074
0.00483942124992609 0.0032114461064338684 0.0012905480107292533 0.000429556705057621
9.708286233944818e-05 1.9461638657958247e-05 1.291476746700937e-05 8.570255886297673e-06
5.687232260243036e-06 3.7740544485131977e-06 2.504467147446121e-06 1.6619674170215148e-06
1.1028836297555245e-06 7.318749339901842e-07 4.856731266045244e-07 3.2229328894572973e-07
2.1387423032592778e-07 1.4192720243499934e-07 9.418306490260875e-08
    """,
    sep=" ",
)


def test_base_is_a_geometric_series() -> None:
    expected = [1, 0.31622776601683794, 0.1, 0.03162277660168379, 0.01, 0.0031622776601683794, 1e-3, 10**-3.5]
    np.testing.assert_allclose(base_frequencies(16, 10000.0), expected, rtol=1e-14)


def test_linear_divides() -> None:
    recorded = [0.25, 0.07905694097280502, 0.02500000037252903, 0.007905694656074047]
    np.testing.assert_allclose(scale_linear(base_frequencies(16, 10000.0), 4.0)[:4], recorded, rtol=1e-7)


def test_llama3_matches_transformers() -> None:
    scaled = scale_llama3(base_frequencies(64, 500000.0), 32.0, 1.0, 4.0, 8192)
    np.testing.assert_allclose(scaled.astype(np.float32), LLAMA3, rtol=3e-7)


def test_llama3_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    base = base_frequencies(64, 500000.0)
    scaled = scale_llama3(base, 32.0, 1.0, 4.0, 8192)
    length = 2 * np.pi / base
    short, long = length < 8192 / 4, length > 8192
    assert short.any()
    assert long.any()
    assert (~short & ~long).any()
    assert (scaled[short] == base[short]).all()
    assert (scaled[long] == base[long] / 32).all()
    between = ~short & ~long
    assert ((scaled[between] < base[between]) & (scaled[between] > base[between] / 32)).all()


def test_yarn_keeps_short_waves_divides_long_ones_and_ramps_between() -> None:
    base = base_frequencies(64, 1e6)
    turns = 4096 * base / (2 * np.pi)
    scaled = scale_yarn(base, 1e6, 4.0, 4096, (32.0, 1.0))
    exact = scale_yarn(base, 1e6, 4.0, 4096, (32.0, 1.0), truncate=False)
    np.testing.assert_allclose(exact[turns > 32], base[turns > 32], rtol=1e-15)
    np.testing.assert_allclose(exact[turns < 1], base[turns < 1] / 4, rtol=1e-15)
    between = (turns < 32) & (turns > 1)
    for found in (scaled, exact):
        assert ((found[between] < base[between]) & (found[between] > base[between] / 4)).all()
        assert (np.diff(found) < 0).all()
    assert not np.array_equal(scaled, exact)


def test_yarn_of_a_ramp_without_length() -> None:
    base = base_frequencies(8, 1e4)
    scaled = scale_yarn(base, 1e4, 2.0, 4, (32.0, 1.0))  # no wave turns once in four positions
    np.testing.assert_allclose(scaled, [base[0], *base[1:] / 2])


def test_magnitudes() -> None:
    assert yarn_magnitude(1.0) == yarn_magnitude(0.5) == yarn_magnitude(16.0, 1.0, 1.0) == 1.0
    assert yarn_magnitude(4.0) == pytest.approx(1 + 0.1 * np.log(4))
    assert yarn_magnitude(4.0, 2.0, 0.5) == pytest.approx((1 + 0.2 * np.log(4)) / (1 + 0.05 * np.log(4)))
    assert yarn_magnitude(np.e, 1.0, -10.0) == np.inf
    assert longrope_magnitude(1.0, 4096) == longrope_magnitude(0.5, 1) == 1.0
    assert longrope_magnitude(32.0, 4096) == pytest.approx(np.sqrt(1 + 5 / 12))
    assert longrope_magnitude(2.0, 1) == np.inf


@pytest.mark.parametrize("dim", [2, 64, 128])
def test_shapes(dim: int) -> None:
    assert base_frequencies(dim, 10000.0).shape == (dim // 2,)


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_the_context_that_is_asked_for_chooses_the_factors(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    scaling = SCALINGS["longrope of phi3"]  # from 256 tokens to 1024
    path = scaling.folder(tmp_path / "m") if form == "folder" else scaling.gguf(tmp_path / "m.gguf")
    opened = open_model(path)
    short = opened.architecture
    assert (short.max_positions, short.long_positions) == (256, 1024)
    assert not caplog.records
    for positions in (1, 256):
        assert opened.for_context(positions).architecture.ropes == short.ropes
    assert not caplog.records
    assert opened.for_context(None).architecture.ropes == short.ropes
    assert "the context is 256 tokens; a longer --max-model-len (-c), up to 1024" in caplog.records[0].message
    for positions in (257, 1024, 1 << 20):
        long = opened.for_context(positions).architecture
        assert (long.max_positions, long.long_positions, long.long_rope) == (1024, 1024, None)
        ratio = short.ropes[0].inv_freq / long.ropes[0].inv_freq
        assert np.allclose(ratio, np.linspace(1, 8, 12) / np.linspace(1, 2, 12), rtol=1e-6)
        assert long.ropes[0].scale == short.ropes[0].scale
        assert opened.for_context(positions).for_context(64).architecture.ropes == long.ropes


def test_the_same_factors_twice_are_one_table(tmp_path: Path) -> None:
    scaling = SCALINGS["longrope"]
    rope = {**scaling.config["rope_scaling"]}
    rope["long_factor"] = rope["short_factor"]
    same = replace(scaling, config={**scaling.config, "rope_scaling": rope})
    spec = open_model(same.folder(tmp_path)).architecture
    assert (spec.max_positions, spec.long_rope) == (1024, None)
