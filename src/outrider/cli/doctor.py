"""`outrider doctor`: the machine as the engine sees it, and what to put in a bug report."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from outrider import memory
from outrider.bench.machine import describe
from outrider.cli.parser import Parser, Subparsers
from outrider.machine import available_processors
from outrider.models.sources.download import cache_root, human
from outrider.version import __version__

PACKAGES = ("numpy", "tokenizers", "llguidance", "pydantic", "fastapi", "uvicorn", "torch", "transformers")
ISAS = ("amx", "avx512", "avxvnni", "avx2", "neon", "portable")  # the best first
MODEL = "llama-3.1-8b"  # one layer of it is measured: 123 MB of Q4_K and Q6_K


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `doctor` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "doctor",
        help="show this machine as the engine sees it",
        description="Show processor, instruction sets, memory, speed, caches and versions; nothing is sent.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask; returns 0. Raises OutriderError."""
    found = document()
    print(json.dumps(found, ensure_ascii=False) if args.json else text(found))
    return 0


def document() -> dict[str, Any]:
    """What `--json` prints; sizes in bytes. No path outside the cache and no name of a user is in it."""
    machine = describe(available_processors())
    return {
        "outrider": __version__,
        "python": platform.python_version(),
        "system": f"{platform.platform(aliased=True)}",
        "cpu": machine["cpu"],
        "processors": {"there": os.cpu_count(), "usable": available_processors()},
        "memory": {
            "total": int(psutil.virtual_memory().total),
            "available": memory.available_bytes(),
        },
        "kernels": _kernels(),
        "speed": _speed(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "cache": _cache(),
        "settings": {name: "set" for name in sorted(os.environ) if name.startswith("OUTRIDER_")},
    }


def _kernels() -> dict[str, Any]:
    from outrider.engines.native import _core  # the compiled extension

    usable = []
    for isa in ISAS:
        try:
            usable.append(_core.kernels(isa))
        except ValueError:  # not on this processor
            continue
    asked = os.environ.get("OUTRIDER_ISA", "auto")
    try:
        used = _core.kernels(asked)
    except ValueError as error:
        return {"used": None, "usable": usable, "error": f"OUTRIDER_ISA: {error}"}
    return {"used": used, "usable": usable, "error": None}


def _speed() -> dict[str, float] | None:
    """Of all threads: bandwidth (1e9 bytes a second), and the rate of multiplications by weights in passes of
    1 and 16 tokens (1e9 a second). None where OUTRIDER_ISA cannot be used."""
    from outrider.bench.cost_curve import macs_per_token
    from outrider.engines.native import NativeModel
    from outrider.engines.pass_times import measure
    from outrider.errors import ConfigError
    from outrider.plan.shapes import shape_source
    from outrider.plan.slices import slice_of

    part, _ = slice_of(shape_source(MODEL), 0)
    try:
        model = NativeModel.load(part, weights_cache=False)
    except ConfigError:
        return None
    seconds = measure(model, 0.3, widths=(1, 16))
    macs = macs_per_token(part)
    return {
        "read_gb_per_s": model.read_gb_per_s(),
        "gmac_per_s_1": macs / seconds[1] / 1e9,
        "gmac_per_s_16": 16 * macs / seconds[16] / 1e9,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache() -> dict[str, Any]:
    root = cache_root()
    sizes = {
        folder.name: sum(_size(path) for path in folder.rglob("*"))
        for folder in (sorted(root.iterdir()) if root.is_dir() else [])
        if folder.is_dir()
    }
    return {"folder": _without_home(root), "bytes": sizes}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _without_home(path: Path) -> str:
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return path.name


def text(found: dict[str, Any]) -> str:
    """The document as lines for a reader."""
    kernels, speed, there = found["kernels"], found["speed"], found["memory"]
    processors = found["processors"]
    used = kernels["error"] or f"{kernels['used']} (of {', '.join(kernels['usable'])})"
    rows = {
        "outrider": f"{found['outrider']}, Python {found['python']}, {found['system']}",
        "processor": f"{found['cpu']}, {processors['usable']} of {processors['there']} usable",
        "memory": f"{human(there['available'])} free of {human(there['total'])}",
        "kernels": used,
        "speed": "not measured"
        if speed is None
        else f"{speed['read_gb_per_s']:.1f} GB/s; {speed['gmac_per_s_1']:.0f} GMAC/s in passes of one token, "
        f"{speed['gmac_per_s_16']:.0f} in passes of 16 (a layer of {MODEL} in 4 bits)",
        "packages": ", ".join(f"{name} {version}" for name, version in found["packages"].items()),
        "cache": f"{found['cache']['folder']}: "
        + (", ".join(f"{name} {human(size)}" for name, size in found["cache"]["bytes"].items()) or "empty"),
        "settings": ", ".join(found["settings"]) or "none",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in rows.items())
