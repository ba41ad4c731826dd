"""What the installed vLLM can do, read from its own package and kept on disk by version."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.models.sources.download import cache_root

PYTHON = "OUTRIDER_VLLM_PYTHON"
_SCRIPT = Path(__file__).with_name("inspect_package.py")
_PROBE_SECONDS, _OPTIONS_SECONDS = 60.0, 600.0
_LAYOUT = 1  # of the kept document
_MAX_BYTES = 8 << 20
_INSTALL = "pip install 'outrider[vllm]', or name the Python that has it: --vllm-python or " + PYTHON


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of vLLM's server. dest: its name in Python. takes: argparse's `nargs`; None is one value.
    choices: its values, or None."""

    dest: str
    takes: int | str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def is_switch(self) -> bool:
        return self.takes == 0


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed vLLM.

    python:         the Python that it runs in.
    flags:          of its server, by every spelling.
    speculative:    keys of `speculative_config`, and their choices where it names them.
    request_fields: of its completions, () if they are not known.
    """

    version: str
    python: str
    flags: Mapping[str, Flag]
    speculative: Mapping[str, tuple[Any, ...] | None]
    request_fields: frozenset[str] = frozenset()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.speculative.get("method") or ())

    def switch_words(self) -> str:
        """Whether speculation can be turned off for one request, in words."""
        fields = sorted(name for name in self.request_fields if "specul" in name or "spec_dec" in name)
        if fields:
            return f"has {', '.join(fields)} for single requests, which Outrider does not use yet"
        return "has no field to turn speculation off for one request"

    def __str__(self) -> str:
        return f"vLLM {self.version}"


def installed(python: str | None = None) -> Installed:
    """The vLLM of a Python: the given one, that of OUTRIDER_VLLM_PYTHON, or this one. Raises ConfigError
    where there is none, or where it cannot be inspected."""
    program = python or os.environ.get(PYTHON) or sys.executable
    found = _run(program, "probe", _PROBE_SECONDS)
    if found.get("version") is None:
        raise ConfigError(f"the vLLM engine needs vLLM, which {program} does not have: {_INSTALL}")
    named = json.dumps([_LAYOUT, program, found, _SCRIPT.read_text("utf-8")])
    digest = hashlib.sha256(named.encode()).hexdigest()[:16]
    kept = cache_root() / "vllm" / f"{digest}.json"
    with contextlib.suppress(OSError, ConfigError):
        if kept.stat().st_size <= _MAX_BYTES:
            return read(kept.read_bytes(), program)
    document = _run(program, "options", _OPTIONS_SECONDS)
    result = of_document(document, program)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(document), "utf-8")
        part.replace(kept)
    return result


def read(text: bytes, python: str) -> Installed:
    """A kept document. Raises ConfigError for a damaged one."""
    try:
        return of_document(json.loads(text), python)
    except (ValueError, RecursionError):
        raise ConfigError("what was kept of the installed vLLM is damaged") from None


def of_document(document: Any, python: str) -> Installed:
    """What `inspect_package.py options` printed. Raises ConfigError for anything else."""
    try:
        flags = {
            str(name): Flag(str(f["dest"]), f["takes"], None if f["choices"] is None else tuple(f["choices"]))
            for name, f in document["flags"].items()
        }
        keys = {str(k): None if v is None else tuple(v) for k, v in document["speculative"].items()}
        fields = frozenset(document["request_fields"])
        return Installed(str(document["version"]), python, flags, keys, fields)
    except (LookupError, TypeError, AttributeError):
        raise ConfigError("the installed vLLM was not understood: its options have another form") from None


def _run(program: str, what: str, seconds: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [program, str(_SCRIPT), what], capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL,
            check=False, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"the Python {program!r} cannot be run: {reason}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the vLLM of {program} did not say its options in {seconds:g} seconds") from None
    try:
        found = json.loads(done.stdout)
    except (ValueError, RecursionError):
        found = None
    if done.returncode or not isinstance(found, dict):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise ConfigError(f"the vLLM of {program} cannot be inspected ({how}): {said[-1][:300]}")
    return found
