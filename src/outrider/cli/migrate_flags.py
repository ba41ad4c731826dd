"""What becomes of another program's flags: each is kept, renamed, dropped, or has no counterpart.

The parser of the Outrider command and the tables of foreign flags decide; there is no table of flags here.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.cli import foreign, options, request_defaults
from outrider.cli.config_file import FLAG as CONFIG
from outrider.cli.foreign_flags import LLAMA, ForeignFlag
from outrider.cli.migrate_words import Started
from outrider.cli.parser import Parser, Words, is_flag
from outrider.cli.serve import engine_config
from outrider.config.engine import EngineConfig
from outrider.config.speculative import NoneConfig, parse_speculative
from outrider.config.unused import UNUSED_BY_ENGINE
from outrider.errors import ConfigError

KEPT, RENAMED, DROPPED, ADDED, MISSING = "kept", "renamed", "dropped", "added", "no counterpart"
_SAME = "changes nothing here"
_SPECULATIVE = "speculative_config"  # the dest of vLLM's JSON
_BASE_KEYS = ("method", "model")  # of that JSON: what the others are judged with
_MODEL = ("model", "hf_repo", "hf_file")  # dests: without them there is no command
_DOTTED = re.compile(r"(--?[A-Za-z][\w-]*)\.([\w.]+)(?:=(.*))?", re.DOTALL)
_SECRET = ("--hf-token", "-hft", "--api-key")  # flags whose values are shown in the command only


@dataclass(slots=True)
class Fate:
    """What becomes of one flag.

    theirs:  the flag with its values, as words.
    outcome: KEPT, RENAMED, DROPPED, ADDED or MISSING.
    here:    the words in the Outrider command; empty if there are none.
    reason:  why, in a few words; empty where there is nothing to say.
    """

    theirs: list[str]
    outcome: str
    here: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass(slots=True)
class Flag:
    """A flag of the command line: `words` as argparse reads them (`--name=value`, or several words)."""

    words: list[str]

    @property
    def name(self) -> str:
        return self.words[0].partition("=")[0]

    @property
    def values(self) -> list[str]:
        _, equals, value = self.words[0].partition("=")
        return [value] if equals else self.words[1:]


class Migration:
    """The flags of a command line of another program, for one Outrider command.

    parser: the command's parser.
    Raises ConfigError if what is there cannot be read even without the flags that have no counterpart.
    """

    def __init__(self, theirs: Started, command: str, parser: Parser) -> None:
        self._theirs, self._command, self._parser = theirs, command, parser
        self.fates: list[Fate] = []
        self._flags: list[Flag] = []
        self.positional: list[str] = []
        self._split(_without_dots(theirs))
        self._part_speculative_json()
        self._set_missing_aside()
        for flag in self._flags:
            self.fates.append(self._fate(flag))

    @property
    def flags(self) -> list[str]:
        """The words of the Outrider command behind its name and the model."""
        return [word for fate in self.fates for word in fate.here]

    def has(self, *dests: str) -> bool:
        """Whether one of these settings is given."""
        return any(self._action(flag).dest in dests for flag in self._flags)

    def values(self, dest: str) -> list[str]:
        """The values that are given for a setting."""
        return [value for flag in self._flags if self._action(flag).dest == dest for value in flag.values]

    # --- Reading -----------------------------------------------------------------------------------

    def _split(self, words: list[str]) -> None:
        rest = Words(words)
        while rest.next is not None:
            word = rest.take()
            if word == "--":
                self.positional += rest.take_all()
            elif not is_flag(word):
                self.positional.append(word)
            else:
                self._take(word, rest)

    def _take(self, word: str, rest: Words) -> None:
        if self._theirs.of == LLAMA and word.partition("=")[0] == "--device":
            word = word.replace("--device", "-dev", 1)  # a list of GPUs, not what the engine here runs on
        try:
            found = self._parser.take_flag(word, rest)
        except ConfigError as error:
            values = [] if "=" in word else rest.take_values(1)
            self.fates.append(Fate([word, *values], MISSING, reason=_plain(str(error))))
            return
        if not found:  # --switch=false
            self.fates.append(Fate([word], DROPPED, reason=_SAME))
            return
        flag = Flag(found)
        action = self._action(flag)
        if isinstance(action, argparse._HelpAction):
            raise ConfigError(f"{flag.name} asks for the help; give a command that does something")
        if action.nargs is None and not flag.values:
            raise ConfigError(f"{flag.name} has no value")
        if action.nargs == 0 and flag.values:
            raise ConfigError(f"{flag.name} takes no value, but has {flag.values[0][:80]!r}")
        if self._theirs.of == LLAMA and flag.name == "--api-key":
            flag = Flag([flag.name, *",".join(flag.values).split(",")])  # llama-server parts keys by commas
        template = action.dest == "chat_template" and self._theirs.of == LLAMA
        if template and flag.name == "--chat-template" and flag.values[0].replace("-", "").isalnum():
            reason = "templates have no names here; give a file, or leave it out for the model's own"
            self.fates.append(Fate(_shown(flag), MISSING, reason=reason))
            return
        self._flags.append(flag)

    def _part_speculative_json(self) -> None:
        """Take keys that have no counterpart out of vLLM's JSON, so that the others are kept."""
        for at, flag in enumerate(self._flags):
            if self._action(flag).dest != _SPECULATIVE or flag.values[0].lstrip()[:1] != "{":
                continue
            try:
                given = json.loads(flag.values[0])
            except (ValueError, RecursionError):
                raise ConfigError(f"{flag.name} is not JSON: {flag.values[0][:80]!r}") from None
            base = {key: given[key] for key in _BASE_KEYS if key in given}
            if _speculative_error(given) is None or _speculative_error(base) is not None:
                continue
            for key in [key for key in given if key not in _BASE_KEYS]:
                if (error := _speculative_error({**base, key: given[key]})) is not None:
                    value = json.dumps({key: given.pop(key)}, ensure_ascii=False)
                    self.fates.append(Fate([flag.name, value], MISSING, reason=_plain(error)))
            self._flags[at] = Flag([f"{flag.name}={json.dumps(given, ensure_ascii=False)}"])

    # --- Judging -----------------------------------------------------------------------------------

    def _set_missing_aside(self) -> None:
        """Take out, one after the other, the flags that the command refuses."""
        while (error := self._error(self._flags)) is not None:
            for name in reversed(list(dict.fromkeys(self._setting(flag) for flag in self._flags))):
                rest = [flag for flag in self._flags if self._setting(flag) != name]
                gone = [flag for flag in self._flags if self._setting(flag) == name]
                if name not in _MODEL and self._error(rest) != error:
                    break
            else:
                raise ConfigError(error)
            for flag in gone:
                self.fates.append(Fate(_shown(flag), MISSING, reason=_plain(error)))
            self._flags = rest

    def _error(self, flags: Sequence[Flag]) -> str | None:
        """What is wrong with a command of these flags; None: nothing."""
        words = [w for f in flags if f.name != CONFIG for w in self._spelled(f.name, f.values)]
        from_file = any(flag.name == CONFIG for flag in flags)
        positional = ["--", *self.positional] if self.positional else []
        return error_of(self._parser, self._command, [*words, *positional], model_elsewhere=from_file)

    def _fate(self, flag: Flag) -> Fate:
        row = foreign.row_of(self._parser, self._command, flag.name)
        if row is None:
            return Fate(_shown(flag), KEPT, self._spelled(flag.name, flag.values))
        if row.same_as and flag.name not in self._action(flag).option_strings:
            return Fate(_shown(flag), RENAMED, self._spelled(row.same_as, flag.values))
        if row.stored:
            return self._stored(flag, row)
        return Fate(_shown(flag), DROPPED, reason=_dropped(row, flag))

    def _stored(self, flag: Flag, row: ForeignFlag) -> Fate:
        """llama.cpp's flags that `foreign.settle` reads; the others of the kind are flags here too."""
        shown, value = _shown(flag), flag.values[0] if flag.values else ""
        if row.stored == "hf_file":
            return Fate(shown, RENAMED, reason="the file is named with the repository")
        if row.stored in ("hf_repo", "hf_repo_draft"):
            own = "-m" if row.stored == "hf_repo" else "-md"
            files = self.values("hf_file") if own == "-m" else []
            reference = foreign.hub_reference(flag.name, value, files[-1] if files else None)
            return Fate(shown, RENAMED, self._spelled(own, [reference]))
        if row.stored == "spec_type":
            if "--spec" not in self._parser.actions:
                return Fate(shown, DROPPED, reason="--methods says what is measured")
            if self.has("spec"):
                return Fate(shown, DROPPED, reason="--spec comes first")
            return Fate(shown, RENAMED, ["--spec", foreign.spec_method(value)])
        return Fate(shown, KEPT, self._spelled(flag.name, flag.values))

    def _action(self, flag: Flag) -> argparse.Action:
        return self._parser.actions[flag.name]

    def _setting(self, flag: Flag) -> str:
        """What a flag sets, whatever its spelling."""
        dest = self._action(flag).dest
        return flag.name if dest == argparse.SUPPRESS else dest

    def _spelled(self, name: str, values: Sequence[str]) -> list[str]:
        """A flag with its values, so that the command's parser reads it in one way."""
        if len(values) == 1 and (self._parser.actions[name].nargs == "?" or values[0][:1] == "-"):
            return [f"{name}={values[0]}"]
        return [name, *values]


def _without_dots(theirs: Started) -> list[str]:
    """The words, with vLLM's `--NAME.KEY VALUE` put together to `--NAME JSON`."""
    found: dict[str, dict[str, Any]] = {}
    words: list[str] = []
    rest = Words(theirs.words)
    while rest.next is not None:
        word = rest.take()
        match = _DOTTED.fullmatch(word) if theirs.of != LLAMA else None
        if match is None:
            words.append(word)
            continue
        value = match[3] if match[3] is not None else rest.take() if rest.next is not None else ""
        name = "--" + match[1].lstrip("-").replace("_", "-")
        place = found.setdefault("--speculative-config" if name == "--sc" else name, {})
        *outer, last = match[2].split(".")
        for key in outer:
            inner = place.setdefault(key, {})
            place = inner if isinstance(inner, dict) else {}
        place[last] = _json_value(value)
    return [*words, *(w for name, value in found.items() for w in (name, json.dumps(value)))]


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def error_of(
    parser: Parser, command: str, words: Sequence[str], *, model_elsewhere: bool = False
) -> str | None:
    """What the Outrider command would say against its arguments, without a look at the files that they name;
    None: nothing."""
    try:
        args = parser.parse_args(list(words))
        if model_elsewhere and args.model is None and not args.words:
            args.model = "model"
        _CHECKS[command](args)
    except ConfigError as error:
        return str(error)
    return None


def _check_serve(args: argparse.Namespace) -> EngineConfig:
    request_defaults.template_variables(args)
    request_defaults.reasoning_parser(args)
    return engine_config(args)


def _check_text(args: argparse.Namespace) -> EngineConfig:
    model, words = options.target(args, most_words=2)
    options.take_prompt(args, words)
    args.n_predict = -1 if args.n_predict is None else args.n_predict
    options.sampling(args, endless=True)
    return options.engine(args, options.speculation(args), model)


def _check_bench(args: argparse.Namespace) -> EngineConfig:
    options.sampling(args)
    return options.engine(args, NoneConfig())


_CHECKS: dict[str, Callable[[argparse.Namespace], EngineConfig]] = {
    "serve": _check_serve,
    "run": _check_text,
    "chat": _check_text,
    "bench": _check_bench,
}


def _speculative_error(given: dict[str, Any]) -> str | None:
    try:
        parse_speculative(given)
    except ConfigError as error:
        return str(error)
    return None


def _dropped(row: ForeignFlag, flag: Flag) -> str:
    """Why a flag that is accepted without effect changes nothing."""
    if row.note:
        return row.note
    reason = row.instead if row.accepts else ""
    if row.engine:
        _, reason = UNUSED_BY_ENGINE.get(row.flags[-1].lstrip("-").replace("-", "_"), (None, ""))
    return reason.partition("; leave it")[0] if reason and flag.values else _SAME


def _plain(error: str) -> str:
    """An error as a reason: without the flag that stands before it, and without the way to the help."""
    return error.partition(" is refused: ")[2] or error.partition(" (see `")[0]


def _shown(flag: Flag) -> list[str]:
    return without_secrets([flag.name, *flag.values])


def without_secrets(words: list[str]) -> list[str]:
    """A flag's words without the value of a key."""
    name = words[0].partition("=")[0] if words else ""
    return [name, "…"] if name in _SECRET else words


def spelled(words: Sequence[str]) -> str:
    """Words as they can be typed into a shell."""
    return " ".join("…" if word == "…" else shlex.quote(word) for word in words)
