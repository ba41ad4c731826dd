"""Packed weights on disk: the second start gives the same bits, and a damaged file costs time but changes no
result."""

from __future__ import annotations

import errno
import json
import logging
import mmap
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.decoding.types import FloatArray
from outrider.engines.native import NativeModel, _core
from outrider.engines.native import store as store_module
from outrider.engines.native.loading import entries, matrices
from outrider.engines.native.store import PAGE, PackedWeightsCache, packed_weights_cache
from outrider.errors import ConfigError
from outrider.models.formats import mapped
from outrider.models.open import open_model
from outrider.models.quantization import quantized
from outrider.models.source import ModelSource
from outrider.models.sources import download
from tests.native.support import run, same_bits
from tests.support.models import Dims, tiny_gguf, tiny_hf
from tests.support.quantized import NARROW, Kind, quantized_hf
from tests.support.split_gguf import split

PROMPT = [int(i) for i in np.random.default_rng(3).integers(3, 320, 20)]
DIMS = Dims(hidden=96, heads=3, kv_heads=1, ffn=160, head_dim=32)


@pytest.fixture(scope="module", params=["Q4_1", "Q6_K", "F16", "Q2_K", "MXFP4"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    path = tmp_path_factory.mktemp("store") / "m.gguf"
    dims = None if request.param.endswith("_K") else DIMS
    return open_model(tiny_gguf(path, types=request.param, dims=dims, tied=request.param != "F16"))


def load(source: ModelSource, folder: Path) -> NativeModel:
    return NativeModel.load(source, threads=2, weights_cache=folder)


def logits(model: NativeModel) -> FloatArray:
    return run(model, model.new_cache(32), PROMPT)


def packed_file(folder: Path) -> Path:
    (path,) = folder.glob("*.packed")
    return path


@pytest.fixture
def no_packing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on a matrix that is packed from the model's file is an error."""

    def forbid() -> None:
        monkeypatch.setattr("outrider.engines.native.loading.encoded", lambda *_: pytest.fail("packed again"))

    return forbid


def test_the_second_start_maps_and_gives_the_same_bits(
    source: ModelSource, tmp_path: Path, no_packing: Callable[[], None]
) -> None:
    wanted = logits(NativeModel.load(source, weights_cache=False))
    assert same_bits(wanted, logits(load(source, tmp_path)))
    size = packed_file(tmp_path).stat().st_size
    no_packing()
    again = load(source, tmp_path)
    assert same_bits(wanted, logits(again))
    assert size < again.weights_bytes + (len(source.tensors) + 4) * PAGE


def test_mapped_weights_stay_when_everything_else_goes(source: ModelSource, tmp_path: Path) -> None:
    wanted = logits(load(source, tmp_path))
    model = load(source, tmp_path)
    packed_file(tmp_path).unlink()
    assert same_bits(wanted, logits(model))


def test_the_progress_ends_at_all(source: ModelSource, tmp_path: Path) -> None:
    for _ in range(2):
        seen: list[tuple[int, int]] = []

        def note(done: int, total: int, seen: list[tuple[int, int]] = seen) -> None:
            seen.append((done, total))

        NativeModel.load(source, weights_cache=tmp_path, progress=note)
        assert seen == sorted(seen)
        assert seen[-1] == (source.weights_bytes, source.weights_bytes)


def test_another_model_and_another_quantization_have_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    for seed in (1, 2):
        source = open_model(tiny_gguf(tmp_path / f"{seed}.gguf", seed=seed))
        for name in (None, "q8_0"):
            load(quantized(source, name), folder)
    assert len(list(folder.glob("*.packed"))) == 4


def test_a_quantized_model_is_mapped_with_its_embedding(
    tmp_path: Path, no_packing: Callable[[], None]
) -> None:
    for tied in (True, False):
        source = quantized(open_model(tiny_gguf(tmp_path / "m.gguf", tied=tied, seed=tied)), "q8_0")
        wanted = logits(load(source, tmp_path / f"{tied}"))
    no_packing()
    assert same_bits(wanted, logits(load(source, tmp_path / "False")))


def test_safetensors_are_known_by_all_their_files(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf")
    packed = tmp_path / "packed"
    wanted = logits(load(open_model(folder), packed))
    assert same_bits(wanted, logits(load(open_model(folder), packed)))
    shutil.rmtree(folder)
    load(open_model(tiny_hf(folder, seed=5)), packed)
    assert len(list(packed.glob("*.packed"))) == 2


def test_a_quantized_folder_is_not_converted_again(tmp_path: Path, no_packing: Callable[[], None]) -> None:
    """And is another model when config.json gives the same integers another meaning."""
    folder, _ = quantized_hf(tmp_path / "hf", Kind("gptq", act_order="each"), dims=NARROW)
    packed = tmp_path / "packed"
    wanted = logits(load(open_model(folder), packed))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"  # zero points are one less
    (folder / "config.json").write_text(json.dumps(config))
    assert not same_bits(wanted, logits(load(open_model(folder), packed)))
    config["quantization_config"]["checkpoint_format"] = "gptq"
    (folder / "config.json").write_text(json.dumps(config))
    no_packing()

    def convert(first: int, last: int) -> NoReturn:
        raise AssertionError("converted again")

    opened = open_model(folder)
    tensors = {n: t if t.recode is None else replace(t, recode=convert) for n, t in opened.tensors.items()}
    assert any(tensor.recode is convert for tensor in tensors.values())
    assert same_bits(wanted, logits(load(replace(opened, tensors=tensors), packed)))


def test_a_split_model_is_known_by_all_its_parts(tmp_path: Path, no_packing: Callable[[], None]) -> None:
    paths = split(tmp_path)
    packed = tmp_path / "packed"
    wanted = logits(load(open_model(paths[0]), packed))
    raw = bytearray(paths[2].read_bytes())
    raw[-1] ^= 1
    paths[2].write_bytes(raw)
    load(open_model(paths[0]), packed)
    assert len(list(packed.glob("*.packed"))) == 2
    raw[-1] ^= 1
    paths[2].write_bytes(raw)
    no_packing()
    assert same_bits(wanted, logits(load(open_model(paths[1]), packed)))


# --- Damage --------------------------------------------------------------------------------------------


def damaged(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    if kind == "empty":
        data = bytearray()
    elif kind == "cut":
        del data[-1:]
    elif kind == "longer":
        data += b"\0"
    elif kind == "header":
        data[40] ^= 1
    elif kind == "magic":
        data[0] ^= 1
    elif kind == "weights":
        data[3 * PAGE + 1001] ^= 1
    elif kind == "checksum":
        data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["empty", "cut", "longer", "header", "magic", "weights", "checksum"])
def test_a_damaged_file_is_ignored_with_a_warning_and_written_anew(
    source: ModelSource, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    wanted = logits(load(source, tmp_path))
    path = packed_file(tmp_path)
    good = path.read_bytes()
    damaged(path, kind)
    with caplog.at_level(logging.WARNING, "outrider"):
        assert same_bits(wanted, logits(load(source, tmp_path)))
    assert "packed again" in caplog.text
    assert path.read_bytes() == good


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_seen(source: ModelSource, tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / f"flip-{source.path.parent.name}"
    if not folder.exists():
        load(source, folder)
    listed = entries(source, matrices(source))
    path = packed_file(folder)
    good = path.read_bytes()
    used = [i for e, at in store_module._offsets(listed) for i in (at, at + e.nbytes - 1)]
    at = data.draw(st.one_of(st.integers(0, 200), st.sampled_from(used), st.integers(-8, -1)))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bad)
    try:
        assert PackedWeightsCache(folder).read(source, listed) is None
    finally:
        path.write_bytes(good)
    assert PackedWeightsCache(folder).read(source, listed) is not None


def test_a_newer_layout_is_packed_again(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load(source, tmp_path)
    monkeypatch.setattr(_core, "LAYOUT_VERSION", _core.LAYOUT_VERSION + 1)
    with caplog.at_level(logging.WARNING, "outrider"):
        load(source, tmp_path)
    assert "another version" in caplog.text
    caplog.clear()
    load(source, tmp_path)
    assert not caplog.records
    packed_file(tmp_path)  # the old one is gone


def test_a_file_of_other_shapes_is_not_used(tmp_path: Path) -> None:
    """The header is compared, not read: one that promises more than the file has cannot hurt."""
    source = open_model(tiny_gguf(tmp_path / "m.gguf", types="Q8_0", dims=DIMS))
    folder = tmp_path / "packed"
    load(source, folder)
    listed = entries(source, matrices(source))
    grown = [replace(e, shape=(e.shape[0] * 2, e.shape[1]), nbytes=e.nbytes * 2) for e in listed]
    assert PackedWeightsCache(folder).read(source, grown) is None
    model = NativeModel.load(source)._core
    with pytest.raises(ValueError, match="not a packed matrix"):
        model.add_packed("x", "Q8_0", 32, 32, np.zeros(64, np.uint8))


# --- What a disk can do ------------------------------------------------------------------------------


def test_a_full_disk_is_a_warning(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1 << 20))
    with caplog.at_level(logging.WARNING, "outrider"):
        logits(load(source, tmp_path))
    assert "make room" in caplog.text
    assert not list(tmp_path.glob("*packed"))


def test_a_disk_that_fills_up_is_a_warning_and_leaves_nothing(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with caplog.at_level(logging.WARNING, "outrider"):
        logits(load(source, tmp_path))
    assert "is full" in caplog.text
    assert not [p for p in tmp_path.iterdir() if "packed" in p.name and p.suffix != ".lock"]


def test_a_folder_that_cannot_be_made_is_a_warning(
    source: ModelSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "outrider"):
        logits(load(source, tmp_path / "file" / "packed"))
    assert "were not kept" in caplog.text


def test_one_process_writes_at_a_time(source: ModelSource, tmp_path: Path) -> None:
    load(source, tmp_path)
    path = packed_file(tmp_path)
    path.unlink()
    with FileLock(path.with_name(path.name + ".lock")):
        logits(load(source, tmp_path))
        assert not path.exists()
    stale = tmp_path / f".{path.name}.1.tmp"
    stale.write_text("left by a process that ended")
    load(source, tmp_path)
    assert path.exists()
    assert not stale.exists()


def test_a_file_is_hashed_once(source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(source, tmp_path)
    monkeypatch.setattr(store_module, "sha256_file", lambda _: pytest.fail("hashed again"))
    load(source, tmp_path)


def test_a_changed_file_is_hashed_again(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", seed=1)
    load(open_model(path), tmp_path / "packed")
    path.unlink()
    source = open_model(tiny_gguf(path, seed=2))
    wanted = logits(NativeModel.load(source, weights_cache=False))
    assert same_bits(wanted, logits(load(source, tmp_path / "packed")))
    assert len(list((tmp_path / "packed").glob("*.packed"))) == 2


def test_the_digest_of_a_fetch_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    download.write_record(path, "ab" * 32)
    monkeypatch.setattr(store_module, "sha256_file", lambda _: pytest.fail("hashed"))
    load(open_model(path), tmp_path / "packed")
    assert packed_file(tmp_path / "packed").name == "ab" * 16 + "-stored.packed"


# --- The setting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "variable", "folder"),
    [
        (None, "", None),
        (None, "0", None),
        (None, "off", None),
        (None, "1", "cache/packed"),
        (None, "there", "there"),
        (False, "1", None),
        (True, "", "cache/packed"),
        ("here", "there", "here"),
    ],
)
def test_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: Any, variable: str, folder: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OUTRIDER_WEIGHTS_CACHE", variable)
    found = packed_weights_cache(setting)
    assert (found and found.folder) == (tmp_path / folder if folder else None)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="weights_cache"):
        packed_weights_cache(" ")


# --- Memory --------------------------------------------------------------------------------------------


def test_pages_that_were_let_go_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    content = np.random.default_rng(0).integers(0, 256, 10 * mmap.PAGESIZE, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    whole = np.frombuffer(mapped.map_file(path), np.uint8)
    for start, stop in ((0, len(content)), (1, 2), (100, 5 * PAGE + 17), (PAGE, 2 * PAGE)):
        mapped.release(whole[start:stop])
        assert (whole == content).all()
    mapped.release(content)  # an ordinary array is left alone
    assert path.read_bytes() == content.tobytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_needs_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    """Packed again, with the file's pages in memory too, this would be twice the weights."""
    dims = Dims(layers=12, hidden=512, heads=8, kv_heads=8, ffn=2048, context=64)
    path = tiny_gguf(tmp_path / "m.gguf", types="Q8_0", dims=dims)
    script = """
        import sys, threading
        from pathlib import Path
        from outrider.models.open import open_model
        from outrider.engines.native import NativeModel

        def resident():
            line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
            return int(line.split()[1]) * 1024

        source = open_model(Path(sys.argv[1]))
        before = resident()
        model = NativeModel.load(source, threads=1, weights_cache=False)
        print((resident() - before) / model.weights_bytes)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path], capture_output=True, text=True, check=True
    )
    assert (
        0.9 < float(done.stdout) < 1.25
    )  # megabytes of the allocator's weigh more here than on a real model
