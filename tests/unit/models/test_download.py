"""The shared parts of downloads: cache folder, disk space, checksums and records, locks, progress."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import DownloadError, ModelNotFoundError
from outrider.models.sources import download
from outrider.models.sources.download import (
    Progress,
    cache_root,
    check_disk,
    exclusive,
    human,
    one_line,
    publish,
    read_json,
    record_path,
    recorded_sha256,
    sha256_file,
    write_record,
    writing,
)


def test_cache_folder_in_order_of_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "posix")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root(tmp_path / "given") == tmp_path / "given"
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("OUTRIDER_CACHE")
    assert cache_root() == tmp_path / "xdg" / "outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == Path.home() / ".cache" / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "outrider"
    monkeypatch.chdir(tmp_path)
    assert cache_root("here") == tmp_path / "here"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (98_362_432, "98.4 MB"),
        (999_999, "1 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert human(size) == text


@given(st.text())
def test_foreign_text_becomes_one_printable_line(text: str) -> None:
    line = one_line(text, 50)
    assert line.isprintable()
    assert len(line) <= 50


def test_disk_check_names_both_sizes(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "there", 1000, "m")
    with pytest.raises(DownloadError, match=r"m: needs 1e\+06 TB|m: needs 1000000 TB") as caught:
        check_disk(tmp_path, 10**18, "m")
    assert "are free" in str(caught.value)


def test_hash_and_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x" * (download.CHUNK + 5))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256_file(path) == digest
    assert capsys.readouterr() == ("", "")
    assert recorded_sha256(path) is None
    write_record(path, digest)
    assert recorded_sha256(path) == digest
    path.write_bytes(b"y" * (download.CHUNK + 5))
    os.utime(path, ns=(1, 1))
    assert recorded_sha256(path) is None


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{", b'{"size": 1}', b"\xff", b"[" * 60000, b'{"sha256": 5}']
)
def test_a_damaged_record_is_no_record(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"abc")
    record_path(path).write_bytes(damage)
    assert recorded_sha256(path) is None
    assert isinstance(read_json(record_path(path)), dict)


def test_publish_leaves_only_the_file_and_its_record(tmp_path: Path) -> None:
    partial, final = tmp_path / "m.partial", tmp_path / "m"
    partial.write_bytes(b"abc")
    final.write_bytes(b"old")
    assert publish(partial, final, "d" * 64) == final
    assert final.read_bytes() == b"abc"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m.json"]
    assert recorded_sha256(final) == "d" * 64


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space"), r"the disk of .* is full"),
        (PermissionError(errno.EACCES, "Permission denied"), r"cannot write into .* OUTRIDER_CACHE"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_the_systems_refusals_are_explained(tmp_path: Path, error: OSError, says: str) -> None:
    with pytest.raises(DownloadError, match=says), writing("m", tmp_path):
        raise error


def test_our_own_errors_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"^mine$"), writing("m", tmp_path):
        raise ModelNotFoundError("mine")


def test_a_file_where_the_cache_should_be(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"cannot write into"), writing("m", tmp_path / "cache"):
        (tmp_path / "cache" / "models").mkdir(parents=True, exist_ok=True)


def test_the_lock_keeps_two_writers_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, inside, seen = tmp_path / "m", threading.Lock(), []

    def work() -> None:
        with exclusive(target):
            seen.append(inside.acquire(blocking=False))
            threading.Event().wait(0.3)
            inside.release()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [True, True]
    assert "waiting" in caplog.text


def test_a_lock_that_is_never_freed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LOCK_SECONDS", 0.1)
    caught = []

    def second() -> None:
        try:
            with exclusive(tmp_path / "m"):
                caught.append("entered")
        except DownloadError as error:
            caught.append(str(error))

    with exclusive(tmp_path / "m"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(30)
    assert len(caught) == 1
    assert "another process" in caught[0]


def test_the_bar_is_on_stderr_and_may_go_back(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("m", 100) as bar:
        bar.at(60)
        bar.after(30)(10)
        bar.at(500)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100/100" in err
    with Progress("m", None, enabled=False) as bar:
        bar.at(5)
    assert capsys.readouterr() == ("", "")
