"""A configuration as the command that starts an installed vLLM. What that version cannot honour is refused
here, before anything is loaded, with the reason and the way out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config.vllm import VllmConfig
from outrider.engines.vllm.installed import Flag, Installed
from outrider.errors import ConfigError, nearest
from outrider.models.eagle3.open import head_kind

SPECULATION = "--speculative-config"
HOST = "127.0.0.1"
# Flags of the server's address and keys: those in front of it are Outrider's.
OWN_FLAGS = (
    *("--host", "--port", "--uds", "--api-key", "--root-path", "--fd"),
    *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
    *("--enable-ssl-refresh", "--allowed-origins", "--allowed-methods", "--allowed-headers"),
    *("--allow-credentials", "--headless", "--data-parallel-start-rank"),
)
_BATCH_SIZES, _OLD_BATCH_SIZE = "num_speculative_tokens_per_batch_size", "disable_by_batch_size"
MOST_SEQUENCES = 1 << 20  # the end of the last range of batch sizes
# What to do where a version has not got a key or a method.
_WAYS_OUT = {
    _BATCH_SIZES: "give one num_speculative_tokens, or use a version that has it",
    "enable_adaptive_verification": "leave it out, and watch the measured speed-up instead (--plain-replica)",
    "rejection_sample_method": "leave it out: its one rule is rejection sampling",
    "draft_sample_method": "leave it out",
    "use_heterogeneous_vocab": "choose a draft with the target's vocabulary",
    "suffix": "use 'ngram'",
    "draft_model": "use 'ngram' or an 'eagle3' head",
}


@dataclass(frozen=True, slots=True)
class Command:
    """How vLLM is started.

    words:       the command line; `str` is what a user could type.
    speculative: the keys of its `speculative_config`, {} for none.
    environment: variables besides those of this process.
    """

    words: tuple[str, ...]
    speculative: Mapping[str, Any]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        return shlex.join([*(f"{k}={v}" for k, v in self.environment.items()), *self.words])


def command(config: VllmConfig, version: Installed, port: int, passed: Sequence[str] = ()) -> Command:
    """The command for a server on a port of this machine.

    passed: flags of vLLM's own with their values, as `passed_flags` returns them.
    Raises ConfigError for what this version cannot honour.
    """
    speculative = speculative_config(config, version)
    words = [version.python, "-m", "vllm.entrypoints.cli.main", "serve", config.model]
    words += ["--host", HOST, "--port", str(port)]
    given = {word.partition("=")[0] for word in passed if word.startswith("-")}
    for name, value in config.options.items():
        flag, action = _flag_of(name, version)
        if flag in given:
            raise ConfigError(f"{flag} is given twice")
        words += _words(flag, action, value, version)
    words += passed
    if speculative:
        if SPECULATION not in version.flags:
            raise ConfigError(f"{version} has no {SPECULATION}: use 0.9 or a later one, or --spec none")
        words += [SPECULATION, json.dumps(speculative)]
    environment = {} if config.threads is None else {"OMP_NUM_THREADS": str(config.threads)}
    return Command(tuple(words), speculative, environment)


def speculative_config(config: VllmConfig, version: Installed) -> dict[str, Any]:
    """vLLM's `speculative_config` for this version. Raises ConfigError, and ModelError for a damaged head."""
    found = dict(config.speculative)
    if not found:
        return {}
    if "method" not in found and _is_eagle3(found.get("model")):
        found["method"] = "eagle3"
    method = found.get("method")
    if method is not None and version.methods and method not in version.methods:
        raise ConfigError(
            f"the speculative method {method!r} is refused: {version} does not have it"
            f"{nearest(method, version.methods)}; {_way_out(method, version)}"
        )
    _take_batch_size(found, version)
    for key, value in found.items():
        if key not in version.speculative:
            raise ConfigError(
                f"speculative_config: {key} is refused: {version} does not have it"
                f"{nearest(key, version.speculative)}; {_WAYS_OUT.get(key, 'leave it out')}"
            )
        choices = version.speculative[key]
        if choices and isinstance(value, str) and key not in ("model", "revision") and value not in choices:
            raise ConfigError(
                f"speculative_config: {key}={value!r} is refused: {version} takes "
                f"{', '.join(map(str, choices))}{nearest(value, map(str, choices))}"
            )
    draft, target = found.get("draft_tensor_parallel_size"), config.options.get("tensor_parallel_size", 1)
    if draft not in (None, 1, target):
        raise ConfigError(
            f"draft_tensor_parallel_size={draft!r} is refused: vLLM divides a draft among 1 card or the "
            f"target's {target}; give one of these"
        )
    return found


def _is_eagle3(draft: object) -> bool:
    """Whether a draft is a folder with an EAGLE-3 head. vLLM takes it for a whole draft model unless the
    folder's name has "eagle3" in it, and fails at the first pass. Raises ModelError for a damaged one."""
    return isinstance(draft, str) and Path(draft).is_dir() and head_kind(Path(draft)) == "EAGLE-3"


def passed_flags(words: Iterable[Sequence[str]], version: Installed) -> tuple[list[str], list[str]]:
    """(vLLM's own flags with their values, words that are no values of theirs), from groups of words that
    each begin with a flag. Raises ConfigError for a flag that this version does not have."""
    flags: list[str] = []
    left: list[str] = []
    for group in words:
        name, equals, value = group[0].partition("=")
        flag = _spelling(name, version)
        action = version.flags[flag]
        if action.is_switch:
            flags += _switched(flag, value, version) if equals else [flag]
            left += group[1:]
        elif equals:
            flags += [f"{flag}={value}", *group[1:]]
        else:
            most = 1 if action.takes in (None, "?") else len(group)
            values = list(group[1 : 1 + most])
            if action.takes is None and not values:
                raise ConfigError(f"{flag} needs a value")
            _check_choice(flag, action, values, version)
            flags += [flag, *values]
            left += group[1 + most :]
    return flags, left


def _spelling(name: str, version: Installed) -> str:
    """A flag as this version has it, `_` and `-` alike and with vLLM's `--flag.key` for JSON members."""
    plain, dot, key = name.partition(".")
    for candidate in (plain, "--" + plain[2:].replace("_", "-")):
        if candidate in OWN_FLAGS:
            raise ConfigError(f"{candidate} is not handed to vLLM: it is of the server in front of it")
        if candidate in version.flags:
            return candidate + dot + key if not dot else _refuse_dotted(name, candidate)
    raise ConfigError(f"unknown flag {name}: {version} does not have it{nearest(name, version.flags)}")


def _refuse_dotted(name: str, flag: str) -> str:
    raise ConfigError(f"{name} is refused: give {flag} its whole JSON value")


def _switched(flag: str, value: str, version: Installed) -> list[str]:
    """`--flag=true` and `--flag=false` of a switch."""
    if value.lower() == "true":
        return [flag]
    opposite = f"--no-{flag[2:]}"
    if value.lower() != "false":
        raise ConfigError(f"{flag} is a switch: {value!r} is neither true nor false")
    return [opposite] if opposite in version.flags else []


def _flag_of(name: str, version: Installed) -> tuple[str, Flag]:
    """The flag of an engine argument by its Python name."""
    flag = "--" + name.replace("_", "-")
    if flag in OWN_FLAGS:
        raise ConfigError(f"{name} is not handed to vLLM: it is of the server in front of it")
    if flag not in version.flags:
        names = {f.dest for f in version.flags.values()}
        raise ConfigError(f"{name} is refused: {version} does not have it{nearest(name, names)}")
    return flag, version.flags[flag]


def _words(flag: str, action: Flag, value: Any, version: Installed) -> list[str]:
    """A flag and its value as words."""
    if isinstance(value, bool) and action.is_switch:
        return _switched(flag, str(value), version)
    if action.is_switch:
        raise ConfigError(f"{flag} is a switch of {version}: {value!r} is neither True nor False")
    several = isinstance(value, list | tuple) and action.takes in ("+", "*")
    texts = [str(each) for each in value] if several else [_text(value)]
    _check_choice(flag, action, texts, version)
    if len(texts) == 1 and texts[0].startswith("-"):  # a negative number is no flag
        return [f"{flag}={texts[0]}"]
    return [flag, *texts]


def _check_choice(flag: str, action: Flag, values: Sequence[str], version: Installed) -> None:
    for value in values:
        if action.choices is not None and value not in action.choices:
            raise ConfigError(
                f"{flag} {value} is refused: {version} takes {', '.join(action.choices)}"
                f"{nearest(value, action.choices)}"
            )


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple | bool) else str(value)


def _take_batch_size(found: dict[str, Any], version: Installed) -> None:
    """`disable_by_batch_size` N of older versions, as ranges of batch sizes where the version has those: none
    from N on."""
    size = found.get(_OLD_BATCH_SIZE)
    if size is None or _OLD_BATCH_SIZE in version.speculative or _BATCH_SIZES not in version.speculative:
        return
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"speculative_config: {_OLD_BATCH_SIZE} must be at least 1, not {size!r}")
    if _BATCH_SIZES in found:
        raise ConfigError(f"speculative_config: give one of {_OLD_BATCH_SIZE} and {_BATCH_SIZES}")
    del found[_OLD_BATCH_SIZE]
    most = found.get("num_speculative_tokens")
    if most is None:
        raise ConfigError(f"speculative_config: {_OLD_BATCH_SIZE} needs num_speculative_tokens")
    below = [[1, size - 1, most]] if size > 1 else []
    found[_BATCH_SIZES] = [*below, [size, MOST_SEQUENCES, 0]]


def _way_out(method: str, version: Installed) -> str:
    plain = [name for name in version.methods if not name.endswith("_mtp")]
    return _WAYS_OUT.get(method, f"it has {', '.join(plain)}")
