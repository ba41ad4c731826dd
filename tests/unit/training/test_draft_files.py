"""The files of a distilled draft model, which are written without PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.models.formats.dequantize import dequantize
from outrider.models.open import open_model
from outrider.training import draft_files
from outrider.training.progress import Acceptance, Evaluation, Held, Likeness
from outrider.training.settings import DRAFT_DEFAULTS, RunFolder, Settings
from tests.support.models import tiny_gguf, tiny_hf


def made(path: Path, shift: float = 0.01) -> draft_files.Made:
    source = open_model(path)
    first, last = (
        Evaluation(updates, 500 * updates, 0.5, Held(Acceptance(10, (6, 3)), Likeness(100, agreed, 60.0)))
        for updates, agreed in ((0, 51), (8, 73))
    )
    return draft_files.Made(
        target="Large",
        source=source,
        values={
            name: dequantize(tensor) + np.float32(shift)
            for name, tensor in source.tensors.items()
            if name.startswith("blk.") or name == "output_norm.weight"
        },
        settings=Settings(**{"data": "self", "tokens": 9, **DRAFT_DEFAULTS}),
        first=first,
        last=last,
        tokens=1234,
        seconds=99.0,
        license="apache-2.0",
    )


@pytest.mark.parametrize("form", ["gguf", "folder"])
def test_the_folder_of_a_run_loads_as_a_draft_model(tmp_path: Path, form: str) -> None:
    """With what else is in it, by its name alone, in the engine."""
    old = tiny_gguf(tmp_path / "old.gguf", types="Q4_0") if form == "gguf" else tiny_hf(tmp_path / "old")
    folder = tmp_path / "new"
    one = made(old)
    RunFolder(folder).begin({"name": "x"}, one.settings, frozenset())
    draft_files.write(folder, one)
    opened = open_model(folder)
    assert opened.format == one.source.format
    for name, values in one.values.items():
        far = np.linalg.norm(dequantize(opened.tensors[name]) - values)
        assert far < (0.15 if values.ndim == 2 else 1e-6) * np.linalg.norm(values), name
    assert opened.tokenizer.tokens == one.source.tokenizer.tokens
    assert opened.tokenizer.tokenizer_json == one.source.tokenizer.tokenizer_json
    target = tiny_gguf(tmp_path / "target.gguf", seed=1)
    draft = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    params = SamplingParams(temperature=0.0, max_tokens=6)
    with LLM(str(target), speculative_config=draft, threads=1) as llm:
        (output,) = llm.generate(["the fox"], params)
    assert output.outputs[0].metrics.drafts.num_drafts > 0


def test_the_card_says_what_was_done(tmp_path: Path) -> None:
    card = draft_files.card(
        made(tiny_gguf(tmp_path / "old.gguf", types={"attn_q": "Q4_0", "ffn_up": "Q8_0"}))
    )
    for words in (
        "license: apache-2.0", "# Tiny distilled for Large", "1,234, 3 times each", "4,000 in all",
        "99 seconds", "of rank 16",
        "| 51.0% | 73.0% |", "| 1.90 | 1.90 |", "On 100 tokens", "prompts that the target wrote itself",
    ):  # fmt: skip
        assert words in card, words


def test_types_that_change_are_told(tmp_path: Path) -> None:
    one = made(tiny_gguf(tmp_path / "old.gguf", types={"attn_q": "Q8_0", "ffn_up": "F16"}))
    assert draft_files.types_of(one.source, one.values) == {"F32": "F32", "Q8_0": "Q8_0", "F16": "F16"}
    tensors = dict(one.source.tensors)
    tensors["blk.0.attn_q.weight"] = replace(tensors["blk.0.attn_q.weight"], type="Q6_K")
    changed = replace(one, source=replace(one.source, tensors=tensors))
    assert "Q8_0, where it was Q6_K" in draft_files.card(changed)
