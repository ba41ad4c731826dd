"""The sampler on the device: the CPU sampler's noise to the bit, and its token for every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.engines.native.sampling import NativeRows
from tests.torch.kernel_support import DEVICE, torch, triton

import triton.language as tl  # isort: skip
from outrider.engines.torch.kernels import sampling  # isort: skip
from outrider.engines.torch.kernels.noise import earliest, quad_noise  # isort: skip
from outrider.engines.torch.kernels.sampling import (  # isort: skip
    NOT_FINITE,
    SAMPLED,
    UNSURE,
    sample,
)
from outrider.engines.torch.kernels.row_settings import RowSettings  # isort: skip

pytestmark = pytest.mark.grid(4, whole_file=True)  # slow in the interpreter
SETTINGS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in (
        *((0.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.5, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0)),
        *((1.3, 1, 1.0, 0.0), (0.8, 0, 0.9, 0.0), (1.0, 0, 0.1, 0.0), (0.7, 20, 0.8, 0.0)),
        *((1.0, 40, 0.95, 0.05), (1.2, 0, 1.0, 0.3), (1e-3, 0, 0.5, 0.0), (2.0, 3000, 0.99, 0.0)),
        *((0.0, 7, 0.3, 0.1), (1.0, 2, 1e-12, 0.0)),
    )
]


@triton.jit  # type: ignore[untyped-decorator]
def write(out_ptr, seed_ptr, position_ptr, first_quad, quads: tl.constexpr):  # type: ignore[no-untyped-def]
    quad = first_quad + tl.arange(0, quads)
    seed, position = tl.load(seed_ptr), tl.load(position_ptr)
    first, holder = earliest(seed, position, quad)
    tl.store(out_ptr + tl.arange(0, quads * 4), quad_noise(seed, position, quad, first, holder))


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15])
@pytest.mark.parametrize(("position", "first"), [(0, 0), (2**32 - 1, 127 * 1024), (2**40 + 3, 256)])
def test_noise_has_the_bits_of_the_cpu(seed: int, position: int, first: int) -> None:
    out = torch.empty(1024, dtype=torch.float64, device=DEVICE)
    signed = torch.tensor(np.array([seed], np.uint64).view(np.int64), device=DEVICE)
    write[(1,)](out, signed, torch.tensor([position], device=DEVICE), first // 4, 256, enable_fp_fusion=False)
    expected = NativeRows().noise(seed, position, np.arange(first, first + 1024))
    assert out.cpu().numpy().tobytes() == expected.tobytes()


def cpu_token(row: Any, params: SamplingParams, seed: int, position: int, *, native: bool) -> int:
    sampler = Sampler(params, len(row), seed=seed, rows=NativeRows() if native else None)
    return sampler.draw(row, row, position)


Sample = Callable[[Any, RowSettings, Any], Sequence[Any]]


def compare(run: Sample, cases: int, *, vocab: int, first: int = 0) -> tuple[int, int]:
    """(rows whose token is not the CPU's, rows that are not decided), of `cases` passes of random logits."""
    wrong = unsure = 0
    for case in range(first, first + cases):
        random = np.random.default_rng(case)
        params = [SETTINGS[(case + i) % len(SETTINGS)] for i in range(len(SETTINGS))]
        n = len(params)
        logits = random.standard_normal((n, vocab)) * random.choice([0.1, 1.0, 3.0, 10.0], (n, 1))
        logits = logits.astype(np.float32)
        if case % 2:  # few different values, as half precision leaves
            logits = logits.astype(np.float16).round(1).astype(np.float32)
        if case % 3 == 0:
            logits[:, random.integers(0, vocab, vocab // 2)] = -np.inf
            logits[:, 0] = 0.0
        seeds = [int(s) for s in random.integers(0, 2**64, n, dtype=np.uint64)]
        positions = random.integers(0, 2**35, n)
        settings = RowSettings.make(params, seeds, vocab, DEVICE)
        tokens, status = run(
            torch.tensor(logits, device=DEVICE), settings, torch.tensor(positions, device=DEVICE)
        )[:2]
        for i, (token, state) in enumerate(zip(tokens.tolist(), status.tolist(), strict=True)):
            for native in (True, False):
                expected = cpu_token(logits[i], params[i], seeds[i], int(positions[i]), native=native)
                wrong += state == SAMPLED and token != expected
            unsure += state != SAMPLED
    return wrong, unsure


@pytest.mark.parametrize(("vocab", "cases"), [(2, 6), (300, 4), (1024, 4), (2600, 2)])
def test_tokens_are_those_of_the_cpu(vocab: int, cases: int) -> None:
    wrong, unsure = compare(sample, cases, vocab=vocab)
    assert wrong == 0
    assert unsure <= 2  # two equal tokens at the top and top_p = 0.5, see below


def test_late_rounds_of_a_row_in_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ROUNDS", 1)
    assert compare(sample, 2, vocab=1500, first=50) == (0, 0)


def later(logits: Any, settings: RowSettings, positions: Any) -> Sequence[Any]:
    """A twin: noise of the next position."""
    return sample(logits, settings, positions + 1)


def without_ties(logits: Any, settings: RowSettings, positions: Any) -> Sequence[Any]:
    """A twin: of equal logits the last counts first."""
    tokens, status, *_ = sample(logits.flip(1), settings, positions)
    return logits.shape[1] - 1 - tokens, status


def unfiltered(logits: Any, settings: RowSettings, positions: Any) -> Sequence[Any]:
    """A twin: top_k, top_p and min_p are off."""
    off = RowSettings.make([SamplingParams()] * len(logits), [0] * len(logits), logits.shape[1], DEVICE)
    plain = RowSettings(
        settings.temperature, off.top_k, off.top_p, off.limit, settings.seed, filtered=False, most=0
    )
    return sample(logits, plain, positions)


@pytest.mark.parametrize("twin", [later, without_ties, unfiltered])
def test_other_rules_are_caught(twin: Sample) -> None:
    assert compare(twin, 1, vocab=300, first=1)[0] > 0


def drawn(rows: Sequence[Sequence[float]], params: SamplingParams, dtype: Any = None) -> tuple[Any, Any]:
    logits = torch.tensor(rows, dtype=dtype or torch.float32, device=DEVICE)
    n, vocab = logits.shape
    settings = RowSettings.make([params] * n, list(range(n)), vocab, DEVICE)
    tokens, status, *_ = sample(logits, settings, torch.zeros(n, dtype=torch.int64, device=DEVICE))
    return tokens.tolist(), status.tolist()


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    rows = [[0.0, 2.0, 2.0, 1.0], [-np.inf, -np.inf, -3.0, -3.0], [5.0, 5.0, 5.0, 5.0]]
    for dtype in (torch.float32, torch.float16):
        assert drawn(rows, SamplingParams(temperature=0.0), dtype) == ([1, 2, 0], [SAMPLED] * 3)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(top_k=3, top_p=0.5)])
def test_rows_without_a_finite_maximum_are_told(params: SamplingParams) -> None:
    rows = [[0.0, np.nan, 1.0], [-np.inf] * 3, [np.inf, 0.0, 0.0], [1.0, -np.inf, 0.0]]
    assert drawn(rows, params)[1] == [NOT_FINITE, NOT_FINITE, NOT_FINITE, SAMPLED]


def test_decisions_at_the_limit_are_left_to_the_cpu() -> None:
    """Of two equal tokens and top_p = 0.5 the first alone is kept, if the sums are exact."""
    count = 24
    tokens, status = drawn([[1.0, 1.0]] * count, SamplingParams(top_p=0.5))
    settings = SamplingParams()
    free = [cpu_token(np.ones(2, np.float32), settings, seed, 0, native=True) for seed in range(count)]
    assert set(free) == {0, 1}
    assert status == [UNSURE if token else SAMPLED for token in free]
    assert all(token == 0 for token, state in zip(tokens, status, strict=True) if state == SAMPLED)
    edge = float(np.exp(-2.0))
    for min_p, expected in ((edge, UNSURE), (edge * 1.01, SAMPLED), (edge * 0.99, SAMPLED)):
        found = drawn([[0.0, -2.0]] * count, SamplingParams(min_p=min_p))
        assert (UNSURE in found[1]) == (expected == UNSURE)


def test_settings_of_rows_that_a_request_has_several_of() -> None:
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=2, top_p=0.7)]
    settings = RowSettings.make(params, [3, 2**64 - 1], 100, DEVICE)
    assert settings.filtered
    assert settings.most == 2
    rows = settings.rows(torch.tensor([1, 0, 1], device=DEVICE))
    assert rows.temperature.tolist() == [1.0, 0.0, 1.0]
    assert rows.seed.tolist() == [-1, 3, -1]
    greedy = RowSettings.make([SamplingParams(temperature=0.0, top_k=3, top_p=0.5)], [0], 100, DEVICE)
    assert not greedy.filtered


def test_margins_are_those_of_siblings() -> None:
    """What coupled drawing takes next when the token is excluded, and by how much it comes second."""
    random = np.random.default_rng(8)
    params = [SETTINGS[i] for i in (0, 1, 2, 1, 2)]
    logits = (random.standard_normal((len(params), 1300)) * 2).astype(np.float32)
    settings = RowSettings.make(params, list(range(len(params))), 1300, DEVICE)
    positions = torch.arange(len(params), device=DEVICE)
    tokens, _, margins, _ = sample(torch.tensor(logits, device=DEVICE), settings, positions)
    for i, (row, p, token) in enumerate(zip(logits, params, tokens.tolist(), strict=True)):
        sampler = Sampler(p, len(row), seed=i)
        other = sampler.draw(np.where(np.arange(len(row)) == token, np.float32(-np.inf), row), row, i)
        margin = float(row[token]) - float(row[other])
        if p.temperature > 0.0:
            noise = {k: sampler.noise(i, np.array([k]))[0] for k in (token, other)}
            margin = margin / p.temperature + noise[token] - noise[other]
        assert float(margins[i]) == pytest.approx(margin, rel=1e-5)
