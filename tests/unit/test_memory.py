"""The estimate before loading: its arithmetic, the control group's limit, and the error message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from outrider import memory
from outrider.errors import InsufficientMemoryError
from outrider.memory import Budget, ModelMemory
from outrider.models.open import open_model
from outrider.models.source import ModelSource, Tensor, TokenizerData
from outrider.models.spec import FeedForwardSpec, LayerSpec, ModelSpec, RopeSpec
from tests.support.quantized import Kind, quantized_hf

LAYER = LayerSpec(FeedForwardSpec(8960), attention_scale=128**-0.5)
QWEN = ModelSpec(
    name="qwen2",
    hidden_size=1536,
    n_heads=12,
    n_kv_heads=2,
    head_dim=128,
    vocab_size=151936,
    max_positions=32768,
    rms_eps=1e-6,
    ropes=(RopeSpec(128, np.ones(64, np.float32)),),
    layers=(LAYER,) * 28,
)


def test_key_value_bytes_by_hand() -> None:
    assert memory.kv_bytes(QWEN, 1) == 2 * 28 * 2 * 128 * 2
    assert memory.kv_bytes(QWEN, 4096) == 4096 * memory.kv_bytes(QWEN, 1) == 117_440_512


def test_inputs_that_are_gathered_are_counted(tmp_path: Path) -> None:
    """GPTQ's act-order: q, k and v each read a copy of 128 columns, o one of 128."""
    plain = open_model(quantized_hf(tmp_path / "plain", Kind("gptq"))[0])
    ordered = open_model(quantized_hf(tmp_path / "ordered", Kind("gptq", act_order="each"))[0])
    assert memory.ordered_bytes(plain) == 0
    more = memory.estimate(ordered, 10).buffers - memory.estimate(plain, 10).buffers
    # Four rows of float32, int8, and for 32 of them a scale, a sum and their product.
    assert 256 * 4 * (128 * 5 + 4 * 12) <= more == memory.ordered_bytes(ordered) < 256 * 4 * 128 * 7
    whole = [memory.share_out([source], 10, 10**9, rows=1).buffers for source in (ordered, plain)]
    assert whole[0] - whole[1] == more


@given(positions=st.integers(1, 131072), window=st.integers(1, 4096))
def test_layers_with_a_window_count_no_more_than_that_needs(positions: int, window: int) -> None:
    """And what a pass adds and a rollback takes back, rounded up to blocks at both ends."""
    sliding = dataclasses.replace(LAYER, window=window)
    arch = dataclasses.replace(QWEN, layers=(sliding,) * 5 + (LAYER,))
    one = memory.kv_bytes(dataclasses.replace(QWEN, layers=(LAYER,)), 1)
    most = window + 128 + memory.WIDEST_PASS
    of_a_window = memory.kv_bytes(arch, positions) - one * positions
    if positions <= most:
        assert of_a_window == 5 * one * positions
    else:
        assert 5 * one * most <= of_a_window < 5 * one * (most + 32)
    assert memory.sequence_bytes([arch], positions) >= memory.kv_bytes(arch, positions)
    assert memory.prefix_bytes(arch, 160) == 160 * 6 * one


def test_gemma_counts_a_fifth_of_all_positions() -> None:
    """Gemma 3 270M with 32768 positions: of 18 layers, 15 see 512."""
    sliding = dataclasses.replace(LAYER, window=512)
    arch = dataclasses.replace(
        QWEN, n_kv_heads=1, head_dim=256, layers=((sliding,) * 5 + (LAYER,)) * 3, max_positions=32768
    )
    assert memory.kv_bytes(arch, 32768) == 1024 * (3 * 32768 + 15 * 1168) == 118_603_776
    assert memory.prefix_bytes(arch, 32768) == 1024 * 18 * 32768


def test_estimate_of_a_source() -> None:
    tensor = Tensor("w", "F32", (250,), np.zeros(1000, np.uint8))
    source = ModelSource(
        Path("t.gguf"), "gguf", "T", QWEN, {"w": tensor}, TokenizerData("bpe"), chat_template=None
    )
    part = memory.estimate(source, positions=100, sequences=3)
    assert (part.name, part.weights) == ("T", 1000)
    assert part.cache == 3 * memory.kv_bytes(QWEN, 100)
    assert part.vocabulary == QWEN.vocab_size * (126 + 112)
    assert part.total == part.weights + part.cache + part.buffers + part.vocabulary
    assert memory.estimate(source, 100, target=False).vocabulary == QWEN.vocab_size * 126


PARTS = [ModelMemory("T", 10**9, 10**8, 0), ModelMemory("D", 5 * 10**8, 10**7, 0)]


def test_what_fits_passes() -> None:
    memory.check(PARTS, 4096, available=1_610_000_000)


def test_a_refusal_names_both_models_what_is_there_and_what_to_do() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        memory.check(PARTS, 4096, available=1_609_999_999)
    text = str(caught.value)
    for words in ("target T 1.10 GB", "draft D 510 MB", "available 1.61 GB", "-c", "--spec ngram", "4096"):
        assert words in text
    assert "\n" not in text
    with pytest.raises(InsufficientMemoryError) as caught:
        memory.check(PARTS[:1], 64, available=0)
    assert "ngram" not in str(caught.value)


def test_the_system_is_asked_for_available_memory_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1)
    with pytest.raises(InsufficientMemoryError, match="available 0 kB"):
        memory.check(PARTS, 1)


def _group(folder: Path, names: tuple[str, str], limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(limit + "\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 1\n")


def test_control_groups_of_version_2_count_every_level(tmp_path: Path) -> None:
    names = ("memory.max", "memory.current")
    _group(tmp_path / "a" / "b", names, "max", 10, 0)  # no limit here
    _group(tmp_path / "a", names, "1000", 400, 100)
    own = tmp_path / "self"
    own.write_text("0::/a/b\n")
    assert list(memory._cgroup_free(tmp_path, own)) == [1000 - 400 + 101]


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    _group(tmp_path / "memory" / "job", names, "500", 600, 0)
    own = tmp_path / "self"
    own.write_text("4:memory:/job\n3:cpu:/\n")
    assert list(memory._cgroup_free(tmp_path, own)) == [0]


def test_no_control_groups_means_no_limit(tmp_path: Path) -> None:
    assert list(memory._cgroup_free(tmp_path, tmp_path / "absent")) == []
    assert memory.available_bytes() > 0


@pytest.mark.parametrize(("n", "text"), [(999, "1 kB"), (98_000_000, "98 MB"), (1_117_000_000, "1.12 GB")])
def test_sizes_for_a_reader(n: int, text: str) -> None:
    assert memory.size(n) == text


def model(name: str = "T", tensor_bytes: int = 1000, arch: ModelSpec = QWEN) -> ModelSource:
    tensor = Tensor("w", "F32", (tensor_bytes // 4,), np.zeros(tensor_bytes, np.uint8))
    path = Path(f"{name}.gguf")
    return ModelSource(path, "gguf", name, arch, {"w": tensor}, TokenizerData("bpe"), chat_template=None)


SMALL = dataclasses.replace(QWEN, layers=(LAYER,) * 7)


@given(
    positions=st.integers(1, 32768),
    limit=st.integers(0, 10**10),
    rows=st.integers(1, 200),
    pair=st.booleans(),
    prefixes=st.none() | st.integers(0, 10**9),
    lookups=st.integers(0, 10**8),
)
def test_shares_add_up_to_the_limit(
    *, positions: int, limit: int, rows: int, pair: bool, prefixes: int | None, lookups: int
) -> None:
    sources = [model(), model("D", arch=SMALL)] if pair else [model()]
    archs = [source.architecture for source in sources]
    buffers = memory.buffer_bytes(QWEN, rows=rows) + (memory.buffer_bytes(SMALL) if pair else 0)
    needed = 1000 * len(sources) + buffers + memory.sequence_bytes(archs, positions) + (prefixes or 0)
    if limit < needed:
        with pytest.raises(InsufficientMemoryError, match=rf"sequence of {positions} tokens.*--memory-limit"):
            memory.share_out(sources, positions, limit, rows=rows, prefixes=prefixes, lookups=lookups)
        return
    shares = memory.share_out(sources, positions, limit, rows=rows, prefixes=prefixes, lookups=lookups)
    total = shares.weights + shares.buffers + shares.sequences + sum(shares.prefixes) + shares.lookups
    assert limit - len(sources) < total <= limit
    assert shares.sequences >= memory.sequence_bytes(archs, positions)
    assert len(shares.prefixes) == len(sources)
    assert 0 <= shares.lookups <= lookups
    if limit - needed > 100 * 10**8:
        assert shares.lookups == lookups, "as much as was asked for, where there is plenty"
    if pair:  # both models keep the same number of positions
        assert shares.prefixes[0] // 4 - shares.prefixes[1] in (-1, 0, 1)
    if prefixes is not None:
        assert prefixes - len(sources) < sum(shares.prefixes) <= prefixes


@pytest.mark.parametrize("short", [False, True])
def test_the_smallest_limit_that_is_enough(short: bool) -> None:
    needed = 1000 + memory.buffer_bytes(QWEN, rows=5) + memory.sequence_bytes([QWEN], 100)
    if short:
        with pytest.raises(InsufficientMemoryError, match="T take 1 kB"):
            memory.share_out([model()], 100, needed - 1, rows=5)
    else:
        assert memory.share_out([model()], 100, needed, rows=5).prefixes == (0,)


def test_a_sequence_is_counted_in_whole_blocks_of_every_model() -> None:
    by_hand = 4 * 4 * QWEN.vocab_size + 17 * 512 + 32 * 2 * 28 * 2 * 128 * 2 * 5 // 4
    assert memory.sequence_bytes([QWEN, SMALL], 17, 0) == by_hand
    assert memory.sequence_bytes([QWEN, SMALL], 17, 5) == by_hand + 5 * 512
    assert memory.sequence_bytes([QWEN, SMALL], 17) == by_hand + 17 * 512, "one as long as the context"


def test_usable_memory_counts_weights_that_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as they are this process's own: pages of a mapped file are available already."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    assert memory.usable_bytes() == 9 * 10**8
    assert memory.usable_bytes(10**6) == 9 * 10**8 + 10**6
    assert memory.usable_bytes(10**15) < 10**12


class Reservations(RuleBasedStateMachine):
    """A budget against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.budget, self.held = Budget(100), dict[str, int]()

    @rule(name=st.sampled_from("abcd"), count=st.integers(-1, 120))
    def reserve(self, name: str, count: int) -> None:
        if name in self.held or count < 0:
            with pytest.raises(ValueError, match="cannot reserve"):
                self.budget.reserve(name, count)
        elif self.budget.reserve(name, count):
            self.held[name] = count
        else:
            assert sum(self.held.values()) + count > 100
            assert self.budget.fits(count) == (count <= 100)

    @rule(name=st.sampled_from("abcd"))
    def release(self, name: str) -> None:
        self.budget.release(name)
        self.held.pop(name, None)

    @invariant()
    def agrees(self) -> None:
        assert self.budget.reserved == sum(self.held.values()) <= self.budget.limit


TestReservations = Reservations.TestCase
TestReservations.settings = settings(max_examples=30, stateful_step_count=30)
