"""`EngineArgs` and `AsyncEngineArgs`: the arguments of an engine as an object, as vLLM has it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from typing import Any

from outrider.config.engine import KV_CACHE_DTYPE, EngineConfig, parse_engine
from outrider.config.speculative import OLD_SPECULATIVE_NAMES, SpeculativeConfig
from outrider.config.unused import UNUSED_BY_ENGINE

_TEXTS = (
    *("model", "tokenizer", "revision", "quantization", "weights_cache", "engine", "speculative_model"),
    *("device", "dtype", "exact", "kv_quantization", KV_CACHE_DTYPE),
)
FOREIGN_ARGUMENTS = tuple(UNUSED_BY_ENGINE)
_NAMES = (
    "model",
    "speculative_config",
    *(f.name for f in fields(EngineConfig) if f.name not in ("model", "speculative")),
    *OLD_SPECULATIVE_NAMES,
    KV_CACHE_DTYPE,
)
_Arguments: Any = make_dataclass("_Arguments", [(name, Any, None) for name in _NAMES], init=False)


class EngineArgs(_Arguments):  # type: ignore[misc]
    """The arguments of `LLM`, checked when they are made; those not given are None.

    Such an object can be given to `AsyncLLM.from_engine_args`, or as `LLM(**dataclasses.asdict(args))`.
    Arguments of vLLM that change nothing are accepted and not kept. Raises ConfigError.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
        **arguments: Any,
    ) -> None:
        given = {"model": model, "speculative_config": speculative_config, **arguments}
        for name in _NAMES:
            setattr(self, name, given.get(name))
        parse_engine(path(model), speculative_config, **arguments)

    def create_engine_config(self) -> EngineConfig:
        """The checked configuration. Raises ConfigError for what was assigned since."""
        given = {name: getattr(self, name) for name in _NAMES}
        return parse_engine(path(given.pop("model")), given.pop("speculative_config"), **given)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each argument to a parser: `--max-model-len` for `max_model_len`, and so on. What it
        parses can be given to `from_cli_args`, or as `LLM(**vars(namespace))`."""
        for name in _NAMES:
            kind = str if name in _TEXTS else _value
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="see docs/python.md")
        for name in FOREIGN_ARGUMENTS:
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=_value, nargs="?", const=True, help=argparse.SUPPRESS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The arguments from parsed flags. Raises ConfigError."""
        known = (*_NAMES, *FOREIGN_ARGUMENTS)
        return cls(**{name: value for name, value in vars(args).items() if name in known})


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM`."""


def path(model: Any) -> Any:
    """A model's path or name as text."""
    return os.fspath(model) if isinstance(model, os.PathLike) else model


def _value(text: str) -> Any:
    """A flag's text as the Python API would get the value: a JSON value, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
