"""The processor's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.machine import cpu_name


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
