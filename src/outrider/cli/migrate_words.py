"""Reads another program's command line as a shell does, and tells which program it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from outrider.cli.foreign_flags import LLAMA, VLLM
from outrider.errors import ConfigError

MAX_TEXT = 1 << 16  # characters of a command line

_PART = re.compile(
    r"""(?P<blank>\s+) | (?P<joined>\\\r?\n) | '(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.) | (?P<plain>[^\s'"\\]+)""",
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE = re.compile(r'\\(\r?\n|[$`"\\])')  # elsewhere in double quotes a backslash is one
_OPERATOR = re.compile(r"[|&;<>()]+|`")
_VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+|\()")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python[\d.]*")

_PREFIXES = (
    ("env",),
    ("nohup",),
    ("time",),
    ("exec",),
    ("sudo",),
    ("uv", "run"),
    ("uvx",),
    ("poetry", "run"),
)
# The programs that are read: whose they are, and the command here.
_PROGRAMS: dict[tuple[str, ...], tuple[str, str]] = {
    ("vllm", "serve"): (VLLM, "serve"),
    ("vllm", "bench", "latency"): (VLLM, "bench"),
    ("vllm", "bench", "throughput"): (VLLM, "bench"),
    ("vllm.entrypoints.openai.api_server",): (VLLM, "serve"),
    ("llama-server",): (LLAMA, "serve"),
    ("llama-cli",): (LLAMA, "run"),
    ("llama-completion",): (LLAMA, "run"),
    ("llama-simple",): (LLAMA, "run"),
    ("llama-speculative",): (LLAMA, "run"),
    ("llama-speculative-simple",): (LLAMA, "run"),
    ("llama-lookup",): (LLAMA, "run"),
    ("llama-bench",): (LLAMA, "bench"),
}
_OLD_NAMES = {"main": "llama-cli", "server": "llama-server", "speculative": "llama-speculative"}
_NOT_READ = {
    "sglang": "SGLang's",
    "docker": "docker's",
    "podman": "podman's",
    "kubectl": "kubectl's",
    "ollama": "Ollama's",
    "trtllm-serve": "TensorRT-LLM's",
    "text-generation-launcher": "Text Generation Inference's",
    "mlx_lm": "mlx-lm's",
    "llama_cpp": "llama-cpp-python's",
    "lms": "LM Studio's",
}
READ = "vllm serve, python -m vllm.entrypoints.openai.api_server, llama-server, llama-cli, llama-speculative"


class Word(NamedTuple):
    """A word of a command line; `variable` is a shell variable in it, which only its shell can replace."""

    text: str
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """What a command line starts.

    program:     its name, as `vllm serve` or `llama-server`.
    of:          whose it is, LLAMA or VLLM.
    command:     the Outrider command in its place.
    environment: the variables that are set in front of it.
    words:       its flags and positional arguments.
    """

    program: str
    of: str
    command: str
    environment: tuple[tuple[str, Word], ...]
    words: tuple[str, ...]


def shell_words(text: str) -> list[Word]:
    """The words of one command in POSIX shell's quoting; a newline parts words as a blank does. Raises
    ConfigError for what is no single command."""
    if len(text) > MAX_TEXT:
        raise ConfigError(f"the command is longer than {MAX_TEXT} characters")
    text = re.sub(r"^\s*\$\s+", "", text)  # the prompt of a document
    found: list[Word] = []
    parts: list[Word] = []  # of the word that is being read
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            what = {"'": "a quote ' is", '"': 'a quote " is'}.get(text[at], "the last backslash is")
            raise ConfigError(f"the command cannot be read: {what} not closed")
        at = match.end()
        if match.lastgroup == "blank":
            found += _joined(parts)
            parts = []
        elif match.lastgroup == "plain" and not parts and match["plain"].startswith("#"):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif match.lastgroup != "joined":
            parts.append(_part(match))
    return [*found, *_joined(parts)]


def started(words: list[Word]) -> Started:
    """The program that the words start, and its arguments. Raises ConfigError for one that is not read."""
    rest, environment = list(words), []
    while rest:
        if (match := _ASSIGNMENT.fullmatch(rest[0].text)) is not None:
            environment.append((match[1], Word(match[2], rest[0].variable)))
            del rest[0]
        elif taken := next((len(p) for p in _PREFIXES if _begins(rest, p)), 0):
            del rest[:taken]
        else:
            break
    for word in rest:
        if word.variable:
            raise ConfigError(f"a shell variable cannot be read: write its value in place of {word.variable}")
    texts = [word.text for word in rest]
    if not texts:
        raise ConfigError(f"give a command, such as `outrider migrate 'vllm serve MODEL'` ({READ} are read)")
    name, texts = _program(texts)
    for program, (of, command) in _PROGRAMS.items():
        if (name, *texts[: len(program) - 1]) == program:
            arguments = tuple(texts[len(program) - 1 :])
            return Started(" ".join(program), of, command, tuple(environment), arguments)
    raise _refusal(name, texts)


def _program(texts: list[str]) -> tuple[str, list[str]]:
    """(the program or the module that Python runs, its arguments)."""
    path = texts[0].replace("\\", "/")
    name, rest = path.rpartition("/")[2].removesuffix(".exe"), texts[1:]
    if "/" in path:
        name = _OLD_NAMES.get(name, name)
    if _PYTHON.fullmatch(name):
        while rest and re.fullmatch("-[BEIOPSsu]+", rest[0]):
            rest = rest[1:]
        if rest[:1] == ["-m"] and len(rest) > 1:
            return rest[1], rest[2:]
    return name, rest


def _refusal(name: str, rest: list[str]) -> ConfigError:
    owner = _NOT_READ.get(name.partition(".")[0])
    if owner is not None:
        return ConfigError(f"{owner} command line is not read; those that are: {READ}")
    if name == "outrider" or name.startswith("outrider."):
        return ConfigError("this is a command of Outrider already")
    shown = f"vllm {rest[0]}" if name == "vllm" and rest else name
    return ConfigError(f"{shown[:80]!r} is no program that is read; those that are: {READ}")


def _begins(words: list[Word], prefix: tuple[str, ...]) -> bool:
    return tuple(word.text for word in words[: len(prefix)]) == prefix


def _part(match: re.Match[str]) -> Word:
    """A quoted or plain part of a word."""
    if match.lastgroup in ("single", "escaped"):
        return Word(match[match.lastgroup])
    text = str(match[str(match.lastgroup)])
    if match.lastgroup == "plain" and (operator := _OPERATOR.search(text)):
        raise ConfigError(f"give one command alone, without {operator[0]!r} or what stands around it")
    variable = _VARIABLE.search(re.sub(r"\\.", "", text, flags=re.DOTALL))
    if match.lastgroup == "double":
        text = _IN_DOUBLE.sub(lambda m: "" if m[1].endswith("\n") else m[1], text)
    return Word(text, variable[0] if variable else "")


def _joined(parts: list[Word]) -> Iterator[Word]:
    if parts:
        variables = [part.variable for part in parts if part.variable]
        yield Word("".join(part.text for part in parts), variables[0] if variables else "")
