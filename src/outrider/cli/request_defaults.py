"""The flags of `outrider serve` for fields that requests leave out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from outrider.cli.parser import integer, number
from outrider.errors import ConfigError
from outrider.models.text.reasoning import LEFT, PARSERS

REASONING_PARSERS = ("auto", *LEFT, *sorted(PARSERS))
# Parameters of SamplingParams: their flags, type, and help.
SAMPLING_FLAGS: dict[str, tuple[tuple[str, ...], Callable[[str], float], str, str]] = {
    "temperature": (("--temp", "--temperature"), number, "T", "0 takes the likeliest token"),
    "top_k": (("--top-k",), integer, "K", "keep so many likeliest tokens; 0: all"),
    "top_p": (("--top-p",), number, "P", "keep the likeliest tokens of this probability together"),
    "min_p": (("--min-p",), number, "P", "drop tokens less likely than this share of the likeliest"),
    "repetition_penalty": (
        ("--repeat-penalty", "--repetition-penalty"), number, "X", "on tokens of prompt and output; 1: none"),
    "presence_penalty": (("--presence-penalty",), number, "X", "on tokens of the output"),
    "frequency_penalty": (("--frequency-penalty",), number, "X", "the same, by their number"),
    "max_tokens": (("-n", "--predict", "--n-predict"), integer, "N", "most tokens; -1: to the context's end"),
}  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to the command `serve`."""
    add = parser.add_argument_group(
        "sampling of requests that do not say how", "default: what the model recommends, else vLLM's defaults"
    ).add_argument
    add("--generation-config", default="auto", metavar="FILE",
        help="auto: the model's values (default); vllm: none; or a generation_config.json")  # fmt: skip
    add("--override-generation-config", metavar="JSON",
        help='single values, such as \'{"temperature": 0.7}\'; the flags below do the same')  # fmt: skip
    for name, (flags, kind, metavar, text) in SAMPLING_FLAGS.items():
        add(*flags, dest=f"default_{name}", type=kind, metavar=metavar, help=text)
    add = parser.add_argument_group("other fields that requests leave out").add_argument
    add("--chat-template-kwargs", "--default-chat-template-kwargs", metavar="JSON",
        help='variables of the chat template, such as \'{"enable_thinking": false}\'')  # fmt: skip
    add("--enable-force-include-usage", action="store_true",
        help="every chunk of a stream has the usage, whatever its request says")  # fmt: skip
    add("--return-tokens-as-token-ids", action="store_true",
        help="`token_id:N` for texts in log-probabilities")  # fmt: skip


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say of sampling, as `override_generation_config`. Raises ConfigError."""
    found = _json_object("--override-generation-config", args.override_generation_config)
    flags = {name: getattr(args, f"default_{name}") for name in SAMPLING_FLAGS}
    found.update({name: value for name, value in flags.items() if value is not None})
    if flags["max_tokens"] == -1:
        found["max_tokens"] = None
    return found


def template_variables(args: argparse.Namespace) -> dict[str, Any]:
    """Variables of the chat template: of --chat-template-kwargs, and what llama.cpp's flags say of thoughts.
    Raises ConfigError for what is no JSON object, and for values that cannot be followed."""
    found: dict[str, Any] = {}
    switch = _one_of("--reasoning", args.reasoning, ("auto", "on", "off"))
    if switch in ("on", "off"):
        found["enable_thinking"] = switch == "on"
    if args.reasoning_budget is not None and args.reasoning_budget != "-1":
        if args.reasoning_budget != "0":
            raise ConfigError(
                f"--reasoning-budget {args.reasoning_budget} is refused: thoughts are not cut; "
                "give 0 to turn them off, or bound the whole answer with -n"
            )
        if switch == "on":
            raise ConfigError("--reasoning on and --reasoning-budget 0 contradict each other")
        found["enable_thinking"] = False
    if args.reasoning_effort not in (None, "default"):
        found["reasoning_effort"] = args.reasoning_effort
    return {**found, **_json_object("--chat-template-kwargs", args.chat_template_kwargs)}


def reasoning_parser(args: argparse.Namespace) -> str | None:
    """The name of --reasoning-parser, or what llama.cpp's --reasoning-format says. Raises ConfigError."""
    form = args.reasoning_format
    if form == "deepseek-legacy":
        raise ConfigError("--reasoning-format deepseek-legacy is refused: thoughts are sent once; give auto")
    _one_of("--reasoning-format", form, ("none", "auto", "deepseek"))
    if args.reasoning_parser is not None or form is None:
        return str(args.reasoning_parser) if args.reasoning_parser is not None else None
    return "none" if form == "none" else "auto"


def _one_of(flag: str, value: str | None, values: tuple[str, ...]) -> str | None:
    if value is not None and value not in values:
        raise ConfigError(f"{flag} must be one of {', '.join(values)}, not {value!r}")
    return value


def _json_object(flag: str, text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{flag} must be a JSON object")
    return found
