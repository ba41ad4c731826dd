"""What the target is asked: prompts of a file, or those that it writes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.bench import workloads
from outrider.errors import ConfigError, PromptError

MAX_FILE_BYTES = 1 << 30
_MARK = "\u2402outrider-user-text\u2403"  # no template trims it, and nobody writes it


def read_prompts(names: Sequence[str]) -> list[str]:
    """The prompts of files, each once: JSON lines as `outrider bench --workload` reads them (also questions
    of MT-Bench or Spec-Bench), or else one prompt a line. Raises ConfigError, naming a bad line."""
    prompts = list(dict.fromkeys(prompt for name in names for prompt in _prompts_of(name)))
    if names and len(prompts) < 2:
        raise ConfigError(
            f"--data {names[0]}: has {len(prompts)} prompts; some to train on and one to test are needed"
        )
    return prompts


def _prompts_of(name: str) -> list[str]:
    path = Path(name)
    if path.is_dir():
        raise ConfigError(f"--data {name}: is a folder; give a file of prompts, or self")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OSError(None, f"it has more than {MAX_FILE_BYTES >> 30} GiB")
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"--data {name}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"--data {name}: cannot be read: it is not UTF-8 text") from None
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if lines and lines[0].startswith("{"):
        return [item.prompt for item in workloads.parse(text, f"--data {name}")]
    return lines


@dataclass(frozen=True, slots=True)
class Opening:
    """What a chat template puts before a user's text: the target continues it with a text of its own, as in
    Magpie (Xu et al. 2024)."""

    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What jobs are about: even ones the target's own prompts, odd ones those of files, where both are there.

    own: the opening of the target's own; None: there are none. prompts: of files, each once.
    """

    own: Opening | None
    prompts: tuple[str, ...] = ()

    def place(self, job: int) -> tuple[int, Opening | str]:
        """(number of the job among those of its kind, what it is about)"""
        if self.own is None:
            return job, self.prompts[job % len(self.prompts)]
        if not self.prompts:
            return job, self.own
        number, of_file = divmod(job, 2)
        return number, self.prompts[number % len(self.prompts)] if of_file else self.own


def opening(render: Callable[..., Mapping[str, Any]]) -> Opening:
    """The opening of a user's turn.

    render: `LLM.render_chat`.
    Raises ConfigError where the model has no template, or one that does not show where the text begins.
    """
    try:
        text = str(render([{"role": "user", "content": _MARK}], add_generation_prompt=False)["prompt"])
    except (ConfigError, PromptError) as error:
        raise ConfigError(
            f"--data self needs the model's chat template: {error}; else give --data FILE"
        ) from None
    before, mark, _ = text.partition(_MARK)
    if not mark or not before:
        raise ConfigError(
            "--data self: the chat template puts nothing before a user's text; give --data FILE"
        )
    return Opening(before)
