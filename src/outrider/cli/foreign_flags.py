"""Flags of llama.cpp's and vLLM's commands that are not Outrider's own: what they are here.

One table for all commands. A flag that the command has itself is left to it. docs/flags.md is written from it
(`python tests/scripts/write_foreign_flags.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

LLAMA, VLLM = "llama.cpp", "vLLM"
MODEL_COMMANDS = ("run", "chat", "serve", "bench", "verify")
TEXT, SERVE, BENCH = ("run", "chat"), ("serve",), ("bench",)
HERE = ("run", "chat", "bench", "verify")  # models run in this process

# Spellings that their own programs have given up: whose they were, and what they are called there now.
# Both are read, and a note tells the new one.
RENAMED = {
    "--speculative-model": (VLLM, "--spec-model"),
    "--num-speculative-tokens": (VLLM, "--spec-tokens"),
    "--ngram-prompt-lookup-max": (VLLM, "prompt_lookup_max of --speculative-config"),
    "--ngram-prompt-lookup-min": (VLLM, "prompt_lookup_min of --speculative-config"),
    "--speculative-model-quantization": (VLLM, "quantization of --speculative-config"),
    "--speculative-draft-tensor-parallel-size": (VLLM, "draft_tensor_parallel_size of --speculative-config"),
    **dict.fromkeys(("--draft-max", "--draft-n"), (LLAMA, "--spec-draft-n-max")),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), (LLAMA, "--spec-draft-n-min")),
    "--draft-p-min": (LLAMA, "--spec-draft-p-min"),
    "--draft-p-split": (LLAMA, "--spec-draft-p-split"),
}


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """One flag in all of its spellings. What it does is the first of these that applies:

    same_as: the command's own flag with the same meaning, if the command has it.
    stored:  its value is kept under this name, for options.py; `meaning` says for what.
    engine:  an argument of vLLM's engine, which is judged as in Python.
    accepts: values that change nothing here; None: all. Of a switch, () refuses it.
    instead: why other values are refused, or the flag itself, and what to do.

    takes: how many values: 0 for a switch, None for one, or argparse's signs.
    note:  said once on stderr when it is accepted.
    """

    flags: tuple[str, ...]
    of: str
    takes: Literal["?", "+"] | int | None = None
    same_as: str = ""
    stored: str = ""
    meaning: str = ""
    engine: bool = False
    accepts: tuple[str, ...] | None = ()
    instead: str = ""
    note: str = ""
    commands: tuple[str, ...] = MODEL_COMMANDS

    @property
    def always_refused(self) -> bool:
        return self.accepts == () and not (self.same_as or self.stored or self.engine)


Takes: TypeAlias = Literal["?", "+"] | int | None


def same(
    flags: str,
    same_as: str,
    of: str = LLAMA,
    *,
    instead: str = "",
    commands: tuple[str, ...] = MODEL_COMMANDS,
) -> ForeignFlag:
    return ForeignFlag(tuple(flags.split()), of, same_as=same_as, instead=instead, commands=commands)


def ignored(
    flags: str,
    of: str = LLAMA,
    *,
    takes: Takes = None,
    note: str = "",
    commands: tuple[str, ...] = MODEL_COMMANDS,
) -> ForeignFlag:
    return ForeignFlag(tuple(flags.split()), of, takes, accepts=None, note=note, commands=commands)


def only(
    flags: str,
    accepts: tuple[str, ...],
    instead: str,
    of: str = LLAMA,
    *,
    takes: Takes = None,
    commands: tuple[str, ...] = MODEL_COMMANDS,
) -> ForeignFlag:
    return ForeignFlag(tuple(flags.split()), of, takes, accepts=accepts, instead=instead, commands=commands)


def no(
    flags: str,
    instead: str,
    of: str = LLAMA,
    *,
    takes: Takes = None,
    commands: tuple[str, ...] = MODEL_COMMANDS,
) -> ForeignFlag:
    return only(flags, (), instead, of, takes=takes, commands=commands)


def engine(flags: str, *, takes: Takes = None) -> ForeignFlag:
    return ForeignFlag(tuple(flags.split()), VLLM, takes, engine=True)


CPU = "Outrider runs on the CPU, so GPU settings change nothing"
MEASURED = "how far to draft is measured and chosen in each step; --draft N bounds it"
ASK = "say it in each request"
ADAPTERS = "adapters are not built; merge them into the model"
TEXT_ONLY = "models here read and write text only"
FILE = "the model file says it"
ONE = "one process serves one model; run a server for each"
NO_TOOLS = "a server runs no tools; clients do, and name them in the request"
ONLY_SERVE = "only `serve` has it"
THOUGHTS = "thoughts are left in the text"
EXACT = "only exact acceptance rules are built; use --verification"
DEFAULT_SAMPLER = "this sampler is not built; leave it at its default"
STDERR = "text goes to stdout and the rest to stderr, which the shell can redirect"
