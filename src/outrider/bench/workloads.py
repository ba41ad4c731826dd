"""Workloads: named prompts that `outrider bench` measures on, built in or from a JSON-lines file.

Each line of such a file is an object `{"id": …, "workload": …, "prompt": …}`, all text, or a line of MT-Bench
(Zheng et al. 2023) or Spec-Bench (Xia et al. 2024): `{"question_id": …, "category": …, "turns": [text, …]}`,
of which the first turn is the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, nearest

# Questions, word problems, programming, edits that copy most of the prompt, summaries, extraction to JSON.
BUILT_IN = ("chat", "reasoning", "code", "edit", "summary", "extract")
# Mostly short answers: translation, factual questions, labels, function calls, questions about a passage of
# 1,100 to 2,400 tokens; and open writing.
SHORT = ("translation", "facts", "labels", "tools", "passages", "writing")
EVERY = (*BUILT_IN, *SHORT)
SEED_STRIDE = 1000  # between the seeds of two texts of one prompt


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a workload."""

    id: str
    workload: str
    prompt: str


def load(name_or_file: str) -> list[Item]:
    """The items of a built-in workload or of a JSON-lines file.

    Raises ConfigError for an unknown name, and for a file that cannot be read, naming the bad line.
    """
    if name_or_file in EVERY:
        text = (
            resources.files("outrider.bench").joinpath(f"workloads/{name_or_file}.jsonl").read_text("utf-8")
        )
        return parse(text, name_or_file)
    path = Path(name_or_file)
    if not path.is_file():
        hint = nearest(name_or_file, EVERY)
        raise ConfigError(f"workload {name_or_file!r} is neither a file nor one of {', '.join(EVERY)}{hint}")
    try:
        return parse(path.read_text("utf-8"), name_or_file)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"workload {name_or_file!r} cannot be read: {e}") from None


def parse(text: str, where: str) -> list[Item]:
    """The items of JSON-lines text; `where` names it in errors. Blank lines are skipped."""
    items: list[Item] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{where}, line {number}: not JSON") from None
        if not isinstance(value, dict):
            raise ConfigError(f"{where}, line {number}: not an object")
        if "turns" in value:
            value = _question(value, f"{where}, line {number}")
        for key in ("id", "workload", "prompt"):
            if not isinstance(value.get(key), str) or not value[key]:
                raise ConfigError(f"{where}, line {number}: {key!r} must be text and not empty")
            if any("\ud800" <= char <= "\udfff" for char in value[key]):
                raise ConfigError(f"{where}, line {number}: {key!r} has half of a surrogate pair")
        if any(value["id"] == item.id for item in items):
            raise ConfigError(f"{where}, line {number}: the id {value['id']!r} occurs twice")
        items.append(Item(value["id"], value["workload"], value["prompt"]))
    if not items:
        raise ConfigError(f"{where}: no prompts in it")
    return items


def _question(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A line of MT-Bench or Spec-Bench in our form."""
    turns, question = value["turns"], value.get("question_id")
    if not isinstance(turns, list) or not turns:
        raise ConfigError(f"{where}: 'turns' must be a list of texts and not empty")
    if isinstance(question, bool) or not isinstance(question, int | str):
        raise ConfigError(f"{where}: 'question_id' must be a number or text")
    return {"id": str(question), "workload": value.get("category"), "prompt": turns[0]}


def texts_per_prompt(seeds: int, temperature: float) -> int:
    """How many texts of each prompt are measured: greedy decoding gives the same text with every seed, so
    one is enough at temperature 0."""
    return seeds if temperature > 0.0 else 1


def texts_of(items: Sequence[Item], seed: int, per_prompt: int) -> dict[str, tuple[Item, int]]:
    """Prompt and seed of each text, by the text's name.

    A prompt's first text has the prompt's id as its name; further ones are named `id #2`, `id #3`, …, and
    their seeds lie SEED_STRIDE apart. Raises ConfigError when two texts would have the same name.
    """
    found: dict[str, tuple[Item, int]] = {}
    for k in range(per_prompt):
        for n, item in enumerate(items):
            name = f"{item.id} #{k + 1}" if k else item.id
            if name in found:
                raise ConfigError(f"a prompt's id is {name!r}, as another's text would be named: change it")
            found[name] = item, seed + n + SEED_STRIDE * k
    return found
