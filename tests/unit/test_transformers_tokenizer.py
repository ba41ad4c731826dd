"""`get_tokenizer()`: the calls of transformers' tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import ConfigError, PromptError
from outrider.models.open import open_model
from outrider.models.text.conversation import Conversations
from outrider.models.text.tokenizer import Tokenizer
from outrider.transformers_tokenizer import TransformersTokenizer
from tests.support.models import SPECIAL, VOCAB_SIZE

TEXT = "the quick brown fox"
HI = [{"role": "user", "content": "the fox?"}]
RENDERED = "<|im_start|>user\nthe fox?<|im_end|>\n"


@pytest.fixture(scope="module")
def plain(target_file: Path) -> Tokenizer:
    return Tokenizer.from_data(open_model(target_file).tokenizer)


@pytest.fixture(scope="module")
def tokenizer(target_file: Path, plain: Tokenizer) -> Iterator[TransformersTokenizer]:
    conversations = Conversations(open_model(target_file).chat_template, plain)
    yield TransformersTokenizer(plain, conversations, 256, "tiny")
    conversations.close()


def test_text_to_ids_and_back(tokenizer: TransformersTokenizer, plain: Tokenizer) -> None:
    ids = plain.encode(TEXT)
    assert tokenizer.encode(TEXT) == ids
    assert tokenizer.encode(TEXT, add_special_tokens=False) == plain.encode(TEXT, add_special=False)
    assert tokenizer.encode(TEXT, add_special=False) == plain.encode(TEXT, add_special=False)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(np.array(ids)) == TEXT
    assert tokenizer.decode(ids[0]) == plain.decode(ids[:1])
    assert tokenizer.batch_decode([ids, ids[:1]]) == [TEXT, plain.decode(ids[:1])]
    assert tokenizer.encode(TEXT, truncation=True, max_length=2) == ids[:2]
    marked = [1, *ids]
    assert tokenizer.decode(marked, skip_special_tokens=True) == TEXT
    assert tokenizer.decode(marked, skip_special_tokens=False) == "<|im_start|>" + TEXT
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [2]
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False, parse_special=False) != [2]


def test_a_call(tokenizer: TransformersTokenizer, plain: Tokenizer) -> None:
    ids = plain.encode(TEXT)
    found = tokenizer(TEXT)
    assert found["input_ids"] == found.input_ids == ids
    assert found["attention_mask"] == [1] * len(ids)
    both = tokenizer([TEXT, "a"], truncation=True, max_length=3)
    assert both.input_ids == [ids[:3], plain.encode("a")]
    array = tokenizer(TEXT, return_tensors="np").input_ids
    assert array.tolist() == [ids]
    with pytest.raises(AttributeError, match="input_ids and attention_mask"):
        found.offsets  # noqa: B018


def test_the_vocabulary(tokenizer: TransformersTokenizer) -> None:
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab()) == VOCAB_SIZE
    assert tokenizer.all_special_ids == [0, 1, 2]
    assert tokenizer.all_special_tokens == list(SPECIAL)
    assert tokenizer.eos_token_id in tokenizer.eos_ids
    assert tokenizer.eos_token == tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id)
    assert tokenizer.bos_token_id == tokenizer.bos_id
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "no such piece"]) == [2, tokenizer.unk_token_id]
    pieces = tokenizer.tokenize(TEXT)
    assert tokenizer.convert_tokens_to_ids(pieces) == tokenizer.encode(TEXT, add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens([2, 10**6]) == ["<|im_end|>", ""]
    assert (tokenizer.model_max_length, tokenizer.name_or_path) == (256, "tiny")
    assert "320" in repr(tokenizer)


def test_chats(tokenizer: TransformersTokenizer) -> None:
    assert tokenizer.apply_chat_template(HI, tokenize=False) == RENDERED
    text = RENDERED + "<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(HI, tokenize=False, add_generation_prompt=True) == text
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.apply_chat_template(HI, add_generation_prompt=True) == ids
    assert tokenizer.apply_chat_template([HI, HI], add_generation_prompt=True) == [ids, ids]
    assert tokenizer.apply_chat_template(HI, return_dict=True).attention_mask[0] == 1
    array = tokenizer.apply_chat_template(HI, add_generation_prompt=True, return_tensors="np")
    assert array.tolist() == [ids]
    assert "im_start" in (tokenizer.chat_template or "")
    other = "{{ messages[0].content }}{{ mood }}{{ tools[0].function.name }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = tokenizer.apply_chat_template(HI, tools, chat_template=other, tokenize=False, mood="calm")
    assert found == "the fox?calmf"
    last = [*HI, {"role": "assistant", "content": "It is\n"}]
    text = tokenizer.apply_chat_template(last, tokenize=False, continue_final_message=True)
    assert text.endswith("It is\n")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: t(7), ConfigError, "text or a list of texts, not int"),
        (lambda t: t("a", padding=True), ConfigError, "padding=True is refused"),
        (lambda t: t("a", return_tensors="pt"), ConfigError, "return_tensors='pt' is refused"),
        (lambda t: t(["a", TEXT], return_tensors="np"), ConfigError, "same number of tokens"),
        (lambda t: t("a", padd=True), ConfigError, "did you mean 'padding'"),
        (lambda t: t("\ud800"), PromptError, "surrogate"),
        (lambda t: t.apply_chat_template([]), PromptError, "empty"),
        (lambda t: t.apply_chat_template(HI, continue_final_message=True, add_generation_prompt=True),
         ConfigError, "contradict"),
        (lambda t: t.apply_chat_template(HI, messages=1), ConfigError, "'messages', which is not its to set"),
    ],
)  # fmt: skip
def test_what_is_refused(tokenizer: TransformersTokenizer, call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(tokenizer)


def test_neutral_arguments(tokenizer: TransformersTokenizer) -> None:
    found = tokenizer("a", padding=False, return_token_type_ids=False, text_pair=None)
    assert found == tokenizer("a")
