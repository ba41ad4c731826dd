"""Small tokenizers for the tests of this folder."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest

from outrider.models.open import open_model
from outrider.models.source import ModelSource, TokenizerData
from outrider.models.text.tokenizer import Tokenizer
from tests.scripts import record_tokenizer_reference as script
from tests.support.real import real_file

DATA = script.HERE
TEXTS: list[str] = script.corpus()
CASES = script.cases(json.loads((DATA / "vocabularies.json").read_text()))


def tokenizer_data(fields: dict[str, Any]) -> TokenizerData:
    """What the script's `write_gguf` writes, as a reader of GGUF would give it."""
    tokens = tuple(fields["tokens"])
    return TokenizerData(
        kind="bpe" if fields["model"] == "gpt2" else "spm",
        pre=fields.get("pre", ""),
        tokens=tokens,
        types=np.array(fields["types"], np.int32),
        merges=tuple(fields.get("merges", ())),
        scores=np.array(fields.get("scores", ()), np.float32),
        bos_id=tokens.index("<s>"),
        eos_ids=(tokens.index("</s>"),),
        unk_id=tokens.index("<unk>"),
        add_bos=fields.get("add_bos", False),
        add_eos=fields.get("add_eos", False),
        add_space_prefix=fields.get("add_space_prefix", True),
    )


@functools.cache
def model(file: str) -> ModelSource:
    """A real model, opened once; skips the test when the file is not there."""
    path = real_file(file)
    return open_model(path) if path else pytest.skip(f"{file} is not there")


@functools.cache
def model_tokenizer(file: str) -> Tokenizer:
    return Tokenizer.from_data(model(file).tokenizer)


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of one of the script's cases, such as "bpe-qwen2" or "spm"."""
    return Tokenizer.from_data(tokenizer_data(CASES[name]))
