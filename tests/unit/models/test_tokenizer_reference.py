"""Token for token what llama.cpp gives, as tests/scripts/record_tokenizer_reference.py recorded it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.models.text.tokenizer import Tokenizer
from tests.scripts.record_pre_tokenizers import PATH as PRE_TOKENIZERS_PATH
from tests.scripts.record_pre_tokenizers import PRES
from tests.unit.models.tokenizers_for_tests import CASES, DATA, TEXTS, model_tokenizer, tokenizer_data

PRE_TOKENIZED: dict[str, list[list[int]]] = json.loads(PRE_TOKENIZERS_PATH.read_text())
REFERENCE: dict[str, Any] = json.loads((DATA / "reference.json").read_text())


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


@pytest.mark.parametrize("pre", PRES)
def test_pre_tokenizers(pre: str) -> None:
    tokenizer = Tokenizer.from_data(tokenizer_data({**CASES["bpe-gpt-2"], "pre": pre}))
    for text, ids in zip(TEXTS, PRE_TOKENIZED[pre], strict=True):
        assert tokenizer.encode(text, add_special=False) == ids, text


def test_recorded_pre_tokenizers_differ() -> None:
    assert len({json.dumps(found) for found in PRE_TOKENIZED.values()}) == len(PRES)


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
def test_the_reference_detects_a_wrong_tokenizer(name: str, changes: dict[str, Any]) -> None:
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
    assert differences(model_tokenizer(file), json.loads((DATA / recorded).read_text())) == []
