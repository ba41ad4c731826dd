"""The flags of `outrider serve` for fields that requests leave out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from outrider.cli.parser import integer, number
from outrider.errors import ConfigError

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
    """Variables of the chat template. Raises ConfigError for what is no JSON object."""
    return _json_object("--chat-template-kwargs", args.chat_template_kwargs)


def _json_object(flag: str, text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{flag} must be a JSON object")
    return found
