"""Writes a distilled draft model: files like those that it came from, and a model card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider.models.formats.rewriting import Floats, write_gguf, write_safetensors, written_type
from outrider.models.source import ModelSource
from outrider.training.progress import Evaluation, Likeness
from outrider.training.settings import Settings, replace_file, replacing

GGUF = "draft.gguf"
# What belongs to a model's folder beside its weights, as far as it has it.
COPIED = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
)


@dataclass(frozen=True, slots=True)
class Made:
    """A distilled draft model, and what its files say of it.

    target:  its name.
    source:  the draft model as it was.
    values:  what was trained, under GGUF's names.
    first, last: evaluations before and after.
    tokens:  of the answers that it was trained on.
    """

    target: str
    source: ModelSource
    values: Mapping[str, Floats]
    settings: Settings
    first: Evaluation
    last: Evaluation
    tokens: int
    seconds: float
    license: str


def write(folder: Path, made: Made) -> None:
    """Write the model and README.md: of a GGUF file draft.gguf, of a folder model.safetensors with the
    folder's other files."""
    if made.source.format == "gguf":
        with replacing(folder / GGUF) as file:
            write_gguf(file, made.source, made.values, name_of(made))
    else:
        for name in COPIED:
            if (made.source.path / name).is_file():
                shutil.copyfile(made.source.path / name, folder / name)
        with replacing(folder / "model.safetensors") as file:
            write_safetensors(file, made.source, made.values)
    replace_file(folder / "README.md", card(made).encode())


def name_of(made: Made) -> str:
    return f"{made.source.display_name} distilled for {made.target}"


def types_of(source: ModelSource, values: Mapping[str, Floats]) -> dict[str, str]:
    """The types of the matrices that were trained, and in which they are written."""
    trained = [source.tensors[name].type for name, rows in values.items() if rows.ndim == 2]
    return {kind: written_type(kind) for kind in dict.fromkeys(trained)}


def card(made: Made) -> str:
    """The model card."""
    settings, source = made.settings, made.source
    before, after = made.first.held, made.last.held
    assert before.likeness is not None, "a draft model's"
    assert after.likeness is not None
    passes = before.acceptance.tokens_per_pass, after.acceptance.tokens_per_pass
    what = "the layers and the last norm; not the embedding and the output"
    if settings.rank:
        what = f"changes of the layers' matrices, of rank {settings.rank}"
    rows = _rows(before.likeness, after.likeness, passes, settings.steps)
    types = "; ".join(
        kind if kind == new else f"{new}, where it was {kind}"
        for kind, new in types_of(source, made.values).items()
    )
    return f"""\
---
license: {made.license}
tags: [speculative-decoding, distillation]
---
# {name_of(made)}

A draft model for speculative decoding: {source.display_name}, trained on the answers of {made.target}
and its probabilities of their tokens (DistillSpec, Zhou et al. 2024). The text is the target's own, whatever
it drafts. `outrider run -m TARGET -md FOLDER` uses it. It is not meant to be used alone.

| | |
|---|---|
| data | {settings.describe()} |
| tokens of answers | {made.tokens:,}, {settings.epochs} times each |
| the same with prompts | {made.last.tokens:,} in all |
| training | {made.seconds:,.0f} seconds, seed {settings.seed}, highest learning rate {settings.rate:g} |
| what was trained | {what} |
| types of what was trained | {types} |

On {after.likeness.places:,} tokens of held-out answers, in float32, before and after:

| | before | after |
|---|---|---|
{rows}
"""


def _rows(first: Likeness, last: Likeness, passes: tuple[float, float], drafted: int) -> str:
    """The table's rows."""
    return "\n".join(
        f"| {what} | {before} | {after} |"
        for what, before, after in (
            (
                "its likeliest token is the target's",
                f"{100 * first.agreement:.1f}%",
                f"{100 * last.agreement:.1f}%",
            ),
            (
                "accepted where tokens are drawn at temperature 1",
                f"{100 * first.mean_overlap:.1f}%",
                f"{100 * last.mean_overlap:.1f}%",
            ),
            (
                f"tokens a pass of the target, greedily, with {drafted} drafted",
                *(f"{each:.2f}" for each in passes),
            ),
        )
    )
