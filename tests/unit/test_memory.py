"""The estimate before loading: its arithmetic, the control group's limit, and the refusal's words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider import memory
from outrider.errors import InsufficientMemoryError
from outrider.memory import ModelMemory
from outrider.models.source import Architecture, ModelSource, Tensor, TokenizerData

QWEN = Architecture(
    name="qwen2",
    n_layers=28,
    hidden_size=1536,
    n_heads=12,
    n_kv_heads=2,
    head_dim=128,
    ffn_size=8960,
    vocab_size=151936,
    max_positions=32768,
    rms_eps=1e-6,
    rope_dim=128,
    rope_style="half",
    inv_freq=np.ones(64, np.float32),
)


def test_key_value_bytes_by_hand() -> None:
    assert memory.kv_bytes(QWEN, 1) == 2 * 28 * 2 * 128 * 2
    assert memory.kv_bytes(QWEN, 4096) == 4096 * memory.kv_bytes(QWEN, 1) == 117_440_512


def test_estimate_of_a_source() -> None:
    tensor = Tensor("w", "F32", (250,), np.zeros(1000, np.uint8))
    source = ModelSource(
        Path("t.gguf"), "gguf", "T", QWEN, {"w": tensor}, TokenizerData("bpe"), chat_template=None
    )
    part = memory.estimate(source, positions=100, sequences=3)
    assert (part.name, part.weights) == ("T", 1030)
    assert part.cache == 3 * memory.kv_bytes(QWEN, 100)
    assert part.total == part.weights + part.cache + part.buffers


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


def test_what_is_available_is_asked_when_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
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
