"""The processor's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.machine import cpu_name, last_level_cache_bytes


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\ncpu family : 1\nmodel : 9",
            "AMD EPYC (family 25, model 17)",
        ),
        ("cpu family : 6\nmodel : 186\nmodel name : 13th Gen Core i7-1365U\n", "13th Gen Core i7-1365U"),
        (
            "processor : 0\nBogoMIPS : 108.00\n\nHardware : BCM2711\nModel : Raspberry Pi 4\n",
            "Raspberry Pi 4",
        ),
        ("model name : Some Processor\n", "Some Processor"),
    ],
)
def test_an_uninformative_cpu_name_is_completed(cpuinfo: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert cpu_name(tmp_path / "cpuinfo") == name


def test_without_the_file_there_is_still_a_name(tmp_path: Path) -> None:
    assert cpu_name(tmp_path / "nothing")


def test_caches_are_counted_once(tmp_path: Path) -> None:
    """Four processors, of which two share a third-level cache; their other caches do not count."""
    for cpu in range(4):
        for index, (level, size, shared) in enumerate(
            (("1", "32K", str(cpu)), ("3", "16M" if cpu < 2 else "8192K", "0-1" if cpu < 2 else "2-3"))
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(text + "\n")
    assert last_level_cache_bytes(tmp_path) == 24 << 20
    (tmp_path / "cpu0" / "cache" / "index1" / "size").write_text("much\n")
    assert last_level_cache_bytes(tmp_path) == 24 << 20, "the same cache, as cpu1 has it"
    assert last_level_cache_bytes(tmp_path / "none") is None
