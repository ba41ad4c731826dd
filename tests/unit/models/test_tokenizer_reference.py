"""Token for token what llama.cpp gives, as tests/scripts/record_tokenizer_reference.py recorded it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.models.open import open_model
from outrider.models.source import TokenizerData
from outrider.models.tokenizer import Tokenizer
from tests.scripts import record_tokenizer_reference as script

DATA = Path(script.HERE)
TEXTS: list[str] = json.loads((DATA / "corpus.json").read_text())
REFERENCE: dict[str, Any] = json.loads((DATA / "reference.json").read_text())
CASES = script.cases(json.loads((DATA / "vocabularies.json").read_text()))
MODELS = Path(os.environ.get("OUTRIDER_DEV_MODELS") or Path.home() / ".cache/outrider-dev/models")


def tokenizer_data(fields: dict[str, Any]) -> TokenizerData:
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


def differences(tokenizer: Tokenizer, recorded: dict[str, Any]) -> list[str]:
    """Every text whose ids are not the recorded ones, and every token whose bytes are not."""
    found = []
    for n, text in enumerate(TEXTS):
        parsed = recorded["parsed"][n]
        for parse, wanted in ((True, parsed), (False, recorded["plain"].get(str(n), parsed))):
            got = tokenizer.encode(text, parse_special=parse)
            if got != wanted:
                found.append(f"text {n} {text[:40]!r} parse_special={parse}: {got} is not {wanted}")
    for token, data in recorded["bytes"].items():
        if tokenizer.piece_bytes(int(token), skip_special=False).hex() != data:
            found.append(f"bytes of token {token}")
    used = {i for ids in (*recorded["parsed"], *recorded["plain"].values()) for i in ids}
    if {i for i in used if not tokenizer.piece_bytes(i)} != set(recorded["hidden"]):
        found.append("which tokens are hidden")
    return found


@pytest.mark.parametrize("name", CASES)
def test_made_vocabulary(name: str) -> None:
    tokenizer = Tokenizer.from_data(tokenizer_data(CASES[name]))
    assert differences(tokenizer, REFERENCE[name]) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bpe-llama-bpe", {"pre": "dbrx"}),  # no ignore_merges
        ("bpe-llama-bpe", {"pre": "qwen2"}),
        ("bpe-gpt-2", {"pre": "smollm"}),
        ("bpe-default", {"pre": "gpt-2"}),
        ("bpe-qwen2", {"types": [1] * len(CASES["bpe-qwen2"]["types"])}),
        ("bpe-adds", {"add_bos": False}),
        ("spm", {"add_space_prefix": False}),
        ("spm", {"scores": [s - i * 1e-4 for i, s in enumerate(CASES["spm"]["scores"])]}),  # no ties
    ],
)
def test_the_reference_tells_a_wrong_tokenizer(name: str, changes: dict[str, Any]) -> None:
    """The comparison above must fail for each small mistake that it is there to catch."""
    tokenizer = Tokenizer.from_data(tokenizer_data({**CASES[name], **changes}))
    assert differences(tokenizer, REFERENCE[name])


@pytest.mark.model
def test_smollm2() -> None:
    check_model("smollm2-135m-instruct-q4_1.gguf", "smollm2.json")


@pytest.mark.pair
@pytest.mark.parametrize("size", ["0.5b", "1.5b"])
def test_qwen(size: str) -> None:
    check_model(f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf", "qwen2.5-coder.json")


def check_model(file: str, recorded: str) -> None:
    path = MODELS / file
    if not path.exists():
        pytest.skip(f"{file} is not there")
    tokenizer = Tokenizer.from_data(open_model(path).tokenizer)
    assert differences(tokenizer, json.loads((DATA / recorded).read_text())) == []
