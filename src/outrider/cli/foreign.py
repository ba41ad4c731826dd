"""Adds llama.cpp's and vLLM's flags (foreign_flags.py) to a command's parser, hidden from its help.

A flag whose value asks for what Outrider does anyway is accepted, perhaps with a note. Any other is refused,
with the reason and what to use instead.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence
from typing import Any

from outrider.cli import foreign_llama, foreign_vllm
from outrider.cli.foreign_flags import RENAMED, ForeignFlag
from outrider.cli.parser import Parser
from outrider.config.quantization import kv_quantization
from outrider.errors import ConfigError

TABLE = (*foreign_llama.TABLE, *foreign_vllm.TABLE)
NOTES = "foreign_notes"  # the notes of accepted flags, on the parsed arguments
_ENGINE = "vllm_"  # before the names of vLLM's engine arguments there

# llama.cpp's `--spec-type`, whose drafters draft in every step.
_SPEC_TYPES = {
    "none": "none",
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    **dict.fromkeys(("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"), "ngram"),
}
_UNBUILT_TYPES = ("draft-mtp", "draft-dflash", "draft-dspark")


class _Judged(argparse.Action):
    """Accepts the values that change nothing, and refuses others."""

    def __init__(self, *args: Any, row: ForeignFlag, **kwargs: Any) -> None:
        self.row = row
        self.never_suggested = row.accepts is not None  # a hint must not lead to a refusal
        super().__init__(*args, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        row = self.row
        if row.accepts is None or (isinstance(values, str) and any(_equal(values, v) for v in row.accepts)):
            if row.note and not _asks_for_nothing(values):
                _note(namespace, row.note, str(option_string))
            return
        given = f" {values}" if row.accepts and isinstance(values, str) else ""
        raise ConfigError(f"{option_string}{given} is refused: {row.instead}")


def add_foreign(parser: Parser, command: str) -> None:
    """Add the flags of the table to the parser of a command, after the command's own."""
    quiet: dict[str, Any] = {"dest": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for row in TABLE:
        flags = [flag for flag in row.flags if flag not in parser.actions]
        if command not in row.commands or not flags:
            continue
        if row.same_as in parser.actions:
            for flag in flags:
                parser.alias(flag, parser.actions[row.same_as])
        elif row.stored or row.engine:
            dest = row.stored or _engine_dest(row)
            takes: dict[str, Any] = {"action": "store_true"} if row.takes == 0 else {}
            parser.add_argument(*flags, dest=dest, default=None, help=argparse.SUPPRESS, **takes)
        elif not row.same_as or row.instead:
            parser.add_argument(*flags, action=_Judged, nargs=row.takes, row=row, **quiet)
    parser.settle = functools.partial(settle, parser)


def row_of(parser: Parser, command: str, flag: str) -> ForeignFlag | None:
    """The row of the table that decides about a flag that the command's parser has; None for one of its
    own."""
    action = parser.actions[flag]
    for row in TABLE:
        if flag not in row.flags or command not in row.commands:
            continue
        if isinstance(action, _Judged):
            if action.row is row:
                return row
        elif flag not in action.option_strings:
            if parser.actions.get(row.same_as) is action:
                return row
        elif action.dest in (row.stored, _engine_dest(row) if row.engine else None):
            return row
    return None


def settle(parser: Parser, args: argparse.Namespace) -> None:
    """Put llama.cpp's ways to name models and drafters where the command's own flags would, and note old
    spellings. Raises ConfigError."""
    for flag in parser.spelled:
        if flag in RENAMED:
            of, new = RENAMED[flag]
            _note(args, f"{of} calls it {new} now; both are read", flag)
    if args.hf_file is not None and args.hf_repo is None:
        raise ConfigError("-hff names a file of the repository that -hf names, and there is no -hf")
    for flag, given, own, dest, file in (
        ("-hf", args.hf_repo, "-m", "model", args.hf_file),
        ("-hfd", args.hf_repo_draft, "-md", "model_draft", None),
    ):
        if given is not None:
            if getattr(args, dest) is not None:
                raise ConfigError(f"give one of {own} and {flag}, not both")
            setattr(args, dest, hub_reference(flag, given, file))
    _settle_cache_types(args)
    if args.spec_type is not None and getattr(args, "spec", "") is None:
        args.spec = spec_method(args.spec_type)


def _settle_cache_types(args: argparse.Namespace) -> None:
    """llama.cpp's two types of keys and of values, which are one here. Raises ConfigError."""
    keys, values = args.cache_type_k, args.cache_type_v
    if keys is None and values is None:
        return
    names = [str(name or "f16").lower() for name in (keys, values)]
    if names[0] != names[1]:
        raise ConfigError(
            f"-ctk {names[0]} with -ctv {names[1]} is refused: keys and values are held in one type; give "
            "both flags the same, q8_0 or f16"
        )
    flag = "-ctk" if keys is not None else "-ctv"
    try:
        kv_quantization(names[0])
    except ConfigError:
        raise ConfigError(
            f"{flag} {names[0]} is refused: keys and values are held in f16 (the default) or q8_0"
        ) from None
    if args.kv_quantization not in (None, names[0]):
        raise ConfigError(f"give one of --kv-quantization and {flag}, not both")
    args.kv_quantization = names[0]


def _engine_dest(row: ForeignFlag) -> str:
    return _ENGINE + row.flags[-1].lstrip("-").replace("-", "_")


def _note(args: argparse.Namespace, note: str, flag: str) -> None:
    setattr(args, NOTES, {**getattr(args, NOTES, {}), note: flag})


def notes(args: argparse.Namespace) -> list[str]:
    """One line for each kind of accepted flag that a user may have expected more of."""
    return [f"{flag}: {note}" for note, flag in getattr(args, NOTES, {}).items()]


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The given engine arguments of vLLM, by their Python names, for `parse_engine`."""
    given = {name: value for name, value in vars(args).items() if name.startswith(_ENGINE)}
    return {name[len(_ENGINE) :]: _value(value) for name, value in given.items() if value is not None}


def hub_reference(flag: str, repo: str, file: str | None = None) -> str:
    """The reference of `-hf REPO[:QUANT]` with `-hff FILE`, which takes the quantization's place."""
    name = repo.removeprefix("hf:")
    if "/" not in name:
        raise ConfigError(f"{flag} must be ORG/REPO or ORG/REPO:QUANT, not {repo!r}")
    return f"hf:{name}" if file is None else f"hf:{name.split(':')[0]}:{file}"


def spec_method(types: str) -> str:
    """The method of llama.cpp's `--spec-type`. Raises ConfigError."""
    found: set[str] = set()
    for name in filter(None, (part.strip() for part in types.split(","))):
        if name in _UNBUILT_TYPES:
            raise ConfigError(f"--spec-type {name} is refused: this drafter is not built; use --spec auto")
        if name not in _SPEC_TYPES:
            raise ConfigError(f"--spec-type must be of {', '.join(_SPEC_TYPES)}, not {name!r}")
        found.add(_SPEC_TYPES[name])
    found -= {"none"} if len(found) > 1 else set()
    return found.pop() if len(found) == 1 else "auto"


def _equal(value: str, other: str) -> bool:
    """Whether two values are the same, as texts or as numbers."""
    try:
        return float(value) == float(other)
    except ValueError:
        return value.lower() == other


def _asks_for_nothing(value: object) -> bool:
    return isinstance(value, str) and value.lower() in ("0", "none", "off", "")


def _value(text: Any) -> Any:
    """A flag's text as vLLM's Python API would get the value: a JSON value, or else the text."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
