"""Counts the instructions that a kernel executes for a group of 32 columns of a panel, in compiled code.

    python benchmarks/instruction_counts.py OBJECT… [--objdump PROGRAM] [--json FILE]

OBJECT is a compiled kernel file, such as build/dev/CMakeFiles/_core.dir/csrc/kernels/avx2.cpp.o. For another
architecture, give its objdump (--json merges the results into an existing file). In each function
`panel_tile<type, tokens>` the loop with the multiplications is found, and its instructions are scaled to the
multiplications that one group needs. Unlike times, these counts do not depend on the machine's load. A group
is 16 rows x 32 columns: 512 multiplications and additions (MACs) for each token. Tiles that the compiler
inlined are not found.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from outrider.engines.native import _core

TYPES = tuple(
    _core.weight_types()
)  # in the order of the C++ enumeration, whose values are in the functions' names
# For each integer product instruction, how many of them one group needs for each token.
# ({vex}: of AVX-VNNI, on 256-bit registers.)
PRODUCTS = {"vpmaddubsw": 16, "{vex} vpdpbusd": 16, "vpdpbusd": 8, "sdot": 32}
MACS = 512
_SYMBOL = re.compile(r"^[0-9a-f]+ <.*panel_tile<\(outrider::WeightType\)(\d+), (\d+)>")
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+((?:\{vex\} )?\S+)\s*(.*)$")
_TARGET = re.compile(r"\b([0-9a-f]+) <")


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction: its address, its name, and the address that it jumps to (or None)."""

    address: int
    name: str
    target: int | None


def functions(objdump: str, path: Path) -> dict[tuple[str, int], list[Line]]:
    """The instructions of each tile, by weight type and tokens."""
    command = [objdump, "--disassemble", "--demangle", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[tuple[str, int], list[Line]] = {}
    lines: list[Line] = []
    for row in text.splitlines():
        if row.endswith(">:"):
            lines = []
            if match := _SYMBOL.match(row):
                found.setdefault((TYPES[int(match[1])], int(match[2])), lines)
        elif match := _LINE.match(row):
            address, name, rest = int(match[1], 16), match[2], match[3]
            jump = _TARGET.search(rest) if name.startswith(("j", "b", "cb", "tb")) else None
            lines.append(Line(address, name, int(jump[1], 16) if jump else None))
    return found


def per_group(lines: list[Line], tokens: int) -> float | None:
    """Instructions for one group in the loop with the products; None when there is no such loop."""
    best: float | None = None
    for line in lines:
        if line.target is None or line.target >= line.address:
            continue
        body = [other for other in lines if line.target <= other.address <= line.address]
        for product, needed in PRODUCTS.items():
            if count := sum(other.name == product for other in body):
                whole = len(body) * needed * tokens / count
                best = whole if best is None else min(best, whole)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("objects", nargs="+", type=Path, metavar="OBJECT")
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, dict[str, dict[int, float]]] = {}
    for path in args.objects:
        counts = result.setdefault(path.name, {})
        for (type_name, tokens), lines in sorted(functions(args.objdump, path).items()):
            if count := per_group(lines, tokens):
                counts.setdefault(type_name, {})[tokens] = count
    for name, counts in result.items():
        print(f"{name}: instructions for a group (MACs an instruction), by tokens of a tile")
        for type_name, by_tokens in counts.items():
            print(
                f"  {type_name}",
                *(f"{n}: {c:.0f} ({MACS * n / c:.1f})" for n, c in by_tokens.items()),
                sep="  ",
            )
    if args.json:
        before = json.loads(args.json.read_text()) if args.json.exists() else {}
        rounded = {
            n: {k: {t: round(c) for t, c in by.items()} for k, by in r.items()} for n, r in result.items()
        }
        args.json.write_text(json.dumps({**before, **rounded}, indent=1) + "\n")


if __name__ == "__main__":
    main()
